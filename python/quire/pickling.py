"""Pickling of block masks. (Mods pickle themselves: as a text, the contents of its buffers and the mark of a page
table.) Python layer."""

from __future__ import annotations

import copyreg
from typing import Any

from ._core import BlockMask, create_block_mask


def _restore_ruled(*arguments: Any) -> BlockMask:
    """A mask from its rule."""
    return create_block_mask(*arguments)


def _restore_listed(is_part: bool, *arguments: Any) -> BlockMask:
    """A mask from its lists of blocks; `is_part`: it came out of mask[...] and has no mask_mod."""
    mask = BlockMask.from_kv_blocks(*arguments)
    return mask[:] if is_part else mask


def restore_converted(kind: Any, text: str, buffers: dict[str, Any]) -> Any:
    """A mod that PagedAttention converted. `kind`: ScoreMod or MaskMod."""
    return kind.mark_page_table(kind(text, buffers))


def _reduce(mask: BlockMask) -> tuple[Any, ...]:
    """By its rule, which is proved again, if that says everything; otherwise by its lists of blocks."""
    mod = mask.mask_mod if mask.has_mask_mod else None
    if mod is not None and len(mask.shape) == 4 and mask.whole_mask_mod() == mod:
        return _restore_ruled, (mod, *mask.shape, mask.BLOCK_SIZE, mask.separate_full_blocks, mask.q_begin)
    if mask.q_begin != 0:
        raise TypeError("[BlockMask] blocks chosen by data cannot be pickled with a q_begin other than 0")
    lists = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    has_q_blocks = mask.q_num_blocks is not None
    return _restore_listed, (mod is None, *lists, mask.BLOCK_SIZE, mod, mask.seq_lengths, has_q_blocks)


def install() -> None:
    """Registers this with pickle and copy. Called once, when the package is imported."""
    copyreg.pickle(BlockMask, _reduce)
