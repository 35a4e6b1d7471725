"""The operators torch.ops.quire.*: a call of flex_attention inside a torch.compile graph.

An operator takes mods as texts (graph_mod.py), the tensors they read, and the blocks of the mask as tensors
(graph_blocks.py). Gradients are in graph_backward.py. Python layer, above forward.py, below compile.py.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import noop_mask

from quire import _core
from quire.torch.blocks import as_tensor
from quire.torch.forward import Mods, forward, output_strides
from quire.torch.graph_blocks import blocks_of_tensors, blocks_of_words
from quire.torch.graph_library import define
from quire.torch.graph_mod import bind
from quire.torch.hooks import operator_hooks
from quire.torch.validate import validate_mask_lengths


def number_of_seed(seed: Tensor | None) -> int:
    """The 64 bits of a seed in a graph, an int64; 0 if there is none."""
    return 0 if seed is None else int(seed) & ((1 << 64) - 1)


# ---- the mask


def bound_mask(
    mask_mod: str,
    names: list[str] | None,
    tensors: list[Tensor] | None,
    blocks: list[Tensor] | None,
    seq_lengths: list[int],
    block_size: list[int],
) -> Any:
    """The _core.BlockMask of an operator's arguments; None if there are no blocks."""
    if not blocks:
        return None
    found = blocks_of_tensors(blocks, tuple(seq_lengths), tuple(block_size))
    if not mask_mod:
        return found.with_rule(noop_mask)
    bound = bind(_core.MaskMod, mask_mod, names, tensors, torch.float32)
    return found.bound_to(bound.mod, bound.key, bound.tensors)


# ---- the operators


def _flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: str,
    score_names: list[str] | None,
    score_tensors: list[Tensor] | None,
    mask_mod: str,
    mask_names: list[str] | None,
    mask_tensors: list[Tensor] | None,
    blocks: list[Tensor] | None,
    seq_lengths: list[int],
    block_size: list[int],
    scale: float | None,
    lse: bool,
    max_scores: bool,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
    wide: bool = False,
    key_indices: Tensor | None = None,
    *hooks: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, lse, max_scores, out before rounding), empty if not wanted."""
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    mod = bind(_core.ScoreMod, score_mod, score_names, score_tensors, dtype).mod if score_mod else None
    if blocks:
        validate_mask_lengths(seq_lengths, query.size(2), key.size(2))
    mask = bound_mask(mask_mod, mask_names, mask_tensors, blocks, seq_lengths, block_size)
    if value.size(0) != key.size(0):
        value = value.expand(key.size(0), -1, -1, -1)
    mod, bound = operator_hooks(mod, *hooks)
    mods = Mods(mod, mask, scale, dropout_p, number_of_seed(seed), key_indices, hooks=bound)
    out, lse_out, max_out = forward(query, key, value, mods, lse, max_scores, wide)
    return (
        out.to(query.dtype) if wide else out,
        query.new_empty(0, dtype=dtype) if lse_out is None else lse_out,
        query.new_empty(0, dtype=dtype) if max_out is None else max_out,
        out if wide else query.new_empty(0, dtype=dtype),
    )


def _order_of(strides: tuple[Any, ...]) -> list[int]:
    """Axes by ascending strides, of equal ones the later axis first, as output_strides sorts numbers. For a length
    known only when the graph runs (`x[keep]`) only what holds for all of its values is used."""
    from torch.fx.experimental.symbolic_shapes import (
        guard_or_false,
    )  # already imported if shapes are fake; otherwise half a second

    def compared(one: int, other: int) -> int:
        if guard_or_false(strides[one] == strides[other]):
            return other - one
        if guard_or_false(strides[one] <= strides[other]):
            return -1
        return 1 if guard_or_false(strides[other] <= strides[one]) else other - one

    return sorted(range(len(strides)), key=functools.cmp_to_key(compared))


def _fake_flex_attention(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    lse, max_scores = arguments[10:12]
    wide = len(arguments) > 14 and arguments[14]
    shape = (*query.shape[:3], value.shape[3])
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    strides = output_strides(shape, query.stride(), _order_of(query.stride()))
    out = torch.empty_strided(shape, strides, dtype=query.dtype, device=query.device)
    wide_dtype = torch.float64 if torch.float64 in (query.dtype, key.dtype, value.dtype) else torch.float32
    rows = query.shape[:3]
    return (
        out,
        query.new_empty(rows if lse else (0,), dtype=dtype),
        query.new_empty(rows if max_scores else (0,), dtype=dtype),
        torch.empty_strided(shape, strides, dtype=wide_dtype, device=query.device)
        if wide
        else query.new_empty(0, dtype=dtype),
    )


def _index_tensor(words: Tensor, name: str, shape: list[int]) -> Tensor:
    return as_tensor(getattr(blocks_of_words(words).core, name))


def _fake_index_tensor(words: Tensor, name: str, shape: list[int]) -> Tensor:
    return words.new_empty(shape, dtype=torch.int32)


# Sinks, weights by a formula and rotation: hooks.py.
HOOKS = (
    'Tensor? sinks=None, bool lse_with_sinks=False, str weights="", float rope_theta=0.0, SymInt rope_dims=0, '
    "bool rope_interleaved=False, Tensor? rope_cos=None, Tensor? rope_sin=None"
)

# Lists that may be empty are optional, because AOTInductor passes an empty one as None.
define(
    "flex_attention(Tensor query, Tensor key, Tensor value, str score_mod, str[]? score_names, Tensor[]? score_tensors, "
    "str mask_mod, str[]? mask_names, Tensor[]? mask_tensors, Tensor[]? blocks, SymInt[] seq_lengths, SymInt[] block_size, "
    "float? scale, bool lse, bool max_scores, float dropout_p=0.0, Tensor? seed=None, bool wide=False, "
    "Tensor? key_indices=None, " + HOOKS + ") "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _flex_attention,
    _fake_flex_attention,
)
define("index_tensor(Tensor words, str name, SymInt[] shape) -> Tensor", _index_tensor, _fake_index_tensor)

flex_attention = torch.ops.quire.flex_attention.default
