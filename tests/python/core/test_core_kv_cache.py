"""quire.KVCache: what Python sees of the cache. The operations themselves are tested in C++ (tests/cache)."""

import gc
import os
import subprocess

import numpy as np
import pytest
import quire


def make(**changes):
    return quire.KVCache(
        **{"layers": 2, "kv_heads": 3, "head_dim": 5, "v_head_dim": 2, "page_size": 4, "n_pages": 12, **changes}
    )


def rows(cache, ids, dim):
    """[layers, tokens, kv_heads, dim]: 1000 id + 100 layer + 10 head + d."""
    layer, head, d = np.ogrid[: cache.layers, : cache.kv_heads, :dim]
    each = 100 * layer + 10 * head + d
    return (1000 * np.asarray(ids)[None, :, None, None] + each[:, None]).astype(np.float32)


def append_ids(cache, sequence, ids):
    cache.append(sequence, ids=ids, k=rows(cache, ids, cache.head_dim), v=rows(cache, ids, cache.v_head_dim))


def read_ids(cache, sequence):
    """From the keys and values, through the page table."""
    begin, length, size = cache.begin(sequence), cache.length(sequence), cache.page_size
    pages = cache.pages(sequence)
    at = np.arange(begin, length)
    for dim, of_layer in ((cache.head_dim, cache.k_pages), (cache.v_head_dim, cache.v_pages)):
        found = np.stack([of_layer(layer)[pages[at // size], :, at % size] for layer in range(cache.layers)])
        ids = (found[0, :, 0, 0] // 1000).astype(int)
        np.testing.assert_array_equal(found, rows(cache, ids, dim))
    return ids.tolist()


def test_tokens_forks_and_release():
    cache = make()
    a, b = cache.create(), cache.create(salt=1)
    assert a != b and len({a, b, cache.fork(a)}) == 3 and a in cache
    append_ids(cache, a, np.arange(6))
    c = cache.fork(a, 5)
    append_ids(cache, c, [90])
    assert read_ids(cache, a) == list(range(6))
    assert read_ids(cache, c) == [0, 1, 2, 3, 4, 90]
    assert cache.pages(a)[0] == cache.pages(c)[0] and cache.pages(a)[1] != cache.pages(c)[1]
    cache.truncate(a, 4)
    assert cache.length(a) == 4
    cache.release(a)
    assert a not in cache
    with pytest.raises(ValueError, match=r"^\[KVCache::view\] the handle is stale: its sequence was released$"):
        cache.length(a)


def test_a_step_of_many_sequences():
    cache = make()
    a, b = cache.create(), cache.create()
    cache.append([a, b], [3, 1], [np.array([5, 6, 7], np.int32), None])
    assert (cache.length(a), cache.length(b)) == (3, 1)
    k = rows(cache, [5, 6, 7, 8], 5)
    v = rows(cache, [5, 6, 7, 8], 2)
    for layer in range(2):
        cache.write(layer, [a, b], [3, 1], k[layer], v[layer].astype(np.float64))
    assert read_ids(cache, a) == [5, 6, 7] and read_ids(cache, b) == [8]
    cache.append([a, b])
    assert (cache.length(a), cache.length(b)) == (4, 2)
    cache.append(a, 3)
    assert cache.length(a) == 7


def test_prefixes():
    cache = make()
    a = cache.create(salt=7)
    append_ids(cache, a, list(range(10)))
    cache.release(a)
    assert cache.cached_prefix(list(range(20)), salt=7) == 8
    assert cache.cached_prefix(np.arange(20)) == cache.cached_prefix([]) == 0
    b, found = cache.create_with_prefix(np.arange(9), salt=7)
    assert found == 8 and read_ids(cache, b) == list(range(8))


def test_reserve_and_running_out():
    cache = make()
    a, b = cache.create(), cache.create()
    assert cache.can_reserve([a, b], [40, 8]) and not cache.can_reserve([a, b], [40, 9])
    cache.reserve(a, 40)
    before = cache.version
    with pytest.raises(RuntimeError, match="out of pages: 3 needed, 2 free and 0 cached"):
        cache.append(b, 9)
    assert cache.version == before and cache.length(b) == 0
    assert cache.stats().used_pages == 10 and cache.stats().waste == 1.0


def test_window():
    cache = make()
    a = cache.create()
    append_ids(cache, a, list(range(11)))
    cache.release_before(a, 9)
    assert cache.begin(a) == 8 and cache.pages(a)[:2].tolist() == [-1, -1]
    assert read_ids(cache, a) == [8, 9, 10]


def test_save_and_load():
    cache, other = make(), make(page_size=3)
    a = cache.create()
    append_ids(cache, a, list(range(7)))
    saved = cache.save(a)
    assert isinstance(saved, bytes)
    assert read_ids(other, other.load(saved)) == list(range(7))
    with pytest.raises(ValueError, match="the bytes end too early"):
        other.load(saved[:-1])
    with pytest.raises(ValueError, match="layers must be the cache's; got 2, and the cache has 3"):
        make(layers=3).load(saved)


def test_pages_are_the_caches_memory_and_keep_it_alive():
    cache = make(layers=1)
    a = cache.create()
    append_ids(cache, a, [3])
    k = cache.k_pages(0)
    assert k.shape == (12, 3, 4, 5) and cache.v_pages(0).shape == (12, 3, 4, 2)
    k[cache.pages(a)[0], :, 0] += 1
    assert cache.k_pages(0)[cache.pages(a)[0], 0, 0, 0] == 3001
    del cache
    gc.collect()
    assert k[0, 0, 0, 0] == 3001


@pytest.mark.parametrize(
    "dtype, name", [("float64", "f64"), (np.float16, "f16"), ("bf16", "bf16"), (np.dtype("float32"), "f32")]
)
def test_dtypes(dtype, name):
    assert make(dtype=dtype).dtype == name


def test_mistakes():
    cache = make()
    a = cache.create()
    with pytest.raises(ValueError, match=r"^\[KVCache\] n_pages must be given$"):
        quire.KVCache(1, 1, 8)
    with pytest.raises(TypeError, match="dtype must be"):
        make(dtype="int32")
    with pytest.raises(ValueError, match="head_dim must be in"):
        make(v_head_dim=0)
    with pytest.raises(ValueError, match=r"counts must be as many as sequences; got 2 and 1"):
        cache.append([a], [1, 2])
    with pytest.raises(ValueError, match=r"ids must be as many as sequences; got 0 and 1"):
        cache.append([a], ids=[])
    with pytest.raises(TypeError, match=r"ids must be integers in one row; got f64 of \[2\]"):
        cache.append(a, ids=[0.5, 1])
    with pytest.raises(ValueError, match="a sequence must not appear twice in a step"):
        cache.append([a, a])
    with pytest.raises(ValueError, match="k and v are given together"):
        cache.append(a, k=np.zeros((2, 1, 3, 5), np.float32))
    with pytest.raises(IndexError, match="layer must be in 0..1; got 2"):
        cache.k_pages(2)
    assert cache.length(a) == 0


def test_repr():
    cache = make()
    assert repr(cache) == "quire.KVCache(2 layers, 3 heads of 5, f32, 0 sequences, 0 of 12 pages of 4 tokens used)"
    assert repr(cache.create()) == "quire.SequenceId(slot=0, generation=1)"


def test_drafts_are_kept_and_committed():
    cache = make()
    a = cache.create()
    append_ids(cache, a, [1, 2, 3, 4, 5])
    ids = [6, 7, 8, 9]
    cache.append(a, ids=ids, k=rows(cache, ids, 5), v=rows(cache, ids, 2), draft=True)
    assert cache.committed(a) == 5
    assert cache.cached_prefix(list(range(1, 10))) == 4
    cache.keep(a, 5, [5, 7, 8])
    assert read_ids(cache, a) == [1, 2, 3, 4, 5, 6, 8, 9] == cache.ids(a)
    cache.commit(a, 8)
    assert cache.cached_prefix([1, 2, 3, 4, 5, 6, 8, 9]) == 8
    cache.keep([(a, 2, [3])])
    assert read_ids(cache, a) == [1, 2, 4]
    with pytest.raises(ValueError, match="positions must ascend"):
        cache.keep(a, 0, [1, 0])
    with pytest.raises(TypeError, match="draft must be a bool"):
        cache.append(a, draft="yes")


def test_groups_of_layers():
    groups = [
        quire.KVLayerGroup(layers=[1], kv_heads=2, head_dim=4, n_pages=30),
        quire.KVLayerGroup(layers=[0], kv_heads=1, head_dim=8, window=6, sink_tokens=1, n_pages=10),
    ]
    cache = quire.KVCache(groups=groups, page_size=2)
    a = cache.create()
    for _ in range(40):
        cache.append(a)
        for layer in (0, 1):
            group = cache.groups[cache.group_of(layer)]
            row = np.ones((1, group.kv_heads, group.head_dim), np.float32)
            cache.write(layer, a, 1, row, row)
    assert cache.begin(a) == 0
    assert cache.hole(a, 0) == (0, 0)
    assert cache.hole(a, 1) == (2, 34)
    assert cache.stats(1).used_pages == 4
    assert cache.stats(0).used_pages == 20
    q = np.ones((1, 2, 8), np.float32)
    plan = quire.AttendPlan(cache, a, q_heads=2, group=1)
    out = np.empty_like(q)
    assert np.array_equal(plan.run(0, q, out=out), quire.attend(cache, 0, a, q))
    with pytest.raises(ValueError, match="layer 1 is in group 0, and the plan is for group 1"):
        plan.run(1, q, out=out)
    with pytest.raises(ValueError, match="give one or the other"):
        quire.KVCache(2, groups=groups)


def test_files_and_functions(tmp_path):
    cache = make()
    a = cache.create(salt=3)
    append_ids(cache, a, list(range(9)))
    cache.save_to(a, tmp_path / "a.kv")
    assert (tmp_path / "a.kv").read_bytes() == cache.save(a)
    pieces = []
    cache.save_to(a, pieces.append)
    assert b"".join(pieces) == cache.save(a)
    other = make()
    assert read_ids(other, other.load_from(tmp_path / "a.kv")) == list(range(9))
    with open(tmp_path / "a.kv", "rb") as file:
        b = other.load_from(file.read)
    assert other.stats().shared_pages == 2
    assert read_ids(other, b) == list(range(9))
    cache.save_all(tmp_path / "all.kv")
    third = make()
    loaded = third.load_all(str(tmp_path / "all.kv"))
    assert list(loaded) == [a]
    assert third.cached_prefix(list(range(9)), salt=3) == 8
    (tmp_path / "a.kv").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="the bytes end too early"):
        other.load_from(tmp_path / "a.kv")
    with pytest.raises(RuntimeError, match="cannot read"):
        other.load_from(tmp_path / "none.kv")
    with pytest.raises(ValueError, match="belongs to no sequence of this cache"):
        other.length(a)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_cannot_be_read_twice(tmp_path):
    cache = make()
    a = cache.create()
    append_ids(cache, a, list(range(9)))
    cache.save_to(a, tmp_path / "a.kv")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(f"cat '{tmp_path}/a.kv' > '{tmp_path}/pipe'", shell=True):
        with pytest.raises(RuntimeError, match=r"\[KVCache::load_from\] cannot read again .*pipe"):
            cache.load_from(tmp_path / "pipe")
    assert cache.stats().sequences == 1


def test_options_of_single_sequences():
    random = np.random.default_rng(0)
    cache = quire.KVCache(layers=1, kv_heads=1, head_dim=8, n_pages=20)
    one, two = cache.create(), cache.create()
    k = random.standard_normal((1, 60, 1, 8), np.float32)
    cache.append([one, two], counts=[40, 20], k=k, v=k)
    q = random.standard_normal((4, 1, 8), np.float32)
    tree = quire.SequenceOptions(one, parents=[-1, 0, 0])
    narrow = quire.SequenceOptions(two, window=5)
    out = quire.attend(cache, 0, [one, two], q, counts=[3, 1], sequence_options=[narrow, tree])

    def dense(row, keys):
        return quire.flex_attention(q[row].reshape(1, 1, 1, 8), *[k[:, keys].swapaxes(1, 2)] * 2)[0, 0, 0]

    assert np.array_equal(out[0, 0], dense(0, list(range(38))))
    assert np.array_equal(out[1, 0], dense(1, list(range(39))))
    assert np.allclose(out[2, 0], dense(2, [*range(38), 39]), atol=1e-6)
    assert np.allclose(out[3, 0], dense(3, list(range(55, 60))), atol=1e-6)
    rule = quire.SequenceOptions(one, mask_mod="kv_idx < 3", q_begin=0)
    assert np.allclose(
        quire.attend(cache, 0, one, q[:1], sequence_options=[rule])[0, 0], dense(0, [0, 1, 2]), atol=1e-6
    )
    with pytest.raises(TypeError, match="each of sequence_options must be a SequenceOptions"):
        quire.attend(cache, 0, one, q[:1], sequence_options=[one])


def test_windows_and_mods_count_along_the_paths_of_a_tree():
    """A window and ALiBi see depths in the tree; the other sequence of the step sees its positions."""
    random = np.random.default_rng(1)
    cache = quire.KVCache(layers=1, kv_heads=1, head_dim=8, n_pages=20, page_size=4)
    tree, plain = cache.create(), cache.create()
    k, v = random.standard_normal((2, 1, 50, 1, 8), np.float32)
    cache.append([tree, plain], counts=[25, 25], k=k, v=v)
    q = random.standard_normal((10, 1, 8), np.float32)
    out = quire.attend(
        cache,
        0,
        [tree, plain],
        q,
        counts=[5, 5],
        window=4,
        score_mod="score + 0.25 * (kv_idx - q_idx)",
        sequence_options=[quire.SequenceOptions(tree, parents=[-1, 0, 0, 1, 2])],
    )

    def dense(row, keys):
        """The keys of one path, at the positions they would have without the other branches."""
        seen = slice(max(0, len(keys) - 4), len(keys))
        bias = 0.25 * (np.arange(len(keys)) - (len(keys) - 1))[seen]
        keys = keys[seen]
        score = (k[0, keys, 0].astype(np.float64) @ q[row, 0]) / np.sqrt(8) + bias
        weights = np.exp(score - score.max())
        return (weights / weights.sum()) @ v[0, keys, 0]

    paths = [[20], [20, 21], [20, 22], [20, 21, 23], [20, 22, 24]]
    for row, path in enumerate(paths):
        assert np.allclose(out[row, 0], dense(row, [*range(20), *path]), atol=1e-5), row
    for row in range(5):
        assert np.allclose(out[5 + row, 0], dense(5 + row, list(range(25, 46 + row))), atol=1e-5), row
