"""merge_states: combines attention over parts of the keys, with gradients. Python layer, above views.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from quire import _core
from quire.torch.views import view_of


def merge_states(*states: Any) -> tuple[Tensor, Tensor]:
    """Combines (out, lse) over parts of the keys to (out, lse) over all keys: merge_states((out, lse), (out, lse),
    ...), or a list of such pairs.

    out: [..., dim]; lse: [...], natural log; shapes and dtypes must be equal. A row with an lse of -inf saw nothing:
    its out is not read, merging it changes no bit, and its gradient is 0. Both results pass gradients to both inputs.

    >>> import torch
    >>> from quire.torch import AuxRequest, flex_attention, merge_states
    >>> q, k, v = torch.randn(3, 1, 2, 60, 32)
    >>> def part(keys):
    ...     out, aux = flex_attention(q, k[:, :, keys], v[:, :, keys], return_aux=AuxRequest(lse=True))
    ...     return out, aux.lse
    >>> out, lse = merge_states(part(slice(0, 25)), part(slice(25, 60)))
    >>> torch.allclose(out, flex_attention(q, k, v), atol=1e-6)
    True
    """
    if len(states) == 1:
        states = tuple(states[0])
    tensors = [tensor for out, lse in states for tensor in (out, lse)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _MergeStates.apply(*tensors)
    return _merge(tensors)


def _merge(tensors: Any) -> tuple[Tensor, Tensor]:
    views = [view_of(tensor.detach()) for tensor in tensors]
    out, lse = _core.merge_states(list(zip(views[::2], views[1::2])))
    return torch.from_dlpack(out), torch.from_dlpack(lse)


class _MergeStates(torch.autograd.Function):
    """out = sum of w_i * out_i with w_i = exp(lse_i - lse), lse = log(sum of exp(lse_i))."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = _merge(tensors)
        ctx.save_for_backward(out, lse, *tensors)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor, ...]:
        out, lse, *tensors = ctx.saved_tensors
        found = []
        for its_out, its_lse in zip(tensors[::2], tensors[1::2]):
            saw = its_lse != -torch.inf
            weight = torch.where(saw, torch.exp(its_lse - lse), 0)
            away = torch.where(saw[..., None], its_out - out, 0).to(lse.dtype)
            found += [(weight[..., None] * d_out).to(its_out.dtype), weight * (d_lse + (d_out * away).sum(-1))]
        return tuple(found)
