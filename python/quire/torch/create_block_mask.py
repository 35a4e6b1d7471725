"""create_block_mask and create_mask: torch's arguments, Quire's proof.

Inside a graph create_block_mask is one operator (create_block_mask_operator.py), and create_mask is computed by torch.
Python layer, above create_block_mask_operator.py.
"""

from __future__ import annotations

import warnings
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    _DEFAULT_SPARSE_BLOCK_SIZE,
    _compute_dq_write_order_from_block_mask,
    _mask_mod_signature,
    _score_mod_signature,
)

from quire import _core
from quire.torch import originals
from quire.torch.block_mask import BlockMask
from quire.torch.blocks import Blocks, as_tensor
from quire.torch.create_block_mask_operator import (
    create_block_mask_as_operator,
    create_block_mask_in_graph,
    is_watched,
)
from quire.torch.cuda_to_cpu import device_here
from quire.torch.mods import bind_mask_mod, bind_score_mod, is_score_mod

if TYPE_CHECKING:
    from torch._prims_common import DeviceLikeType


def create_mask(
    mod_fn: _score_mod_signature | _mask_mod_signature,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: DeviceLikeType | None = None,
) -> Tensor:
    """The mask as bools [B, H, Q_LEN, KV_LEN]; for a score mod, true where it does not turn a score of 0 into -inf.

    B=None or H=None means 1. Computed on the CPU, then moved to `device`, by default the CPU.

    >>> from quire.torch import create_mask
    >>> create_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 2, 3).int()
    tensor([[[[1, 0, 0],
              [1, 1, 0]]]], dtype=torch.int32)
    """
    device = device_here(device)
    if torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return originals.create_mask(mod_fn, B, H, Q_LEN, KV_LEN, "cpu" if device is None else device)
    bind = bind_score_mod if is_score_mod(mod_fn) else bind_mask_mod
    mask = as_tensor(_core.create_mask(bind(mod_fn).mod, B, H, Q_LEN, KV_LEN))
    return mask if device is None else mask.to(device)


def create_block_mask(
    mask_mod: _mask_mod_signature,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: DeviceLikeType | None = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
    _compile=False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The block mask of a rule f(b, h, q_idx, kv_idx), found by proof; torch's index tensors are made on demand.

    B=None or H=None means 1. `device` (by default the CPU) is where index tensors live; quire.torch.flex_attention
    takes only masks on the CPU. `_compile` is accepted; nothing is compiled.

    >>> from quire.torch import create_block_mask
    >>> mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 512, 512)
    >>> mask.shape, mask.sparsity()
    ((1, 1, 512, 512), 37.5)
    """
    device = device_here(device)
    is_compiling = torch.compiler.is_dynamo_compiling()
    if is_compiling and compute_dq_write_order:  # needed by torch's GPU kernels, computed by torch
        device = "cpu" if device is None else device
        return originals.create_block_mask(
            mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, False, separate_full_blocks, True, dq_kv_order
        )
    if not is_compiling and is_score_mod(mask_mod):
        raise AssertionError(
            "[create_block_mask] a mask mod takes 4 arguments (b, h, q_idx, kv_idx); got a score mod, which takes 5, "
            f"{mask_mod}: give it to flex_attention as score_mod"
        )
    if _compile and not is_compiling:
        warnings.warn("_compile has no effect and will go, as in torch", DeprecationWarning, stacklevel=2)
    if not isinstance(dq_kv_order, bool):
        raise ValueError(f"[create_block_mask] dq_kv_order must be a bool; got {type(dq_kv_order).__name__}")
    if not isinstance(BLOCK_SIZE, (int, tuple, list)):
        raise TypeError(
            f"[create_block_mask] BLOCK_SIZE must be an int or a pair of ints; got {type(BLOCK_SIZE).__name__}"
        )
    size: Any = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    shape = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    if is_compiling:
        mask = create_block_mask_in_graph(mask_mod, shape, size, separate_full_blocks)
    elif is_watched(mask_mod):
        mask = create_block_mask_as_operator(mask_mod, shape, size, separate_full_blocks)
    else:
        mask = _create(mask_mod, shape, size, separate_full_blocks)
    if compute_dq_write_order:
        order = _compute_dq_write_order_from_block_mask(mask, dq_kv_order=dq_kv_order)
        mask.dq_write_order, mask.dq_write_order_full = order
        mask.dq_kv_order_spt = dq_kv_order
    return mask if device is None or torch.device(device).type == "cpu" else _on_device(mask, device)


def _create(mask_mod: Any, shape: tuple, block_size: tuple, separate_full_blocks: bool) -> BlockMask:
    rule = bind_mask_mod(mask_mod)
    core = _core.create_block_mask(rule.mod, *shape, block_size, separate_full_blocks)
    blocks = Blocks(core, (index(shape[2]), index(shape[3])), block_size)
    blocks.made_with(rule.key, rule.tensors)
    return BlockMask._from_blocks(blocks, mask_mod)


def _on_device(mask: BlockMask, device: DeviceLikeType) -> BlockMask:
    """Moves the mask for torch's own flex_attention, if torch has that device. Otherwise raises torch's exception, with
    advice."""
    try:
        return mask.to(torch.device(device))
    except (AssertionError, RuntimeError) as error:
        raise type(error)(
            f"[create_block_mask] there is no device {device!r} here ({error}); Quire computes on the CPU: leave device out, or "
            'give device="cpu"'
        ) from error
