"""The blocks of a BlockMask, ours or torch's own, as a _core.BlockMask, converted again only when they change.

A mask's index tensors may be assigned or edited in place; a conversion is remembered with the tensors and their
versions, which torch increments at every edit (Seen). Python layer, above mods.py, below block_mask.py.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch.nn.attention.flex_attention import noop_mask
from torch.utils._python_dispatch import _disable_current_modes

from quire import _core
from quire.torch.mods import GIVEN, Bound, bind_traced, mask_rule
from quire.torch.trace.mod_guard import guard_steps
from quire.torch.trace.mod_key import KeyUnknown, mod_key
from quire.torch.views import view_of

_TEACHING_CALLS = 2
KV_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


class Seen:
    """Remembers a tensor and tells whether it is still the same, in the same place, and not edited since."""

    __slots__ = ("tensor", "address", "strides", "version", "copy")

    def __init__(self, tensor: torch.Tensor, is_small: bool):
        self.tensor = tensor
        self.address = tensor.data_ptr() if tensor.device.type == "cpu" else 0
        self.strides = tensor.stride()
        # Edits of tensors made under inference_mode are not counted: a small one is copied, a large one is taken as
        # edited.
        self.version = None if tensor.is_inference() else tensor._version
        self.copy = tensor.clone() if self.version is None and is_small else None

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether it is this tensor, with its memory at the same address."""
        return tensor is self.tensor and tensor.data_ptr() == self.address and tensor.stride() == self.strides

    def is_unchanged(self, tensor: torch.Tensor) -> bool:
        if not self.is_there(tensor):
            return False
        if self.version is None:
            return self.copy is not None and torch.equal(tensor, self.copy)
        return tensor._version == self.version


class Blocks:
    """A _core.BlockMask and what it was made from, or what was made from it."""

    __slots__ = ("core", "seq_lengths", "block_size", "kept_plan", "_lists", "_bound", "_calls")

    def __init__(self, core: _core.BlockMask, seq_lengths: Any, block_size: Any):
        self.core = core
        self.seq_lengths = seq_lengths
        self.block_size = block_size
        self.kept_plan = _core.KeptPlan()
        self._calls = 0
        self._lists: dict[str, Seen | None] = {}  # index tensors that agree with the core
        # The core with a rule, the rule, the tensors it reads, and whether the rule is also asked at the edges.
        self._bound: tuple = (None, None, (), False)  # replaced in one assignment: threads share masks

    def holds(self, lists: dict[str, Any], seq_lengths: Any, block_size: Any) -> bool:
        """Whether the core corresponds to the current index tensors. Missing ones are ignored."""
        if self.seq_lengths != seq_lengths or self.block_size != block_size:
            return False
        known = self._lists
        for name in KV_LISTS:
            if name in lists:
                tensor, seen = lists[name], known.get(name)
                if name not in known or (tensor is None) != (seen is None):
                    return False
                if seen is not None and not seen.is_unchanged(tensor):
                    return False
        return True

    def remember(self, name: str, tensor: torch.Tensor | None) -> None:
        """Notes that this index tensor agrees with the core."""
        self._lists[name] = None if tensor is None else Seen(tensor, is_small=True)

    def forget_lists(self) -> None:
        """Drops the index tensors, which it would keep alive."""
        self._lists = {}

    def with_rule(self, mask_mod: Any) -> _core.BlockMask:
        """The blocks with this rule inside partly visible ones, reading the current contents of its tensors."""
        if mask_mod is noop_mask:
            bound, bound_rule, _, _ = self._bound
            if bound_rule is noop_mask:
                return bound
        rule = mask_rule(mask_mod)
        if not isinstance(rule, Bound):
            known = self._known(rule.constant, rule.tensors)
            if known is not None:
                return known
            rule = bind_traced(_core.MaskMod, rule)
        return self.bound_to(rule.mod, rule.key, rule.tensors)

    def bound_to(self, mod: _core.MaskMod, rule: Any, tensors: list) -> _core.BlockMask:
        """The blocks with `mod`, which reads `tensors`. `rule`: the same object whenever the formula is the same."""
        known = self._known(rule, tensors)
        if known is not None:
            return known
        # Blocks at the edges may have been proved visible for other values: setting the rule makes them ask it.
        bound = self.core.__copy__()
        bound.mask_mod = mod
        self._bind(bound, rule, tensors, is_asked=True)
        return bound

    def _known(self, rule: Any, tensors: list) -> _core.BlockMask | None:
        """The last binding, if it is to this rule and these tensors."""
        bound, bound_rule, reads, is_asked = self._bound
        if rule is not bound_rule or len(tensors) != len(reads):
            return None
        # New values in the same memory are picked up, unless something was proved with the old ones.
        same = Seen.is_there if is_asked else Seen.is_unchanged
        return bound if all(same(seen, tensor) for seen, tensor in zip(reads, tensors)) else None

    def rule_reads(self) -> list[torch.Tensor]:
        """The tensors that the rule of the last with_rule reads."""
        return [seen.tensor for seen in self._bound[2]]

    def teach(self, mask: Any, core: _core.BlockMask) -> None:
        """Registers a mask of ours, to which these blocks belong and whose result was `core`, with the extension: at
        the second and third call that it did not know."""
        self._calls += 1
        if not 1 < self._calls <= 1 + _TEACHING_CALLS:
            return
        bound, _, reads, is_asked = self._bound
        rule = mask.mask_mod
        try:
            tensors = [] if isinstance(rule, GIVEN) else mod_key(rule, None)[1]
        except KeyUnknown:
            return
        if bound is not core or not {id(seen.tensor) for seen in reads}.issubset(map(id, tensors)):
            return  # it reads something computed at every call
        steps = guard_steps(rule, tensors)
        if steps is not None:
            place = (mask.seq_lengths, mask.BLOCK_SIZE, list(KV_LISTS), mask._lists)
            mask._quick = _core.know_mask(core, self.kept_plan, steps, tensors, not is_asked, *place)

    def made_with(self, rule: Any, tensors: list) -> None:
        """The core has this rule and was proved with it."""
        self._bind(self.core, rule, tensors, is_asked=False)

    def _bind(self, bound: _core.BlockMask, rule: Any, tensors: list, is_asked: bool) -> None:
        self._bound = (bound, rule, tuple(Seen(tensor, is_small=False) for tensor in tensors), is_asked)


def convert(lists: dict[str, Any], seq_lengths: Any, block_size: Any) -> Blocks:
    """Index tensors (those of full blocks may be None) to blocks without a rule."""
    device = lists["kv_num_blocks"].device
    if device.type != "cpu":
        raise RuntimeError(f"[flex_attention] the block mask must be on the CPU; it is on {device}")
    views = {name: None if lists[name] is None else view_of(lists[name]) for name in KV_LISTS}
    # torch's PagedAttention lists -1 for a page that is not reserved.
    core = _core.BlockMask.from_kv_blocks(
        **views, BLOCK_SIZE=tuple(block_size), seq_lengths=tuple(seq_lengths), are_pages=True
    )
    blocks = Blocks(core, seq_lengths, block_size)
    for name in KV_LISTS:
        blocks.remember(name, lists[name])
    blocks.made_with(noop_mask, [])
    return blocks


_converted: weakref.WeakKeyDictionary[Any, Blocks] = weakref.WeakKeyDictionary()


def blocks_of_torch(mask: Any) -> Blocks:
    """The blocks of torch's own BlockMask. Converted again only if something was assigned or edited."""
    lists = mask.__dict__
    blocks = _converted.get(mask)
    if blocks is None or not blocks.holds(lists, mask.seq_lengths, mask.BLOCK_SIZE):
        blocks = _converted[mask] = convert(lists, mask.seq_lengths, mask.BLOCK_SIZE)
    return blocks


def as_tensor(array: Any) -> torch.Tensor:
    """The memory of a NumPy array as a tensor whose edits are counted, even under inference_mode."""
    with torch.inference_mode(False), contextlib.ExitStack() as stack:
        if torch._C._len_torch_dispatch_stack() > 0:  # torch.export's mode would return a tensor without memory
            stack.enter_context(_disable_current_modes())
        return torch.from_numpy(array)
