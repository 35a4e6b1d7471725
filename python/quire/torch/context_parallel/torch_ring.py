"""torch's own context_parallel() over scaled_dot_product_attention on the CPU, while quire.torch.enable() is on.

torch splits SDPA over ranks by handlers of the operators that a GPU has; the CPU's operator has none, and the call fails ("does not
have a sharding strategy registered"). Here are two more handlers, for the CPU's operator and its gradient: torch's ring, each step by
Quire. Python layer, above flex_attention.py; enable.py calls apply().
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_flatten

from quire.torch.aux_request import AuxRequest
from quire.torch.create_block_mask import create_block_mask
from quire.torch.flex_attention import flex_attention
from quire.torch.flex_attention_backward import flex_attention_backward

_MODULE = "torch.distributed.tensor.experimental._context_parallel._attention"
_SEQ_DIM = 2


def _causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def _mask(is_causal: bool, query: Tensor, key: Tensor) -> Any:
    if not is_causal:
        return None
    return create_block_mask(_causal, None, None, query.size(2), key.size(2), device="cpu")


def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None) -> tuple[Tensor, ...]:
    """One step of the ring: (out, lse)."""
    mask = _mask(is_causal, query, key)
    made: Any = flex_attention(query, key, value, None, mask, scale, return_aux=AuxRequest(lse=True))
    return made[0], made[1].lse


def _gradients(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple:
    mask = _mask(is_causal, query, key)
    return flex_attention_backward(query, key, value, out, logsumexp, grad_out, None, None, mask, scale)


def _forward_ring(
    group: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _refuse(dropout_p, attn_mask)
    ring = sys.modules[_MODULE]._templated_ring_attention
    return ring(group, _SEQ_DIM, _attention, query=query, key=key, value=value, is_causal=is_causal, scale=scale)[:2]


def _backward_ring(
    group: Any,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _refuse(dropout_p, attn_mask)
    ring = sys.modules[_MODULE]._templated_ring_attention_backward
    return ring(
        group,
        _SEQ_DIM,
        _gradients,
        grad_out=grad_out,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=out,
        logsumexp=logsumexp,
        is_causal=is_causal,
        scale=scale,
    )[:3]


def _refuse(dropout_p: float, attn_mask: Tensor | None) -> None:
    if dropout_p or attn_mask is not None:
        raise NotImplementedError("[context_parallel] torch's ring has no dropout and no attn_mask")


_RINGS: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _forward_ring,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward_ring,
}


def _handler(op: Any, args: tuple, kwargs: dict) -> tuple:
    """An operator over DTensors that are sharded along the sequence."""
    from torch.distributed.tensor import DTensor, Shard

    first = args[0]
    if first.device_mesh.ndim != 1 or tuple(first.placements) != (Shard(_SEQ_DIM),):
        raise NotImplementedError("[context_parallel] tensors must be sharded along axis 2 of a mesh with one axis")
    local = [one.to_local() if isinstance(one, DTensor) else one for one in args]
    made = _RINGS[op](first.device_mesh.get_group(), *local, **kwargs)
    return tuple(DTensor.from_local(one, first.device_mesh, first.placements, run_check=False) for one in made)


def _flatten_buffers(buffers: Any) -> Any:
    """Of torch's _context_parallel_shard(), for which a mask is one of the buffers: quire.torch makes of masks trees of tensors."""
    return tree_flatten(buffers, is_leaf=lambda one: isinstance(one, BlockMask))


def apply(is_on: bool) -> None:
    """Adds the handlers to torch's, or takes them out. Torch's module is imported only by programs that are distributed."""
    is_wanted = _MODULE in sys.modules or (is_on and dist.is_available() and dist.is_initialized())
    if not is_wanted:
        return
    import torch.distributed.tensor.experimental._context_parallel._attention as torch_attention

    handlers: dict[Any, Any] = torch_attention.custom_ops
    torch_attention.tree_flatten = _flatten_buffers if is_on else tree_flatten  # type: ignore[assignment]
    for op in _RINGS:
        if is_on:
            handlers[op] = _handler
        else:
            handlers.pop(op, None)
