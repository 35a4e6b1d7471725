"""One forward pass over checked torch tensors: allocates the results with torch's strides and runs _core.

Does not know autograd (autograd.py) or the user's arguments (flex_attention.py). Python layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from quire import _core
from quire.torch.aux_request import Weights
from quire.torch.threads import openmp_threads
from quire.torch.views import CODES, view_of

_View = _core.View
_attention, _Options = _core.attention, _core.Options
_empty = torch.empty
_F64 = torch.float64
_plain_options: dict[tuple, _core.Options] = {}  # for calls with only tensors; never changed
_MOST_OPTIONS = 64
plain_plans = _core.KeptPlan()  # for calls without a mask
HALF = frozenset({torch.bfloat16, torch.float16})
_CPU = torch.device("cpu")  # always given explicitly: the default device may differ


class Hooks(NamedTuple):
    """Sinks, weights by a formula and rotation; None for a call that has none of them. weight_mod and rope are _core's."""

    sinks: Any = None  # a tensor
    lse_with_sinks: bool = False
    weight_mod: Any = None
    normalize: str | None = None
    rope: Any = None
    learns_sinks: bool = False

    def options(self) -> dict[str, Any]:
        """As _core.Options takes them."""
        found = self._asdict()
        found["sinks"] = None if self.sinks is None else view_of(self.sinks)
        return found


class Mods(NamedTuple):
    """What a call computes with besides its tensors; mod and mask are _core's."""

    score_mod: Any = None
    block_mask: Any = None
    scale: float | None = None
    dropout_p: float = 0.0
    seed: int = 0  # of the dropout; the backward pass replays it
    key_indices: torch.Tensor | None = None
    weights: Weights | None = None  # filled in by the forward pass
    hooks: Hooks | None = None
    mask_mod: Any = None  # replaces block_mask: proved by the call

    def options(self, function: str = "flex_attention", enable_gqa: bool = True) -> _core.Options:
        """As _core takes them, on torch's threads. Those of a call without mods are cached, which matters for tiny
        calls."""
        threads = openmp_threads()
        is_plain = self.score_mod is self.block_mask is self.mask_mod is None and not self.dropout_p
        key = None
        if is_plain and self.key_indices is None and self.hooks is None:
            key = (function, self.scale, enable_gqa, threads)
        made = None if key is None else _plain_options.get(key)
        if made is None:
            made = _Options(
                function,
                self.score_mod,
                self.mask_mod,
                self.block_mask,
                scale=self.scale,
                enable_gqa=enable_gqa,
                dropout_p=self.dropout_p,
                seed=self.seed,
                openmp_threads=threads,
                key_indices=None if self.key_indices is None else view_of(self.key_indices),
                **({} if self.hooks is None else self.hooks.options()),
            )
            if key is not None and len(_plain_options) < _MOST_OPTIONS:
                _plain_options[key] = made
        return made


def draw_seed() -> int:
    """The seed of a dropout: one number from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64, device=_CPU).random_().item())


def output_strides(shape: tuple[int, ...], query_strides: tuple[int, ...], order: list[int] | None = None) -> list[int]:
    """Dense strides in the order of the query's, the last axis always contiguous, as torch returns.

    A query of strides (512, 8, 32, 1), that is [B, L, H, E] in memory, gives an output that is [B, L, H, Ev] in memory.
    order: of the axes, if their strides cannot be sorted as numbers.
    """
    if order is None:  # ascending; of equal strides the later axis first
        order = sorted(range(len(shape)), key=lambda axis: (query_strides[axis], -axis))
    strides = _dense(shape, order)
    if order[0] != len(shape) - 1 and strides[-1] != 1:
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


def _compute_type(*inputs: torch.Tensor) -> torch.dtype:
    return _F64 if any(one.dtype is _F64 for one in inputs) else torch.float32


def weights_views(weights: Weights | None, keys: Any, rows: Any, dtype: torch.dtype) -> tuple:
    """The last arguments of _core.attention: outputs for the weights of keys and the entropy, in tensors of these
    shapes."""
    if weights is None:
        return ()
    made = weights.allocate(keys, rows, dtype)
    return (*(None if one is None else view_of(one) for one in made), weights.queries)


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
    """lse and max_scores for a query of this dtype: f32, or f64 if it is f64."""
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
    """The same; lse and max_scores are in f64 if one of the three inputs is. `is_wide`: the output, too, is in the
    computed type (f64 or f32). `kept_plan`: the mask's."""
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
    plan = plain_plans if mods.block_mask is None else kept_plan
    attention = _attention if plan is None else plan.run
    attention(
        mods.options(),
        _input(query),
        _input(key),
        _input(value),
        _View(out.data_ptr(), CODES[dtype], out_shape, out.stride()),
        lse_view,
        max_view,
        *weights_views(mods.weights, (batch, heads, key.shape[2]), shape[:3], _compute_type(query, key, value)),
    )
    return out, lse, max_scores
