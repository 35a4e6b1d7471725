"""The operators torch.ops.quire.*: what a call of flex_attention is inside a graph of torch.compile.

An operator takes formulas as texts, the tensors they read, and the blocks of the mask, as index tensors or as the
number of a mask (block_mask.py). Gradients are graph_backward.py's. Layer: Python, above forward.py, below compile.py.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import noop_mask

from quire import _core, fork
from quire.torch.block_mask import mask_of_handle
from quire.torch.blocks import KV_LISTS, Blocks, convert
from quire.torch.forward import forward, output_strides
from quire.torch.mods import bind_mask_mod, bind_score_mod
from quire.torch.views import view_of

_library = torch.library.Library("quire", "DEF")
_library.define(
    "flex_attention(Tensor query, Tensor key, Tensor value, str score_mod, str[] score_names, Tensor[] score_tensors, "
    "str mask_mod, str[] mask_names, Tensor[] mask_tensors, Tensor[] blocks, SymInt[] seq_lengths, SymInt[] block_size, "
    "float? scale, bool lse, bool max_scores) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define("index_tensor(Tensor handle, str name, SymInt[] shape) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))

# ---- mods by text

_lock = fork.lock()
_MOST_PARSED = 1024
_parsed: dict[Any, Any] = {}
# Functions that have no text because they compute with their tensors before reading them: "@0", "@1", …
_functions: dict[str, Callable] = {}
_numbers = itertools.count()


def name_function(function: Callable) -> str:
    """A name by which the operator finds a function that was not written as a text. Good in this process only."""
    name = f"@{next(_numbers)}:{id(_functions):x}"
    _functions[name] = function
    return name


def bind_function(kind: type, text: str, names: list[str], tensors: list[Tensor], dtype: torch.dtype) -> Any:
    """A mod that has a name for a text (name_function), traced with these tensors."""
    function = _functions[text]
    values = [tensor if name == "tensor" else tensor.item() for name, tensor in zip(names, tensors, strict=True)]
    if kind is _core.MaskMod:
        return bind_mask_mod(lambda b, h, q_idx, kv_idx: function(b, h, q_idx, kv_idx, *values))
    return bind_score_mod(lambda s, b, h, q_idx, kv_idx: function(s, b, h, q_idx, kv_idx, *values), dtype)


def bind(kind: type, text: str, names: list[str], tensors: list[Tensor], dtype: torch.dtype) -> tuple[Any, Any]:
    """The mod with its tensors, and an object that stands for its formula."""
    if text.startswith("@"):
        bound = bind_function(kind, text, names, tensors, dtype)
        return bound.mod, bound
    key = (kind, text, *names, *((tensor.dtype, tensor.dim()) for tensor in tensors))
    mod = _parsed.get(key)
    if mod is None:
        if len(_parsed) >= _MOST_PARSED:
            _parsed.clear()
        mod = _parsed[key] = kind(text, dict(zip(names, map(view_of, tensors), strict=True))) if names else kind(text)
    if not names:
        return mod, mod
    return kind.bind(mod, [view_of(tensors[names.index(name)]) for name in mod.buffer_names]), mod


# ---- blocks

_MOST_CONVERTED = 64
_converted: OrderedDict[int, Blocks] = OrderedDict()  # by id(kv_indices), which the value keeps alive; the latest last


def _blocks_of(tensors: list[Tensor], seq_lengths: tuple[int, int], block_size: tuple[int, int]) -> Blocks:
    if len(tensors) == 1:
        mask = mask_of_handle(int(tensors[0]))
        blocks = mask._current_blocks()
        if blocks.seq_lengths == seq_lengths and blocks.block_size == block_size:
            return blocks
        tensors = [getattr(mask, name) for name in KV_LISTS]
    lists = dict(zip(KV_LISTS, (*tensors, None, None)))
    key = id(lists["kv_indices"])
    with _lock:
        blocks = _converted.pop(key, None)
    if blocks is None or not blocks.holds(lists, seq_lengths, block_size):
        blocks = convert(lists, seq_lengths, block_size)
    with _lock:
        _converted[key] = blocks
        if len(_converted) > _MOST_CONVERTED:
            _converted.popitem(last=False)
    return blocks


def bound_mask(
    mask_mod: str,
    names: list[str],
    tensors: list[Tensor],
    blocks: list[Tensor],
    seq_lengths: list[int],
    block_size: list[int],
) -> Any:
    """The _core.BlockMask of an operator's arguments; None if there are no blocks."""
    if not blocks:
        return None
    found = _blocks_of(blocks, tuple(seq_lengths), tuple(block_size))
    if not mask_mod:
        return found.with_rule(noop_mask)
    return found.bound_to(*bind(_core.MaskMod, mask_mod, names, tensors, torch.float32), tensors)


# ---- the operators


def _flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: str,
    score_names: list[str],
    score_tensors: list[Tensor],
    mask_mod: str,
    mask_names: list[str],
    mask_tensors: list[Tensor],
    blocks: list[Tensor],
    seq_lengths: list[int],
    block_size: list[int],
    scale: float | None,
    lse: bool,
    max_scores: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    mod = bind(_core.ScoreMod, score_mod, score_names, score_tensors, dtype)[0] if score_mod else None
    mask = bound_mask(mask_mod, mask_names, mask_tensors, blocks, seq_lengths, block_size)
    if value.size(0) != key.size(0):
        value = value.expand(key.size(0), -1, -1, -1)
    out, lse_out, max_out = forward(query, key, value, mod, mask, scale, lse, max_scores)
    return (
        out,
        query.new_empty(0, dtype=dtype) if lse_out is None else lse_out,
        query.new_empty(0, dtype=dtype) if max_out is None else max_out,
    )


def _fake_flex_attention(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    lse, max_scores = arguments[-2:]
    shape = (*query.shape[:3], value.shape[3])
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    out = torch.empty_strided(shape, output_strides(shape, query.stride()), dtype=query.dtype, device=query.device)
    rows = query.shape[:3]
    return (
        out,
        query.new_empty(rows if lse else (0,), dtype=dtype),
        query.new_empty(rows if max_scores else (0,), dtype=dtype),
    )


def _index_tensor(handle: Tensor, name: str, shape: list[int]) -> Tensor:
    return getattr(mask_of_handle(int(handle)), name).clone()


def _fake_index_tensor(handle: Tensor, name: str, shape: list[int]) -> Tensor:
    return handle.new_empty(shape, dtype=torch.int32)


_library.impl("flex_attention", _flex_attention, "CPU")
_library.impl("index_tensor", _index_tensor, "CPU")
torch.library.register_fake("quire::flex_attention", _fake_flex_attention, lib=_library)
torch.library.register_fake("quire::index_tensor", _fake_index_tensor, lib=_library)

flex_attention = torch.ops.quire.flex_attention.default
