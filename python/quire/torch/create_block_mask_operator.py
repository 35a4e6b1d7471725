"""torch.ops.quire.create_block_mask: create_block_mask inside a graph; it returns the words of the mask.

The words are a dense code (BlockMask.encode of _core), whose length follows from the sizes, as a graph needs. Under
torch.compile dynamo takes the rule apart as for flex_attention (compile.py). Python layer, above compile.py.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention.flex_attention import _identity, noop_mask

from quire import _core
from quire.torch.block_mask import BlockMask
from quire.torch.blocks import as_tensor
from quire.torch.compile import function_or_text, tell_dynamo, text_of
from quire.torch.graph_formula import formula_of
from quire.torch.graph_library import define
from quire.torch.graph_mod import bind
from quire.torch.trace import trace_mask_mod

_HEADER_WORDS = _core.BlockMask.dense_words(0, 0, 0, 0)
_BLOCKS_PER_WORD = 32

# ---- the operator


def _run(
    mask_mod: str,
    names: list[str] | None,
    tensors: list[Tensor] | None,
    shape: list[int],
    block_size: list[int],
    separate: bool,
) -> Tensor:
    mod = bind(_core.MaskMod, mask_mod, names, tensors, torch.float32).mod
    return as_tensor(_core.create_block_mask(mod, *shape, tuple(block_size), separate).encode(dense=True))


def _fake(mask_mod: str, names: Any, tensors: Any, shape: list[int], block_size: list[int], separate: bool) -> Tensor:
    if block_size[0] < 1 or block_size[1] < 1:
        raise ValueError(f"[create_block_mask] block_size must be at least 1; got {tuple(block_size)}")
    batch, heads, rows, columns = (*shape[:2], *_blocks(shape[2:], block_size))
    words = _HEADER_WORDS + batch * heads * rows * _rounded_up(columns, _BLOCKS_PER_WORD)
    return torch.empty(words, dtype=torch.int64, device="cpu")


def _rounded_up(length: int, size: int) -> int:
    return (length + size - 1) // size


def _blocks(lengths: Any, block_size: Any) -> tuple[int, int]:
    """Rows and columns of blocks."""
    return _rounded_up(lengths[0], block_size[0]), _rounded_up(lengths[1], block_size[1])


define(
    "create_block_mask(str mask_mod, str[]? names, Tensor[]? tensors, SymInt[] shape, SymInt[] block_size, "
    "bool separate_full_blocks) -> Tensor",
    _run,
    _fake,
    key="CompositeExplicitAutograd",  # also if it captures no tensors
)

# ---- what dynamo traces


class _QuireCreateBlockMask(HigherOrderOperator):
    """Called like flex_attention, because that is what dynamo knows; only the rule and the sizes are used."""

    def __init__(self) -> None:
        super().__init__("quire_create_block_mask")

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any,
        block_mask: tuple,
        scale: None,
        options: dict[str, Any],
        score_tensors: tuple = (),
        mask_tensors: tuple = (),
    ) -> Tensor:
        *sizes, mask_mod = block_mask
        rule: tuple = options["mask_mod"], [], []
        if rule[0] is None:
            rule = formula_of(mask_mod, mask_tensors, None)
        return torch.ops.quire.create_block_mask(*rule, sizes[:4], sizes[4:], options["separate"])


quire_create_block_mask = _QuireCreateBlockMask()


def create_block_mask_in_graph(
    mask_mod: Any, shape: tuple[int, int, int, int], block_size: tuple[int, int], separate: bool
) -> BlockMask:
    """What dynamo traces instead of create_block_mask. Sizes are checked when the graph runs."""
    tell_dynamo()
    function, text = function_or_text(mask_mod, noop_mask, "create_block_mask")
    scalars = torch.empty(0, device="cpu")  # dynamo derives from it the indices that it traces the rule with
    options = {"mask_mod": text, "separate": separate}
    words = quire_create_block_mask(
        scalars, scalars, scalars, _identity, (*shape, *block_size, function), None, options
    )
    return _mask(words, mask_mod, shape, block_size, separate)


def _mask(words: Tensor, mask_mod: Any, shape: Any, block_size: Any, separate: bool) -> BlockMask:
    grid = (*shape[:2], *_blocks(shape[2:], block_size))
    return BlockMask._from_words(words, grid, (shape[2], shape[3]), block_size, separate, mask_mod)


# ---- outside dynamo, if a mode is active or a tensor has no memory


def is_watched(mask_mod: Any) -> bool:
    """Whether a mode is active, such as torch.export's, or the rule reads a tensor that has no memory."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    if isinstance(mask_mod, (str, _core.MaskMod)):
        return False
    return any(isinstance(tensor, FakeTensor) for tensor in trace_mask_mod(mask_mod).tensors)


def create_block_mask_as_operator(
    mask_mod: Any, shape: tuple[int, int, int, int], block_size: tuple[int, int], separate: bool
) -> BlockMask:
    rule = text_of(mask_mod, trace_mask_mod)
    fakes = (tensor.fake_mode for tensor in rule[2] if isinstance(tensor, FakeTensor))
    with next(fakes, contextlib.nullcontext()):  # the dispatcher ignores tensors in optional lists
        words = torch.ops.quire.create_block_mask(*rule, list(shape), list(block_size), separate)
    return _mask(words, mask_mod, shape, block_size, separate)
