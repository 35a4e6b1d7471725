"""Jagged batches over NumPy and DLPack arrays: sequences of different lengths, packed one after the other.

The arithmetic is _core's. Python layer, below attention.py and sdpa.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from . import _core
from ._core import JaggedBlockMask, MaskMod, View
from .arrays import like
from .option_checks import check_flag, check_int
from .quantized import kv_view

Order = Literal["tokens", "heads"]


class Jagged:
    """n sequences in one array. Sequence i is the tokens offsets[i] .. offsets[i + 1] - 1 or, with lengths, only the
    first lengths[i] of them: the rest are holes and never read.

    Args:
        values: [total, heads, dim], or [heads, total, dim] with the order "heads"; any strides. Read in place. For keys
            and values also a QuantizedTensor.
        offsets: int32 or int64 [n + 1]. They never decrease and end at `total` at most; the first need not be 0.
        lengths: int32 or int64 [n].
        order: which axis comes first in the values.

    Offsets and lengths are checked when they are used.

    >>> import numpy, quire
    >>> tokens = quire.Jagged.pack([numpy.ones((n, 2, 64), numpy.float32) for n in (5, 1, 30)])
    >>> tokens
    quire.Jagged(3 sequences, values (36, 2, 64), order='tokens')
    >>> quire.flex_attention(tokens, tokens, tokens, mask_mod="q_idx >= kv_idx")[2].shape
    (30, 2, 64)
    """

    __slots__ = ("values", "offsets", "lengths", "order")

    def __init__(self, values: Any, offsets: Any, lengths: Any = None, order: Order = "tokens") -> None:
        if order not in ("tokens", "heads"):
            raise ValueError(f"[Jagged] the order must be 'tokens' or 'heads'; got {order!r}")
        self.values, self.offsets, self.lengths, self.order = values, offsets, lengths, order

    @classmethod
    def pack(cls, sequences: Sequence[Any], order: Order = "tokens") -> Jagged:
        """Copies NumPy arrays one after the other: [length, heads, dim] each, or [heads, length, dim]."""
        if not sequences:
            raise ValueError("[Jagged] pack needs a sequence at least: heads and dim are those of its sequences")
        axis = 0 if order == "tokens" else 1
        arrays = [np.asarray(one) for one in sequences]
        offsets = np.cumsum([0, *(one.shape[axis] for one in arrays)], dtype=np.int64)
        return cls(np.concatenate(arrays, axis), offsets, order=order)

    def __len__(self) -> int:
        """The number of sequences."""
        return max(_core.view(self.offsets).shape[0] - 1, 0)

    def __getitem__(self, sequence: int) -> Any:
        """The values of one sequence, the same memory: [length, heads, dim] or [heads, length, dim]."""
        n = len(self)
        if not -n <= sequence < n:
            raise IndexError(f"[Jagged] there are {n} sequences; got {sequence}")
        sequence %= n
        begin, end = (int(one) for one in _core.view(self.offsets).numpy()[sequence : sequence + 2])
        if self.lengths is not None:
            end = begin + int(_core.view(self.lengths).numpy()[sequence])
        return self.values[begin:end] if self.order == "tokens" else self.values[:, begin:end]

    def __iter__(self) -> Iterator[Any]:
        return (self[sequence] for sequence in range(len(self)))

    def __repr__(self) -> str:
        holes = "" if self.lengths is None else ", with holes"
        return f"quire.Jagged({len(self)} sequences, values {tuple(self.values.shape)}, order={self.order!r}{holes})"

    def views(self) -> _core.JaggedViews:
        """As _core takes it."""
        return _core.JaggedViews(kv_view(self.values), self.offsets, self.lengths, self.order)

    def with_values(self, values: View) -> Jagged:
        """The same sequences with other values, returned as an array of the same kind."""
        return Jagged(like(values, self.values), self.offsets, self.lengths, self.order)


def are_jagged(function: str, *inputs: Any) -> bool:
    """Whether all of them are jagged. Raises TypeError if only some are."""
    count = sum(isinstance(one, Jagged) for one in inputs)
    if count not in (0, len(inputs)):
        names = ", ".join(type(one).__name__ for one in inputs)
        raise TypeError(f"[{function}] query, key and value must all be Jagged, or none of them; got {names}")
    return count > 0


def create_jagged_block_mask(
    mask_mod: MaskMod | Callable | str,
    H: int | None,
    q: Jagged,
    kv: Jagged | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    separate_full_blocks: bool = True,
) -> JaggedBlockMask:
    """Proves the block mask of every sequence: once for many layers.

    In the rule, b is the index of the sequence; q_idx and kv_idx count inside it. H=None: the same for all heads.
    kv=None: the keys have the queries' lengths. Only offsets and lengths of q and kv are read.

    >>> import numpy, quire
    >>> tokens = quire.Jagged.pack([numpy.ones((n, 2, 64), numpy.float32) for n in (500, 130)])
    >>> mask = quire.create_jagged_block_mask("q_idx >= kv_idx", None, tokens)
    >>> mask[0].shape, quire.flex_attention(tokens, tokens, tokens, block_mask=mask)
    ((1, 1, 500, 500), quire.Jagged(2 sequences, values (630, 2, 64), order='tokens'))
    """
    where = "create_jagged_block_mask"
    for name, one in (("q", q), ("kv", kv)):
        if not isinstance(one, Jagged) and not (name == "kv" and one is None):
            raise TypeError(f"[{where}] {name} must be Jagged; got {type(one).__name__}")
    heads = None if H is None else check_int(where, "H", H)
    separate = check_flag(where, "separate_full_blocks", separate_full_blocks)
    return _core.create_jagged_block_mask(
        mask_mod, heads, q.views(), None if kv is None else kv.views(), BLOCK_SIZE, separate
    )
