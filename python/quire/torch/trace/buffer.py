"""Captured tensors and what a mod computes from them alone.

Such computations (`slopes.exp()`, `table * 2`, `table[0]`) do not depend on the element: torch runs them when the mod
is traced; they are recorded and run again at every later call, so that new values of captured tensors are seen. What
depends on no captured tensor (`torch.arange(8)`) is kept. Trace layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from quire import _core
from quire.torch.views import CODES
from quire.trace.error import fail

_LARGEST_RANK = 8
_ANY_SIZE = 2


class Buffer:
    """A tensor as the formula reads it: name, dtype and shape are fixed, the values are bound at each call.

    `slot` is the index of its tensor in a `Slots`; `declared` is what expressions are made with.
    """

    __slots__ = ("slot", "dtype", "shape", "declared")

    def __init__(self, slot: int, tensor: torch.Tensor, name: str) -> None:
        self.slot = slot
        self.dtype = tensor.dtype
        self.shape = tuple(tensor.shape)
        # A formula depends only on the rank: symbolic sizes (torch.export) must not be asked for their values.
        sizes = [size if isinstance(size, int) else _ANY_SIZE for size in tensor.shape]
        self.declared = _core.Buffer.declare(CODES[tensor.dtype], sizes, name)


class _Slot:
    """A tensor seen in a trace. captured: it came from outside; constant: it does not depend on a captured tensor."""

    __slots__ = ("tensor", "captured", "constant")

    def __init__(self, tensor: torch.Tensor, captured: bool, constant: bool) -> None:
        self.tensor = tensor
        self.captured = captured
        self.constant = constant


class _Step:
    __slots__ = ("func", "args", "kwargs", "inputs", "outputs")

    def __init__(self, func, args, kwargs, inputs: list[int], outputs: list[int]) -> None:
        self.func, self.args, self.kwargs, self.inputs, self.outputs = func, args, kwargs, inputs, outputs


class _Ref:
    """A reference to a slot in the recorded arguments of a step."""

    __slots__ = ("slot",)

    def __init__(self, slot: int) -> None:
        self.slot = slot


def _mapped(value, change):
    if isinstance(value, (list, tuple)):
        return [_mapped(v, change) for v in value]
    return change(value)


def tensors_in(value) -> list[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    return []


class Slots:
    """All plain tensors of one trace, and how the computed ones are computed."""

    def __init__(self, captured: list[torch.Tensor], names: Callable[[], dict[int, str]]) -> None:
        """captured: tensors known to come from outside; more may turn up. names(): id of a captured tensor -> its name,
        if known; called once, when a tensor is read."""
        self._names = functools.cache(names)
        self.slots: list[_Slot] = []
        self.steps: list[_Step] = []
        self._by_id: dict[int, int] = {}
        self._inside: list[torch.Tensor] = []
        self._buffers: dict[int, Buffer] = {}
        for tensor in captured:
            self.slot_of(tensor)

    def slot_of(self, tensor: torch.Tensor) -> int:
        """The slot of a tensor; a new one is taken as captured."""
        slot = self._by_id.get(id(tensor))
        return self._add(tensor, captured=True, constant=False) if slot is None else slot

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether it was seen in this trace, or is known to be captured."""
        return id(tensor) in self._by_id

    def is_constant(self, tensor: torch.Tensor) -> bool:
        return self.slots[self.slot_of(tensor)].constant

    def add_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor made only from numbers."""
        self._add(tensor, captured=False, constant=True)
        return tensor

    def _add(self, tensor, captured: bool, constant: bool) -> int:
        # The list keeps the tensor alive, so its id stays unique.
        self.slots.append(_Slot(tensor, captured, constant))
        self._by_id[id(tensor)] = len(self.slots) - 1
        # Operations see what is inside the wrappers of torch.func.grad; calls run them on the wrapped tensor.
        while is_functorch_wrapped_tensor(tensor):
            tensor = get_unwrapped(tensor)
            self._inside.append(tensor)
            self._by_id[id(tensor)] = len(self.slots) - 1
        return len(self.slots) - 1

    def run(self, func, args, kwargs):
        """Runs an operation on plain tensors and records it if it depends on a captured one."""
        result = func(*args, **kwargs)
        inputs = [self.slot_of(t) for t in tensors_in((args, list(kwargs.values())))]
        constant = all(self.slots[i].constant for i in inputs)
        outputs = []
        for t in tensors_in(result):
            known = self._by_id.get(id(t))
            outputs.append(self._add(t, captured=False, constant=constant) if known is None else known)
        if not constant:
            self.steps.append(_Step(func, self._recorded(args), self._recorded_dict(kwargs), inputs, outputs))
        return result

    def _recorded(self, args):
        return _mapped(args, lambda v: _Ref(self._by_id[id(v)]) if isinstance(v, torch.Tensor) else v)

    def _recorded_dict(self, kwargs):
        return {k: self._recorded(v) for k, v in kwargs.items()}

    def buffers(self) -> list[Buffer]:
        """All that buffer() returned, each once."""
        return list(dict.fromkeys(self._buffers.values()))

    def buffer(self, tensor: torch.Tensor) -> Buffer:
        """The tensor as something the formula reads; converted at each call, or refused, if no formula can read it."""
        slot = self.slot_of(tensor)
        if slot in self._buffers:
            return self._buffers[slot]
        if tensor.layout is not torch.strided:
            fail(f"captured tensors must be strided; got one of layout {tensor.layout}")
        if tensor.device.type != "cpu":
            fail(f"captured tensors must be on the CPU; got one on {tensor.device}")
        if tensor.dim() > _LARGEST_RANK:
            fail(f"captured tensors have at most {_LARGEST_RANK} dimensions; got shape {tuple(tensor.shape)}")
        if tensor.dtype not in CODES:
            return self._buffers.setdefault(slot, self.buffer(self._readable(tensor)))
        self._buffers[slot] = Buffer(slot, tensor, self._name_of(slot))
        return self._buffers[slot]

    def _name_of(self, slot: int) -> str:
        """The name of the captured tensor that it was first computed from."""
        origin = self._origin(slot)
        return (origin is not None and self._names().get(id(self.slots[origin].tensor))) or f"t{slot}"

    def _readable(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = tensor.dtype
        if dtype.is_complex or not (dtype.is_floating_point or dtype in (torch.uint16, torch.uint32)):
            fail(f"captured tensors of dtype {dtype} are not supported")
        wide = torch.float32 if dtype.is_floating_point else torch.int64
        return self.run(torch.ops.aten._to_copy.default, (tensor,), {"dtype": wide})

    def _origin(self, slot: int) -> int | None:
        """The slot of the captured tensor that a slot was first computed from; None for a constant."""
        while not self.slots[slot].captured:
            step = next((s for s in self.steps if slot in s.outputs), None)
            if step is None:
                return None
            slot = next(i for i in step.inputs if not self.slots[i].constant)
        return slot

    def needed_steps(self, wanted: list[int]) -> list[_Step]:
        """The steps that compute the wanted slots, in order."""
        todo = set(wanted)
        needed: list[_Step] = []
        for step in reversed(self.steps):
            if todo.intersection(step.outputs):
                needed.append(step)
                todo.update(step.inputs)
        return needed[::-1]


class Binding:
    """How to get the tensors of a formula's buffers at a later call, from the captured tensors of that call."""

    def __init__(self, slots: Slots, buffers: list[Buffer]) -> None:
        self.wanted = [b.slot for b in buffers]
        self.steps = slots.needed_steps(self.wanted)
        used = set(self.wanted).union(*(s.inputs for s in self.steps)) if self.steps else set(self.wanted)
        self.captured = sorted(i for i in used if slots.slots[i].captured)
        self.constants = {i: slots.slots[i].tensor for i in used if slots.slots[i].constant}
        # The usual case: every buffer is a captured tensor.
        self.is_plain = not self.steps and not self.constants

    def bind(self, captured: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """`captured`: slot -> tensor of this call, for all of `self.captured`."""
        if self.is_plain:
            return [captured[i] for i in self.wanted]
        values = {**self.constants, **captured}
        for step in self.steps:
            args = _mapped(step.args, lambda v: values[v.slot] if isinstance(v, _Ref) else v)
            kwargs = {
                k: _mapped(x, lambda v: values[v.slot] if isinstance(v, _Ref) else v) for k, x in step.kwargs.items()
            }
            values.update(zip(step.outputs, tensors_in(step.func(*args, **kwargs))))
        return [values[i] for i in self.wanted]
