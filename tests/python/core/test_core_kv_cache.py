"""quire.KVCache: what Python sees of the cache. The operations themselves are tested in C++ (tests/cache)."""

import gc

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
    with pytest.raises(ValueError, match="checksum"):
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
