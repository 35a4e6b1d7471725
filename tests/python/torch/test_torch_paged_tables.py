"""PagedAttention of quire.torch and of torch, step by step: the same tables, pages in the same order, the same lists."""

import copy
import pickle

import pytest
import quire.torch as qt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.experimental._paged_attention import PagedAttention as TorchPagedAttention
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

BATCH = 3


def both(n_pages, page_size):
    return qt.PagedAttention(n_pages, page_size, BATCH), TorchPagedAttention(n_pages, page_size, BATCH, device="cpu")


def outcome(function, *arguments):
    """The exception's type, or None."""
    try:
        function(*arguments)
    except Exception as error:
        return type(error)
    return None


def check_same(ours, theirs):
    assert torch.equal(ours.page_table, theirs.page_table)
    assert torch.equal(ours.capacity, theirs.capacity)
    assert ours.empty_pages == theirs.empty_pages
    # torch leaves erased pages in physical_to_logical.
    for b in range(BATCH):
        live = ours.page_table[b][ours.page_table[b] >= 0]
        assert torch.equal(ours.physical_to_logical[b, live], theirs.physical_to_logical[b, live])
        dead = torch.ones(ours.n_pages, dtype=torch.bool)
        dead[live] = False
        assert (ours.physical_to_logical[b, dead] == -1).all()


STEP = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, BATCH - 1), st.integers(0, 40)),
    st.tuples(st.just("erase"), st.integers(0, BATCH - 1), st.just(0)),
    st.tuples(st.just("assign"), st.integers(0, BATCH - 1), st.integers(0, 2**31)),
    st.tuples(st.just("reverse"), st.just(0), st.just(0)),
)


@settings(max_examples=60)
@given(st.integers(0, 12), st.integers(1, 9), st.lists(STEP, max_size=20))
def test_random_programs_leave_the_same_tables(n_pages, page_size, steps):
    ours, theirs = both(n_pages, page_size)
    slots = max(n_pages * page_size, 1)
    caches = [[torch.zeros(1, 2, slots, d) for d in (3, 5)] for _ in range(2)]
    for name, b, number in steps:
        index = torch.tensor([b])
        if name == "reserve":
            arguments = (index, torch.tensor([number]))
            assert outcome(ours.reserve, *arguments) == outcome(theirs.reserve, *arguments)
        elif name == "erase":
            ours.erase(index)
            theirs.erase(index)
        elif name == "reverse":
            ours.empty_pages.reverse()
            theirs.empty_pages.reverse()
        elif theirs.capacity[b] > 0:
            random = torch.Generator().manual_seed(number)
            positions = torch.randperm(int(theirs.capacity[b]), generator=random)[None, :7]
            k, v = (torch.randn(1, 2, positions.shape[1], d, generator=random) for d in (3, 5))
            ours.assign(index, positions, k, v, *caches[0])
            theirs.assign(index, positions, k, v, *caches[1])
        check_same(ours, theirs)
    for a, b in zip(*caches):
        assert torch.equal(a, b)


LISTS = (
    "kv_num_blocks kv_indices full_kv_num_blocks full_kv_indices q_num_blocks q_indices full_q_num_blocks full_q_indices"
).split()


@pytest.mark.parametrize("create", (torch_create_block_mask, qt.create_block_mask))
@pytest.mark.parametrize("separate", (True, False))
@pytest.mark.parametrize("batch_idx", (None, [2, 0], [1, 1]))
def test_converted_lists_are_torchs(create, separate, batch_idx):
    def rule(b, h, q_idx, kv_idx):
        return (q_idx + 4 * b >= kv_idx) & (kv_idx // 8 != h)

    ours, theirs = both(15, 4)
    for b, length in enumerate((24, 9, 16)):
        for paged in (ours, theirs):
            paged.reserve(torch.tensor([b]), torch.tensor([length]))
    mask = create(rule, 2, 3, 21, 26, device="cpu", BLOCK_SIZE=(8, 4), separate_full_blocks=separate)
    index = None if batch_idx is None else torch.tensor(batch_idx)
    a, b = ours.convert_logical_block_mask(mask, index), theirs.convert_logical_block_mask(mask, index)
    assert a.shape == b.shape and a.seq_lengths == b.seq_lengths and a.BLOCK_SIZE == b.BLOCK_SIZE
    for name in LISTS:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        assert x is None or (x.dtype == y.dtype and torch.equal(x, y)), name
    grid = [torch.arange(size) for size in (2, 3, 21, 60)]
    values = torch.meshgrid(*grid, indexing="ij")
    assert torch.equal(a.mask_mod(*values), b.mask_mod(*values))


def test_it_is_torchs_class():
    paged = qt.PagedAttention(4, 8, 2)
    assert isinstance(paged, TorchPagedAttention)
    assert (paged.n_pages, paged.page_size) == (4, 8)
    assert paged.page_table.dtype == torch.int64 and paged.page_table.device.type == "cpu"


def test_arguments_without_dimensions_and_numbers():
    paged = qt.PagedAttention(4, 8, 2)
    paged.reserve(1, 9)
    paged.reserve(torch.tensor(0), torch.tensor(3))
    assert paged.page_table.tolist() == [[2, -1, -1, -1], [1, 0, -1, -1]]
    paged.erase(torch.tensor(1))
    paged.erase(-2)
    assert paged.empty_pages == [3, 1, 0, 2]
    assert (paged.page_table == -1).all() and (paged.physical_to_logical == -1).all()


@pytest.mark.parametrize("sequences", ([0, 1, 2], [2, 0], [1, -3], [1, 1], [], [True, False, True]))
def test_erase_of_several_sequences(sequences):
    ours, theirs = both(12, 4)
    for paged in (ours, theirs):
        for b, length in enumerate((8, 24, 16)):
            paged.reserve(torch.tensor([b]), torch.tensor([length]))
        assert not paged.empty_pages
    index = torch.tensor(sequences, dtype=None if sequences else torch.int64)
    ours.erase(index)
    theirs.erase(index)
    if len(set(sequences)) < len(sequences) and sequences[0] is not True:  # torch gives their pages back twice
        theirs.empty_pages = list(dict.fromkeys(theirs.empty_pages))
    check_same(ours, theirs)
    ours.reserve(0, 8)


def test_erase_of_several_is_all_or_nothing():
    paged = qt.PagedAttention(4, 8, 2)
    paged.reserve(0, 9)
    before = [
        paged.page_table.clone(),
        paged.capacity.clone(),
        paged.physical_to_logical.clone(),
        list(paged.empty_pages),
    ]
    for wrong in (torch.tensor([0, 2]), torch.tensor([0, -3]), [0, 7], torch.tensor([True, False, True])):
        refuses(IndexError, paged.erase, wrong)
    refuses(TypeError, paged.erase, torch.tensor([0.0]))
    paged.page_table[1, 2] = 9
    refuses(IndexError, paged.erase, torch.tensor([0, 1]))
    paged.page_table[1, 2] = -1
    assert torch.equal(paged.page_table, before[0]) and torch.equal(paged.capacity, before[1])
    assert torch.equal(paged.physical_to_logical, before[2]) and paged.empty_pages == before[3]


def test_too_few_pages_are_said_as_torch_says_it():
    for paged in both(2, 4):
        paged.reserve(torch.tensor([1]), torch.tensor([8]))
        with pytest.raises(AssertionError, match="requested 2 pages but there are only 0 empty pages"):
            paged.reserve(torch.tensor([0]), torch.tensor([8]))


def test_copies_and_pickles_are_on_their_own():
    paged = qt.PagedAttention(4, 8, 2)
    paged.reserve(0, 9)
    for other in (copy.deepcopy(paged), pickle.loads(pickle.dumps(paged))):
        other.reserve(1, 8)
        assert other.page_table.tolist() == [[1, 0, -1, -1], [2, -1, -1, -1]]
    assert paged.page_table.tolist() == [[1, 0, -1, -1], [-1] * 4]
    paged.page_table = paged.page_table.clone()
    paged.reserve(1, 1)
    assert paged.page_table[1, 0] == 2


def test_edits_are_counted():
    paged = qt.PagedAttention(4, 8, 2)
    before = paged.physical_to_logical._version
    paged.reserve(torch.tensor([0]), torch.tensor([9]))
    assert paged.physical_to_logical._version > before
    cache = torch.zeros(1, 1, 32, 2)
    before = cache._version
    values = torch.ones(1, 1, 1, 2)
    paged.assign(torch.tensor([0]), torch.tensor([[3]]), values, values, cache, torch.zeros(1, 1, 32, 2))
    assert cache._version > before


def refuses(kind, function, *arguments):
    with pytest.raises(kind):
        function(*arguments)


def test_errors_are_of_torchs_types_and_change_nothing():
    for paged in both(4, 8):
        paged.reserve(torch.tensor([0]), torch.tensor([9]))
        cache = torch.zeros(1, 2, 32, 5)
        values, index, positions = torch.ones(1, 2, 3, 5), torch.tensor([0]), torch.tensor([[0, 1, 2]])
        before = (paged.page_table.clone(), list(paged.empty_pages))
        refuses(AssertionError, paged.reserve, torch.tensor([1]), torch.tensor([17]))
        refuses(RuntimeError, paged.reserve, torch.tensor([0, 1]), torch.tensor([17, 3]))
        refuses(IndexError, paged.reserve, torch.tensor([3]), torch.tensor([1]))
        refuses(IndexError, paged.erase, torch.tensor([3]))
        refuses(RuntimeError, paged.assign, torch.tensor([0, 1]), positions, values, values, cache, cache)
        refuses(RuntimeError, paged.assign, index, positions[:, :2], values, values, cache, cache)
        refuses(RuntimeError, paged.assign, index, positions, values[:, :1], values, cache, cache)
        refuses(RuntimeError, paged.assign, index, positions, values[..., :3], values, cache, cache)
        refuses(RuntimeError, paged.assign, index, positions, values, values[..., :3], cache, cache)
        refuses(RuntimeError, paged.assign, index, positions, values.double(), values, cache, cache)
        refuses(RuntimeError, paged.assign, index, positions, values.clone().requires_grad_(), values, cache, cache)
        refuses(RuntimeError, paged.assign, index, positions + 40, values, values, cache, cache)
        refuses(IndexError, paged.assign, torch.tensor([3]), positions, values, values, cache, cache)
        mask = qt.create_block_mask(lambda b, h, q, kv: q >= kv, 1, 1, 16, 16, BLOCK_SIZE=16)
        refuses(RuntimeError, paged.convert_logical_block_mask, mask)
        mask = qt.create_block_mask(lambda b, h, q, kv: q >= kv, 1, 1, 16, 48, BLOCK_SIZE=8)
        refuses(RuntimeError, paged.convert_logical_block_mask, mask)
        mask = qt.create_block_mask(lambda b, h, q, kv: q >= kv, 3, 1, 16, 16, BLOCK_SIZE=8)
        refuses(RuntimeError, paged.convert_logical_block_mask, mask, torch.tensor([0, 1]))
        assert torch.equal(paged.page_table, before[0]) and paged.empty_pages == before[1]
        assert (cache == 0).all()


def test_a_position_without_a_page_is_an_error_and_nothing_is_written():
    paged = qt.PagedAttention(4, 8, 2)
    paged.reserve(torch.tensor([0]), torch.tensor([8]))
    cache = torch.zeros(1, 1, 32, 2)
    values = torch.ones(1, 1, 2, 2)
    with pytest.raises(RuntimeError, match="position 8 of batch entry 0 has no page"):
        paged.assign(torch.tensor([0]), torch.tensor([[7, 8]]), values, values, cache, cache)
    assert (cache == 0).all()


def test_gradients_are_refused():
    paged = qt.PagedAttention(4, 8, 2)
    paged.reserve(0, 8)
    cache, values, index, positions = (
        torch.zeros(1, 1, 32, 2),
        torch.ones(1, 1, 1, 2),
        torch.tensor([0]),
        torch.tensor([[0]]),
    )
    learned = values.clone().requires_grad_()
    for k, v in ((learned, values), (values, learned)):
        refuses(RuntimeError, paged.assign, index, positions, k, v, cache, cache)
    with torch.no_grad():
        paged.assign(index, positions, values, learned, cache.clone(), cache)
    assert cache.sum() == 2


def views_of_values():
    rows = torch.randn(1, 2, 3, 4)
    yield "negated", torch.randn(1, 2, 3, 4, dtype=torch.complex64).conj().imag
    yield "a parameter", torch.nn.Parameter(rows, requires_grad=False)
    yield "behind others", torch.randn(4, 2, 5, 9)[2:3, :, 1:4, 3:7]
    yield "transposed", torch.randn(1, 3, 4, 2).permute(0, 3, 1, 2)
    yield "of a dtype that quire has not", torch.randn(1, 2, 3, 4).to(torch.float8_e4m3fn)
    yield "double", rows.double()


@pytest.mark.parametrize("name, values", tuple(views_of_values()))
@pytest.mark.parametrize("positions", (torch.int64, torch.int32))
def test_assigned_values_are_those_of_torch(name, values, positions):
    caches = []
    for paged in both(4, 8):
        paged.reserve(torch.tensor([1]), torch.tensor([20]))
        cache = torch.zeros(2, 1, 2, 32, 4, dtype=values.dtype)
        index = torch.tensor([1]), torch.tensor([[17, 2, 8]], dtype=positions)
        paged.assign(*index, values, values, cache[0], cache[1])
        caches.append(cache.float())
    assert torch.equal(*caches) and caches[0].any()


def test_the_list_of_empty_pages_stays_the_same_object():
    paged = qt.PagedAttention(4, 8, 2)
    empty = paged.empty_pages
    paged.reserve(0, 8)
    assert empty is paged.empty_pages and empty == [3, 2, 1]
