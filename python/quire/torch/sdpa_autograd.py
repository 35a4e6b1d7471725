"""scaled_dot_product_attention as autograd records it, over dense tensors and over the values of nested ones.

The dropout of the backward pass is that of the forward: the seed was drawn before and is kept. Layer: Python, above nested.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire import _core
from quire.torch.forward import HALF
from quire.torch.nested import Sequences, tensor_of
from quire.torch.threads import openmp_threads
from quire.torch.transforms import SdpaGradient, SdpaOnce
from quire.torch.views import view_of


class SdpaCall(NamedTuple):
    """A call beside its tensors. `rule`: a mask that is no tensor; `sequences`: of nested query, key and value."""

    rule: Any
    dropout_p: float
    seed: int
    is_causal: bool
    alignment: str
    scale: float | None
    enable_gqa: bool
    backends: list[int]
    sequences: tuple[Sequences, Sequences, Sequences] | None = None

    def views(self, tensors: Any) -> list[Any]:
        """Of query, key and value, as _core takes them."""
        if self.sequences is None:
            return [view_of(tensor) for tensor in tensors]
        return [sequences.views(one) for sequences, one in zip(self.sequences, tensors, strict=True)]

    def options(self, attn_mask: Tensor | None) -> _core.SdpaOptions:
        """All that _core takes beside the tensors."""
        mask = self.rule if attn_mask is None else view_of(attn_mask)
        return _core.SdpaOptions(mask, *self[1:8], openmp_threads=openmp_threads())


def run_sdpa(
    call: SdpaCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    want_lse: bool,
    is_wide: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(out, lse). Of nested tensors their values, [total, heads, dim]. `is_wide`: out as computed, not rounded to the query's
    half precision."""
    try:
        out, lse = _core.sdpa(call.options(attn_mask), *call.views((query, key, value)), want_lse, is_wide)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from None
    out = tensor_of(out)
    if call.sequences is None and is_like_query(query, key, value, out.shape, call.dropout_p):
        out = _laid_out_like(query, out)
    return out, None if lse is None else tensor_of(lse)


def run_sdpa_backward(
    call: SdpaCall, tensors: tuple, results: tuple[Tensor, Tensor], d_out: Tensor, wanted: list[bool]
) -> list[Tensor | None]:
    """Of query, key, value and attn_mask, the `tensors`; None where not wanted."""
    *inputs, attn_mask = tensors
    names = [name for name, is_wanted in zip(("q", "k", "v", "attn_mask"), wanted, strict=True) if is_wanted]
    found = _core.sdpa_backward(
        call.options(attn_mask), *call.views(inputs), *map(view_of, results), view_of(d_out), names
    )
    return [None if one is None else tensor_of(one) for one in found]


def is_like_query(query: Tensor, key: Tensor, value: Tensor, shape: Any, dropout_p: float) -> bool:
    """Whether torch would take its flash kernel, whose result lies in memory as the query does: out.transpose(1, 2) can then be
    viewed as [B, L, H * E] where the query could. Its other results are contiguous."""
    is_flash = query.dim() == 4 and tuple(shape) == tuple(query.shape) and dropout_p == 0
    return is_flash and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1


def _laid_out_like(query: Tensor, out: Tensor) -> Tensor:
    if query.stride() == out.stride():
        return out
    like = torch.empty_like(query, dtype=out.dtype)
    if like.is_contiguous():  # the same places: strides can differ where an axis has one element
        return out.as_strided_(out.shape, like.stride())
    return like.copy_(out)


class Sdpa(SdpaOnce):
    """(out, lse), and, where a mask in half precision wants a gradient, out before it was rounded: a row's sum of gradients of
    scores is 0 only if the backward pass knows the weighted sum of values as exactly as it knows the weights."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, call: SdpaCall) -> Any:
        if attn_mask is None or not attn_mask.requires_grad or query.dtype not in HALF:
            return run_sdpa(call, query, key, value, attn_mask, True)
        wide, lse = run_sdpa(call, query, key, value, attn_mask, True, True)
        return wide.to(query.dtype), lse, wide

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *tensors, ctx.call = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[2 if len(output) > 2 else 0], output[1])

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> tuple:
        wanted = list(ctx.needs_input_grad[:4])
        if d_out is None:
            return (None,) * 5
        found = iter(SdpaBackward.of(ctx.call, wanted, d_out, *ctx.saved_tensors))
        return (*(next(found) if is_wanted else None for is_wanted in wanted), None)


class SdpaBackward(SdpaGradient):
    @staticmethod
    def forward(call: SdpaCall, wanted: list[bool], d_out: Tensor, *saved: Any) -> Any:
        *tensors, out, lse = saved
        found = run_sdpa_backward(call, tuple(tensors), (out, lse), d_out, wanted)
        return tuple(one for one in found if one is not None)


def differentiable_sdpa(call: SdpaCall, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> Tensor:
    """run_sdpa(), recorded."""
    return Sdpa.apply(query, key, value, attn_mask, call)[0]
