"""Runs a mod once on traced tensors and returns the formula it computes.

While the mod runs, a TorchFunctionMode sees indexing and reads of values, and a TorchDispatchMode sees every ATen
operation, however it was written (trace_record.py). Trace layer; caching is in mod_cache.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from quire import _core
from quire.mod_calls import generator_drawn, random_state, states_of_generators, warn_if_condition, warn_if_random
from quire.trace.error import fail
from quire.trace.value import BOOL, FLOAT, INDEX, INT, Value, cast

from .buffer import Binding, tensors_in
from .field import Single
from .trace_record import Trace
from .traced_tensor import TracedTensor, has_traced

Mod: TypeAlias = _core.ScoreMod | _core.MaskMod


def _methods(names: str) -> dict:
    return {getattr(torch.Tensor, name): name for name in names.split()}


# Methods that return a tensor's values to Python.
_READS = _methods(
    "__bool__ __int__ __float__ __complex__ __index__ __contains__ item tolist numpy __array__ __dlpack__ is_nonzero"
)
# Methods that reveal something about a captured tensor that the cache's key does not hold.
_TELLS = _methods("stride is_contiguous storage_offset data_ptr storage untyped_storage __repr__ __format__")
_WORDS = {
    "__bool__": "the truth of a traced value (if, while, and, or, not, chained comparisons, min, max)",
    "is_nonzero": "the truth of a traced value (is_nonzero)",
    "__contains__": "the truth of a traced value (in)",
}
_LOGIC = (
    "write & for and, | for or, ~ for not, (a <= x) & (x < b) for a <= x < b, torch.where(c, x, y) for x if c else y"
)
_INSTEAD = dict.fromkeys(("__bool__", "is_nonzero", "__contains__"), _LOGIC) | dict.fromkeys(
    ("__index__", "__array__"), "index a tensor: torch.tensor(a_list)[q_idx], torch.from_numpy(an_array)[q_idx]"
)
_GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def _entries(index) -> list:
    return list(index) if isinstance(index, (tuple, list)) else [index]


def _is_place(index) -> bool:
    """Whether a plain tensor is indexed by numbers, at least one of which is a tensor without dimensions."""
    entries = _entries(index)
    are_tensors = [isinstance(e, torch.Tensor) for e in entries]
    numbers = (torch.int64, torch.int32)
    return any(are_tensors) and all(
        (is_tensor and e.dim() == 0 and e.dtype in numbers) or type(e) is int
        for e, is_tensor in zip(entries, are_tensors)
    )


class _Functions(TorchFunctionMode):
    """Sees what the dispatcher does not: indexing and reads of values."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.trace.unsized and not (func is torch.Tensor.__getitem__ and has_traced(args)):
            self.trace.check_sized(args, kwargs or {})
        if func is torch.Tensor.__getitem__:
            if has_traced(args):
                return self.trace.index(args[0], args[1])
            if _is_place(args[1]):
                # torch would read the values of the index to make a view.
                return torch.ops.aten.index.Tensor(args[0], [torch.as_tensor(i) for i in _entries(args[1])])
        elif func in _READS:
            self._read(_READS[func], args)
        elif func in _TELLS:
            self.trace.reads_values |= not has_traced(args)
        elif func is torch.Tensor.__setitem__:
            fail("an assignment to elements of a tensor cannot be traced; use torch.where")
        elif func == _GET_DATA and has_traced(args):
            return args[0]
        for tensor in tensors_in(args):
            if is_functorch_wrapped_tensor(tensor):
                self.trace.slots.slot_of(tensor)
        self.trace.function = getattr(func, "__name__", "")
        return func(*args, **(kwargs or {}))

    def _read(self, name: str, args) -> None:
        if has_traced(args):
            words = _WORDS.get(name, f"the value of a traced tensor ({name})")
            instead = _INSTEAD.get(name, "use torch.where")
            fail(f"{words} is not known when tracing; it differs from element to element, {instead}")
        if not self.trace.slots.is_constant(args[0]):
            self.trace.reads_values = True


def body_of(func) -> Callable | None:
    """The Python function of an operator made with torch.library.custom_op, to be traced in its place: what is
    pointwise becomes part of the formula, the rest is refused by name. None for other operators."""
    if func.namespace in ("aten", "prims", "prim", "quire"):
        return None
    made = sys.modules.get("torch._library.custom_ops")
    known = None if made is None else getattr(made, "OPDEFS", {}).get(func._schema.name)
    if known is None or func._schema.is_mutable:
        return None
    return getattr(known, "_backend_fns", {}).get("cpu") or getattr(known, "_init_fn", None)


class _Operations(TorchDispatchMode):
    """Sees every ATen operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the first operation imports torch._dynamo, which takes a second. Nothing is traced under it here.
        return False

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        body = body_of(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        result = self.trace.operation(func, args, kwargs)
        if result is NotImplemented:
            with self:
                return func.decompose(*args, **kwargs)
        return result


@contextlib.contextmanager
def _no_grad():
    """torch.no_grad() that is not recorded: torch.export would otherwise switch gradients off in the exported program."""
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(False)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(True)


@contextlib.contextmanager
def _plain_torch():
    """Without the modes that others have switched on: they would act on the mod's operations."""
    with contextlib.ExitStack() as stack:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack() > 0:
            stack.enter_context(_disable_current_modes())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.is_grad_enabled():
            stack.enter_context(_no_grad())
        yield


class Formula:
    """What a mod computes. mod: _core's, over buffers without memory; buffers: in the order in which it reads them;
    binding: where their tensors come from; captured: slot -> tensor of the traced call; numbers: slot -> number without
    a value, for slots not in `captured`; reads_values: valid for that call only."""

    __slots__ = ("mod", "buffers", "binding", "captured", "numbers", "reads_values")

    def __init__(self, mod: Mod, trace: Trace) -> None:
        known = trace.slots.buffers()
        self.buffers = [known[i] for i in mod.places_of_buffers([b.declared for b in known])] if known else []
        # Rules of torch's PagedAttention are recognised here, once, when they are traced.
        self.mod = type(mod).mark_page_table(mod) if known else mod
        self.binding = Binding(trace.slots, self.buffers)
        self.numbers = {trace.slots.slot_of(tensor): symbol for symbol, tensor in trace.numbers.values()}
        self.captured = {i: trace.slots.slots[i].tensor for i in self.binding.captured if i not in self.numbers}
        self.reads_values = trace.reads_values


def trace_mod(
    mod: Callable,
    score_dtype: torch.dtype | None,
    captured: list[torch.Tensor],
    names: Callable[[], dict[int, str]] = dict,
    are_sized: bool = True,
) -> Formula:
    """Runs the mod and returns its formula.

    score_dtype: for a score mod; None for a mask mod, which has no score. captured: tensors that the mod is known to
    hold. names(): id of a captured tensor -> its name in the formula. are_sized: the shapes of captured tensors are the
    same in all calls; if not, whatever depends on them raises NeedsValue. Raises TraceError, and whatever the mod or
    torch raises.
    """
    trace = Trace(captured, names, are_sized)
    score, *indices = _core.mod_arguments()
    arguments = [TracedTensor(Single(Value(index, INT, INDEX)), torch.int64) for index in indices]
    if score_dtype is not None:
        arguments.insert(0, TracedTensor(Single(Value(score, FLOAT)), score_dtype))
    with _plain_torch():
        before, held = random_state(), states_of_generators(mod)
        with _Functions(trace), _Operations(trace):
            result = mod(*arguments)
        if drawn := generator_drawn(held):
            fail(drawn)
        warn_if_random("trace", before)
        if score_dtype is not None and (
            result is True or result is False or getattr(result, "dtype", None) is torch.bool
        ):
            warn_if_condition("trace")
        value = cast(trace.value(result), BOOL if score_dtype is None else FLOAT)
        return Formula(_core.MaskMod(value.node) if score_dtype is None else _core.ScoreMod(value.node), trace)
