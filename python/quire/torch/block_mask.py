"""BlockMask: torch's class, with index tensors that are made on first use.

create_block_mask returns one that holds a _core.BlockMask (runs of blocks); from_kv_blocks and the constructor make one
that holds the caller's tensors. The next call uses assigned and edited tensors. Python layer, above graph_blocks.py.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    _DEFAULT_SPARSE_BLOCK_SIZE,
    _LARGE_SPARSE_BLOCK_SIZE,
    _compute_dq_write_order_from_block_mask,
    _mask_mod_signature,
    _sliced_mask_mod_error,
    noop_mask,
)
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask

from quire.torch import torch_behaviour
from quire.torch.block_lists import adjusted, transposed
from quire.torch.blocks import KV_LISTS, Blocks, as_tensor, blocks_of_torch, convert
from quire.torch.cuda_to_cpu import device_here
from quire.torch.graph_blocks import blocks_of_words, encode
from quire.torch.pickled_rule import PickledRule, is_importable

# The attributes of a mask that has words.
_BY_WORDS = (
    *("_words", "_grid", "_separate", "seq_lengths", "BLOCK_SIZE", "mask_mod"),
    *("dq_write_order", "dq_write_order_full", "dq_kv_order_spt"),
)
_Q_LISTS = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


def _index_tensor(name: str) -> property:
    def get(self: BlockMask) -> Tensor | None:
        if name not in self._lists:
            self._make_list(name)
        if name in KV_LISTS:
            self._is_exposed = True  # it may be edited
        return self._lists[name]

    def put(self: BlockMask, tensor: Tensor | None) -> None:
        self._is_exposed = True
        self._lists[name] = tensor

    return property(get, put, doc=f"{name}: made when first asked for; may be assigned or edited in place.")


class BlockMask(TorchBlockMask):
    """Which blocks of queries and keys have anything to compute, and the rule inside partly visible blocks.

    Index tensors are int32 on the CPU, entry for entry those of torch: kv_num_blocks [B, H, rows], kv_indices
    [B, H, rows, columns], the same for full blocks, and seen from the keys q_num_blocks, q_indices.

    >>> from quire.torch import create_block_mask
    >>> mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 512, 512)
    >>> mask.kv_num_blocks.tolist(), mask.full_kv_num_blocks.tolist()
    ([[[1, 1, 1, 1]]], [[[0, 1, 2, 3]]])
    """

    _quick: Any = None  # what the extension knows about it (Blocks.teach)

    kv_num_blocks = _index_tensor("kv_num_blocks")
    kv_indices = _index_tensor("kv_indices")
    full_kv_num_blocks = _index_tensor("full_kv_num_blocks")
    full_kv_indices = _index_tensor("full_kv_indices")
    q_num_blocks = _index_tensor("q_num_blocks")
    q_indices = _index_tensor("q_indices")
    full_q_num_blocks = _index_tensor("full_q_num_blocks")
    full_q_indices = _index_tensor("full_q_indices")

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None,
        full_kv_indices: Tensor | None,
        q_num_blocks: Tensor | None,
        q_indices: Tensor | None,
        full_q_num_blocks: Tensor | None,
        full_q_indices: Tensor | None,
        BLOCK_SIZE: tuple[int, int] = (_DEFAULT_SPARSE_BLOCK_SIZE, _DEFAULT_SPARSE_BLOCK_SIZE),
        mask_mod: _mask_mod_signature = noop_mask,
        *,
        dq_write_order: Tensor | None = None,
        dq_write_order_full: Tensor | None = None,
        dq_kv_order: Tensor | None = None,
        dq_kv_order_spt: bool | None = None,
    ) -> None:
        self._lists: dict[str, Tensor | None] = {}
        self._blocks: Blocks | None = None
        self._is_exposed = False  # index tensors were handed out and may be edited: they count, not the words
        self._words: Tensor | None = None  # the blocks as graphs take them (graph_blocks.py), if known without lists
        self._grid: tuple[int, ...] = ()  # [..., rows, columns] of blocks, if there are words
        self._separate = full_kv_num_blocks is not None
        super().__init__(
            seq_lengths,
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            q_num_blocks,
            q_indices,
            full_q_num_blocks,
            full_q_indices,
            BLOCK_SIZE,
            mask_mod,
            dq_write_order=dq_write_order,
            dq_write_order_full=dq_write_order_full,
            dq_kv_order=dq_kv_order,
            dq_kv_order_spt=dq_kv_order_spt,
        )

    def _repr_svg_(self) -> str | None:
        """What a notebook shows: the picture of the current blocks."""
        return self._current_blocks().core._repr_svg_()

    @classmethod
    def _from_blocks(cls, blocks: Blocks, mask_mod: Any) -> BlockMask:
        """A mask without index tensors yet; as many rows and columns of blocks as the lengths need."""
        core = blocks.core
        sizes = (-(-length // size) for length, size in zip(blocks.seq_lengths, blocks.block_size))
        grid = (*core.shape[:-2], *sizes)
        lengths = blocks.seq_lengths, blocks.block_size
        self = cls._from_words(encode(core), grid, *lengths, core.separate_full_blocks, mask_mod)
        self._blocks = blocks
        return self

    @classmethod
    def _from_words(
        cls,
        words: Tensor,
        grid: tuple[int, ...],
        seq_lengths: tuple[int, int],
        block_size: tuple[int, int],
        separate: bool,
        mask_mod: Any,
    ) -> BlockMask:
        """The same from blocks that only a tensor holds. Dynamo traces this."""
        self = cls.__new__(cls)
        self._lists = {}
        self._blocks = None
        self._is_exposed = False
        self._words = words
        self._grid = grid
        self._separate = separate
        self.seq_lengths = seq_lengths
        self.BLOCK_SIZE = block_size
        self.mask_mod = mask_mod
        self.dq_write_order = self.dq_write_order_full = self.dq_kv_order = self.dq_kv_order_spt = None
        return self

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
        mask_mod: _mask_mod_signature | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
        *,
        dq_write_order: Tensor | None = None,
        dq_write_order_full: Tensor | None = None,
        dq_kv_order: Tensor | bool | None = None,
    ) -> BlockMask:
        """Blocks chosen by data: kv_num_blocks [..., rows], kv_indices [..., rows, n]. Keeps the tensors it is given."""
        mask = super().from_kv_blocks(
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            BLOCK_SIZE,
            mask_mod,
            seq_lengths,
            compute_q_blocks=False,
            dq_write_order=dq_write_order,
            dq_write_order_full=dq_write_order_full,
            dq_kv_order=dq_kv_order,
        )
        if compute_q_blocks:
            for name in _Q_LISTS:
                del mask._lists[name]  # made on demand
        return mask

    # ---- blocks

    def _current_blocks(self) -> Blocks:
        """The current blocks, edits and assignments included."""
        blocks = self._blocks
        if blocks is None and self._words is not None:
            blocks = self._blocks = blocks_of_words(self._words)
        if blocks is None or not blocks.holds(self._lists, self.seq_lengths, self.BLOCK_SIZE):
            lists = {name: getattr(self, name) for name in KV_LISTS}
            blocks = self._blocks = convert(lists, self.seq_lengths, self.BLOCK_SIZE)
        return blocks

    def _make_list(self, name: str) -> None:
        """Makes an index tensor that is not there yet."""
        lists = self._lists
        if self._words is not None and self._is_in_graph():
            lists[name] = self._list_in_graph(name)
        elif name in KV_LISTS:
            blocks = self._blocks or self._current_blocks()
            blocks.remember(name, lists.setdefault(name, _list_of(blocks, name)))
        elif self._on_cpu() and not torch.compiler.is_compiling():
            lists.setdefault(name, _list_of(self._current_blocks(), name))
        else:
            kind = "full_" if name.startswith("full_") else ""
            counts, indices = lists[f"{kind}kv_num_blocks"], lists[f"{kind}kv_indices"]
            columns = -(-self.seq_lengths[1] // self.BLOCK_SIZE[1])
            pair = (None, None) if counts is None or indices is None else transposed(counts, indices, columns)
            lists[f"{kind}q_num_blocks"], lists[f"{kind}q_indices"] = pair

    def _is_in_graph(self) -> bool:
        """Whether its tensors are known only when a graph runs: dynamo traces, or torch.export without dynamo."""
        return torch.compiler.is_dynamo_compiling() or (self._words is not None and type(self._words) is not Tensor)

    def _list_in_graph(self, name: str) -> Tensor | None:
        """An operator that makes the tensor when the graph runs."""
        if name.startswith("full_") and not self._separate:
            return None
        *shape, rows, columns = self._grid
        shape += [rows, columns] if name in KV_LISTS else [columns, rows]
        return torch.ops.quire.index_tensor(self._words, name, shape[:-1] if name.endswith("num_blocks") else shape)

    def _on_cpu(self) -> bool:
        indices = self._lists.get("kv_indices")
        return indices is None or indices.device.type == "cpu"

    # ---- size and text

    @property
    def shape(self) -> tuple[int, ...]:
        indices = self._lists.get("kv_indices")
        if indices is not None:
            return (*indices.shape[:-2], *self.seq_lengths)
        return (*self._grid[:-2], *self.seq_lengths)

    def sparsity(self) -> float:
        """Percentage of the elements in blocks that are not computed; nan for a mask without elements."""
        if self._is_in_graph() or not self._on_cpu():
            return super().sparsity()
        return self._current_blocks().core.sparsity() if self.numel() else math.nan

    def to_dense(self) -> Tensor:
        """1 where a block is partial or full: int32 [..., rows, columns]."""
        if self._is_in_graph() or not self._on_cpu():
            return super().to_dense()
        return as_tensor(self._current_blocks().core.to_dense())

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """A picture per (batch, head), two characters per cell. A grid of -1 shows every block."""
        if not self._on_cpu():
            return super().to_string(grid_size, limit)
        core = self._current_blocks().core
        if isinstance(grid_size, int):
            grid_size = (grid_size, grid_size)
        rows, columns = self.to_dense().shape[-2:] if min(grid_size) < 0 else grid_size
        return core.to_string((rows if grid_size[0] < 0 else grid_size[0], columns), limit)

    # ---- parts

    def __getitem__(self, index: int | slice | Tensor | tuple[int | slice | Tensor, ...]) -> BlockMask:
        """mask[b, h, row of blocks], by ints (the axis stays, of size 1), slices or index tensors. Without the rule."""
        self._refuse_dq_order("indexed")
        index = index if isinstance(index, tuple) else (index,)
        counts = self.kv_num_blocks
        if len(index) > counts.dim():
            raise IndexError(f"[BlockMask] takes at most {counts.dim()} indices; got {len(index)}")
        index = tuple(_keep_axis(one, size) for one, size in zip(index, counts.shape))
        lengths = torch_behaviour.lengths_of_part(counts, self.seq_lengths, self.BLOCK_SIZE, index)
        whole: Any = {name: getattr(self, name) for name in KV_LISTS}
        lists: Any = {name: None if tensor is None else tensor[index] for name, tensor in whole.items()}
        part = BlockMask.from_kv_blocks(
            **lists,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=_sliced_mask_mod_error,
            seq_lengths=lengths,
            compute_q_blocks=self._has_q_lists(),
        )
        return self._carry_dq(part)

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The first rows and columns of blocks, for shorter queries and keys."""
        self._refuse_dq_order("adjusted")
        if self._is_in_graph() or not self._on_cpu():
            return self._adjust_lists(new_q_len, new_kv_len)
        core = self._current_blocks().core._adjust(new_q_len, new_kv_len)
        part = BlockMask._from_blocks(Blocks(core, (new_q_len, new_kv_len), self.BLOCK_SIZE), self.mask_mod)
        if self._is_exposed or self._words is None:
            # Given lists have an order, which words do not hold: graphs take the lists of the part as well.
            for name in KV_LISTS:
                getattr(part, name)
        if not self._has_q_lists():
            part._lists.update(dict.fromkeys(_Q_LISTS))
        return self._carry_dq(part)

    def _adjust_lists(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The same where the core cannot: inside graphs and on other devices."""
        rows, columns = (-(-n // size) for n, size in zip((new_q_len, new_kv_len), self.BLOCK_SIZE))
        lists: Any = {}
        for names in (KV_LISTS[:2], KV_LISTS[2:]):
            counts, indices = (getattr(self, name) for name in names)
            pair = (None, None) if counts is None else adjusted(counts, indices, rows, columns)
            lists.update(zip(names, pair))
        part = BlockMask.from_kv_blocks(
            **lists,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=self.mask_mod,
            seq_lengths=(new_q_len, new_kv_len),
            compute_q_blocks=self._has_q_lists(),
        )
        return self._carry_dq(part)

    def to(self, device: torch.device | str) -> BlockMask:
        """The same mask with its index tensors on another device. Attention itself is computed on the CPU."""
        device = device_here(device)
        tensors: Any = {name: getattr(self, name) for name in self._TENSOR_ATTRS}
        there: Any = {name: None if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        return BlockMask(
            seq_lengths=self.seq_lengths,
            **there,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=self.mask_mod,
            dq_kv_order_spt=self.dq_kv_order_spt,
        )

    def _has_q_lists(self) -> bool:
        return self._lists.get("q_indices", True) is not None

    def _refuse_dq_order(self, what: str) -> None:
        if self.dq_kv_order is not None:
            raise NotImplementedError(f"[BlockMask] a mask with a tensor dq_kv_order cannot be {what}")

    def _carry_dq(self, part: BlockMask) -> BlockMask:
        part.dq_kv_order_spt = self.dq_kv_order_spt
        if self.dq_write_order is not None:
            order = _compute_dq_write_order_from_block_mask(part, dq_kv_order=part.dq_kv_order_spt)
            part.dq_write_order, part.dq_write_order_full = order
        return part

    # ---- copies: what the mask says, not its caches

    def __copy__(self) -> BlockMask:
        return BlockMask.__new__(BlockMask)._set(self._state())

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockMask:
        return BlockMask.__new__(BlockMask)._set(copy.deepcopy(self._state(), memo))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle. A rule that pickle cannot find by name is stored as a formula with its tensors."""
        state = self._state()
        if not is_importable(self.mask_mod):
            state["mask_mod"] = PickledRule(self.mask_mod)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        rule = state["mask_mod"]
        self._set({**state, "mask_mod": rule.mask_mod() if isinstance(rule, PickledRule) else rule})

    def _state(self) -> dict[str, Any]:
        if self._words is not None and not self._is_exposed:
            return {name: getattr(self, name) for name in _BY_WORDS}
        names = (*self._TENSOR_ATTRS, *self._CONTEXT_ATTRS)
        return {name: getattr(self, name) for name in names}

    def _set(self, state: dict[str, Any]) -> BlockMask:
        if "_words" not in state:
            BlockMask.__init__(self, **state)
            return self
        self._lists, self._blocks, self._is_exposed = {}, None, False
        for name, value in state.items():
            setattr(self, name, value)
        self.dq_kv_order = None
        return self


def _list_of(blocks: Blocks, name: str) -> Tensor | None:
    """One of the index tensors, made from the blocks; None for the full blocks of a mask that does not separate them."""
    array = getattr(blocks.core, name)
    return None if array is None else as_tensor(array)


def _keep_axis(index: int | slice | Tensor, size: int) -> slice | Tensor:
    if not isinstance(index, int):
        return index
    if not -size <= index < size:
        raise IndexError(f"[BlockMask] index {index} is outside an axis of size {size}")
    return slice(index % size, index % size + 1)


def is_no_mask(mask: TorchBlockMask) -> bool:
    """Whether it is torch's placeholder for "no mask", whatever the lengths (_create_empty_block_mask)."""
    size = (_LARGE_SPARSE_BLOCK_SIZE, _LARGE_SPARSE_BLOCK_SIZE)
    return mask.BLOCK_SIZE == size and mask.mask_mod is noop_mask


def blocks_of(mask: TorchBlockMask) -> Blocks:
    """The current blocks of any BlockMask."""
    return mask._current_blocks() if isinstance(mask, BlockMask) else blocks_of_torch(mask)
