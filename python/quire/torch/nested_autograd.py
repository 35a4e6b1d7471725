"""flex_attention over nested tensors as autograd records it, on their values.

Torch differentiates the way from a nested tensor to its values and back; between them stand functions over values
[total, heads, dim], which know the offsets. Layer: Python, above nested.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire import _core
from quire.torch.autograd import Recorded
from quire.torch.backward import bind_for_gradients
from quire.torch.forward import Mods, as_torch_gives
from quire.torch.nested import NestedTensor, Sequences, nested_from_values, sequences_of, tensor_of, values_of
from quire.torch.transforms import FlexGradient
from quire.torch.views import view_of


class _Call(NamedTuple):
    """What a call is beside its tensors."""

    sequences: tuple[Sequences, Sequences, Sequences]
    mods: Mods
    enable_gqa: bool
    want_max: bool


def _views(call: _Call, values: Any) -> list[_core.JaggedViews]:
    return [sequences.views(one) for sequences, one in zip(call.sequences, values, strict=True)]


class NestedFlexAttention(Recorded):
    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, call: _Call, *captured: Tensor) -> Any:
        options = call.mods.options(enable_gqa=call.enable_gqa)
        results = _core.new_attention(options, *_views(call, (query, key, value)), True, call.want_max)
        return tuple(tensor_of(one) for one in results if one is not None)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any) -> tuple:
        needed = ctx.needs_input_grad
        wanted = [*needed[:3], *needed[4:]]
        if (d_out is None and d_lse is None) or not any(wanted):
            return (None,) * len(needed)
        found = iter(NestedFlexAttentionBackward.of(ctx.call, wanted, d_out, d_lse, *ctx.saved_tensors))
        d = [next(found) if is_wanted else None for is_wanted in wanted]
        return (*d[:3], None, *d[3:])


class NestedFlexAttentionBackward(FlexGradient):
    @staticmethod
    def forward(call: _Call, wanted: list[bool], d_out: Tensor | None, d_lse: Tensor | None, *saved: Tensor) -> Any:
        query, key, value, out, lse, *captured = saved
        mods = call.mods._replace(score_mod=bind_for_gradients(call.mods.score_mod, captured, wanted[3:]))
        new = [
            torch.empty(one.shape, dtype=one.dtype, device="cpu") if is_wanted else None
            for one, is_wanted in zip((query, key, value, *captured), wanted, strict=True)
        ]
        views = [None if one is None else view_of(one) for one in new]
        _core.attention_backward(
            mods.options("flex_attention_backward", call.enable_gqa),
            *_views(call, (query, key, value)),
            view_of(out),
            view_of(lse),
            *(None if one is None else view_of(one) for one in (d_out, d_lse)),
            tuple(views[:3]),
            [one for one in views[3:] if one is not None],
        )
        return tuple(one for one in new if one is not None)


def differentiable_nested_forward(
    tensors: tuple[NestedTensor, NestedTensor, NestedTensor],
    mods: Mods,
    enable_gqa: bool,
    want_max: bool,
    captured: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(out, lse, max_scores), nested and recorded."""
    query = tensors[0]
    call = _Call(tuple(map(sequences_of, tensors)), mods, enable_gqa, want_max)
    values = (values_of(tensor) for tensor in tensors)
    results = NestedFlexAttention.apply(*values, call, *captured)
    results = as_torch_gives(query.dtype, *results, *([] if want_max else [None]))
    return tuple(None if one is None else nested_from_values(one, query) for one in results)
