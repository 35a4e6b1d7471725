"""Records each ATen operation while a mod runs: applies the tables of operations.py to traced tensors.

The dtype and shape of a result are determined by torch itself, on tensors of ones. Trace layer; the modes that call
this are in tracer.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from quire.trace.error import TraceError, fail
from quire.trace.value import INT, Value, cast, const

from .buffer import Slots, tensors_in
from .dtypes import converted, kind_of
from .field import Field, Mapped, Product, Reduced, Row, Single, load, moved, positions_of, settled
from .indexing import check_index_dtype, expanded, index_plain, index_traced
from .number import SYMBOLS, dtype_of, has_symbol, needs_value
from .operations import (
    BY_VALUE,
    CAST,
    CONVERTED,
    CREATIONS,
    FILLS,
    LOOKUPS,
    MOVEMENTS,
    OPERATIONS,
    PRODUCTS,
    REDUCTIONS,
    SEARCHES,
    refuse,
)
from .traced_tensor import TracedTensor, has_traced, ones, replaced


class Trace:
    """One run of one mod. `reads_values`: the mod read values of captured tensors, so this trace is valid for this call
    only."""

    def __init__(
        self, captured: list[torch.Tensor], names: Callable[[], dict[int, str]], are_sized: bool = True
    ) -> None:
        """names: as for Slots. are_sized: whether the shapes of captured tensors are known. If not, only single
        elements of them can be read."""
        self.slots = Slots(captured, names)
        self.unsized = set() if are_sized else {id(t) for t in captured if t.dim() > 0}
        self.reads_values = False
        self.function = ""  # the torch function that the mod called last
        self.numbers: dict[int, tuple] = {}  # id of the node of a number without a value -> the number, its tensor

    def field(self, tensor: torch.Tensor) -> Field:
        """What a tensor holds, traced or plain."""
        if isinstance(tensor, TracedTensor):
            return tensor.field
        if tensor.dim() == 0:
            if self.slots.is_constant(tensor):
                return Single(const(tensor.item()))
            return Single(load(self.slots.buffer(tensor), ()))
        return Row(self.slots.buffer(tensor))

    def number(self, symbol) -> Value:
        """A number without a value, as the formula reads it."""
        if id(symbol.node) not in self.numbers:
            self.numbers[id(symbol.node)] = symbol, torch.empty((), dtype=dtype_of(symbol))
        return load(self.slots.buffer(self.numbers[id(symbol.node)][1]), ())

    def operation(self, func, args, kwargs):
        """One ATen operation, as the dispatcher calls it; NotImplemented asks for its decomposition."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            fail(f"the random operation {self._called(func)} cannot be traced")
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        name = func._schema.name.removeprefix("aten::")
        if self.unsized and name != "index":
            self.check_sized(args, kwargs)
        if has_symbol(args) or has_symbol(list(kwargs.values())):
            return self._with_number(name, func, args, kwargs)
        if not has_traced(args) and not has_traced(list(kwargs.values())):
            return self._plain(name, func, args, kwargs)
        if name in OPERATIONS:
            return self._pointwise(name, func, args, kwargs)
        if name == CAST:
            return self._cast(func, args, kwargs)
        if name in CREATIONS:
            return self.slots.add_constant(func(*replaced(args, ones), **kwargs))
        if name in MOVEMENTS:
            return self._movement(func, args, kwargs)
        if name in REDUCTIONS:
            return self._reduction(name, func, args, kwargs)
        if name in PRODUCTS:
            return self._product(name, func, args)
        if name in SEARCHES:
            return self._search(name, func, args, kwargs)
        if name in LOOKUPS:
            return self._lookup(name, func, args)
        if name == "_local_scalar_dense":
            fail("the value of a traced tensor (.item(), int(), float() or a condition) is not known when tracing")
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return NotImplemented
        refuse(func, self._called(func))

    def _in_place(self, func, args, kwargs):
        """x += y for a value of the mod: the tensor holds the sum from here on; what was made from it before keeps its
        value. Not for captured tensors, which belong to others, nor for views, whose base would have to change too."""
        target: Any = args[0] if args else None
        plain = _out_of_place(func)
        if func is torch.ops.aten.detach_.default and self.slots.is_known(target) and self.slots.is_constant(target):
            return target  # torch.tensor(3.0), with autograd switched off
        if plain is None or not isinstance(target, TracedTensor) or target.is_viewed:
            fail(f"the in-place operation {self._called(func)} cannot be traced; write x = x + y instead of x += y")
        func(
            *replaced(args, lambda t: ones(t).clone()), **_kwargs_of_ones(kwargs)
        )  # lets torch check dtypes and shapes
        result = self.operation(plain, args, kwargs)
        target.field = _as_dtype(result.field, result.dtype, target.dtype)
        return target

    def check_sized(self, *values) -> None:
        """Raises NeedsValue if one of the tensors has unknown sizes."""
        if any(
            id(t) in self.unsized for t in tensors_in([list(v.values()) if isinstance(v, dict) else v for v in values])
        ):
            needs_value("an operation that goes over elements of a captured tensor")

    def _with_number(self, name, func, args, kwargs):
        """An operation that takes a number without a value. Not if its shape or its errors depend on the value."""
        if name in FILLS:
            return self._filled(func, args, kwargs)
        if name not in OPERATIONS or name in BY_VALUE:
            needs_value(self._called(func))
        result = self._pointwise(name, func, args, kwargs)
        dtype = (result[0] if isinstance(result, tuple) else result).dtype
        # torch rejects infinities in ints, and computes with 64-bit captured tensors without rounding.
        is_cut = _has_float(args, kwargs) and kind_of(dtype) == INT
        is_rounded = dtype is torch.float64 and not has_traced(args)
        return needs_value(self._called(func)) if is_cut or is_rounded else result

    def _filled(self, func, args, kwargs):
        """A tensor filled with one number."""
        given = {**dict(zip((a.name for a in func._schema.arguments), args)), **kwargs}
        symbol = given.pop("fill_value", given.get("s"))
        like = func(*replaced(args, ones), **_kwargs_of_ones(kwargs))
        kind = kind_of(like.dtype)
        is_cut = kind == INT and (isinstance(symbol, torch.SymFloat) or like.dtype is not torch.int64)
        if is_cut or not isinstance(symbol, SYMBOLS) or has_symbol(given.get("size")):
            needs_value(self._called(func))
        value = Single(cast(self.number(symbol), kind))
        result = TracedTensor(settled(Mapped("", lambda x: x, (value,), {}, tuple(like.shape), like.dtype)), like.dtype)
        # If torch itself makes the tensor, from the number in where(c, x, 2.0), it remains a number.
        result._wrapped_number = symbol
        return result

    def _called(self, func) -> str:
        """The operation, and the torch function that called it."""
        part_of = self.function.strip("_")
        return str(func) if part_of == "" or part_of in str(func) else f"{func} in {self.function}()"

    def _plain(self, name, func, args, kwargs):
        if name in ("lift_fresh", "lift") and not self.slots.is_known(args[0]):
            return self.slots.add_constant(args[0])  # torch.tensor(3.0)
        result = self.slots.run(func, args, kwargs)
        inputs = tensors_in((args, list(kwargs.values())))
        if not all(self.slots.is_constant(t) for t in inputs):
            is_value = not all(
                isinstance(r, torch.Tensor) for r in (result if isinstance(result, (list, tuple)) else [result])
            )
            by_mask = name != "index" or any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1]))
            shape_follows_values = torch.Tag.dynamic_output_shape in func.tags and by_mask
            self.reads_values |= is_value or shape_follows_values
        return result

    def _pointwise(self, name, func, args, kwargs):
        like = _result_on_ones(name, func, replaced(args, ones), _kwargs_of_ones(kwargs))
        is_tuple = isinstance(like, tuple)
        like = like[0] if is_tuple else like
        mapped_args = tuple(self._operand(a) for a in args)
        mapped_kwargs = {k: self._operand(v) for k, v in kwargs.items()}
        field = Mapped(name, OPERATIONS[name], mapped_args, mapped_kwargs, tuple(like.shape), like.dtype)
        result = TracedTensor(settled(field), like.dtype)
        return (result, self.slots.add_constant(torch.empty(0))) if is_tuple else result

    def _operand(self, value):
        if isinstance(value, torch.Tensor):
            return self.field(value)
        return Single(self.number(value)) if isinstance(value, SYMBOLS) else value

    def _cast(self, func, args, kwargs):
        source = args[0]
        dtype = kwargs.get("dtype") or source.dtype
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            fail(f"a mod runs on the CPU; it cannot move values to {device}")
        return TracedTensor(_as_dtype(source.field, source.dtype, dtype), dtype)

    def _movement(self, func, args, kwargs):
        sources: list[Field] = []
        dtypes: list[torch.dtype] = []

        def positions(tensor):
            field = self.field(tensor)
            first = sum(s.numel() for s in sources)
            sources.append(field)
            dtypes.append(tensor.dtype)
            return positions_of(field, first)

        def numbered(value):
            if isinstance(value, torch.Tensor):
                return positions(value)
            return [numbered(v) for v in value] if isinstance(value, (list, tuple)) else value

        is_view = func._schema.arguments[0].alias_info is not None
        if is_view and isinstance(args[0], TracedTensor):
            args[0].is_viewed = True
        if func is torch.ops.aten.select.int and isinstance(args[0].field, Row) and args[1] in (0, -args[0].dim()):
            return TracedTensor(index_traced(args[0].field, [args[2]]), args[0].dtype, is_view)
        if any(isinstance(a, torch.dtype) for a in args):
            refuse(func, self._called(func))  # bits reinterpreted as another type
        result = func(*numbered(args), **kwargs)
        dtype = dtypes[0]
        for other in dtypes[1:]:
            dtype = torch.promote_types(dtype, other)
        sources = [_as_dtype(field, own, dtype) for field, own in zip(sources, dtypes)]
        rebuilt = lambda t: TracedTensor(moved(sources, t), dtype, is_view)  # noqa: E731
        return [rebuilt(t) for t in result] if isinstance(result, (list, tuple)) else rebuilt(result)

    def _reduction(self, name, func, args, kwargs):
        like = func(*replaced(args, ones), **kwargs)
        if isinstance(like, tuple):
            refuse(func, self._called(func))
        source = args[0]
        axes = args[1] if len(args) > 1 else kwargs.get("dim")
        axes = [axes] if isinstance(axes, int) else axes
        rank = source.dim()
        axes = tuple(range(rank)) if not axes else tuple(sorted(a % rank for a in axes) if rank else ())
        field = Reduced(name, self.field(source), axes, tuple(like.shape), like.dtype)
        return TracedTensor(settled(field), like.dtype)

    def _product(self, name, func, args):
        like = func(*replaced(args, ones))
        field = Product(name, self.field(args[0]), self.field(args[1]), tuple(like.shape), like.dtype)
        return TracedTensor(settled(field), like.dtype)

    def _lookup(self, name, func, args):
        tensor, index = args[0], args[1]
        if name == "index":
            return self.index(tensor, tuple(slice(None) if e is None else e for e in index))
        if isinstance(tensor, TracedTensor) or not isinstance(index, TracedTensor):
            refuse(func, self._called(func))
        if name == "take":
            tensor = self.slots.run(torch.ops.aten.reshape.default, (tensor, [-1]), {})
        return self.index(tensor, index)

    def _search(self, name, func, args, kwargs):
        """How many of the sorted boundaries are below a value, or not above it; or whether one equals it."""
        like = func(*replaced(args, ones), **kwargs)
        value, sought = (args[1], args[0]) if name == "searchsorted" else (args[0], args[1])
        if name == "isin" and all(not isinstance(one, torch.Tensor) or one.dim() == 0 for one in (value, sought)):
            compare = torch.ops.aten.ne if kwargs.get("invert", False) else torch.ops.aten.eq
            value, sought = (value, sought) if isinstance(value, torch.Tensor) else (sought, value)
            overload = compare.Tensor if isinstance(sought, torch.Tensor) else compare.Scalar
            return self.operation(overload, (value, sought), {})
        is_plain = isinstance(sought, torch.Tensor) and sought.dim() == 1 and kwargs.get("sorter") is None
        if not is_plain or not isinstance(value, torch.Tensor) or value.dim() != 0:
            refuse(func, self._called(func))
        right = kwargs.get("right", False) or kwargs.get("side") == "right"
        rule = OPERATIONS["eq" if name == "isin" else "le" if right else "lt"]
        matches = Mapped("", rule, (self.field(sought), self.field(value)), {}, tuple(sought.shape), torch.bool)
        found = settled(Reduced("any" if name == "isin" else "sum", matches, (0,), (), like.dtype))
        if kwargs.get("invert", False):
            found = Single(~found.element(()))
        return TracedTensor(found, like.dtype)

    def index(self, tensor: torch.Tensor, index):
        """tensor[index], if either is traced."""
        entries = [self._index_entry(e) for e in expanded(index, tensor.dim())]
        if not all(isinstance(e, Field) and e.shape == () for e in entries):
            self.check_sized([tensor])
        if isinstance(tensor, TracedTensor):
            tensor.is_viewed = True
            return TracedTensor(settled(index_traced(tensor.field, entries)), tensor.dtype, True)
        return TracedTensor(index_plain(self.slots, tensor, entries), tensor.dtype)

    def _index_entry(self, entry):
        if isinstance(entry, torch.Tensor):
            check_index_dtype(entry.dtype)
            return self.field(entry)
        if isinstance(entry, torch.SymInt):
            return Single(self.number(entry))
        if isinstance(entry, (slice, int)) and not isinstance(entry, bool) or entry is None:
            if isinstance(entry, slice) and any(
                isinstance(e, torch.Tensor) for e in (entry.start, entry.stop, entry.step)
            ):
                fail("a slice with traced ends cannot be traced; its size would depend on the element")
            if has_symbol(entry):
                needs_value("a slice")
            return entry
        fail(f"an index of type {type(entry).__name__} cannot be traced")

    def value(self, result) -> Value:
        """The mod's result as one value of the language."""
        if isinstance(result, torch.Tensor):
            if result.dim() != 0:
                raise TraceError(f"[trace] a mod must return one value; got a tensor of shape {tuple(result.shape)}")
            return self.field(result).element(())
        if isinstance(result, (bool, int, float)):
            return const(result)
        if isinstance(result, SYMBOLS):
            return self.number(result)
        raise TraceError(f"[trace] a mod must return a tensor or a number; got {type(result).__name__}")


def _result_on_ones(name: str, func, args, kwargs):
    """torch's result for operands of ones: it has the dtype and shape of the real result."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        args = [torch.tensor(a) if isinstance(a, (bool, int, float)) else a for a in args]
        dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor)}
        if name not in CONVERTED or len(dtypes) < 2:
            raise
        common = functools.reduce(torch.promote_types, dtypes)
        return func(*(a.to(common) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def _out_of_place(func):
    """The operation that returns what this one writes into its first operand; None if there is none."""
    name = func._schema.name.removeprefix("aten::")
    plain = f"__{name[3:]}" if name.startswith("__i") else name[:-1]  # __ilshift__: __lshift__; add_: add
    packet = getattr(torch.ops.aten, plain, None) if name.endswith("_") else None
    overloads = [] if packet is None else packet.overloads()
    alike = [o for o in (func._overloadname, "default") if o in overloads]  # floor_divide_.Tensor: floor_divide.default
    return getattr(packet, alike[0]) if alike else None


def _has_float(args, kwargs) -> bool:
    return any(isinstance(v, torch.SymFloat) for v in (*args, *kwargs.values()))


def _kwargs_of_ones(kwargs: dict) -> dict:
    return {k: replaced(v, ones) for k, v in kwargs.items()}


def _as_dtype(field: Field, source: torch.dtype, dtype: torch.dtype) -> Field:
    """A field converted explicitly; unchanged if the language makes no difference, so that a row stays a row."""
    if kind_of(source) == kind_of(dtype) and (source.is_floating_point or torch.promote_types(source, dtype) is dtype):
        return field
    return settled(Mapped("cast", lambda x: converted(x, dtype), (field,), {}, field.shape, dtype))
