"""A call of flex_attention, forward and backward, over dense tensors and over the values of nested ones.

Does not know what a user may call (flex_attention.py, nested_flex.py). Python layer, above forward.py and autograd.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire import _core
from quire.torch.autograd import Call, Outputs
from quire.torch.forward import Mods, forward_as_computed, weights_views
from quire.torch.nested import Sequences
from quire.torch.views import view_of

_CPU = torch.device("cpu")


class Pages(NamedTuple):
    """Keys and values [pages, page_size, heads, dim]: the pages of each sequence, [n, most pages], and its number of
    keys, [n]."""

    table: Tensor
    lengths: Tensor

    def views(self, key: Tensor, value: Tensor) -> _core.PagedViews:
        pages = (view_of(one.transpose(1, 2)) for one in (key, value))
        return _core.PagedViews(*pages, view_of(self.table), view_of(self.lengths))


@dataclass(eq=False)
class FlexCall(Call):
    """mods, which read `reads` tensors: the score mod's, `weight_reads` of the weight mod's, then the sinks; sequences:
    of nested or packed query, key and value; enable_gqa: for these; for dense tensors it was checked before. pages: if
    keys and values are paged; there are no gradients then."""

    mods: Mods
    want_max: bool = False
    reads: int = 0
    is_wide: bool = False
    sequences: tuple[Sequences, Sequences, Sequences] | None = None
    enable_gqa: bool = True
    weight_reads: int = 0
    pages: Pages | None = None
    function: str = "flex_attention"

    def views(self, inputs: Sequence[Tensor]) -> list[Any]:
        if self.pages is None or self.sequences is None:
            return super().views(inputs)
        query, key, value = inputs
        return [self.sequences[0].views(query), self.pages.views(key, value)]

    def run(self, inputs: Sequence[Tensor], read: Sequence[Tensor], want_lse: bool) -> Outputs:
        query, key, value = inputs
        mods = self.mods
        if mods.hooks is not None and mods.hooks.sinks is not None and read:
            mods = mods._replace(hooks=mods.hooks._replace(sinks=read[-1]))
        if self.sequences is None:
            return forward_as_computed(query, key, value, mods, want_lse, self.want_max, self.is_wide)
        is_f64 = torch.float64 in (query.dtype, key.dtype, value.dtype)
        compute = torch.float64 if is_f64 else torch.float32
        dtype = compute if self.is_wide else query.dtype
        # Tokens outside any sequence are 0, with lse -inf, as rows that see nothing.
        out = torch.zeros((*query.shape[:2], value.shape[-1]), dtype=dtype, device=_CPU)
        lse, max_scores = (
            torch.full(query.shape[:2], -torch.inf, dtype=compute, device=_CPU) if is_wanted else None
            for is_wanted in (want_lse, self.want_max)
        )
        weights = weights_views(mods.weights, (key.shape[0], query.shape[1]), query.shape[:2], compute)
        replace(self, mods=mods).run_into(inputs, out, lse, max_scores, weights)
        return out, lse, max_scores

    def run_into(
        self,
        inputs: Sequence[Tensor],
        out: Tensor,
        lse: Tensor | None = None,
        max_scores: Tensor | None = None,
        weights: Sequence[Any] = (),
    ) -> None:
        """Runs over sequences into existing tensors. Rows outside any sequence are not written. weights: from
        weights_views."""
        options = self.mods.options(self.function, self.enable_gqa)
        stats = _optional_view(lse), _optional_view(max_scores)
        _core.attention(options, *self.views(inputs), view_of(out), *stats, *weights)

    def gradients(
        self,
        inputs: Sequence[Tensor],
        read: Sequence[Tensor],
        results: tuple[Tensor, Tensor],
        d_results: tuple[Tensor | None, Tensor | None],
        wanted: list[bool],
    ) -> list[Tensor | None]:
        """A gradient has the strides of its tensor if these are dense."""
        new = [
            _new_gradient(one, self.sequences is None and place < 3) if is_wanted else None
            for place, (one, is_wanted) in enumerate(zip((*inputs, *read), wanted, strict=True))
        ]
        if not any(wanted):
            return new
        mods = self._wanting_all(read, wanted[3:])
        _core.attention_backward(
            mods.options(f"{self.function}_backward", self.enable_gqa),
            *self.views(inputs),
            *map(view_of, results),
            *map(_optional_view, d_results),
            tuple(map(_optional_view, new[:3])),
            [view_of(one) for one in new[3:] if one is not None],
        )
        return new

    def _wanting_all(self, read: Sequence[Tensor], wanted: list[bool]) -> Mods:
        """The mods over what is read, with the wanted gradients marked."""
        hooks = self.mods.hooks
        if hooks is None:
            return self.mods._replace(score_mod=_wanting(self.mods.score_mod, read, wanted))
        if hooks.sinks is not None:
            hooks = hooks._replace(sinks=read[-1], learns_sinks=wanted[-1])
            read, wanted = read[:-1], wanted[:-1]
        at = len(read) - self.weight_reads
        hooks = hooks._replace(weight_mod=_wanting(hooks.weight_mod, read[at:], wanted[at:]))
        return self.mods._replace(score_mod=_wanting(self.mods.score_mod, read[:at], wanted[:at]), hooks=hooks)


def _optional_view(tensor: Tensor | None) -> _core.View | None:
    return None if tensor is None else view_of(tensor)


def _new_gradient(tensor: Tensor, has_its_strides: bool) -> Tensor:
    return torch.empty_like(tensor) if has_its_strides else torch.zeros(tensor.shape, dtype=tensor.dtype, device=_CPU)


def _wanting(mod: Any, read: Sequence[Tensor], wanted: list[bool]) -> Any:
    """The score mod over these tensors, with the wanted ones marked for a gradient. `read`: in the order of its
    buffers."""
    return mod if mod is None or not read else _core.ScoreMod.bind(mod, list(map(view_of, read)), wanted)
