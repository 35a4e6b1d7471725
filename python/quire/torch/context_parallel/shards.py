"""Shards of torch tensors: planning, cutting and joining. Python layer, below attention.py."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from quire import _core
from quire._core import Shards
from quire.torch.block_mask import blocks_of
from quire.torch.views import view_of

_CPU = torch.device("cpu")


def core_mask(block_mask: Any) -> Any:
    """The _core.BlockMask of a mask of torch or quire.torch."""
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"block_mask must be a BlockMask; got {type(block_mask).__name__}")
    return blocks_of(block_mask).with_rule(block_mask.mask_mod)


def plan_shards(block_mask: BlockMask | int, ranks: int, *, piece_length: int = 0) -> Shards:
    """Which rank holds which pieces of a sequence: visible pairs are balanced, then as few keys travel as can be.

    block_mask: of the whole sequence with itself, any length; or a length, where everything is visible. piece_length: a multiple
    of 1,024; chosen if 0. The same on every rank.

    >>> from quire.torch import create_block_mask
    >>> from quire.torch.context_parallel import plan_shards
    >>> causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
    >>> shards = plan_shards(create_block_mask(causal, None, None, 8192, 8192, device="cpu"), 2)
    >>> shards.ranges(0), shards.ranges(1)
    ([(0, 2048), (6144, 8192)], [(2048, 6144)])
    """
    if isinstance(block_mask, int):
        return _core.plan_shards(None, block_mask, ranks, piece_length)
    return _core.plan_shards(core_mask(block_mask), 0, ranks, piece_length)


def report(shards: Shards, block_mask: BlockMask) -> dict[str, Any]:
    """What shards cost: "pairs", "tokens" and "received" (tokens whose keys and values travel there) of each rank, "balance" and
    "token_balance" (largest to mean), "share_of_gathering" (of what gathering all keys on all ranks moves)."""
    return _core.shard_report(shards, core_mask(block_mask))


def exchange_of(name: str) -> Any:
    """The _core.Exchange of its name."""
    if name not in ("least", "keys", "heads"):
        raise ValueError(f'exchange must be "least", "keys" or "heads"; got {name!r}')
    return getattr(_core.Exchange, name)


def traffic(
    shards: Shards,
    block_mask: BlockMask | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    exchange: Literal["least", "keys", "heads"] = "least",
) -> dict[str, int]:
    """Bytes that all ranks together send in "forward" and "backward" of flex_attention, and what "gathering" all keys and values on
    all ranks moves. query, key and value: a rank's or of the whole; their heads, dims and dtypes are read."""
    mask = None if block_mask is None else core_mask(block_mask)
    views = (view_of(one.detach()) for one in (query, key, value))
    found = _core.shard_traffic(shards, mask, *views, exchange_of(exchange))
    return dict(zip(("forward", "backward", "gathering"), found, strict=True))


def positions(shards: Shards, rank: int) -> Tensor:
    """The positions of a rank's tokens in the sequence, int64."""
    ranges = [torch.arange(begin, end, device=_CPU) for begin, end in shards.ranges(rank)]
    return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64, device=_CPU)


def shard(x: Tensor, shards: Shards, rank: int, dim: int = 2) -> Tensor:
    """A rank's tokens along `dim` of a tensor of the whole sequence. Differentiable."""
    if x.size(dim) != shards.length:
        raise ValueError(f"[shard] axis {dim} must have the {shards.length} tokens of the shards; got {tuple(x.shape)}")
    parts = [x.narrow(dim, begin, end - begin) for begin, end in shards.ranges(rank)]
    return torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)


def unshard(x: Tensor, shards: Shards, group: dist.ProcessGroup | None = None, dim: int = 2) -> Tensor:
    """The whole, on every rank, of what each rank has along `dim`. All ranks call. Its gradient is this rank's part of the gradient
    of the whole."""
    return _Unshard.apply(x, shards, group, dim)


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, group: dist.ProcessGroup | None, dim: int) -> Tensor:
        group = dist.group.WORLD if group is None else group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if size != shards.ranks:
            raise ValueError(f"[unshard] shards for {shards.ranks} ranks in a group of {size}")
        if x.size(dim) != shards.tokens(rank):
            raise ValueError(
                f"[unshard] axis {dim} must have the {shards.tokens(rank)} tokens of rank {rank}; got {tuple(x.shape)}"
            )
        ctx.shards, ctx.rank, ctx.dim = shards, rank, dim
        most = max(shards.tokens(one) for one in range(size))
        padded = torch.zeros((most, *x.movedim(dim, 0).shape[1:]), dtype=x.dtype, device=_CPU)
        padded[: x.size(dim)] = x.movedim(dim, 0)
        gathered = [torch.empty_like(padded) for _ in range(size)]
        dist.all_gather(gathered, padded, group)
        whole = torch.empty((shards.length, *padded.shape[1:]), dtype=x.dtype, device=_CPU)
        for one in range(size):
            whole[positions(shards, one)] = gathered[one][: shards.tokens(one)]
        return whole.movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, d_whole: Tensor) -> tuple:
        return shard(d_whole, ctx.shards, ctx.rank, ctx.dim), None, None, None
