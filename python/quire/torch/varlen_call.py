"""A call of varlen_attn over checked tensors: where its sequences are, its window as a rule, and the FlexCall of both.

Queries are packed, [total, heads, dim]; keys and values are packed, too, or in pages named by a table. Does not know
the user's arguments (varlen.py) or graphs (varlen_operator.py). Python layer, above flex_call.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire import _core
from quire.torch.flex_call import FlexCall, Pages
from quire.torch.forward import Mods
from quire.torch.graph_mod import bind
from quire.torch.mods import Bound
from quire.torch.nested import Sequences


class Varlen(NamedTuple):
    """Of queries and keys: cu_seq_* are offsets [n + 1]; seqused_k [n]: how many keys of each are used; block_table [n,
    most pages]: key and value are then pages. window: how many keys left and right of its own position, aligned to the
    last key, a query sees; below 0: all."""

    cu_seq_q: Tensor
    cu_seq_k: Tensor | None
    seqused_k: Tensor | None = None
    block_table: Tensor | None = None
    max_q: int | None = None
    max_k: int | None = None
    window: tuple[int, int] = (-1, -1)

    def q_lengths(self) -> Tensor:
        return self.cu_seq_q.diff()

    def k_lengths(self) -> Tensor:
        if self.seqused_k is not None:
            return self.seqused_k
        assert self.cu_seq_k is not None
        return self.cu_seq_k.diff()

    def shifts(self) -> Tensor:
        """[n], int64: the position of a sequence's first query among its keys, with the last query at the last key."""
        return self.k_lengths().to(torch.int64) - self.q_lengths().to(torch.int64)


def check_lengths(function: str, sequences: Varlen) -> None:
    """Raises ValueError if a sequence is longer than the stated maximum."""
    given = (
        ("max_q", sequences.max_q, sequences.q_lengths()),
        ("max_k", sequences.max_k, sequences.k_lengths()),
    )
    for name, most, lengths in given:
        if most is not None and lengths.numel() > 0 and int(lengths.max()) > most:
            raise ValueError(f"[{function}] {name} is {most}, and a sequence has {int(lengths.max())} tokens")


def window_rule(sequences: Varlen) -> Any:
    """The _core.MaskMod of the window; None if it hides nothing."""
    left, right = sequences.window
    if left < 0 and right < 0:
        return None
    shifts = sequences.shifts()
    is_shifted = bool(shifts.any())
    if right == 0 and left < 0 and sequences.cu_seq_q.numel() > 1 and int(sequences.q_lengths().max()) <= 1:
        return None  # the last query sees every key
    place = "q_idx + shift[b]" if is_shifted else "q_idx"
    parts = [f"kv_idx <= {place} + {right}"] if right >= 0 else []
    if left >= 0:
        parts.append(f"kv_idx >= {place} - {left}")
    text = " and ".join(parts)
    names, tensors = (["shift"], [shifts]) if is_shifted else ([], [])
    return bind(_core.MaskMod, text, names, tensors, torch.float32).mod


def varlen_call(
    function: str,
    sequences: Varlen,
    score: Bound | None,
    mask: Bound | None,
    scale: float | None,
    enable_gqa: bool,
    dropout: tuple[float, int] = (0.0, 0),
    want_max: bool = False,
) -> FlexCall:
    """The call, to be run or recorded; it reads the tensors of `score`. dropout: its probability and seed. Raises
    ValueError for sequences longer than the stated maximum."""
    check_lengths(function, sequences)
    rule = window_rule(sequences)
    if mask is not None:
        rule = mask.mod if rule is None else rule & mask.mod
    mods = Mods(None if score is None else score.mod, None, scale, *dropout, mask_mod=rule)
    queries = Sequences(sequences.cu_seq_q, None)
    call = FlexCall(mods, want_max, 0 if score is None else len(score.tensors), enable_gqa=enable_gqa)
    if sequences.block_table is None:
        assert sequences.cu_seq_k is not None
        keys = Sequences(sequences.cu_seq_k, sequences.seqused_k)
        call.sequences = (queries, keys, keys)
    else:
        call.sequences = (queries, queries, queries)
        call.pages = Pages(sequences.block_table, sequences.k_lengths())
    call.function = function
    return call
