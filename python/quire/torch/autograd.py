"""Attention as autograd records it: one function for flex_attention and scaled_dot_product_attention, dense and nested.

What is computed is a Call (flex_call.py, sdpa_call.py), which knows how to run and how to compute its gradients. For
nested tensors the function sees the values, [total, heads, dim]; torch differentiates the conversions. The backward
pass is an autograd function as well, so that torch.func.grad can unwrap its arguments, and differentiating it again
raises a clear error. Python layer, below the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from quire.torch.nested import Sequences
from quire.torch.transforms import (
    batched_by_autograd,
    is_batched_by_autograd,
    no_second_gradient,
    not_transformed,
    one_by_one,
)
from quire.torch.views import view_of

Outputs: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]  # out, lse, max_scores


class Call:
    """What a call is besides its tensors; opaque to torch's pytrees.

    reads: how many tensors besides query, key and value it reads that may want a gradient. is_wide: for inputs in half
    precision the output before rounding is kept for the backward pass. A bias shared by all scores of a row has
    gradient 0 only if the weighted sum of values is as exact as the weights.
    """

    function: str
    sequences: tuple[Sequences, Sequences, Sequences] | None = None  # of nested query, key and value
    want_max: bool = False
    is_wide: bool = False
    reads: int = 0

    def views(self, inputs: Sequence[Tensor]) -> list[Any]:
        """Views of query, key and value, as _core takes them."""
        if self.sequences is None:
            return [view_of(tensor) for tensor in inputs]
        return [sequences.views(one) for sequences, one in zip(self.sequences, inputs, strict=True)]

    def run(self, inputs: Sequence[Tensor], read: Sequence[Tensor], want_lse: bool) -> Outputs:
        """(out, lse, max_scores) of query, key and value; None for what is not wanted. lse in the dtype it was computed
        in."""
        raise NotImplementedError

    def gradients(
        self,
        inputs: Sequence[Tensor],
        read: Sequence[Tensor],
        results: tuple[Tensor, Tensor],
        d_results: tuple[Tensor | None, Tensor | None],
        wanted: list[bool],
    ) -> list[Tensor | None]:
        """Gradients of query, key, value and what is read; None if not wanted. d_results: of out and lse, None for 0."""
        raise NotImplementedError


class _Once(torch.autograd.Function):
    """A function with a rule for vmap and none for forward mode. The call is the first argument."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple, *arguments: Any) -> Any:
        return one_by_one(cls.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise not_transformed(ctx.call.function, "Jvp")


class Attention(_Once):
    """(call, query, key, value, tensors that it reads, tensors kept) -> (out, lse, optionally max_scores, optionally
    the output before rounding)."""

    @staticmethod
    def forward(call: Call, query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Any:
        out, *rest = call.run((query, key, value), others[: call.reads], True)
        found = [one for one in rest if one is not None]
        return (out.to(query.dtype), *found, out) if call.is_wide else (out, *found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.call, query, key, value, *others = inputs
        out = output[-1] if ctx.call.is_wide else output[0]
        ctx.save_for_backward(query, key, value, out, output[1], *others)
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any) -> tuple:
        needed, reads = ctx.needs_input_grad[1:], ctx.call.reads
        wanted = list(needed[: 3 + reads])
        if (d_out is None and d_lse is None) or not any(wanted):
            return (None,) * (1 + len(needed))
        saved = ctx.saved_tensors[: 5 + reads]
        found = iter(AttentionGradient.of(ctx.call, wanted, d_out, d_lse, *saved))
        d = (next(found) if is_wanted else None for is_wanted in wanted)
        return (None, *d, *(None for _ in needed[3 + reads :]))


class AttentionGradient(_Once):
    """(call, wanted, d_out, d_lse, what was saved) -> the wanted gradients. Has no gradient itself."""

    @classmethod
    def of(cls, *arguments: Any) -> Any:
        """apply(), also for gradients batched by torch.autograd."""
        if any(isinstance(one, Tensor) and is_batched_by_autograd(one) for one in arguments):
            return batched_by_autograd(cls.apply, arguments)
        return cls.apply(*arguments)

    @staticmethod
    def forward(call: Call, wanted: list[bool], d_out: Tensor | None, d_lse: Tensor | None, *saved: Tensor) -> Any:
        query, key, value, out, lse, *read = saved
        d = call.gradients((query, key, value), read, (out, lse), (d_out, d_lse), wanted)
        return tuple(one for one in d if one is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.call = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise no_second_gradient(ctx.call.function)


def recorded(
    call: Call, inputs: Sequence[Tensor], read: Sequence[Tensor] = (), kept: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Runs call.run() with lse and records it. read: call.reads tensors, which may want gradients. kept: others that
    the result depends on, kept so that torch notices if they are edited before the backward pass."""
    outputs = Attention.apply(call, *inputs, *read, *kept)
    return outputs[0], outputs[1], outputs[2] if call.want_max else None
