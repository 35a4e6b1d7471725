"""What flex_attention rejects, with torch's exception types, in torch's order.

Called when the quick checks of flex_attention.py failed; returns only if everything is valid after all. Python layer.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask
from torch.nn.attention.flex_attention import FlexKernelOptions, _Backend, _sliced_mask_mod_error

from quire.option_checks import check_kernel_options
from quire.torch import torch_behaviour

_BACKENDS = get_args(_Backend)
_OPTIONS = frozenset(FlexKernelOptions.__annotations__)


def validate_tensors(query: Any, key: Any, value: Any) -> None:
    """Nested tensors, devices, ranks and dims."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"[flex_attention] {name} must be a tensor; got {type(tensor).__name__}")
    if query.is_nested or key.is_nested or value.is_nested:
        raise NotImplementedError("[flex_attention] query, key and value must all be nested tensors, or none of them")
    if query.device != key.device or query.device != value.device:
        raise ValueError(
            "[flex_attention] query, key and value must be on the same device; "
            f"got {query.device}, {key.device} and {value.device}"
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(
            "[flex_attention] query, key and value must have at least 2 axes; "
            f"got {query.dim()}, {key.dim()} and {value.dim()}"
        )
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"[flex_attention] query and key must have the same head dim; got {query.size(-1)} and {key.size(-1)}"
        )
    if query.device.type != "cpu":
        raise ValueError(
            f"[flex_attention] Quire computes on the CPU; got tensors on {query.device}. Bring them here with .cpu(), or take "
            "torch.nn.attention.flex_attention, without quire.torch.enable(), for that device"
        )
    if any(tensor.layout != torch.strided for tensor in (query, key, value)):
        raise TypeError("[flex_attention] query, key and value must be dense tensors")
    if not query.dim() == key.dim() == value.dim() == 4:
        raise NotImplementedError(
            "[flex_attention] query, key and value must be [batch, heads, length, dim]; "
            f"got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )


def validate_sizes(query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool) -> None:
    """Heads, batches and lengths of tensors of rank 4."""
    q_heads, kv_heads = query.size(1), key.size(1)
    if not enable_gqa and q_heads != kv_heads:
        raise ValueError(
            "[flex_attention] query and key must have the same number of heads, or enable_gqa must be set; "
            f"got {q_heads} and {kv_heads}"
        )
    if q_heads != kv_heads and (kv_heads == 0 or q_heads % kv_heads != 0):
        raise ValueError(f"[flex_attention] q_heads must be a multiple of kv_heads; got {q_heads} and {kv_heads}")
    batch, kv_batch = query.size(0), key.size(0)
    if batch != kv_batch:
        if block_mask is None:
            raise ValueError(
                "[flex_attention] query and key must have the same batch size, or there must be a block mask; "
                f"got {batch} and {kv_batch}"
            )
        mask_batch = block_mask.shape[0]
        if mask_batch != batch:
            raise ValueError(
                "[flex_attention] query and key, or query and block mask, must have the same batch size; "
                f"got {batch}, {kv_batch} and {mask_batch}"
            )
        if kv_batch != 1:
            raise RuntimeError(f"[flex_attention] the batch size of key must be {batch} or 1; got {kv_batch}")
    if key.size(1) != value.size(1) or key.size(2) != value.size(2) or value.size(0) not in (kv_batch, 1):
        raise RuntimeError(
            "[flex_attention] key and value must have the same batch, heads and length; "
            f"got {tuple(key.shape)} and {tuple(value.shape)}"
        )


def validate_mask(block_mask: Any, q_len: int, kv_len: int) -> None:
    """A mask of another length, on another device, or part of a mask without its rule."""
    if not isinstance(block_mask, TorchBlockMask):
        raise TypeError(f"[flex_attention] block_mask must be a BlockMask; got {type(block_mask).__name__}")
    if block_mask.mask_mod is _sliced_mask_mod_error:
        raise RuntimeError(
            "[flex_attention] Cannot use mask_mod from a sliced BlockMask: the block mask is a part taken by [], and its "
            "mask_mod is gone. Set mask_mod, made from that of the whole mask and shifted to the part's positions"
        )
    validate_mask_lengths(block_mask.seq_lengths, q_len, kv_len)


def validate_mask_lengths(seq_lengths: Any, q_len: int, kv_len: int) -> None:
    """Raises torch's exception for a mask that was made for other lengths."""
    mask_q, mask_kv = seq_lengths
    if (mask_q, mask_kv) != (q_len, kv_len):
        raise torch_behaviour.error_of_lengths()(
            f"[flex_attention] block_mask was created for {mask_q} queries and {mask_kv} keys; got {q_len} and "
            f"{kv_len}. Make a new one, or, if its first rows and columns are what is wanted, take "
            "block_mask._adjust(q_len, kv_len)"
        )


def validate_options(options: Any) -> None:
    """`kernel_options`. Those that tune GPU kernels mean nothing here, and only their names are checked."""
    check_kernel_options("flex_attention", options, _OPTIONS)
    if "BACKEND" in options:
        if options.get("FORCE_USE_FLEX_ATTENTION", False):
            raise RuntimeError("[flex_attention] give BACKEND or FORCE_USE_FLEX_ATTENTION, not both")
        if options["BACKEND"] not in _BACKENDS:
            raise ValueError(
                f"[flex_attention] BACKEND must be one of {', '.join(_BACKENDS)}; got {options['BACKEND']!r}"
            )
    for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"):
        if name in options:
            raise AssertionError(f"[flex_attention] {name} is not an option; ask with return_aux")


def validate_key_indices(key_indices: Any, where: str = "flex_attention") -> None:
    """A tensor of int32 or int64 on the CPU; its contents are checked when the call runs."""
    if not isinstance(key_indices, torch.Tensor):
        raise TypeError(f"[{where}] key_indices must be a tensor; got {type(key_indices).__name__}")
    if key_indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"[{where}] key_indices must be int32 or int64; got {key_indices.dtype}")
    if key_indices.device.type != "cpu" and key_indices.device.type != "meta":
        raise ValueError(f"[{where}] Quire computes on the CPU; got key_indices on {key_indices.device}")


def refuse_weights_in_graph() -> None:
    """Rejects parts of AuxRequest that a torch.compile graph cannot return."""
    raise NotImplementedError(
        "[flex_attention] key_weights and entropy are not supported inside a graph of torch.compile"
    )
