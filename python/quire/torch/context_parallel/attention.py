"""flex_attention on each rank's pieces, recorded by autograd. Python layer, top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from quire import _core
from quire._core import Shards
from quire.option_checks import check_scale
from quire.torch.autograd import Call, Outputs, recorded
from quire.torch.context_parallel.group import Group, refusing
from quire.torch.context_parallel.shards import core_mask, exchange_of
from quire.torch.mods import bind_score_mod
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of


@dataclass(eq=False)
class _ContextCall(Call):
    """mod reads `reads` tensors; mod and mask are of _core."""

    shards: Shards
    group: dist.ProcessGroup | None
    mod: Any
    mask: Any
    scale: float | None
    enable_gqa: bool
    exchange: Any
    reads: int = 0

    function = "context_parallel.flex_attention"

    def _options(self, mod: Any) -> tuple:
        options = self.scale, self.enable_gqa, self.exchange, openmp_threads()
        return self.shards, Group(self.group), mod, self.mask, options

    def run(self, inputs: Sequence[Tensor], read: Sequence[Tensor], want_lse: bool) -> Outputs:
        out, lse = _core.context_attention(*self.views(inputs), *self._options(self.mod))
        return torch.from_dlpack(out), torch.from_dlpack(lse), None

    def gradients(
        self,
        inputs: Sequence[Tensor],
        read: Sequence[Tensor],
        results: tuple[Tensor, Tensor],
        d_results: tuple[Tensor | None, Tensor | None],
        wanted: list[bool],
    ) -> list[Tensor | None]:
        """All ranks take part, whatever each of them wants: the gradients of keys are sums over ranks."""
        mod = self.mod
        if mod is not None and read:
            mod = _core.ScoreMod.bind(mod, list(map(view_of, read)), wanted[3:])
        loss = (*map(view_of, results), *(None if one is None else view_of(one) for one in d_results))
        found = [
            torch.from_dlpack(one) for one in _core.context_backward(*self.views(inputs), loss, *self._options(mod))
        ]
        d: list[Tensor | None] = [
            one if is_wanted else None for one, is_wanted in zip(found[:3], wanted[:3], strict=True)
        ]
        buffers = iter(found[3:])
        return d + [next(buffers) if is_wanted else None for is_wanted in wanted[3:]]


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: BlockMask | None = None,
    *,
    shards: Shards,
    group: dist.ProcessGroup | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    exchange: Literal["least", "keys", "heads"] = "least",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """quire.torch.flex_attention over a sequence of which each rank holds the pieces that shards say.

    query [B, Hq, tokens, E], key [B, Hkv, tokens, E] and value [B, Hkv, tokens, Ev]: this rank's tokens, ascending (shard()).
    block_mask: of the whole sequence; in mods q_idx and kv_idx are positions in it. All ranks of the group call, with the same
    arguments beside their tensors; what differs, or what one finds wrong, is an error on all of them.

    exchange: what travels. "keys": keys and values that this rank's queries see come to it. "heads": each rank computes some heads,
    whole. "least": whichever sends fewer bytes, where both balance the work (traffic()).

    Out and lse are, bit by bit, this rank's rows of flex_attention over the whole. So are gradients where heads travel; where keys
    do, they are within the same error bound, and the same bits from run to run. Of tensors that score_mod captures each rank gets
    a part of the gradient, as of other parameters: sum them over the group. All ranks take part in the backward pass.
    """
    with refusing("context_parallel.flex_attention", group):
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"[context_parallel.flex_attention] {name} must be a tensor; got {type(tensor).__name__}"
                )
        if scale is not None:
            scale = check_scale("context_parallel.flex_attention", scale)
        travels = exchange_of(exchange)
        mask = None if block_mask is None else core_mask(block_mask)
        mod, captured_needs_grad = None, False
        captured: list[Tensor] = []
        if score_mod is not None:
            dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
            mod, captured, captured_needs_grad, _ = bind_score_mod(score_mod, dtype)
    call = _ContextCall(shards, group, mod, mask, scale, enable_gqa, travels, len(captured))
    inputs = (query, key, value)
    if torch.is_grad_enabled() and (captured_needs_grad or any(one.requires_grad for one in inputs)):
        out, lse, _ = recorded(call, inputs, captured)
    else:
        out, lse, _ = call.run([one.detach() for one in inputs], captured, return_lse)  # type: ignore[assignment]
    return (out, lse) if return_lse else out
