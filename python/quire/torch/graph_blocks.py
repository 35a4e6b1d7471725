"""The blocks passed to an operator of a graph by value: as the words of one tensor, or as torch's index tensors.

Words are what BlockMask.encode of _core writes (block_mask.py passes them to graphs); they mean the same in every
process and live as long as the tensor. Decoded masks are cached by contents, never by address: a compiled graph may
write other values into the same tensor without anyone counting that. Python layer, above blocks.py, below
graph_operator.py.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from quire import _core, fork
from quire.torch.blocks import KV_LISTS, Blocks, as_tensor, convert
from quire.torch.views import view_of

_MOST_KEPT = 64
_MOST_BYTES = 64 << 20  # of cached words; the masks made from them take about as much again
_WORD_OF_CHECKSUM = 1


def encode(core: _core.BlockMask) -> Tensor:
    """The words of a mask. Up to 256 KiB their number follows from the sizes; beyond that it may vary."""
    words = as_tensor(core.encode())
    if words.numel() != _core.BlockMask.dense_words(*_blocks_of_all_axes(core)):
        # What torch._dynamo.maybe_mark_dynamic sets, without importing dynamo: another mask needs no new compilation.
        words._dynamo_weak_dynamic_indices = {0}  # type: ignore[attr-defined]
    return words


def _blocks_of_all_axes(core: _core.BlockMask) -> tuple[int, int, int, int]:
    *axes, q_len, kv_len = core.shape
    batch, heads = (1,) * (2 - len(axes)) + tuple(axes)
    q_size, kv_size = core.BLOCK_SIZE
    return batch, heads, -(-q_len // q_size), -(-kv_len // kv_size)


class _Kept:
    """Blocks by key, the latest last; a small cache: what is not found is made again."""

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._entries: OrderedDict[Any, tuple[Any, Blocks]] = OrderedDict()
        self._bytes = 0

    def find(self, key: Any) -> tuple[Any, Blocks] | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def keep(self, key: Any, proof: Any, blocks: Blocks) -> None:
        """`proof`: tells whether the entry is still what is looked for."""
        with self._lock:
            self._remove(self._entries.pop(key, None))
            self._entries[key] = (proof, blocks)
            self._bytes += proof.nbytes
            while len(self._entries) > 1 and (len(self._entries) > _MOST_KEPT or self._bytes > _MOST_BYTES):
                self._remove(self._entries.popitem(last=False)[1])

    def _remove(self, entry: tuple[Any, Blocks] | None) -> None:
        if entry is not None:
            self._bytes -= entry[0].nbytes


_decoded = _Kept()
_converted = _Kept()


def blocks_of_words(words: Tensor) -> Blocks:
    """The blocks of encode()'s words. Raises ValueError for a tensor that does not hold any."""
    key = int(words[_WORD_OF_CHECKSUM]) if words.numel() > _WORD_OF_CHECKSUM else None
    entry = _decoded.find(key)
    if entry is not None and torch.equal(entry[0], words):
        return entry[1]
    core = _core.BlockMask.decode(view_of(words))
    blocks = Blocks(core, core.seq_lengths, core.BLOCK_SIZE)
    _decoded.keep(key, words.clone(), blocks)
    return blocks


def blocks_of_tensors(tensors: list[Tensor], seq_lengths: tuple[int, ...], block_size: tuple[int, ...]) -> Blocks:
    """From an operator's `blocks`: one tensor of words, or two or four index tensors. The sizes are those of the call."""
    if len(tensors) == 1:
        blocks = blocks_of_words(tensors[0])
        if blocks.seq_lengths == seq_lengths and blocks.block_size == block_size:
            return blocks
        arrays = (getattr(blocks.core, name) for name in KV_LISTS)
        tensors = [as_tensor(array) for array in arrays if array is not None]
    lists = dict(zip(KV_LISTS, (*tensors, None, None)))
    key = (id(lists["kv_indices"]), seq_lengths, block_size)
    entry = _converted.find(key)
    if entry is not None and entry[0].made_from(*(None if t is None else view_of(t) for t in lists.values())):
        return entry[1]
    blocks = convert(lists, seq_lengths, block_size)
    blocks.forget_lists()
    _converted.keep(key, blocks.core, blocks)
    return blocks
