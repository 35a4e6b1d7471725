"""flex_attention as autograd records it: called instead of forward() when a gradient is asked for.

The backward pass is a function of autograd's as well, so that torch.func.grad can unwrap what it gets, and differentiating
it again says clearly that it cannot be. Layer: Python, above forward.py and backward.py.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quire.torch.backward import backward
from quire.torch.forward import HALF, Mods, as_torch_gives, forward_as_computed
from quire.torch.transforms import FlexGradient, FlexOnce


class _Call:
    """What a call is beside its tensors; opaque to torch's pytrees."""

    __slots__ = ("mods", "want_max", "captured", "is_wide")

    def __init__(self, mods: Mods, want_max: bool, captured: int, is_wide: bool):
        self.mods = mods
        self.want_max = want_max
        self.captured = captured  # how many of the tensors behind the call the score mod reads
        self.is_wide = is_wide  # the last output is the first as it was before rounding


class Recorded(FlexOnce):
    """A forward pass of (query, key, value, call, tensors that mods read) to (out, lse, perhaps the largest scores, perhaps out
    before it was rounded)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        query, key, value, ctx.call, *tensors = inputs
        out = output[-1] if getattr(ctx.call, "is_wide", False) else output[0]
        ctx.save_for_backward(query, key, value, out, output[1], *tensors)
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)


class FlexAttention(Recorded):
    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, call: _Call, *tensors: Tensor) -> Any:
        out, lse, *rest = forward_as_computed(query, key, value, call.mods, True, call.want_max, call.is_wide)
        rest = rest if call.want_max else []
        return (out.to(query.dtype), lse, *rest, out) if call.is_wide else (out, lse, *rest)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any) -> tuple:
        captured = ctx.call.captured
        needed = ctx.needs_input_grad
        wanted = [*needed[:3], *needed[4 : 4 + captured]]
        nothing = [None] * (len(needed) - 4 - captured)
        if (d_out is None and d_lse is None) or not any(wanted):
            return (None,) * len(needed)
        saved = ctx.saved_tensors[: 5 + captured]
        found = iter(FlexAttentionBackward.of(ctx.call.mods, wanted, d_out, d_lse, *saved))
        d = [next(found) if is_wanted else None for is_wanted in wanted]
        return (*d[:3], None, *d[3:], *nothing)


class FlexAttentionBackward(FlexGradient):
    @staticmethod
    def forward(mods: Mods, wanted: list[bool], d_out: Tensor | None, d_lse: Tensor | None, *saved: Tensor) -> Any:
        query, key, value, out, lse, *captured = saved
        d = backward((query, key, value), (out, lse), (d_out, d_lse), mods, captured, wanted)
        return tuple(one for one in d if one is not None)


def differentiable_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mods: Mods,
    want_max: bool,
    captured: list[Tensor],
    mask_reads: list[Tensor],
    learns_captured: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """forward() with lse, recorded. captured: the tensors that the score mod reads, in
    the order of its buffers; mask_reads: those that the mask's rule reads, kept so that torch notices if they are edited
    before the backward pass. learns_captured: some of the captured want a gradient. Of half precision out is then kept as it
    was before rounding: a bias that all scores of a row share has the gradient 0 only if the backward pass knows the weighted
    sum of values as exactly as it knows the weights."""
    call = _Call(mods, want_max, len(captured), learns_captured and query.dtype in HALF)
    kept = [tensor for tensor in mask_reads if not tensor.is_inference()]
    outputs = FlexAttention.apply(query, key, value, call, *captured, *kept)
    return as_torch_gives(query.dtype, *outputs[:2], outputs[2] if want_max else None)
