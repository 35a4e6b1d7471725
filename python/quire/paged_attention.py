"""PagedAttention over NumPy arrays: maps the pages of sequences to pages of a pool, with torch's names. Python layer.

The tables are plain arrays and a list that users may read and write; _core reads them at each call. quire.torch has the
same class over tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from . import _core
from ._core import BlockMask, MaskMod, ScoreMod
from .option_checks import check_int


def number(value: Any) -> int:
    """An int, or the one element of an array or tensor of ints."""
    item = getattr(value, "item", None)
    return index(value if item is None else item())


def numbers(value: Any, size: int) -> list[int]:
    """An int, or the elements of a list, array or tensor of ints; for `size` bools, the positions of the true ones."""
    found = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(found, (list, tuple)):
        return [index(found)]
    flat = np.asarray(found, None if found else np.int64).reshape(-1)
    if flat.dtype != np.bool_:
        return [index(one) for one in flat.tolist()]
    if len(flat) != size:
        raise IndexError(f"[erase] a mask of sequences must have {size} elements; got {len(flat)}")
    return np.flatnonzero(flat).tolist()


def reserve_pages(tables: _core.PageTables, empty_pages: list[int], batch_idx: int, seq_len: int) -> bool:
    """Takes pages from the end of `empty_pages`, which is modified; returns whether any were needed. Raises
    AssertionError if there are too few."""
    wanted = tables.pages_wanted(batch_idx, seq_len)
    if wanted == 0:
        return False
    if wanted > len(empty_pages):
        raise AssertionError(f"[reserve] requested {wanted} pages but there are only {len(empty_pages)} empty pages")
    tables.add_pages(batch_idx, empty_pages[-wanted:])
    del empty_pages[-wanted:]
    return True


class PagedAttention:
    """Page tables for a [1, H, n_pages * page_size, D] cache of keys and one of values, which belong to the caller.

    page_table: int64 [max_batch_size, n_pages], the pool's page for each page of a sequence, -1 if there is none.
    physical_to_logical: int64 [max_batch_size, n_pages], the inverse. capacity: int64 [max_batch_size], tokens that fit
    into the pages of a sequence. empty_pages: the list of pages that are free, taken from its end.

    All may be written to. A call of flex_attention with a converted mask is recognised and reads only the pages of its
    sequences.

    >>> import numpy, quire
    >>> paged = quire.PagedAttention(n_pages=8, page_size=16, max_batch_size=2)
    >>> for sequence in range(2):
    ...     paged.reserve(sequence, 40)
    >>> paged
    quire.PagedAttention(6 of 8 pages of 16 tokens used, 2 of 2 sequences)
    >>> rows = numpy.random.default_rng(0).standard_normal((2, 1, 40, 64), numpy.float32)
    >>> k_cache, v_cache = numpy.zeros((2, 1, 1, 8 * 16, 64), numpy.float32)
    >>> paged.assign(numpy.arange(2), numpy.tile(numpy.arange(40), (2, 1)), rows, rows, k_cache, v_cache)
    >>> causal = quire.create_block_mask("q_idx >= kv_idx", 2, None, 40, 40, BLOCK_SIZE=16)
    >>> out = quire.flex_attention(rows, k_cache, v_cache, block_mask=paged.convert_logical_block_mask(causal))
    >>> bool(numpy.array_equal(out, quire.flex_attention(rows, rows, rows, block_mask=causal)))
    True
    """

    def __init__(self, n_pages: int, page_size: int, max_batch_size: int, device: Any = "cpu"):
        if str(device) != "cpu":
            raise ValueError(f"[PagedAttention] there is no device but 'cpu'; got {device!r}")
        n_pages = check_int("PagedAttention", "n_pages", n_pages)
        page_size = check_int("PagedAttention", "page_size", page_size)
        max_batch_size = check_int("PagedAttention", "max_batch_size", max_batch_size)
        if n_pages < 0 or max_batch_size < 0 or page_size < 1:
            raise ValueError(
                "[PagedAttention] n_pages and max_batch_size must be at least 0 and page_size at least 1; "
                f"got {n_pages}, {max_batch_size} and {page_size}"
            )
        self.n_pages = n_pages
        self.page_size = page_size
        self.page_table = np.full((max_batch_size, n_pages), -1, np.int64)
        self.capacity = np.zeros(max_batch_size, np.int64)
        self.empty_pages = list(range(n_pages - 1, -1, -1))
        self.physical_to_logical = np.full((max_batch_size, n_pages), -1, np.int64)

    def __repr__(self) -> str:
        used = self.n_pages - len(self.empty_pages)
        return (
            f"quire.PagedAttention({used} of {self.n_pages} pages of {self.page_size} tokens used, "
            f"{int((self.capacity > 0).sum())} of {len(self.capacity)} sequences)"
        )

    def _tables(self) -> _core.PageTables:
        return _core.PageTables(self.page_table, self.capacity, self.physical_to_logical, self.page_size)

    def reserve(self, batch_idx: Any, seq_len: Any) -> None:
        """Makes room for seq_len tokens of a sequence, in whole pages. AssertionError if there are too few."""
        reserve_pages(self._tables(), self.empty_pages, number(batch_idx), number(seq_len))

    def erase(self, batch_idx: Any) -> None:
        """Gives back the pages of one sequence or of several, in order: all of them or, on error, none."""
        self.empty_pages += self._tables().remove_pages(numbers(batch_idx, len(self.capacity)))

    def assign(self, batch_idx: Any, input_pos: Any, k_val: Any, v_val: Any, k_cache: Any, v_cache: Any) -> None:
        """Writes k_val [B, H, S, D] and v_val [B, H, S, Dv] into the caches, at positions input_pos [B, S] of the
        sequences batch_idx [B]. Raises, before anything is written, for a position without a reserved page."""
        self._tables().assign(batch_idx, input_pos, k_val, v_val, k_cache, v_cache)

    def convert_logical_block_mask(self, block_mask: BlockMask, batch_idx: Any = None, kv_len: Any = None) -> BlockMask:
        """The mask over the pool: key blocks, which must be pages, moved to where their pages are. batch_idx [B]: the
        sequence of each batch entry, by default 0, 1, 2, ... kv_len [B]: keys from it on are hidden."""
        rows = None if batch_idx is None else [index(one) for one in np.asarray(batch_idx).reshape(-1).tolist()]
        rule = self.get_mask_mod(block_mask.mask_mod, kv_len)
        return self._tables().convert(block_mask, rows, rule)

    def get_mask_mod(self, mask_mod: MaskMod | Callable | str | None, kv_len: Any = None) -> MaskMod:
        """Converts a rule on a sequence's keys to one on the pool's: hidden where a page does not belong to sequence b."""
        return _core.physical_mask_mod(mask_mod, self.physical_to_logical, self.page_size, kv_len)

    def get_score_mod(self, score_mod: ScoreMod | Callable | str | None, kv_len: Any = None) -> ScoreMod:
        """The same for a score mod: -inf where a page does not belong to sequence b."""
        return _core.physical_score_mod(score_mod, self.physical_to_logical, self.page_size, kv_len)
