"""flash_attn_with_kvcache against the same written out: append, rotary, rows of a cache, padding on the left, pages, windows."""

import inspect

import pytest
import torch
from packed_reference import assert_near, one_sequence
from quire.flash_attn import flash_attn_with_kvcache

BATCH, CAPACITY, HEADS, KV_HEADS, DIM = 3, 40, 4, 2, 16
LENGTHS = torch.tensor([5, 0, 33], dtype=torch.int32)


def caches(rows=BATCH, capacity=CAPACITY):
    return torch.randn(rows, capacity, KV_HEADS, DIM), torch.randn(rows, capacity, KV_HEADS, DIM)


def turned(x, places, cos, sin, interleaved):
    """One sequence [n, heads, dim]."""
    half = cos.shape[1]
    a, b = (
        (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2])
        if interleaved
        else (x[..., :half], x[..., half : 2 * half])
    )
    c, s = cos[places][:, None], sin[places][:, None]
    out = x.clone()
    first, second = a * c - b * s, a * s + b * c
    if interleaved:
        out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2] = first, second
    else:
        out[..., :half], out[..., half : 2 * half] = first, second
    return out


def test_signature():
    parameters = inspect.signature(flash_attn_with_kvcache).parameters
    assert (
        list(parameters)
        == (
            "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table softmax_scale causal "
            "window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse"
        ).split()
    )
    assert parameters["rotary_interleaved"].default is True and parameters["num_splits"].default == 0


@pytest.mark.parametrize("rotary", [None, True, False])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window_size": (6, 0)}])
@pytest.mark.parametrize("by_row", [False, True])
def test_append_rotate_and_attend(rotary, options, by_row):
    rows = [4, 0, 2] if by_row else [0, 1, 2]
    k_cache, v_cache = caches(5 if by_row else BATCH)
    q, k, v = (torch.randn(BATCH, 3, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    given, wanted_k, wanted_v = q.clone(), k_cache.clone(), v_cache.clone()
    cos, sin = torch.rand(CAPACITY, DIM // 4).cos(), torch.rand(CAPACITY, DIM // 4).sin()
    is_one_place = not options
    exact = []
    left = options.get("window_size", (-1, -1))[0]
    for i, (row, n) in enumerate(zip(rows, LENGTHS.tolist())):
        places = torch.arange(n, n + 3)
        one_k, one_q = k[i], q[i]
        if rotary is not None:
            one_k = turned(one_k, places, cos, sin, rotary)
            one_q = turned(one_q, torch.full((3,), n) if is_one_place else places, cos, sin, rotary)
        wanted_k[row, n : n + 3], wanted_v[row, n : n + 3] = one_k, v[i]
        window = (left, 0 if options else -1)
        exact.append(one_sequence(one_q, wanted_k[row, : n + 3], wanted_v[row, : n + 3], window=window))
    more = {} if rotary is None else {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": rotary}
    if by_row:
        more["cache_batch_idx"] = torch.tensor(rows, dtype=torch.int32)
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=LENGTHS, return_softmax_lse=True, **options, **more
    )
    assert_near(out, torch.stack(exact))
    assert lse.shape == (BATCH, HEADS, 3)
    torch.testing.assert_close(k_cache, wanted_k)
    assert torch.equal(v_cache, wanted_v) and torch.equal(q, given) and torch.equal(LENGTHS, torch.tensor([5, 0, 33]))


@pytest.mark.parametrize("page_size", [1, 8])
def test_pages_have_the_bits_of_whole_rows(page_size):
    k_cache, v_cache = caches()
    q, k, v = (torch.randn(BATCH, 2, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    count = CAPACITY // page_size
    order = torch.randperm(BATCH * count, dtype=torch.int64)
    table = order.view(BATCH, count).to(torch.int32)
    pages = [torch.empty(BATCH * count, page_size, KV_HEADS, DIM) for _ in range(2)]
    for pool, cache in zip(pages, (k_cache, v_cache)):
        pool[order] = cache.reshape(BATCH * count, page_size, KV_HEADS, DIM)
    pad = torch.tensor([2, 0, 7], dtype=torch.int32)
    options = dict(cache_seqlens=LENGTHS, causal=True, softcap=4.0, alibi_slopes=torch.rand(HEADS), cache_leftpad=pad)
    expected = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **options)
    out = flash_attn_with_kvcache(q, *pages, k, v, block_table=table, **options)
    assert torch.equal(out, expected)
    for pool, cache in zip(pages, (k_cache, v_cache)):
        assert torch.equal(pool[order].view_as(cache), cache)


def test_padding_on_the_left_hides_keys_and_keeps_places():
    k_cache, v_cache = caches()
    q = torch.randn(BATCH, 2, HEADS, DIM)
    pad, slopes = torch.tensor([1, 0, 30], dtype=torch.int32), torch.rand(HEADS)
    lengths = torch.tensor([5, 2, 33], dtype=torch.int32)
    out = flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths, cache_leftpad=pad, causal=True, alibi_slopes=slopes
    )
    for i, (first, n) in enumerate(zip(pad.tolist(), lengths.tolist())):
        m = n - first
        distance = (torch.arange(2)[:, None] + m - 2 - torch.arange(m)).abs()
        bias = -slopes.double()[:, None, None] * distance
        assert_near(out[i], one_sequence(q[i], k_cache[i, first:n], v_cache[i, first:n], window=(-1, 0), bias=bias))


def test_without_new_keys():
    k_cache, v_cache = caches()
    q = torch.randn(BATCH, 2, HEADS, DIM)
    whole = flash_attn_with_kvcache(q, k_cache, v_cache)
    assert_near(whole, torch.stack([one_sequence(*one) for one in zip(q, k_cache, v_cache)]))
    assert torch.equal(flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=CAPACITY), whole)


@pytest.mark.parametrize(
    "changed, error, text",
    [
        ({"cache_seqlens": None}, ValueError, "cache_seqlens is needed with k and v"),
        ({"cache_seqlens": torch.tensor([5, 0, 39])}, ValueError, "holds 40 tokens of a sequence; it would have 41"),
        ({"cache_seqlens": torch.tensor([5, 0, -1])}, ValueError, "cache_seqlens must be in 0..40"),
        ({"cache_seqlens": torch.tensor([5, 0])}, ValueError, "cache_seqlens must be"),
        ({"v": None}, ValueError, "v is missing"),
        ({"k": torch.randn(3, 2, 2, 8)}, ValueError, "k must be"),
        ({"k": torch.randn(3, 2, 2, 16).double()}, TypeError, "k must be torch.float32"),
        ({"k": torch.randn(3, 2, 16)}, ValueError, r"k must be \[batch, new tokens, heads, dim\]; got \(3, 2, 16\)"),
        ({"k": [1.0]}, ValueError, "k must be .* got list"),
        ({"q": torch.ones(3, 2, 4, 16, dtype=torch.int32)}, TypeError, "query must be f32, f64, bf16 or f16"),
        ({"softmax_scale": float("nan")}, ValueError, "softmax_scale must be finite; got nan"),
        ({"softcap": float("inf")}, ValueError, "softcap must be finite; got inf"),
        ({"cache_seqlens": 1 << 40}, ValueError, "cache_seqlens must be in 0..40"),
        ({"rotary_cos": [1.0], "rotary_sin": [1.0]}, TypeError, "rotary_cos must be a tensor of floats"),
        ({"cache_batch_idx": torch.tensor([0, 0, 1])}, ValueError, "would overwrite a token of another"),
        (
            {"block_table": torch.tensor([[0], [0], [2]]), "cache_seqlens": torch.tensor([5, 3, 33])},
            ValueError,
            "would overwrite a token of another",
        ),
        ({"cache_batch_idx": torch.tensor([0, 1, 3])}, IndexError, "cache_batch_idx must be in 0..2"),
        ({"cache_leftpad": torch.tensor([6, 0, 0])}, ValueError, "cache_leftpad must be in"),
        ({"rotary_cos": torch.rand(40, 4)}, ValueError, "come together"),
        (
            {"rotary_cos": torch.rand(20, 4), "rotary_sin": torch.rand(20, 4)},
            ValueError,
            "20 places, and 35 are needed",
        ),
        ({"alibi_slopes": torch.rand(5)}, ValueError, "alibi_slopes must be"),
        ({"q": torch.randn(3, 2, 3, 16)}, ValueError, "Hq=3 and Hkv=2"),
        (
            {"block_table": torch.tensor([[0], [1], [9]]), "cache_seqlens": torch.tensor([5, 0, 33])},
            IndexError,
            "got 9",
        ),
    ],
)
def test_errors_leave_the_cache_alone(changed, error, text):
    k_cache, v_cache = caches()
    before = k_cache.clone(), v_cache.clone()
    new = torch.randn(BATCH, 2, KV_HEADS, DIM)
    given = dict(q=torch.randn(BATCH, 2, HEADS, DIM), k=new, v=new, cache_seqlens=LENGTHS)
    with pytest.raises(error, match=text):
        flash_attn_with_kvcache(k_cache=k_cache, v_cache=v_cache, **{**given, **changed})
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


def test_an_expanded_cache_is_refused_before_the_other_is_written():
    k_cache, v_cache = caches()
    before, new = k_cache.clone(), torch.randn(BATCH, 2, KV_HEADS, DIM)
    q = torch.randn(BATCH, 2, HEADS, DIM)
    with pytest.raises(ValueError, match="v_cache is expanded"):
        flash_attn_with_kvcache(q, k_cache, v_cache[:1].expand_as(v_cache), new, new, cache_seqlens=LENGTHS)
    assert torch.equal(k_cache, before)


def test_a_shared_beginning_may_be_read_and_garbage_behind_the_pages_is_not():
    """Three sequences share page 0; each appends to a page of its own."""
    k_pages, v_pages = torch.randn(2, 6, 4, KV_HEADS, DIM)
    table = torch.tensor([[0, 1, 99], [0, 2, -7], [0, 3, 12]])
    q, new = torch.randn(3, 1, HEADS, DIM), torch.randn(3, 1, KV_HEADS, DIM)
    out = flash_attn_with_kvcache(
        q, k_pages, v_pages, new, new, cache_seqlens=torch.tensor([4, 4, 6]), block_table=table
    )
    for i, n in enumerate((5, 5, 7)):
        k, v = (pages[table[i, :2]].flatten(0, 1)[:n] for pages in (k_pages, v_pages))
        assert_near(out[i], one_sequence(q[i], k, v))
    assert torch.equal(k_pages[2, 0], new[1, 0]) and torch.equal(v_pages[3, 2], new[2, 0])


def test_rotation_in_f64_is_in_f64():
    k_cache, v_cache = (one.double() for one in caches())
    angle = torch.rand(CAPACITY, 4, dtype=torch.float64)
    new = torch.randn(BATCH, 1, KV_HEADS, DIM, dtype=torch.float64)
    q = torch.randn(BATCH, 1, HEADS, DIM, dtype=torch.float64)
    rotary = dict(rotary_cos=angle.cos(), rotary_sin=angle.sin())
    flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=LENGTHS, causal=True, **rotary)
    at = angle[LENGTHS.long()][:, None]
    pairs = torch.view_as_complex(new[:, 0, :, :8].unflatten(-1, (4, 2)).contiguous())
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(at), at)).flatten(-2)
    found = k_cache[torch.arange(BATCH), LENGTHS.long()]
    torch.testing.assert_close(found[..., :8], expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(found[..., 8:], new[:, 0, :, 8:])
