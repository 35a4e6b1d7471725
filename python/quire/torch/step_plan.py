"""StepPlan: a plan made by the first layer of a step and run by all of them, over the tensors of each.

For engines that hold their own pages: vLLM's, and continuous batching of transformers. Python layer, above views.py.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quire.torch.views import view_of


class StepPlan:
    """One plan, run once per layer. sinks: the memory that the plan reads, which each layer fills."""

    __slots__ = ("_plan", "_sinks")

    def __init__(self, plan: Any, sinks: Tensor | None) -> None:
        self._plan, self._sinks = plan, sinks

    def run(
        self,
        q: Tensor,
        k: Any,
        v: Any,
        out: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
        tokens: int | None = None,
    ) -> None:
        """tokens: how many rows of q and out there are; None: all."""
        if self._sinks is not None:
            assert sinks is not None
            self._sinks.copy_(sinks.detach())
        tokens = q.shape[0] if tokens is None else tokens
        if lse is not None or not self._plan.run_tensors(q, k, v, out, tokens):
            self._plan.run(view_of(q[:tokens]), k, v, view_of(out[:tokens]), None if lse is None else view_of(lse))
