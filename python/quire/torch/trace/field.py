"""What a traced tensor holds: a value for every element of its shape.

Most traced tensors have no dimensions and hold one value. The others come from captured tensors with some axes left
(`table[h]`), from pointwise operations on these, and from moving their elements; elements are recorded on demand. Sums
and dot products of whole rows become the language's sum() and dot(); other reductions are written out element by
element. Trace layer.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from quire import _core
from quire.trace.error import fail
from quire.trace.value import BOOL, FLOAT, INT, INT64, Value, cast, const, lift

from .buffer import Buffer
from .dtypes import as_dtype, kind_of, range_of
from .operations import REDUCTIONS

# Most elements that a reduction may write out; a longer formula would take more time than it saves.
_MOST_WRITTEN_OUT = 256
_MOST_MOVED = 65_536


def _slice(buffer: Buffer, indices: tuple[Value, ...]) -> Any:
    """A buffer of the core with its first axes indexed."""
    return buffer.declared[tuple(i.node for i in indices)] if indices else buffer.declared


def load(buffer: Buffer, indices: tuple[Value, ...]) -> Value:
    """One element of a buffer. The language reads bools as ints."""
    kind = kind_of(buffer.dtype)
    span = INT64 if kind == FLOAT else range_of(buffer.dtype)
    element = Value(+_slice(buffer, indices), INT if kind == BOOL else kind, span)
    return cast(element, kind)


# A position in a field: per axis a number, or a value that differs between elements of the attention matrix.
Index = tuple["int | Value", ...]


class Field:
    """shape, and element(index) for every index inside it."""

    shape: tuple[int, ...] = ()

    def element(self, index: Index) -> Value:
        raise NotImplementedError

    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


class Single(Field):
    """No dimensions: one value."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def element(self, index):
        return self.value


class Row(Field):
    """A buffer with its first axes indexed."""

    def __init__(self, buffer: Buffer, indices: tuple[Value, ...] = ()) -> None:
        self.buffer = buffer
        self.indices = indices
        self.shape = buffer.shape[len(indices) :]

    def element(self, index):
        return load(self.buffer, self.indices + tuple(lift(i) for i in index))

    def as_slice(self) -> Any:
        """What sum() and dot() of the core take."""
        return _slice(self.buffer, self.indices)

    @property
    def kind(self) -> str:
        """Of sums of its elements."""
        return FLOAT if self.buffer.dtype.is_floating_point else INT


def _broadcast(field: Field, index: Index) -> Value:
    own = index[len(index) - len(field.shape) :]
    return field.element(tuple(0 if size == 1 else i for i, size in zip(own, field.shape)))


class Mapped(Field):
    """A pointwise operation; operands that are not fields are passed to the rule unchanged."""

    def __init__(self, name: str, rule, args: tuple, kwargs: dict, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.name, self.rule, self.args, self.kwargs, self.shape, self.dtype = name, rule, args, kwargs, shape, dtype
        self._known: dict[Index, Value] = {}

    def element(self, index):
        if index not in self._known:
            args = [_broadcast(a, index) if isinstance(a, Field) else a for a in self.args]
            kwargs = {k: _broadcast(v, index) if isinstance(v, Field) else v for k, v in self.kwargs.items()}
            self._known[index] = as_dtype(self.rule(*args, **kwargs), self.dtype)
        return self._known[index]


class Gathered(Field):
    """Elements of a buffer at fields of indices: `table[neighbours[q_idx]]`. axes: per axis of the buffer a field of
    indices, each of shape `lead` or without dimensions, or None for an axis that stays; these follow `lead` in order.
    """

    def __init__(self, buffer: Buffer, axes: list[Field | None], lead: tuple[int, ...]) -> None:
        self.buffer, self.axes, self.lead = buffer, axes, lead
        self.shape = lead + tuple(size for size, axis in zip(buffer.shape, axes) if axis is None)

    def element(self, index):
        lead, rest = index[: len(self.lead)], iter(index[len(self.lead) :])
        places = tuple(lift(next(rest)) if axis is None else _broadcast(axis, lead) for axis in self.axes)
        return load(self.buffer, places)


class Moved(Field):
    """Elements of other fields in a new order: `positions` numbers the elements of all sources consecutively."""

    def __init__(self, sources: list[Field], positions: torch.Tensor) -> None:
        if positions.numel() > _MOST_MOVED:
            fail(f"a row of shape {tuple(positions.shape)} is too large to be written out")
        self.sources = sources
        self.shape = tuple(positions.shape)
        self.places = positions.flatten().tolist()

    def element(self, index):
        if any(isinstance(i, Value) for i in index):
            return self.sources[0].element(tuple(index[place] if moves else place for place, moves in self._axes()))
        flat = 0
        for i, size in zip(index, self.shape):
            flat = flat * size + i
        place = self.places[flat]
        for source in self.sources:
            count = source.numel()
            if place < count:
                return source.element(_unravel(place, source.shape))
            place -= count
        raise AssertionError("a position outside all sources")

    def _axes(self) -> list[tuple[int, bool]]:
        """For each axis of the only source: (the axis here that runs along it, True) or (the fixed position on it,
        False).

        Transpositions, selections and new axes have this form; other movements cannot be indexed by traced values.
        """
        positions = torch.tensor(self.places).reshape(self.shape)
        source, first = self.sources[0], self.places[0]
        along = {_stride(self, axis): axis for axis, size in enumerate(self.shape) if size > 1}
        result: list[tuple[int, bool]] = []
        stride = source.numel()
        for size, start in zip(source.shape, _unravel(first, source.shape)):
            stride //= size
            axis = along.get(stride)
            is_whole = axis is not None and self.shape[axis] == size and start == 0
            result.append((axis, True) if axis is not None and is_whole else (start, False))
        index = torch.meshgrid(*(torch.arange(n) for n in self.shape), indexing="ij")
        flat = torch.zeros(self.shape, dtype=torch.int64)
        for size, (place, moves) in zip(source.shape, result):
            flat = flat * size + (index[place] if moves else place)
        if len(self.sources) > 1 or not torch.equal(flat, positions):
            fail("a traced index into rearranged elements cannot be traced; index a captured tensor instead")
        return result

    def whole_source(self) -> Field | None:
        """The only source, if each of its elements appears here once."""
        is_whole = len(self.sources) == 1 and sorted(self.places) == list(range(self.sources[0].numel()))
        return self.sources[0] if is_whole else None


def _stride(moved: Moved, axis: int) -> int:
    """The distance in the source between neighbours along an axis."""
    step = 1
    for size in moved.shape[axis + 1 :]:
        step *= size
    return moved.places[step] - moved.places[0]


def _unravel(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(place % size)
        place //= size
    return tuple(reversed(index))


class Picked(Field):
    """A field at traced positions. entries: per axis of the field a number, a value, or None for an axis that stays."""

    def __init__(self, field: Field, entries: list) -> None:
        self.field, self.entries = field, entries
        self.shape = tuple(size for size, e in zip(field.shape, entries) if e is None)

    def element(self, index):
        rest = iter(index)
        return self.field.element(tuple(next(rest) if e is None else e for e in self.entries))


def positions_of(field: Field, first: int = 0) -> torch.Tensor:
    """The numbers of a field's elements, in its shape, to which a movement is applied."""
    if field.numel() > _MOST_MOVED:
        fail(f"a row of shape {field.shape} is too large to be rearranged; do that with the captured tensor")
    return torch.arange(first, first + field.numel()).reshape(field.shape)


def moved(sources: list[Field], positions: torch.Tensor) -> Field:
    """Moved, or something simpler with the same elements."""
    result = Moved(sources, positions)
    if result.shape == ():
        return Single(result.element(()))
    if len(sources) == 1 and result.shape == sources[0].shape and result.places == list(range(sources[0].numel())):
        return sources[0]
    row = sources[0]
    if len(sources) == 1 and isinstance(row, Row) and result.places and _is_select(result, row):
        return Row(row.buffer, row.indices + (const(result.places[0] // result.numel()),))
    return result


def _is_select(result: Moved, row: Row) -> bool:
    """Whether this selects one entry along the first remaining axis."""
    first = result.places[0]
    count = result.numel()
    return result.shape == row.shape[1:] and first % count == 0 and result.places == list(range(first, first + count))


def _as_row(field: Field) -> Row | None:
    if isinstance(field, Moved):
        field = field.whole_source() or field
    return field if isinstance(field, Row) else None


def _row_dot(a: Row, b: Row) -> Value:
    return Value(_core.dot(a.as_slice(), b.as_slice()), FLOAT if FLOAT in (a.kind, b.kind) else INT)


class Product(Field):
    """A matrix product: [..., i, k] times [..., k, j], where i or j may be missing as in a product with a vector."""

    def __init__(self, name: str, a: Field, b: Field, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.name, self.a, self.b, self.shape, self.dtype = name, a, b, shape, dtype
        self.count = a.shape[-1]

    def element(self, index):
        rows = self._rows()
        if rows is not None:
            return as_dtype(_row_dot(*rows), self.dtype)
        _check_count(self.count, self.name)
        column = index[-1:] if len(self.b.shape) > 1 else ()
        row = index[: len(index) - len(column)]
        batch = row[: max(len(self.a.shape), len(self.b.shape)) - 2]
        total = const(0)
        for k in range(self.count):
            product = self.a.element((*row, k)) * self.b.element((*batch, k, *column))
            total = product if k == 0 else total + product
        return as_dtype(total, self.dtype)

    def _rows(self) -> tuple[Row, Row] | None:
        """The operands as rows whose dot product this is, if there is only one element."""
        a, b = _in_order(self.a), _in_order(self.b)
        if not isinstance(a, Row) or not isinstance(b, Row):
            return None
        return (a, b) if a.numel() == b.numel() == self.count and a.shape == b.shape else None


def _in_order(field: Field) -> Field:
    """The field itself, or the field that it is a reshape of."""
    if isinstance(field, Moved) and len(field.sources) == 1 and field.places == list(range(field.sources[0].numel())):
        return field.sources[0]
    return field


def _whole_sum(field: Field) -> Value | None:
    """sum() or dot() over all elements of a field, if it is a row or a product of two."""
    row = _as_row(field)
    if row is not None:
        return Value(_core.sum(row.as_slice()), row.kind)
    if not isinstance(field, Mapped) or field.name != "mul" or field.dtype in (torch.int8, torch.uint8, torch.int16):
        return None
    if all(isinstance(a, Row) and a.shape == field.shape for a in field.args):
        return _row_dot(field.args[0], field.args[1])
    return None


def _check_count(count: int, name: str) -> None:
    if count > _MOST_WRITTEN_OUT:
        fail(
            f"{name} over {count} computed elements cannot be traced; sums of captured rows and of products of two such rows "
            f"have no limit, others {_MOST_WRITTEN_OUT} elements"
        )


class Reduced(Field):
    """A reduction over some axes; the remaining axes have the shape `shape`."""

    def __init__(
        self, name: str, field: Field, axes: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.name, self.field, self.axes, self.shape, self.dtype = name, field, axes, shape, dtype
        self.kept = [axis for axis in range(len(field.shape)) if axis not in axes]
        self.keeps_dims = len(shape) == len(field.shape) and bool(axes)
        self.count = 1
        for axis in axes:
            self.count *= field.shape[axis]

    def element(self, index):
        result = _whole_sum(self.field) if self.name in ("sum", "mean") and not self.kept else None
        result = self._written_out(index) if result is None else result
        if self.name == "mean":
            result = result / float(self.count)
        return as_dtype(result, self.dtype)

    def _written_out(self, index) -> Value:
        _check_count(self.count, self.name)
        combine, empty = REDUCTIONS[self.name]
        kept = [i for axis, i in enumerate(index) if axis not in self.axes] if self.keeps_dims else index
        place = [0] * len(self.field.shape)
        for axis, i in zip(self.kept, kept):
            place[axis] = i
        total = None
        for reduced in itertools.product(*(range(self.field.shape[axis]) for axis in self.axes)):
            for axis, i in zip(self.axes, reduced):
                place[axis] = i
            element = self.field.element(tuple(place))
            total = element if total is None else combine(total, element)
        return const(empty) if total is None else total


def settled(field: Field) -> Field:
    """A field without dimensions as the single value it holds."""
    return Single(field.element(())) if field.shape == () and not isinstance(field, Single) else field
