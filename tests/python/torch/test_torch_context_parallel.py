"""quire.torch.context_parallel over gloo: the bits of one process, gradients, errors on every rank."""

import os
import time
from datetime import timedelta

import pytest
import quire
import torch
import torch.distributed as dist
from context_ranks import on_ranks, run_ranks
from quire.torch import AuxRequest, create_block_mask, flex_attention
from quire.torch import context_parallel as cp
from quire.torch.context_parallel.group import Group

LENGTH = 2500


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 700)


def tensors(dtype, q_heads=4, kv_heads=2, length=LENGTH):
    torch.manual_seed(1)
    shape = (1, q_heads, length, 16), (1, kv_heads, length, 16), (1, kv_heads, length, 24)
    return [torch.randn(one, dtype=torch.float32).to(dtype) for one in shape]


def compare(rank, ranks, rule, dtype, exchange):
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
    options = {"shards": shards, "enable_gqa": True, "exchange": exchange}
    got, lse = cp.flex_attention(*mine, mod, mask, return_lse=True, **options)
    assert torch.equal(got, cp.shard(want, shards, rank))
    assert torch.equal(lse, cp.shard(aux.lse, shards, rank))
    assert torch.equal(cp.unshard(got.detach(), shards), want)
    runs = []
    for _ in range(2):
        again = cp.flex_attention(*mine, mod, mask, **options)
        runs.append(torch.autograd.grad((again * cp.shard(loss, shards, rank)).sum(), [*mine, bias]))
    assert all(torch.equal(a, b) for a, b in zip(*runs))
    found = [cp.unshard(one, shards) for one in runs[0][:3]]
    d_bias = runs[0][3].clone()
    dist.all_reduce(d_bias)
    if exchange == "heads" and dtype is torch.float32:
        assert all(torch.equal(one, other) for one, other in zip(found, d_want))
    elif exchange == "heads":  # one process keeps its output in f32 where a captured tensor wants a gradient
        fixed = bias.detach()

        def same_mod(score, b, h, q_idx, kv_idx):
            return score + fixed[kv_idx] + slope * (kv_idx - q_idx) * (h + 1)

        one = flex_attention(*whole, same_mod, mask, enable_gqa=True)
        d_one = torch.autograd.grad((one * loss).sum(), whole)
        of_rank = cp.flex_attention(*mine, same_mod, mask, **options)
        d_mine = torch.autograd.grad((of_rank * cp.shard(loss, shards, rank)).sum(), mine)
        assert all(torch.equal(cp.unshard(a, shards), b) for a, b in zip(d_mine, d_one))
    for one, other in zip([*found, d_bias], d_want):
        bound = 2**-7 if dtype is torch.bfloat16 else 2**-18
        assert (one.float() - other.float()).abs().max() <= bound * other.float().abs().max()
    with torch.no_grad():
        plain = cp.flex_attention(*mine, None, mask, **options)
    assert torch.equal(plain, cp.shard(flex_attention(query, key, value, None, mask, enable_gqa=True), shards, rank))
    return True


def compare_gallery(rank, ranks, dtype):
    """Every mask and score mod of the gallery, and every mask with a bias that is captured. How many were compared."""
    length = 2111
    query, key, value = tensors(dtype, length=length)
    bias = torch.linspace(-1, 1, length)

    def biased(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx] * (h + 1)

    count = 0
    for entry in quire.mods.gallery():
        made = entry.mod(q_len=length, kv_len=length, heads=4)
        is_mask = isinstance(made, quire.MaskMod)
        mask = create_block_mask(made, None, 4, length, length, device="cpu") if is_mask else None
        shards = cp.plan_shards(mask if is_mask else length, ranks)
        mine = [cp.shard(one, shards, rank) for one in (query, key, value)]
        for mod in (None, biased) if is_mask else (made,):
            want, aux = flex_attention(query, key, value, mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
            for exchange in ("keys", "heads"):
                got, lse = cp.flex_attention(
                    *mine, mod, mask, shards=shards, enable_gqa=True, exchange=exchange, return_lse=True
                )
                assert torch.equal(got, cp.shard(want, shards, rank)), (entry.name, exchange)
                assert torch.equal(lse, cp.shard(aux.lse, shards, rank)), (entry.name, exchange)
                count += 1
    return count


def compare_decode(rank, ranks, dtype):
    """Contexts of odd lengths that are spread, in pages; exact states, one and several queries."""
    lengths, page, kv_heads, dim = (4100, 1500, 700), 16, 2, 16
    torch.manual_seed(3)
    bias = torch.linspace(-1, 1, max(lengths))
    keys, values = ([torch.randn(kv_heads, one, dim).to(dtype) for one in lengths] for _ in range(2))

    def mod(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx] * (h + 1)

    def rule(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < 3000)

    shards = [
        cp.Shards(one, ranks, 1024, [(2 * i + at) % ranks for i in range(-(-one // 1024))])
        for at, one in enumerate(lengths)
    ]
    pages = [[], []]
    table = torch.zeros(len(lengths), max(lengths) // page + 1, dtype=torch.int32)
    for i, of in enumerate(shards):
        tokens = of.tokens(rank)
        for many, whole in zip(pages, (keys[i], values[i])):
            padded = torch.zeros(kv_heads, -(-tokens // page) * page, dim, dtype=dtype)
            padded[:, :tokens] = cp.shard(whole, of, rank, 1)
            first = sum(len(one) for one in many)
            many.append(padded.view(kv_heads, -1, page, dim).transpose(0, 1))
        table[i, : len(pages[0][-1])] = torch.arange(first, first + len(pages[0][-1]))
    held = torch.tensor([of.tokens(rank) for of in shards])
    pools = [torch.cat([*many, torch.zeros(1, kv_heads, page, dim, dtype=dtype)]) for many in pages]
    for queries in (1, 5):
        query = torch.randn(len(lengths), 4, queries, dim).to(dtype)
        dist.broadcast(query, 0)
        got, lse = cp.attend(query, *pools, table, held, mod, rule, shards=shards, return_lse=True)
        for i, length in enumerate(lengths):
            begin = length - queries
            mask = create_block_mask(lambda b, h, q, kv: rule(b, h, q + begin, kv), None, None, queries, length, "cpu")
            want, aux = flex_attention(
                query[i : i + 1],
                keys[i][None],
                values[i][None],
                mod,
                mask,
                enable_gqa=True,
                return_aux=AuxRequest(lse=True),
            )
            assert torch.equal(got[i : i + 1], want) and torch.equal(lse[i : i + 1], aux.lse), (i, queries)
    return True


def counted(rank, ranks, exchange):
    """Bytes that all ranks sent forward and backward, and what traffic() says."""
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    shards = cp.plan_shards(mask, ranks)
    mine = [cp.shard(one, shards, rank).requires_grad_() for one in tensors(torch.float32, 4, 4)]
    before = Group.sent_bytes
    out = cp.flex_attention(*mine, None, mask, shards=shards, exchange=exchange)
    forward = Group.sent_bytes - before
    out.sum().backward()
    sent = torch.tensor([forward, Group.sent_bytes - before - forward])
    dist.all_reduce(sent)
    said = cp.traffic(shards, mask, *mine, exchange=exchange)
    return sent.tolist() == [said["forward"], said["backward"]] and said["gathering"] > 0


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
        lambda: cp.flex_attention(
            query, key, value, shards=shards, enable_gqa=True, exchange="keys" if rank == 1 else "heads"
        ),
        lambda: cp.flex_attention(query, key, value, shards=shards, enable_gqa=True, exchange="rows"),
    ]
    for call in calls:
        try:
            call()
            texts.append(None)
        except Exception as error:  # noqa: BLE001 - the test looks at what it is
            texts.append(f"{type(error).__name__}: {error}")
    return texts


def die(rank, ranks, when):
    """Rank 1 is lost before the call, or while the other waits for its second message."""
    shards = cp.plan_shards(LENGTH, ranks)
    mine = [cp.shard(one, shards, rank) for one in tensors(torch.float32)]
    if rank == 1 and when == "before":
        os._exit(3)
    if rank == 1:

        def leave(*_):
            os._exit(3)

        Group.isend = leave
    cp.flex_attention(*mine, shards=shards, enable_gqa=True, exchange="keys")


def stay_away(rank, ranks):
    """Rank 1 does not call: the other has its error when the group's timeout is over."""
    group = dist.new_group(timeout=timedelta(seconds=4))
    shards = cp.plan_shards(LENGTH, ranks)
    mine = [cp.shard(one, shards, rank) for one in tensors(torch.float32)]
    if rank == 1:
        time.sleep(12)
        return None
    begin = time.monotonic()
    with pytest.raises(RuntimeError):
        cp.flex_attention(*mine, shards=shards, group=group, enable_gqa=True)
    return time.monotonic() - begin


@pytest.mark.parametrize("exchange", ["keys", "heads"])
def test_two_ranks_have_the_bits_of_one(tmp_path, exchange):
    assert on_ranks(tmp_path, compare, 2, causal, torch.float32, exchange) == [True, True]


@pytest.mark.parametrize("exchange", ["least", pytest.param("heads", marks=pytest.mark.slow)])
def test_traffic_is_what_is_sent(tmp_path, exchange):
    assert all(on_ranks(tmp_path, counted, 4, exchange))


def test_decode_has_the_bits_of_one(tmp_path):
    assert all(on_ranks(tmp_path, compare_decode, 2, torch.float32))


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
    assert "ranks disagree about the exchange" in first[4] and first[4] == second[4]
    assert first[5] == second[5] == 'ValueError: exchange must be "least", "keys" or "heads"; got \'rows\''


@pytest.mark.parametrize("when", ["before", "while sending"])
def test_a_rank_that_dies_is_an_error_on_the_other(tmp_path, when):
    (_, error), (_, nothing) = run_ranks(tmp_path, die, 2, when)
    assert error is not None and error[0] == "RuntimeError" and nothing is None


def test_a_rank_that_stays_away_is_an_error_in_time(tmp_path):
    waited, _ = on_ranks(tmp_path, stay_away, 2)
    assert 3 < waited < 12


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestMoreRanks:
    @pytest.mark.parametrize("rule", [causal, window])
    @pytest.mark.parametrize("exchange", ["keys", "heads"])
    def test_forward_and_gradients(self, tmp_path, ranks, dtype, rule, exchange):
        assert all(on_ranks(tmp_path, compare, ranks, rule, dtype, exchange))

    def test_the_gallery(self, tmp_path, ranks, dtype):
        counts = on_ranks(tmp_path, compare_gallery, ranks, dtype)
        assert counts == [counts[0]] * ranks and counts[0] > 40

    def test_decode(self, tmp_path, ranks, dtype):
        assert all(on_ranks(tmp_path, compare_decode, ranks, dtype))
