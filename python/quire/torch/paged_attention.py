"""PagedAttention: torch's class, implemented by Quire.

The tables are torch's tensors, and the mods it converts are torch's own closures, which the tracer recognises. Inside
torch.compile, and for tensors that are not plain CPU tensors, torch's methods run. Python layer, above block_mask.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn.attention.experimental._paged_attention import PagedAttention as TorchPagedAttention
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask
from torch.nn.attention.flex_attention import noop_mask

from quire import _core
from quire.paged_attention import number, numbers, reserve_pages
from quire.torch.block_mask import BlockMask, blocks_of
from quire.torch.blocks import Blocks
from quire.torch.cuda_to_cpu import device_here
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of

_is_compiling = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def _are_ours(*tensors: Any) -> bool:
    """Whether all have memory here and no mode is active."""
    return not _modes() and _PLAIN.issuperset(map(type, tensors)) and all(tensor.is_cpu for tensor in tensors)


class PagedAttention(TorchPagedAttention):
    """Page tables for a [1, H, n_pages * page_size, D] cache of keys and one of values: page_table, capacity and
    physical_to_logical, int64 tensors, and empty_pages, a list taken from its end. All may be written to.

    >>> import torch
    >>> from quire.torch import PagedAttention, create_block_mask, flex_attention
    >>> paged = PagedAttention(n_pages=8, page_size=16, max_batch_size=2)
    >>> for sequence in range(2):
    ...     paged.reserve(torch.tensor(sequence), torch.tensor(40))
    >>> paged
    quire.torch.PagedAttention(6 of 8 pages of 16 tokens used, 2 of 2 sequences)
    >>> rows, (k_cache, v_cache) = torch.randn(2, 1, 40, 64), torch.zeros(2, 1, 1, 8 * 16, 64)
    >>> paged.assign(torch.arange(2), torch.arange(40).repeat(2, 1), rows, rows, k_cache, v_cache)
    >>> causal = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, 2, None, 40, 40, "cpu", BLOCK_SIZE=16)
    >>> out = flex_attention(rows, k_cache, v_cache, block_mask=paged.convert_logical_block_mask(causal))
    >>> torch.equal(out, flex_attention(rows, rows, rows, block_mask=causal))
    True
    """

    def __init__(self, n_pages: int, page_size: int, max_batch_size: int, device: Any = "cpu") -> None:
        device = device_here(device)
        try:
            super().__init__(n_pages, page_size, max_batch_size, device)
        except (AssertionError, RuntimeError) as error:
            if torch.device(device).type == "cpu":
                raise
            raise type(error)(
                f"[PagedAttention] there is no device {device!r} here ({error}); Quire computes on the CPU: leave device out, or "
                'give device="cpu"'
            ) from error

    def __repr__(self) -> str:
        used = self.n_pages - len(self.empty_pages)
        return (
            f"quire.torch.PagedAttention({used} of {self.n_pages} pages of {self.page_size} tokens used, "
            f"{int((self.capacity > 0).sum())} of {len(self.capacity)} sequences)"
        )

    def _tables(self) -> _core.PageTables | None:
        """None if the tensors have no memory of their own, or a mode is active."""
        table, capacity, logical = self.page_table, self.capacity, self.physical_to_logical
        known = self.__dict__.get("_known")
        if known is None or known[0] is not table or known[1] is not capacity or known[2] is not logical:
            if not _are_ours(table, capacity, logical):
                return None
            known = None
        elif _modes():
            return None
        places = (table.data_ptr(), capacity.data_ptr(), logical.data_ptr(), self.page_size)
        if known is None or known[3] != places:  # other tensors, or at other addresses
            held = _core.PageTables(view_of(table), view_of(capacity), view_of(logical), self.page_size)
            known = self._known = (table, capacity, logical, places, held)
        return known[4]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def _count_edit(self) -> None:
        increment_version((self.page_table, self.capacity, self.physical_to_logical))

    def reserve(self, batch_idx: Tensor, seq_len: Tensor) -> None:
        """Makes room for seq_len tokens of a sequence, in whole pages. AssertionError if there are too few."""
        if _is_compiling() or (tables := self._tables()) is None:
            return super().reserve(batch_idx, seq_len)
        try:
            if reserve_pages(tables, self.empty_pages, number(batch_idx), number(seq_len)):
                self._count_edit()
        except ValueError as error:
            raise RuntimeError(str(error)) from None

    def erase(self, batch_idx: Tensor) -> None:
        """Gives back the pages of one sequence or of several, in order: all of them or, on error, none."""
        if _is_compiling() or (tables := self._tables()) is None:
            return super().erase(batch_idx)
        self.empty_pages += tables.remove_pages(numbers(batch_idx, len(self.capacity)))
        self._count_edit()

    def assign(
        self,
        batch_idx: Tensor,
        input_pos: Tensor,
        k_val: Tensor,
        v_val: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> None:
        """Writes k_val [B, H, S, D] and v_val [B, H, S, Dv] into the caches, at positions input_pos [B, S] of the
        sequences batch_idx [B]. Raises, before anything is written, for a position without a reserved page."""
        tensors = (batch_idx, input_pos, k_val, v_val, k_cache, v_cache)
        tables = None if _is_compiling() or not _PLAIN.issuperset(map(type, tensors)) else self._tables()
        if tables is None or k_val.is_neg() or v_val.is_neg() or k_cache.is_neg() or v_cache.is_neg():
            return super().assign(*tensors)
        if k_val.requires_grad or (
            torch.is_grad_enabled() and (v_val.requires_grad or k_cache.requires_grad or v_cache.requires_grad)
        ):
            raise RuntimeError("[assign] values and caches must not require a gradient")
        try:
            if not tables.assign_tensors(*tensors, openmp_threads()):
                return super().assign(*tensors)
        except (ValueError, TypeError) as error:
            raise RuntimeError(str(error)) from None
        increment_version((k_cache, v_cache))

    def convert_logical_block_mask(
        self, block_mask: TorchBlockMask, batch_idx: Tensor | None = None, kv_len: Tensor | None = None
    ) -> TorchBlockMask:
        """The mask over the pool: key blocks, which must be pages, moved to where their pages are. batch_idx [B]: the
        sequence of each batch entry, by default 0, 1, 2, ... kv_len [B]: keys from it on are hidden."""
        if _is_compiling() or (tables := self._tables()) is None:
            return super().convert_logical_block_mask(block_mask, batch_idx, kv_len)
        if block_mask.BLOCK_SIZE[1] != self.page_size:
            raise RuntimeError(
                "[convert_logical_block_mask] the mask's blocks of keys must be pages; "
                f"got blocks of {block_mask.BLOCK_SIZE[1]} and pages of {self.page_size}"
            )
        rows = None if batch_idx is None else batch_idx.tolist()
        try:
            core = tables.convert(blocks_of(block_mask).core, rows)
        except ValueError as error:
            raise RuntimeError(str(error)) from None
        lengths = (block_mask.seq_lengths[0], self.n_pages * self.page_size)
        blocks = Blocks(core, lengths, block_mask.BLOCK_SIZE)
        blocks.made_with(noop_mask, [])
        return BlockMask._from_blocks(blocks, self.get_mask_mod(block_mask.mask_mod, kv_len))
