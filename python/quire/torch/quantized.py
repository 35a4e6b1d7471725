"""Quantised keys and values for torch: quantize and dequantize, and flex_attention over them.

Codes have no gradients; the query's gradient is computed with the decoded numbers. Python layer, below
flex_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.option_checks import check_int
from quire.quantized import KVFormat, QuantizedTensor, format_of
from quire.torch.autograd import Outputs, recorded
from quire.torch.flex_call import FlexCall
from quire.torch.forward import Mods, as_torch_gives, weights_views
from quire.torch.hooks import HookArguments, bind_hooks
from quire.torch.mods import bind_score_mod
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of

_CPU = torch.device("cpu")


def _tensor(view: _core.View | None) -> Tensor | None:
    return None if view is None else torch.from_dlpack(view)


def quantize(
    x: Tensor, format: KVFormat | str, hadamard: bool = False, *, scales: Tensor | None = None, head_axis: int = 1
) -> QuantizedTensor:
    """As quire.quantize, for a tensor, with codes and scales as tensors. Not recorded by autograd.

    >>> import torch
    >>> from quire.torch import dequantize, quantize
    >>> coded = quantize(torch.ones(1, 2, 5, 64), "int4", hadamard=True)
    >>> coded.codes.shape, dequantize(coded).shape
    (torch.Size([1, 2, 5, 32]), torch.Size([1, 2, 5, 64]))
    """
    format = format_of("quantize", format, hadamard)
    given = None if scales is None else view_of(scales)
    axis = check_int("quantize", "head_axis", head_axis)
    codes, found = _core.quantize(view_of(x.detach()), format, given, axis, openmp_threads())
    return QuantizedTensor(_tensor(codes), _tensor(found), format)


def dequantize(x: QuantizedTensor, dtype: torch.dtype = torch.float32, *, head_axis: int = 1) -> Tensor:
    """As quire.dequantize, returning a tensor.

    >>> import torch
    >>> from quire.torch import dequantize, quantize
    >>> dequantize(quantize(torch.full((1, 1, 2, 32), 127.0), "int8"), torch.bfloat16)[0, 0, 0, :2]
    tensor([127., 127.], dtype=torch.bfloat16)
    """
    if not isinstance(x, QuantizedTensor):
        raise TypeError(f"[dequantize] x must be a QuantizedTensor; got {type(x).__name__}")
    name = str(dtype).removeprefix("torch.")
    made = _core.dequantize(_coded(x), name, check_int("dequantize", "head_axis", head_axis), openmp_threads())
    return torch.from_dlpack(made)


def _coded(x: QuantizedTensor) -> _core.View:
    """Its view; codes and scales may be NumPy arrays."""
    codes, scales = (view_of(one) if isinstance(one, Tensor) else one for one in (x.codes, x.scales))
    return QuantizedTensor(codes, scales, x.format).view()


@dataclass(eq=False)
class CodedCall(FlexCall):
    """A call over dense tensors of which key, value or both are codes. `coded`: these, None for floats."""

    coded: tuple[QuantizedTensor | None, QuantizedTensor | None] = (None, None)

    def views(self, inputs: Sequence[Tensor]) -> list[Any]:
        query, *keys = inputs
        coded = (view_of(one) if of is None else _coded(of) for one, of in zip(keys, self.coded, strict=True))
        return [view_of(query), *coded]

    def run(self, inputs: Sequence[Tensor], read: Sequence[Tensor], want_lse: bool) -> Outputs:
        query = inputs[0]
        views = self.views(inputs)
        is_f64 = torch.float64 in (one.dtype for one in inputs)
        compute = torch.float64 if is_f64 else torch.float32
        shape = (*query.shape[:3], _core.coded_shape(views[2])[3])
        out = torch.empty(shape, dtype=compute if self.is_wide else query.dtype, device=_CPU)
        lse, max_scores = (
            torch.empty(query.shape[:3], dtype=compute, device=_CPU) if is_wanted else None
            for is_wanted in (want_lse, self.want_max)
        )
        optional = (None if one is None else view_of(one) for one in (lse, max_scores))
        sums = (*query.shape[:2], _core.coded_shape(views[1])[2])
        weights = weights_views(self.mods.weights, sums, query.shape[:3], compute)
        mods = self.mods
        if mods.hooks is not None and mods.hooks.sinks is not None and read:
            mods = mods._replace(hooks=mods.hooks._replace(sinks=read[-1]))
        _core.attention(mods.options(self.function, self.enable_gqa), *views, view_of(out), *optional, *weights)
        return out, lse, max_scores


def coded_flex_attention(
    inputs: tuple[Any, Any, Any],
    score_mod: Any,
    mods: Mods,
    given: HookArguments,
    enable_gqa: bool,
    wants: tuple[bool, bool],
) -> Outputs:
    """flex_attention over tensors of which key, value or both are QuantizedTensors. wants: lse, max_scores."""
    query, key, value = inputs
    if not isinstance(query, Tensor) or query.is_nested or query.dim() != 4:
        raise ValueError(
            "[flex_attention] over quantised keys or values the query must be a dense tensor [B, Hq, L, E]"
        )
    coded = (key if isinstance(key, QuantizedTensor) else None, value if isinstance(value, QuantizedTensor) else None)
    tensors: list[Tensor] = [query]
    for one in (key, value):
        of = torch.as_tensor(one.codes) if isinstance(one, QuantizedTensor) else one
        if not isinstance(of, Tensor):
            raise TypeError(
                f"[flex_attention] key and value must be tensors or QuantizedTensors; got {type(of).__name__}"
            )
        if of.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(
                "[flex_attention] of a call over quantised keys or values the query alone has a gradient"
            )
        tensors.append(of)
    needs_grad = torch.is_grad_enabled() and query.requires_grad
    captured: list[Tensor] = []
    captured_needs = False
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    if score_mod is not None:
        mod, captured, captured_needs, _ = bind_score_mod(score_mod, dtype)
        mods = mods._replace(score_mod=mod)
    weight_reads = 0
    bound = bind_hooks("flex_attention", given, dtype)
    if bound is not None:
        mods = mods._replace(hooks=bound.hooks)
        captured, weight_reads = [*captured, *bound.tensors], bound.weight_reads
        captured_needs = captured_needs or bound.needs_grad
    if captured_needs and torch.is_grad_enabled():
        raise NotImplementedError(
            "[flex_attention] of a call over quantised keys or values the query alone has a gradient"
        )
    call = CodedCall(mods, wants[1], len(captured), enable_gqa=enable_gqa, coded=coded, weight_reads=weight_reads)
    if needs_grad:
        out, lse, max_scores = as_torch_gives(query.dtype, *recorded(call, tensors, captured))
        return out, lse if wants[0] else None, max_scores
    return as_torch_gives(query.dtype, *call.run(tensors, captured, wants[0]))
