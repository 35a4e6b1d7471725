"""From the mask function of a transformers model to a BlockMask, once per forward pass for all layers that share it.

A mask function can be used as a mask_mod directly. What changes from step to step (offsets, padding) is captured as
tensors, so that a decode step binds new values to a known formula. Python layer, below attention.py of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    eager_mask,
    padding_mask_function,
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from quire.torch import BlockMask, TraceError, create_block_mask
from quire.torch.block_mask import blocks_of
from quire.torch.mods import bind_mask_mod

_is_compiling = torch.compiler.is_dynamo_compiling

# By model_type: models that compute with their mask before they call attention, choose keys by it (DeepSeek's sparse
# attention and its relatives), extend it or combine two. They get the tensor that `eager` would give them; they would
# ignore a BlockMask or misunderstand it.
_COMPUTES_WITH_MASK = frozenset(
    """axk2 deepseek_v32 deepseek_v4 doge glm_moe_dsa glm5_next_text hy_v4 mistral_large4_text qwen4_exp_text
    t5gemma2_decoder""".split()
)


class ModelMask(BlockMask):
    """A BlockMask usable where transformers expects a tensor [batch, 1, q_length, kv_length]."""

    # For attention over pages, which counts queries and keys from the first token: the rule before it was shifted, and
    # whether it is "key <= query", within a window if that is not 0.
    absolute: Any = None
    is_positional = False
    window = 0
    ndim = 4  # GPT-2 checks it to distinguish a finished mask
    model_type = ""  # of the model it was made for

    def dim(self) -> int:
        return self.ndim

    def size(self, axis: int | None = None) -> torch.Size | int:
        return torch.Size(self.shape) if axis is None else self.shape[axis]

    def contiguous(self) -> ModelMask:
        """Returns itself. generate() calls it when the cache is static."""
        return self

    def to(self, device: Any) -> BlockMask:
        if isinstance(device, torch.dtype):
            raise _own_attention(self.model_type)
        return self if torch.device(device).type == "cpu" else super().to(device)

    def __getitem__(self, index: Any) -> ModelMask:
        raise _own_attention(self.model_type)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TENSORS:
            raise _own_attention(self.model_type)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        masks = [one for one in tree_leaves((args, kwargs)) if isinstance(one, ModelMask)]
        raise _own_attention(masks[0].model_type if masks else "")


# A model that asks for one of these expects a tensor.
_OF_TENSORS = frozenset(
    """all any bool dtype eq expand expand_as flatten float int is_floating_point logical_and logical_not logical_or long
    masked_fill masked_fill_ mul repeat repeat_interleave reshape squeeze sum transpose type unsqueeze view""".split()
)


def _own_attention(model_type: str) -> NotImplementedError:
    return NotImplementedError(
        f"[quire.transformers] {model_type or 'this model'} uses its mask as a tensor: it has an attention of its own and does "
        'not call the one that attn_implementation names; use "eager" for it'
    )


def quire_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,  # an int, or a tensor that holds one
    kv_offset: Any = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    config: Any = None,
    **kwargs: Any,
) -> BlockMask | Tensor | None:
    """The mask that transformers requests from an attention implementation, with transformers' arguments.

    `attention_mask`: the padding, bools [batch, keys so far], True for tokens. Returns a BlockMask [batch, 1, q_length,
    kv_length]; None if every query sees every key and the caller allows it; bools of that shape if the mask function
    cannot be written as a formula, or if there is one query and possibly a static cache; for models that compute with
    their mask, the floats that `eager` adds to the scores.

    >>> from quire.transformers import quire_mask
    >>> quire_mask(batch_size=2, q_length=5, kv_length=300, q_offset=295).shape
    (2, 1, 5, 300)
    """
    model_type = getattr(config, "model_type", "")
    if model_type in _COMPUTES_WITH_MASK:
        return eager_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            use_vmap=use_vmap,
            **kwargs,
        )
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None and not _is_compiling():
        padding = None if bool(padding.all()) else _widened(padding)
    if padding is None and (local_size is None or kv_length < local_size):
        is_last = q_length == 1 and isinstance(q_offset, int) and kv_length + kv_offset == q_offset + 1
        if allow_is_bidirectional_skip or (allow_is_causal_skip and is_last):
            return None
    may_be_static = isinstance(q_offset, Tensor) or (local_size is not None and not allow_is_causal_skip)
    if q_length == 1 and may_be_static and not _is_compiling():
        # A step over a static cache, or possibly over one: with a window its offset is an int, but then nothing may be
        # skipped. generate() passes its mask to a compiled forward pass: a graph takes tensors.
        return _bools(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, use_vmap=use_vmap
        )
    rule = mask_function if padding is None else and_masks(mask_function, padding_mask_function(padding))
    absolute = rule
    rule = _shifted(rule, _captured(q_offset), _captured(kv_offset))
    if _is_compiling():
        return create_block_mask(rule, batch_size, None, q_length, kv_length)
    try:
        mod = bind_mask_mod(rule).mod  # layers get the formula, not the function: they need not trace it again
    except TraceError:
        return _bools(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, use_vmap=use_vmap
        )
    mask = create_block_mask(mod, batch_size, None, q_length, kv_length)
    made: Any = ModelMask._from_blocks(blocks_of(mask), mod)
    made.model_type = model_type
    if isinstance(kv_offset, int) and kv_offset == 0:
        made.absolute = absolute
        if padding is None:
            made.is_positional, made.window = _positional(mask_function, local_size)
    return made


def _positional(mask_function: Callable, local_size: int | None) -> tuple[bool, int]:
    """Whether it is transformers' causal mask, and its window, or 0."""
    text = bind_mask_mod(mask_function).mod.text
    if text == bind_mask_mod(causal_mask_function).mod.text:
        return True, 0
    if local_size is None:
        return False, 0
    is_window = text == bind_mask_mod(sliding_window_causal_mask_function(local_size)).mod.text
    return is_window, local_size if is_window else 0


_bools = functools.partial(sdpa_mask, allow_is_causal_skip=False)


def causal_block_mask(q_length: int, kv_length: int) -> BlockMask:
    """For a causal module without a mask; query 0 sees key 0."""
    rule: Any = "q_idx >= kv_idx"
    return create_block_mask(rule, None, None, q_length, kv_length)


# By tensor: the layers of a forward pass get the same one.
_of_bools: WeakIdKeyDictionary = WeakIdKeyDictionary()


def block_mask_of(bools: Tensor, batch: int, heads: int, kv_length: int) -> BlockMask:
    """From a user's mask [batch or 1, heads or 1, q_length, kv_length or more], once per tensor and version."""
    version = None if _is_compiling() or bools.is_inference() else (bools._version, batch, heads, kv_length)
    known = None if version is None else _of_bools.get(bools)
    if known is not None and known[0] == version:
        return known[1]
    # Not the key itself: the cache must not keep that alive. The rule is evaluated for every sequence and head.
    visible = bools.detach()[..., :kv_length]
    if visible.shape[2] == 1:
        visible = _widened(visible)
    visible = visible.expand(batch, heads, -1, -1)

    def rule(b, h, q_idx, kv_idx):
        return visible[b, h, q_idx, kv_idx]

    mask = create_block_mask(rule, *bools.shape[:3], kv_length)
    if version is not None:
        _of_bools[bools] = version, mask
    return mask


def _widened(padding: Tensor) -> Tensor:
    """Adds columns that are never read. The shape of a captured tensor belongs to the formula, so this one changes only
    every 256 decode steps."""
    return torch.nn.functional.pad(padding, (0, -padding.shape[-1] % 256))


def _captured(offset: int | Tensor) -> Tensor:
    """A copy: static caches increment theirs in place while layers still use the mask."""
    return offset.clone() if isinstance(offset, Tensor) else torch.tensor(offset, dtype=torch.int64, device="cpu")


def _shifted(rule: Callable, q_offset: Tensor, kv_offset: Tensor) -> Callable:
    def shifted(b, h, q_idx, kv_idx):
        return rule(b, h, q_idx + q_offset, kv_idx + kv_offset)

    return shifted
