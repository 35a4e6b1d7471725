"""Gradients through the caches of a PagedAttention: those of the dense call, summed where sequences share pages."""

import pytest
import quire.torch as qt
import torch
from paged_pool import CLASSES, Pool

F64 = torch.float64


def windowed(b, h, q_idx, kv_idx):
    return (kv_idx + 3 * q_idx + h) % 7 != 2


def leaves(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def paged_loss(pool, query, k_cache, v_cache, bias, d_out, d_lse, lengths=None):
    lengths = pool.lengths if lengths is None else lengths
    mask = pool.paged.convert_logical_block_mask(pool.logical(windowed, query.shape[2]), kv_len=lengths)
    score_mod = pool.paged.get_score_mod(lambda s, b, h, q, kv: s + bias[h] * (kv - q))
    out, aux = qt.flex_attention(
        query, k_cache, v_cache, score_mod, mask, enable_gqa=True, return_aux=qt.AuxRequest(lse=True)
    )
    return (out * d_out).sum() + (aux.lse * d_lse).sum()


def dense_loss(pool, query, k, v, bias, d_out, d_lse, lengths=None):
    lengths = pool.lengths if lengths is None else lengths
    rule = qt.and_masks(windowed, lambda b, h, q, kv: kv < lengths[b])
    mask = qt.create_block_mask(rule, len(lengths), 4, query.shape[2], pool.longest, BLOCK_SIZE=32)
    score_mod = lambda s, b, h, q, kv: s + bias[h] * (kv - q)  # noqa: E731
    out, aux = qt.flex_attention(query, k, v, score_mod, mask, enable_gqa=True, return_aux=qt.AuxRequest(lse=True))
    return (out * d_out).sum() + (aux.lse * d_lse).sum()


def weights_of(query, dims, dtype):
    """Of out and lse in a loss, and the bias of the score mod."""
    seed = torch.Generator().manual_seed(1)
    d_out = torch.randn(*query.shape[:3], dims, generator=seed, dtype=torch.float32).to(dtype)
    d_lse = torch.randn(query.shape[:3], generator=seed, dtype=torch.float32).to(F64 if dtype == F64 else torch.float32)
    return d_out, d_lse, (torch.randn(4, generator=seed) * 0.01).to(F64 if dtype == F64 else torch.float32)


def in_pool(pool, d_k, d_v):
    """Gradients of dense keys and values where their pages are, 0 elsewhere."""
    caches = torch.zeros_like(pool.k_cache), torch.zeros_like(pool.v_cache)
    for b, length in enumerate(pool.lengths.tolist()):
        rows = (d[b : b + 1, :, :length] for d in (d_k, d_v))
        pool.paged.assign(torch.tensor([b]), torch.arange(length)[None], *rows, *caches)
    return caches


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("page_size", (1, 5, 16, 128))
@pytest.mark.parametrize("q_len", (1, 70))
def test_bits_are_those_of_the_dense_gradients(cls, page_size, q_len):
    pool = Pool(cls, page_size, (300, 1, 129))
    query = pool.query(q_len)
    d_out, d_lse, bias = weights_of(query, 8, torch.float32)
    inputs, dense = leaves(query, pool.k_cache, pool.v_cache, bias), leaves(query, pool.k, pool.v, bias)
    found = torch.autograd.grad(paged_loss(pool, *inputs, d_out, d_lse), inputs)
    d_query, d_k, d_v, d_bias = torch.autograd.grad(dense_loss(pool, *dense, d_out, d_lse), dense)
    d_k, d_v = in_pool(pool, d_k, d_v)
    for one, other in zip(found, (d_query, d_k, d_v, d_bias)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, F64))
def test_bits_of_other_dtypes(dtype):
    pool = Pool(qt.PagedAttention, 16, (90, 300), dtype=dtype)
    query = pool.query(5)
    d_out, d_lse, bias = weights_of(query, 8, dtype)
    inputs, dense = leaves(query, pool.k_cache, pool.v_cache, bias), leaves(query, pool.k, pool.v, bias)
    found = torch.autograd.grad(paged_loss(pool, *inputs, d_out, d_lse), inputs)
    d_query, d_k, d_v, d_bias = torch.autograd.grad(dense_loss(pool, *dense, d_out, d_lse), dense)
    d_k, d_v = in_pool(pool, d_k, d_v)
    for one, other in zip(found, (d_query, d_k, d_v, d_bias)):
        assert one.dtype == other.dtype and torch.equal(one, other)


def share_pages(pool, count):
    """Sequence 1 begins with the first pages of sequence 0 instead of its own."""
    paged, own = pool.paged, pool.paged.page_table[1, :count].clone()
    shared = paged.page_table[0, :count].clone()
    paged.page_table[1, :count] = shared
    paged.physical_to_logical[1, own] = -1
    paged.physical_to_logical[1, shared] = torch.arange(count)
    keys = count * paged.page_size
    pool.k[1, :, :keys], pool.v[1, :, :keys] = pool.k[0, :, :keys], pool.v[0, :, :keys]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("page_size", (1, 2, 3))
def test_gradcheck(cls, page_size):
    """Every element of q, of both caches and of a captured tensor, pages that two sequences share included."""
    pool = Pool(cls, page_size, (7, 4, 2), n_pages=12 // page_size + 4, dtype=F64, poison=0.0, dims=(3, 2))
    share_pages(pool, 3 // page_size)
    query = pool.query(2)
    d_out, d_lse, bias = weights_of(query, 2, F64)
    inputs = leaves(query, pool.k_cache, pool.v_cache, bias)
    assert torch.autograd.gradcheck(lambda *tensors: paged_loss(pool, *tensors, d_out, d_lse), inputs)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, F64))
def test_shared_pages_add_up(dtype):
    pool = Pool(qt.PagedAttention, 16, (300, 129), dtype=dtype)
    share_pages(pool, 5)
    query = pool.query(9)
    d_out, d_lse, bias = weights_of(query, 8, dtype)
    inputs = leaves(query, pool.k_cache, pool.v_cache, bias)
    found = torch.autograd.grad(paged_loss(pool, *inputs, d_out, d_lse), inputs)
    exact = leaves(query.double(), pool.k.double(), pool.v.double(), bias.double())
    d_query, d_k, d_v, d_bias = torch.autograd.grad(dense_loss(pool, *exact, d_out.double(), d_lse.double()), exact)
    for gradient in (d_k, d_v):
        gradient[0, :, :80] += gradient[1, :, :80]
        gradient[1, :, :80] = gradient[0, :, :80]
    double = Pool(qt.PagedAttention, 16, (300, 129), dtype=F64)
    share_pages(double, 5)
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, F64: 1e-12}[dtype]
    for one, other in zip(found, (d_query, *in_pool(double, d_k, d_v), d_bias)):
        assert (one.double() - other).abs().max() <= bound * other.abs().max()


def test_threads_do_not_change_the_sums_of_shared_pages():
    pool = Pool(qt.PagedAttention, 16, (700, 690))
    share_pages(pool, 40)
    query = pool.query(130)
    d_out, d_lse, bias = weights_of(query, 8, torch.float32)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3, 8):
            torch.set_num_threads(count)
            inputs = leaves(query, pool.k_cache, pool.v_cache, bias)
            found.append(torch.autograd.grad(paged_loss(pool, *inputs, d_out, d_lse), inputs))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other))


def test_two_batch_entries_of_one_sequence():
    """Mods may map b: both entries read the pages of sequence 1."""
    pool = Pool(qt.PagedAttention, 16, (60, 45), dtype=F64, poison=0.0)
    rows, query = torch.tensor([1, 1]), pool.query(3)
    converted = pool.paged.get_mask_mod(windowed, torch.full((3,), 45))
    part = qt.create_block_mask(windowed, 2, 4, 3, 60, BLOCK_SIZE=(32, 16), separate_full_blocks=False)
    mask = pool.paged.convert_logical_block_mask(part, rows)
    mask.mask_mod = lambda b, h, q, kv: converted(rows[b], h, q, kv)
    inputs, dense = leaves(query, pool.k_cache, pool.v_cache), leaves(query, pool.k[1:], pool.v[1:])
    found = torch.autograd.grad(qt.flex_attention(*inputs, None, mask, enable_gqa=True).square().sum(), inputs)
    inside = qt.create_block_mask(qt.and_masks(windowed, lambda b, h, q, kv: kv < 45), 2, 4, 3, 60)
    want = torch.autograd.grad(qt.flex_attention(*dense, None, inside, enable_gqa=True).square().sum(), dense)
    torch.testing.assert_close(found[0], want[0])
    for one, other in zip(found[1:], want[1:]):
        pages = pool.paged.page_table[1, :3]
        slots = (pages[:, None] * 16 + torch.arange(16)).flatten()[:45]
        torch.testing.assert_close(one[0, :, slots], other[0, :, :45])
        assert one.count_nonzero() == one[0, :, slots].count_nonzero() > 0


def test_pages_that_moved_between_forward_and_backward():
    """The tables are read again: they must be as they were in the forward pass, like any captured tensor."""
    pool = Pool(qt.PagedAttention, 16, (60, 45))
    query = pool.query(3)
    d_out, d_lse, bias = weights_of(query, 8, torch.float32)
    inputs = leaves(query, pool.k_cache, pool.v_cache, bias)
    loss = paged_loss(pool, *inputs, d_out, d_lse)
    pool.paged.physical_to_logical[0] = -1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("cls", CLASSES)
def test_a_compiled_step(cls):
    pool = Pool(cls, 16, (300, 77))
    query = pool.query(5)
    d_out, d_lse, bias = weights_of(query, 8, torch.float32)
    mask = pool.paged.convert_logical_block_mask(pool.logical(windowed, 5), kv_len=pool.lengths)
    score_mod = pool.paged.get_score_mod(lambda s, b, h, q, kv: s + 0.1 * (kv - q))

    def loss(query, k_cache, v_cache):
        return (qt.flex_attention(query, k_cache, v_cache, score_mod, mask, enable_gqa=True) * d_out).sum()

    inputs = leaves(query, pool.k_cache, pool.v_cache)
    want = torch.autograd.grad(loss(*inputs), inputs)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*inputs), inputs)
    assert all(torch.equal(one, other) for one, other in zip(found, want))
