"""One forward pass over torch tensors that were checked: allocates the results as torch lays them out and runs _core.

Does not know autograd (autograd.py) nor what a user may call (flex_attention.py). Layer: Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from quire import _core
from quire.torch.threads import openmp_threads
from quire.torch.views import CODES, view_of

_View = _core.View
_attention, _Options = _core.attention, _core.Options
_empty = torch.empty
_F64 = torch.float64
_plain_options: dict[tuple, _core.Options] = {}  # of calls with tensors alone; nobody changes them
_MOST_OPTIONS = 64
_kept_plan = _core.KeptPlan()  # of calls without a mask
HALF = frozenset({torch.bfloat16, torch.float16})
_CPU = torch.device("cpu")  # said everywhere: the default device may be another


class Mods(NamedTuple):
    """What a call computes with beside its tensors; mod and mask are of _core."""

    score_mod: Any = None
    block_mask: Any = None
    scale: float | None = None
    dropout_p: float = 0.0
    seed: int = 0  # of the dropout; the backward pass replays it

    def options(self, function: str = "flex_attention", enable_gqa: bool = True) -> _core.Options:
        """As _core takes them, on torch's threads."""
        threads = openmp_threads()
        is_plain = self.score_mod is None and self.block_mask is None and not self.dropout_p
        key = (function, self.scale, enable_gqa, threads) if is_plain else None
        made = None if key is None else _plain_options.get(key)
        if made is None:
            made = _Options(
                function,
                self.score_mod,
                block_mask=self.block_mask,
                scale=self.scale,
                enable_gqa=enable_gqa,
                dropout_p=self.dropout_p,
                seed=self.seed,
                openmp_threads=threads,
            )
            if key is not None and len(_plain_options) < _MOST_OPTIONS:
                _plain_options[key] = made
        return made


def draw_seed() -> int:
    """Of a dropout: one number from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64, device=_CPU).random_().item())


def output_strides(shape: tuple[int, ...], query_strides: tuple[int, ...]) -> list[int]:
    """Dense strides in the order of the query's, the last axis always contiguous, as torch gives.

    A query of strides (512, 8, 32, 1), that is [B, L, H, E] in memory, gives an output that is [B, L, H, Ev] in memory.
    """
    # Ascending; of equal strides the later axis first.
    order = sorted(range(len(shape)), key=lambda axis: (query_strides[axis], -axis))
    strides = _dense(shape, order)
    if strides[-1] != 1:
        last = len(shape) - 1
        order.remove(last)
        strides = _dense(shape, [last, *order])
    return strides


def _dense(shape: tuple[int, ...], order: list[int]) -> list[int]:
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    return strides


def _input(tensor: torch.Tensor) -> Any:
    code = CODES.get(tensor.dtype)
    if code is None or not tensor.is_contiguous() or tensor.is_neg():
        return view_of(tensor)
    return _View(tensor.data_ptr(), code, tensor.shape, tensor.stride())


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mods: Mods,
    want_lse: bool,
    want_max: bool,
    is_wide: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """query [B, Hq, L, E], key [Bkv, Hkv, S, E], value [Bkv, Hkv, S, Ev].

    Returns the output [B, Hq, L, Ev] in query's dtype (`is_wide`: as it was computed) and, if wanted, lse and the largest
    scores, [B, Hq, L] in f32 (f64 for f64 queries).
    """
    outputs = forward_as_computed(query, key, value, mods, want_lse, want_max, is_wide)
    return as_torch_gives(query.dtype, *outputs) if want_lse or want_max else outputs


def as_torch_gives(
    dtype: torch.dtype, out: torch.Tensor, lse: torch.Tensor | None, max_scores: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """lse and max_scores of a query of this dtype: f32, unless that is f64."""
    if dtype is not _F64:
        if lse is not None and lse.dtype is _F64:
            lse = lse.float()
        if max_scores is not None and max_scores.dtype is _F64:
            max_scores = max_scores.float()
    return out, lse, max_scores


def forward_as_computed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mods: Mods,
    want_lse: bool,
    want_max: bool,
    is_wide: bool = False,
    kept_plan: _core.KeptPlan | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The same; lse and max_scores are in f64 if one of the three inputs is. `is_wide`: so is the output, and else in f32.
    `kept_plan`: that of the mask."""
    batch, heads, q_len, dim = shape = query.shape
    dtype = query.dtype
    if is_wide:
        dtype = _F64 if key.dtype is _F64 or value.dtype is _F64 else torch.float32
    out_shape = (batch, heads, q_len, value.shape[3])
    strides = query.stride()
    if strides == (heads * q_len * dim, q_len * dim, dim, 1):
        out = _empty(out_shape, dtype=dtype, device=_CPU)
    else:
        out = torch.empty_strided(out_shape, output_strides(out_shape, strides), dtype=dtype, device=_CPU)
    lse = max_scores = lse_view = max_view = None
    if want_lse or want_max:
        is_f64 = dtype is _F64 or key.dtype is _F64 or value.dtype is _F64
        compute = _F64 if is_f64 else torch.float32
        if want_lse:
            lse = _empty(shape[:3], dtype=compute, device=_CPU)
            lse_view = _View(lse.data_ptr(), CODES[compute], lse.shape, lse.stride())
        if want_max:
            max_scores = _empty(shape[:3], dtype=compute, device=_CPU)
            max_view = _View(max_scores.data_ptr(), CODES[compute], max_scores.shape, max_scores.stride())
    _attention(
        mods.options(),
        _input(query),
        _input(key),
        _input(value),
        _View(out.data_ptr(), CODES[dtype], out_shape, out.stride()),
        lse_view,
        max_view,
        _kept_plan if mods.block_mask is None else kept_plan,
    )
    return out, lse, max_scores
