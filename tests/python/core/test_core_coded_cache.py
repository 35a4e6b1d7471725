"""quire.KVCache with formats: codes are what quantize makes, attend reads them, every other call moves them with their scales."""

import numpy as np
import pytest
import quire

FORMATS = ["int8", "u8", "int4", "fp8_e4m3", "fp8_e5m2", "q8_0", "q4_0", "int8_channel"]
HEADS, DIM = 2, 64


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def make(k_format, v_format=None, **changes):
    cache = quire.KVCache(
        **{
            "layers": 1,
            "kv_heads": HEADS,
            "head_dim": DIM,
            "page_size": 4,
            "n_pages": 64,
            "k_format": k_format,
            "v_format": k_format if v_format is None else v_format,
            **changes,
        }
    )
    for layer in range(cache.layers):
        given = {
            f"{name}_scales": np.full((HEADS, DIM), 0.03, np.float32)
            for name, one in (("k", cache.k_format), ("v", cache.v_format))
            if one is not None and one.name == "int8_channel"
        }
        if given:
            cache.set_scales(layer, **given)
    return cache


def dense(cache, sequence, k=True, layer=0):
    """[1, heads, tokens, dim] of a sequence: the numbers, from pages and scales."""
    pages = cache.pages(sequence)
    codes = (cache.k_pages if k else cache.v_pages)(layer)
    scales = (cache.k_scales if k else cache.v_scales)(layer)
    form = cache.k_format if k else cache.v_format

    def tokens(x):
        x = np.moveaxis(x[pages], 1, 0)  # heads, pages, slots, ..
        return x.reshape(x.shape[0], -1, *x.shape[3:])[None, :, : cache.length(sequence)]

    if scales is None or form.name in ("int8_channel", "fp8_e4m3", "fp8_e5m2"):
        found = quire.QuantizedTensor(tokens(codes), scales, form)
    else:
        found = quire.QuantizedTensor(tokens(codes), tokens(scales), form)
    return quire.dequantize(found)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hadamard", [False, True])
def test_attend_reads_what_write_coded(form, hadamard):
    cache = make(quire.KVFormat(form, hadamard))
    k, v = numbers(1, 11, HEADS, DIM), numbers(1, 11, HEADS, DIM, seed=1)
    a = cache.create()
    cache.append(a, 7)
    cache.write(0, a, 7, k[0, :7], v[0, :7])
    cache.append(a, 4)
    cache.write(0, a, 4, k[0, 7:], v[0, 7:])
    scales = np.full((HEADS, DIM), 0.03, np.float32) if form == "int8_channel" else np.ones(HEADS, np.float32)
    given = {"scales": scales} if form == "int8_channel" or "fp8" in form else {}
    coded = [quire.quantize(np.moveaxis(x, 2, 1), form, hadamard, **given) for x in (k, v)]
    for is_k, one in ((True, coded[0]), (False, coded[1])):
        np.testing.assert_array_equal(dense(cache, a, is_k), quire.dequantize(one))
    q = numbers(4, 4, DIM, seed=2)
    whole = quire.attend(cache, 0, a, q)
    mask = quire.create_block_mask("q_idx + 7 >= kv_idx", None, None, 4, 11)
    expected = quire.flex_attention(np.moveaxis(q, 0, 1)[None], *coded, block_mask=mask, enable_gqa=True)
    np.testing.assert_array_equal(whole, np.moveaxis(expected[0], 0, 1))


@pytest.mark.parametrize("form", FORMATS)
def test_forks_keep_files_and_prefixes(form):
    cache = make(form, "int8")
    ids = list(range(10))
    k, v = numbers(1, 10, HEADS, DIM), numbers(1, 10, HEADS, DIM, seed=1)
    a = cache.create()
    cache.append(a, ids=ids, k=k, v=v)
    before = dense(cache, a)
    b = cache.fork(a, 6)
    cache.append(b, ids=[99], k=k[:, :1] * 2, v=v[:, :1])
    np.testing.assert_array_equal(dense(cache, a), before)
    np.testing.assert_array_equal(dense(cache, b)[:, :, :6], before[:, :, :6])
    cache.keep(a, 3, [5, 8])
    np.testing.assert_array_equal(dense(cache, a), before[:, :, [0, 1, 2, 5, 8]])
    saved = cache.save(b)
    other = make(form, "int8", page_size=3)
    c = other.load(saved)
    np.testing.assert_array_equal(dense(other, c), dense(cache, b))
    np.testing.assert_array_equal(dense(other, c, k=False), dense(cache, b, k=False))
    q = numbers(1, 2, DIM, seed=3)
    np.testing.assert_array_equal(quire.attend(other, 0, c, q), quire.attend(cache, 0, b, q))
    found, there = other.create_with_prefix([*ids[:6], 7])
    assert there == 6
    np.testing.assert_array_equal(dense(other, found), before[:, :, :6])
    another = "u8" if form == "int8" else "int8"
    with pytest.raises(ValueError, match=rf"^\[KVCache::load\] k_format must be the cache's, {another}; got {form}$"):
        make(another, "int8").load(saved)


def test_other_shared_scales_are_refused():
    cache, other = make("fp8_e4m3"), make("fp8_e4m3")
    cache.set_scales(0, v_scales=np.array([0.5, 2], np.float32))
    a = cache.create()
    cache.append(a, 1, k=numbers(1, 1, HEADS, DIM), v=numbers(1, 1, HEADS, DIM))
    with pytest.raises(ValueError, match=r"^\[KVCache::load\] v_scales of layer 0 must be the cache's; got others$"):
        other.load(cache.save(a))
    with pytest.raises(
        ValueError, match="1 pages of the group are used or cached: scales are set before the first token"
    ):
        cache.set_scales(0, k_scales=np.ones(1, np.float32))


def test_bytes_of_a_token():
    def bytes_of(**formats):
        return quire.KVCache(layers=3, kv_heads=8, head_dim=128, n_pages=2, **formats).stats()

    bf16 = quire.KVCache(layers=3, kv_heads=8, head_dim=128, n_pages=2, dtype="bfloat16").stats().token_bytes
    assert bf16 == 3 * 8 * 2 * 256
    shares = {form: bytes_of(k_format=form, v_format=form).token_bytes / bf16 for form in FORMATS}
    assert shares["int8"] <= 0.52 and shares["int4"] <= 0.32
    assert shares["q8_0"] == 136 / 256 and shares["q4_0"] == 72 / 256 and shares["fp8_e4m3"] == 0.5
    stats = bytes_of(k_format="int8")
    assert stats.bytes == 2 * 16 * stats.token_bytes and stats.used_bytes == 0


def test_groups_have_their_own_formats():
    groups = [
        quire.KVLayerGroup(layers=[0], kv_heads=HEADS, head_dim=DIM, k_format="int4", v_format="q8_0", n_pages=8),
        quire.KVLayerGroup(layers=[1], kv_heads=HEADS, head_dim=DIM, dtype="bfloat16", n_pages=8),
    ]
    cache = quire.KVCache(groups=groups)
    assert [one.k_format and one.k_format.name for one in cache.groups] == ["int4", None]
    a = cache.create()
    cache.append(a, 5, k=numbers(2, 5, HEADS, DIM), v=numbers(2, 5, HEADS, DIM))
    outs = [quire.attend(cache, layer, a, numbers(1, HEADS, DIM)) for layer in (0, 1)]
    assert all(np.isfinite(out).all() for out in outs)
    assert "k_format='int4', v_format='q8_0'" in repr(cache.groups[0])


@pytest.mark.parametrize("form", [None, "int8", "int4", "q8_0", "fp8_e4m3"])
def test_values_in_the_rows_of_keys(form):
    cache = make(form, v_head_dim=32, v_in_k=True)
    plain = make(form, v_head_dim=32)
    k = numbers(1, 9, HEADS, DIM)
    a, b = cache.create(), plain.create()
    cache.append(a, 9)
    cache.write(0, a, 9, k[0])
    plain.append(b, 9)
    plain.write(0, b, 9, k[0], k[0, :, :, :32])
    assert cache.v_pages(0).ctypes.data == cache.k_pages(0).ctypes.data
    q = numbers(2, 4, DIM, seed=2)
    got, wanted = quire.attend(cache, 0, a, q), quire.attend(plain, 0, b, q)
    if form in (None, "int4", "q8_0", "fp8_e4m3"):  # a scale of the row is of all its columns
        np.testing.assert_array_equal(got, wanted)
    assert np.abs(got - wanted).max() < 0.05
    assert cache.stats().token_bytes < plain.stats().token_bytes
    with pytest.raises(ValueError, match=r"values are columns of keys \(v_in_k\); give k alone"):
        cache.write(0, a, 1, k[0, :1], k[0, :1, :, :32])
    with pytest.raises(ValueError, match=r"^\[KVCache::write\] v must be given$"):
        plain.write(0, b, 1, k[0, :1])
    again = make(form, v_head_dim=32, v_in_k=True)
    np.testing.assert_array_equal(quire.attend(again, 0, again.load(cache.save(a)), q), got)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_code_is_refused_and_changes_nothing(form, bad):
    cache = make(form)
    k, v = numbers(1, 6, HEADS, DIM), numbers(1, 6, HEADS, DIM, seed=1)
    a = cache.create()
    cache.append(a, 6, k=k, v=v)
    before, pages = dense(cache, a), cache.pages(a).tolist()
    wrong = v.copy()
    wrong[0, 2, 1, 5] = bad
    with pytest.raises(ValueError, match=r"^\[KVCache::write\] row 2 of v holds NaN.* has no codes for$"):
        cache.write(0, a, 6, k[0] * 2, wrong[0])
    with pytest.raises(ValueError, match=r"^\[KVCache::append\] row 2 of k holds NaN"):
        cache.append(a, 6, k=wrong, v=v)
    assert cache.length(a) == 6 and cache.pages(a).tolist() == pages
    np.testing.assert_array_equal(dense(cache, a), before)
    cache.append(a, 6)
    with pytest.raises(ValueError, match="row 2 of v holds NaN"):
        cache.write(0, a, 6, k[0], wrong[0])
    with pytest.raises(ValueError, match="not written"):
        quire.attend(cache, 0, a, numbers(1, HEADS, DIM))


def test_errors():
    with pytest.raises(
        ValueError, match=r"^\[KVCache\] k_format: .*int4 codes groups of 32 channels, and a head dim of 80"
    ):
        make("int4", head_dim=80)
    with pytest.raises(ValueError, match="there is no format int9; there are int8, "):
        make("int9")
    with pytest.raises(TypeError, match="k_format must be a KVFormat, the name of one, or None"):
        make(3)
    with pytest.raises(ValueError, match="with v_in_k, v_format must be k_format, int8; got u8"):
        make("int8", "u8", v_in_k=True)
    with pytest.raises(ValueError, match="with v_in_k, v_head_dim must be at most head_dim, 64; got 96"):
        make("int8", v_in_k=True, v_head_dim=96)
    with pytest.raises(ValueError, match="hadamard must rotate the same blocks of keys and values"):
        make("int8+hadamard", v_in_k=True, v_head_dim=48)
    cache = quire.KVCache(layers=1, kv_heads=HEADS, head_dim=DIM, n_pages=4, k_format="int8_channel")
    a = cache.create()
    cache.append(a, 1)
    with pytest.raises(ValueError, match="int8_channel has no scales before set_scales gives them"):
        cache.write(0, a, 1, numbers(1, HEADS, DIM), numbers(1, HEADS, DIM))
    cache.release(a)
    with pytest.raises(ValueError, match=r"the scales of k_scales \(int8_channel .* must be \[2, 64\]; got \[64\]"):
        cache.set_scales(0, np.ones(DIM, np.float32))
    with pytest.raises(ValueError, match="plain has no scales that tokens share; give none for v_scales"):
        cache.set_scales(0, v_scales=np.ones(HEADS, np.float32))
    with pytest.raises(ValueError, match="scales must be finite and not negative; got -1"):
        cache.set_scales(0, -np.ones((HEADS, DIM), np.float32))


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_codes_and_scales_give_numbers_or_nan(form):
    cache = make(form)
    a = cache.create()
    cache.append(a, 9, k=numbers(1, 9, HEADS, DIM), v=numbers(1, 9, HEADS, DIM))
    random = np.random.default_rng(5)
    for of_layer in (cache.k_pages, cache.v_pages, cache.k_scales, cache.v_scales):
        memory = of_layer(0)
        if memory is not None:
            memory.view(np.uint8)[...] = random.integers(0, 256, memory.view(np.uint8).shape, np.uint8)
    assert quire.attend(cache, 0, a, numbers(9, 4, DIM)).shape == (9, 4, DIM)
    assert quire.attend(cache, 0, a, numbers(1, 4, DIM)).shape == (1, 4, DIM)
