"""One backward pass over torch tensors: allocates the gradients and runs _core. The counterpart of forward.py.

Does not know autograd (autograd.py). Layer: Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.torch.forward import Mods
from quire.torch.views import view_of


def bind_for_gradients(mod: Any, captured: list[Tensor], wanted: list[bool]) -> Any:
    """The score mod over these tensors, of which those wanted get a gradient. `captured`: in the order of its buffers."""
    if mod is None or not captured:
        return mod
    return _core.ScoreMod.bind(mod, [view_of(tensor) for tensor in captured], wanted)


def backward(
    inputs: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    gradients: tuple[Tensor | None, Tensor | None],
    mods: Mods,
    captured: list[Tensor],
    wanted: list[bool],
) -> list[Tensor | None]:
    """Of query, key, value and the captured tensors, None where not wanted.

    results: out and lse, in the type the forward computed in; gradients: of these, None for 0. A gradient has the strides of its tensor if these are dense.
    """
    new = [torch.empty_like(one) if is_wanted else None for one, is_wanted in zip(inputs, wanted[:3], strict=True)]
    new += [
        torch.empty(one.shape, dtype=one.dtype, device="cpu") if is_wanted else None
        for one, is_wanted in zip(captured, wanted[3:], strict=True)
    ]
    if not any(wanted):
        return new
    mods = mods._replace(score_mod=bind_for_gradients(mods.score_mod, captured, wanted[3:]))
    _core.attention_backward(
        mods.options("flex_attention_backward"),
        *(view_of(tensor) for tensor in (*inputs, *results)),
        *(None if one is None else view_of(one) for one in gradients),
        tuple(None if one is None else view_of(one) for one in new[:3]),
        [view_of(one) for one in new[3:] if one is not None],
    )
    return new
