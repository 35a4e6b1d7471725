"""A call of scaled_dot_product_attention, forward and backward, over dense tensors and over the values of nested ones.

The backward pass replays the dropout of the forward: the seed was drawn before and is kept. Python layer, above
autograd.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.torch.autograd import Call, Outputs
from quire.torch.nested import Sequences, tensor_of
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of


@dataclass(eq=False)
class SdpaCall(Call):
    """`rule`: a mask that is not a tensor; one that is a tensor is read (reads = 1). `sequences`: of nested query, key
    and value."""

    rule: Any
    dropout_p: float
    seed: int
    is_causal: bool
    alignment: str
    scale: float | None
    enable_gqa: bool
    backends: Sequence[int]
    sequences: tuple[Sequences, Sequences, Sequences] | None = None
    reads: int = 0
    is_wide: bool = False

    function = "scaled_dot_product_attention"

    def run(self, inputs: Sequence[Tensor], read: Sequence[Tensor], want_lse: bool) -> Outputs:
        """For nested tensors out is values, [total, heads, dim]. Raises RuntimeError."""
        try:
            out_view, lse_view = _core.sdpa(self._options(read), *self.views(inputs), want_lse, self.is_wide)
        except (ValueError, TypeError) as error:
            raise RuntimeError(str(error)) from None
        query, key, value = inputs
        out = tensor_of(out_view)
        if self.sequences is None and is_like_query(query, key, value, out.shape, self.dropout_p):
            out = _laid_out_like(query, out)
        return out, None if lse_view is None else tensor_of(lse_view), None

    def gradients(
        self,
        inputs: Sequence[Tensor],
        read: Sequence[Tensor],
        results: tuple[Tensor, Tensor],
        d_results: tuple[Tensor | None, Tensor | None],
        wanted: list[bool],
    ) -> list[Tensor | None]:
        d_out, _ = d_results
        if d_out is None:
            raise AssertionError("lse of scaled_dot_product_attention is nobody's result")
        names = [name for name, is_wanted in zip(("q", "k", "v", "attn_mask"), wanted) if is_wanted]
        found = _core.sdpa_backward(
            self._options(read), *self.views(inputs), *map(view_of, results), view_of(d_out), names
        )
        return [None if one is None else tensor_of(one) for one in found]

    def _options(self, read: Sequence[Tensor]) -> _core.SdpaOptions:
        return _core.SdpaOptions(
            view_of(read[0]) if read else self.rule,
            self.dropout_p,
            self.seed,
            self.is_causal,
            self.alignment,
            self.scale,
            self.enable_gqa,
            self.backends,
            openmp_threads(),
        )


def is_like_query(query: Tensor, key: Tensor, value: Tensor, shape: Any, dropout_p: float) -> bool:
    """Whether torch would use its flash kernel, whose result has the query's memory layout: out.transpose(1, 2) can
    then be viewed as [B, L, H * E] if the query could. Its other results are contiguous."""
    is_flash = query.dim() == 4 and tuple(shape) == tuple(query.shape) and dropout_p == 0
    return is_flash and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1


def _laid_out_like(query: Tensor, out: Tensor) -> Tensor:
    if query.stride() == out.stride():
        return out
    like = torch.empty_like(query, dtype=out.dtype)
    if like.is_contiguous():  # the same memory: strides may differ where an axis has one element
        return out.as_strided_(out.shape, like.stride())
    return like.copy_(out)
