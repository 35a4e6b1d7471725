"""A BlockMask as a node of torch's pytrees: how it is passed to torch.export, and how torch.utils._pytree maps over it.

Its tensors and what its rule captures are the leaves, as in torch; the rule itself is compared by what it computes, and
written into exported programs as its formula. Dynamo gets the mask as one leaf. Python layer, above block_mask.py.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node

from quire import _core
from quire.torch.block_mask import BlockMask
from quire.torch.trace import trace_mask_mod

_RULE = BlockMask._CONTEXT_ATTRS.index("mask_mod")


class _Leaf:
    """Wraps a mask that must not be taken apart."""

    __slots__ = ("mask",)

    def __init__(self, mask: BlockMask):
        self.mask = mask


class _Rule:
    """A rule without its tensors. `of_torch`: torch's own representation of the function; None if only the formula is
    known."""

    __slots__ = ("of_torch", "_mask_mod", "_formula")

    def __init__(self, of_torch: Any, mask_mod: Any, formula: str | None = None):
        self.of_torch = of_torch
        self._mask_mod = mask_mod
        self._formula = formula

    @property
    def formula(self) -> str:
        if self._formula is None:
            mod = self._mask_mod
            if isinstance(mod, str):
                self._formula = mod
            else:
                self._formula = (mod if isinstance(mod, _core.MaskMod) else trace_mask_mod(mod)).text
        return self._formula

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Rule):
            return False
        if self.of_torch is not None and other.of_torch is not None and self.of_torch == other.of_torch:
            return True
        return self.formula == other.formula

    def __hash__(self) -> int:
        return 0  # equal formulas may be written in many ways

    def __repr__(self) -> str:
        return f"mask_mod({self.formula!r})"


class _NoCompiling:
    """torch keeps a rule's tensors inside if it believes that dynamo is tracing, which is not so under torch.export."""

    def __enter__(self) -> None:
        self._was_set = torch.compiler._is_compiling_flag
        if self._was_set:
            torch.compiler._is_compiling_flag = False

    def __exit__(self, *exception: Any) -> None:
        if self._was_set:
            torch.compiler._is_compiling_flag = True


def _to_take_apart(mask: BlockMask) -> BlockMask:
    """The mask, or a copy if its index tensors were not handed out: dynamo walks over arguments after compiling a
    graph, and a graph that reads the blocks of a mask is invalid once its index tensors are handed out."""
    # torch.export walks over them as well, and again if no words can be read: what was made must stay.
    keeps = mask._words is None or mask._is_exposed or torch.compiler.is_exporting()
    return mask if keeps else copy.copy(mask)


def _flatten(mask: BlockMask) -> tuple[Any, Any]:
    if torch.compiler.is_dynamo_compiling():
        return (_Leaf(mask),), None
    with _NoCompiling():
        leaves, context = _to_take_apart(mask)._flatten()
    return leaves, _with_rule(context, mask)


def _flatten_with_keys(mask: BlockMask) -> tuple[Any, Any]:
    with _NoCompiling():
        leaves, context = _to_take_apart(mask)._flatten_with_keys()
    return leaves, _with_rule(context, mask)


def _with_rule(context: tuple, mask: BlockMask) -> tuple:
    return (*context[:_RULE], _Rule(context[_RULE], mask.mask_mod), *context[_RULE + 1 :])


def _unflatten(leaves: Any, context: Any) -> BlockMask:
    if context is None:
        (leaf,) = leaves
        return leaf.mask
    rule = context[_RULE]
    if rule.of_torch is None:
        raise ValueError(
            "[BlockMask] of a mask that a program was exported with only the formula is known, "
            f"{rule.formula!r}: it cannot be put together again"
        )
    return BlockMask._unflatten(tuple(leaves), (*context[:_RULE], rule.of_torch, *context[_RULE + 1 :]))


def _to_dumpable(context: tuple) -> str:
    return json.dumps([one.formula if isinstance(one, _Rule) else one for one in context])


def _from_dumpable(text: str) -> tuple:
    context: list[Any] = [tuple(one) if isinstance(one, list) else one for one in json.loads(text)]
    context[_RULE] = _Rule(None, None, context[_RULE])
    return tuple(context)


register_pytree_node(
    BlockMask,
    _flatten,
    _unflatten,
    serialized_type_name="quire.torch.BlockMask",
    to_dumpable_context=_to_dumpable,
    from_dumpable_context=_from_dumpable,
    flatten_with_keys_fn=_flatten_with_keys,
)
