"""quire.torch.context_parallel over gloo: the bits of one process, gradients, errors on every rank."""

import os

import pytest
import torch
import torch.distributed as dist
from context_ranks import on_ranks, run_ranks
from quire.torch import AuxRequest, create_block_mask, flex_attention
from quire.torch import context_parallel as cp

LENGTH = 2500


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 700)


def tensors(dtype, q_heads=4, kv_heads=2, length=LENGTH):
    torch.manual_seed(1)
    shape = (1, q_heads, length, 16), (1, kv_heads, length, 16), (1, kv_heads, length, 24)
    return [torch.randn(one, dtype=torch.float32).to(dtype) for one in shape]


def compare(rank, ranks, rule, dtype):
    """Forward and backward on this rank against one process, which each of them is for the comparison."""
    query, key, value = tensors(dtype)
    bias = torch.linspace(-1, 1, LENGTH, requires_grad=True)
    slope = torch.tensor(0.01)

    def mod(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx] + slope * (kv_idx - q_idx) * (h + 1)

    mask = create_block_mask(rule, None, None, LENGTH, LENGTH, device="cpu")
    shards = cp.plan_shards(mask, ranks)
    whole = [one.clone().requires_grad_() for one in (query, key, value)]
    want, aux = flex_attention(*whole, mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
    torch.manual_seed(2)
    loss = torch.randn_like(want)
    d_want = torch.autograd.grad((want * loss).sum(), [*whole, bias])

    mine = [cp.shard(one, shards, rank).requires_grad_() for one in (query, key, value)]
    got, lse = cp.flex_attention(*mine, mod, mask, shards=shards, enable_gqa=True, return_lse=True)
    assert torch.equal(got, cp.shard(want, shards, rank))
    assert torch.equal(lse, cp.shard(aux.lse, shards, rank))
    assert torch.equal(cp.unshard(got.detach(), shards), want)
    runs = []
    for _ in range(2):
        again = cp.flex_attention(*mine, mod, mask, shards=shards, enable_gqa=True)
        runs.append(torch.autograd.grad((again * cp.shard(loss, shards, rank)).sum(), [*mine, bias]))
    assert all(torch.equal(a, b) for a, b in zip(*runs))
    found = [cp.unshard(one, shards) for one in runs[0][:3]]
    d_bias = runs[0][3].clone()
    dist.all_reduce(d_bias)
    for one, other in zip([*found, d_bias], d_want):
        bound = 2**-7 if dtype is torch.bfloat16 else 2**-18
        assert (one.float() - other.float()).abs().max() <= bound * other.float().abs().max()
    with torch.no_grad():
        plain = cp.flex_attention(*mine, None, mask, shards=shards, enable_gqa=True)
    assert torch.equal(plain, cp.shard(flex_attention(query, key, value, None, mask, enable_gqa=True), shards, rank))
    return True


def mistakes(rank, ranks):
    texts = []
    shards = cp.plan_shards(LENGTH, ranks)
    query, key, value = (cp.shard(one, shards, rank) for one in tensors(torch.float32))
    calls = [
        lambda: cp.flex_attention(query, key, value, shards=shards, enable_gqa=rank == 0),
        lambda: cp.flex_attention(
            query[..., : 16 - 8 * rank], key[..., : 16 - 8 * rank], value, shards=shards, enable_gqa=True
        ),
        lambda: cp.flex_attention(query, key, value, shards=shards, enable_gqa=True, scale=1.0 + rank),
        lambda: cp.flex_attention(
            query, key, value, None, "no mask" if rank == 1 else None, shards=shards, enable_gqa=True
        ),
    ]
    for call in calls:
        try:
            call()
            texts.append(None)
        except Exception as error:  # noqa: BLE001 - the test looks at what it is
            texts.append(f"{type(error).__name__}: {error}")
    return texts


def die(rank, ranks):
    shards = cp.plan_shards(LENGTH, ranks)
    mine = [cp.shard(one, shards, rank) for one in tensors(torch.float32)]
    if rank == 1:
        os._exit(3)
    cp.flex_attention(*mine, shards=shards, enable_gqa=True)


def test_two_ranks_have_the_bits_of_one(tmp_path):
    assert on_ranks(tmp_path, compare, 2, causal, torch.float32) == [True, True]


def test_mistakes_are_errors_on_every_rank(tmp_path):
    first, second = on_ranks(tmp_path, mistakes, 2)
    where = "[context_parallel.flex_attention]"
    own = f"{where} query and key must have the same number of heads, or enable_gqa must be set; got 4 and 2"
    assert first[0] == f"ValueError: {where} rank 1: {own}"
    assert second[0] == f"ValueError: {own}"
    dims = f"ValueError: {where} ranks disagree about the head dim of query and key: 16 on rank 0 and 8 on rank 1"
    assert first[1] == second[1] == dims
    assert "ranks disagree about the scale" in first[2] and first[2] == second[2]
    assert first[3] == f"RuntimeError: {where} rank 1: block_mask must be a BlockMask; got str"
    assert second[3] == "TypeError: block_mask must be a BlockMask; got str"


def test_a_rank_that_dies_is_an_error_on_the_other(tmp_path):
    (_, error), (_, nothing) = run_ranks(tmp_path, die, 2, timeout=20)
    assert error is not None and nothing is None


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("rule", [causal, window])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_more_ranks(tmp_path, ranks, rule, dtype):
    assert all(on_ranks(tmp_path, compare, ranks, rule, dtype))
