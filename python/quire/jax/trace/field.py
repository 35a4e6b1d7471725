"""Arrays inside a mod: a shape, and a value for every position in it, recorded on demand.

Most have no dimensions. The others come from captured arrays with some axes left (`table[h]`) and from operations on
these. Sums and dot products of whole rows of captured arrays become the language's sum() and dot(), of any length;
other reductions are written out element by element. Trace layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from quire import _core
from quire.trace.error import fail
from quire.trace.value import (
    BOOL,
    FLOAT,
    INT,
    INT64,
    Value,
    as_dtype,
    cast,
    clamp,
    const,
    kind_of,
    lift,
    range_of,
    where,
)

from .primitives import REDUCTIONS

# Most elements that a reduction may write out; a longer formula would take more time than it saves.
_MOST_WRITTEN_OUT = 256

Index = tuple["int | Value", ...]


class Row:
    """A captured array with its first axes indexed."""

    def __init__(self, declared: Any, indices: tuple[Value, ...], dtype: str) -> None:
        self.declared, self.indices, self.dtype = declared, indices, dtype

    def as_slice(self) -> Any:
        """What sum() and dot() of the core take."""
        return self.declared[tuple(i.node for i in self.indices)] if self.indices else self.declared

    @property
    def kind(self) -> str:
        return FLOAT if kind_of(self.dtype) == FLOAT else INT


class Field:
    """element(index) for every index inside `shape`. rows: one or two rows of captured arrays, if these are their
    elements in order, or the products of their elements; otherwise ()."""

    def __init__(
        self, shape: tuple[int, ...], dtype: str, at: Callable[[Index], Value], rows: tuple[Row, ...] = ()
    ) -> None:
        self.shape, self.dtype, self.rows = tuple(shape), dtype, rows
        self._at = at
        self._known: dict[Index, Value] = {}

    def element(self, index: Index = ()) -> Value:
        if index not in self._known:
            self._known[index] = self._at(index)
        return self._known[index]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def single(value: Value, dtype: str) -> Field:
    """One value for all positions of any shape."""
    return Field((), dtype, lambda _: value)


def of_buffer(declared: Any, shape: tuple[int, ...], dtype: str) -> Field:
    """A captured array; indices are known to be inside it."""

    def at(index: Index) -> Value:
        kind = kind_of(dtype)
        loaded = +declared[tuple(lift(i).node for i in index)] if shape else +declared
        span = INT64 if kind == FLOAT else range_of(dtype)
        return cast(Value(loaded, INT if kind == BOOL else kind, span), kind)  # the language reads bools as ints

    return Field(shape, dtype, at, (Row(declared, (), dtype),))


def pointwise(rule: Callable[..., Value], operands: list[Field], shape: tuple[int, ...], dtype: str) -> Field:
    """Operands of the result's shape, or without dimensions."""

    def at(index: Index) -> Value:
        return as_dtype(rule(*(one.element(index if one.shape else ()) for one in operands)), dtype)

    return Field(shape, dtype, at)


def product(rule: Callable[..., Value], operands: list[Field], shape: tuple[int, ...], dtype: str) -> Field:
    """pointwise, but remembers if it is the product of two rows."""
    result = pointwise(rule, operands, shape, dtype)
    if all(len(one.rows) == 1 and one.shape == result.shape for one in operands):
        result.rows = tuple(row for one in operands for row in one.rows)
    return result


# ---- movements: name of the primitive -> (equation's parameters, operands, shape) -> field


def _flat(index: Index, shape: tuple[int, ...]) -> Any:
    flat: Any = 0
    for i, size in zip(index, shape):
        flat = flat * size + i
    return flat


def _unravel(flat: Any, shape: tuple[int, ...]) -> Index:
    index: list[Any] = []
    for size in reversed(shape):
        index.append(0 if size == 1 else flat % size)
        flat = flat // size
    return tuple(reversed(index))


def reshape(_: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    source = operands[0]
    long, kept = ([i for i, size in enumerate(s) if size != 1] for s in (source.shape, shape))
    if [source.shape[i] for i in long] == [shape[i] for i in kept]:  # axes of size 1 come and go

        def at(index: Index) -> Value:
            place: list[Any] = [0] * len(source.shape)
            for here, there in zip(kept, long):
                place[there] = index[here]
            return source.element(tuple(place))

        return Field(shape, source.dtype, at, source.rows)
    return Field(
        shape, source.dtype, lambda index: source.element(_unravel(_flat(index, shape), source.shape)), source.rows
    )


def _broadcast(params: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    source, axes = operands[0], params["broadcast_dimensions"]
    if source.shape and source.size == math.prod(shape):
        return reshape({}, operands, shape)

    def at(index: Index) -> Value:
        return source.element(tuple(0 if size == 1 else index[axis] for size, axis in zip(source.shape, axes)))

    return Field(shape, source.dtype, at)


def _transpose(params: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    source, order = operands[0], params["permutation"]
    back = [order.index(axis) for axis in range(len(order))]
    return Field(shape, source.dtype, lambda index: source.element(tuple(index[axis] for axis in back)))


def _slice(params: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    source, starts = operands[0], params["start_indices"]
    steps = params["strides"] or (1,) * len(starts)
    return Field(
        shape,
        source.dtype,
        lambda index: source.element(tuple(i * step + start for i, step, start in zip(index, steps, starts))),
    )


def _rev(params: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    source, axes = operands[0], params["dimensions"]
    return Field(
        shape,
        source.dtype,
        lambda index: source.element(tuple(shape[axis] - 1 - i if axis in axes else i for axis, i in enumerate(index))),
    )


def _concatenate(params: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    axis = params["dimension"]

    def at(index: Index) -> Value:
        place: Any = index[axis]
        parts = []
        for one in operands:
            parts.append((one, place))
            place = place - one.shape[axis]
        if not isinstance(index[axis], Value):
            return next(_replaced(one, index, axis, at) for one, at in parts if at < one.shape[axis])
        value = _replaced(parts[-1][0], index, axis, _inside(parts[-1][1], parts[-1][0].shape[axis]))
        for one, at in reversed(parts[:-1]):
            value = where(at < one.shape[axis], _replaced(one, index, axis, _inside(at, one.shape[axis])), value)
        return value

    return Field(shape, operands[0].dtype, at)


def _stack(params: dict, operands: list[Field], shape: tuple[int, ...]) -> Field:
    axis = params["axis"]
    wide = (*operands[0].shape[:axis], 1, *operands[0].shape[axis:])
    return _concatenate({"dimension": axis}, [reshape({}, [one], wide) for one in operands], shape)


def _unstack(params: dict, source: Field, shapes: list[tuple[int, ...]]) -> list[Field]:
    axis = params["axis"]

    def part(place: int, shape: tuple[int, ...]) -> Field:
        return Field(shape, source.dtype, lambda index: source.element((*index[:axis], place, *index[axis:])))

    return [part(place, shape) for place, shape in enumerate(shapes)]


def _split(params: dict, source: Field, shapes: list[tuple[int, ...]]) -> list[Field]:
    axis, parts, begin = params["axis"], [], 0
    for shape in shapes:
        starts = [begin if i == axis else 0 for i in range(len(shape))]
        parts.append(_slice({"start_indices": starts, "strides": None}, [source], shape))
        begin += shape[axis]
    return parts


def _replaced(field: Field, index: Index, axis: int, place: Any) -> Value:
    return field.element((*index[:axis], place, *index[axis + 1 :]))


def _inside(place: Any, size: int) -> Any:
    """An index clamped to its axis, as JAX does, unless it is known to be inside."""
    place = lift(place)
    return place if place.within(0, size - 1) else clamp(place, 0, size - 1)


# Recognises an index that JAX counts from the end if negative, as the language does by itself; None for any other.
Unwrap = Callable[[Value, int], "Value | None"]


def dynamic_slice(starts: list[Value], sizes: tuple[int, ...], source: Field, unwrap: Unwrap) -> Field:
    places: list[Value] = []
    for start, size, length in zip(starts, sizes, source.shape):
        own = unwrap(start, length) if size == 1 else None
        places.append(_inside(start, length - size + 1) if own is None else own)

    def at(index: Index) -> Value:
        moved = zip(places, index, sizes)
        return source.element(tuple(place if size == 1 else _plus(place, i) for place, i, size in moved))

    rows: tuple[Row, ...] = ()
    lead = next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))
    if len(source.rows) == 1 and not source.rows[0].indices and sizes[lead:] == source.shape[lead:]:
        row = source.rows[0]
        rows = (Row(row.declared, tuple(places[:lead]), row.dtype),)
    return Field(sizes, source.dtype, at, rows)


def _plus(place: Value, i: Any) -> Any:
    return i if place.is_const and place.constant == 0 else place + i


def gather(params: dict, source: Field, indices: Field, shape: tuple[int, ...], unwrap: Unwrap) -> Field:
    """One element, or whole axes, of an array at each place of `indices`."""
    numbers, mode = params["dimension_numbers"], str(params["mode"])
    if numbers.operand_batching_dims or numbers.start_indices_batching_dims:
        fail("the primitive gather with batching dimensions cannot be traced")
    sizes, lookup = params["slice_sizes"], numbers.start_index_map
    if any(sizes[axis] != 1 for axis in lookup) or any(
        sizes[axis] != source.shape[axis] for axis in range(len(sizes)) if axis not in lookup
    ):
        fail("the primitive gather of slices cannot be traced; index by single places")
    batch = [axis for axis in range(len(shape)) if axis not in numbers.offset_dims]
    free = [axis for axis in range(len(source.shape)) if axis not in numbers.collapsed_slice_dims]

    def at(index: Index) -> Value:
        where_to = tuple(index[axis] for axis in batch)
        place: list[Any] = [0] * len(source.shape)
        for axis, i in zip(free, (index[axis] for axis in numbers.offset_dims)):
            place[axis] = i
        is_inside = const(True)
        for number, axis in enumerate(lookup):
            length = source.shape[axis]
            found = indices.element((*where_to, number))
            own = unwrap(found, length)
            if own is None and "FILL" in mode and not found.within(0, length - 1):
                is_inside = is_inside & (found >= 0) & (found < length)
            place[axis] = _inside(found, length) if own is None else own
        value = source.element(tuple(place))
        if is_inside.is_const:
            return value
        return where(is_inside, value, _fill(params["fill_value"], source.dtype))

    return Field(shape, source.dtype, at)


def _fill(given: Any, dtype: str) -> Value:
    """What JAX uses for an index that is out of bounds."""
    if given is not None:
        return const(given.item() if hasattr(given, "item") else given)
    kind = kind_of(dtype)
    return const(math.nan) if kind == FLOAT else const(True) if kind == BOOL else const(range_of(dtype)[0])


MOVEMENTS: dict[str, Callable[[dict, list[Field], tuple[int, ...]], Field]] = {
    "broadcast_in_dim": _broadcast,
    "squeeze": reshape,
    "reshape": reshape,
    "expand_dims": reshape,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _rev,
    "concatenate": _concatenate,
    "stack": _stack,
}

# Those with several results: (equation's parameters, operand, shapes) -> fields.
PARTS: dict[str, Callable[[dict, Field, list[tuple[int, ...]]], list[Field]]] = {"unstack": _unstack, "split": _split}


# ---- reductions


def _whole_sum(rows: tuple[Row, ...]) -> Value | None:
    if len(rows) == 1:
        return Value(_core.sum(rows[0].as_slice()), rows[0].kind)
    if len(rows) == 2:
        kind = FLOAT if FLOAT in (rows[0].kind, rows[1].kind) else INT
        return Value(_core.dot(rows[0].as_slice(), rows[1].as_slice()), kind)
    return None


def _check_count(count: int, name: str) -> None:
    if count > _MOST_WRITTEN_OUT:
        fail(
            f"{name} over {count} computed elements cannot be traced; sums of captured rows and of products of two such rows "
            f"have no limit, others {_MOST_WRITTEN_OUT} elements"
        )


def reduction(name: str, params: dict, source: Field, shape: tuple[int, ...], dtype: str) -> Field:
    combine, empty = REDUCTIONS[name]
    axes = params["axes"]
    kept = [axis for axis in range(len(source.shape)) if axis not in axes]
    lengths = [source.shape[axis] for axis in axes]

    def at(index: Index) -> Value:
        if name == "reduce_sum" and source.rows and math.prod(lengths) == source.size:
            total = _whole_sum(source.rows)
        else:
            _check_count(math.prod(lengths), name)
            total = None
            place: list[Any] = [0] * len(source.shape)
            for axis, i in zip(kept, index):
                place[axis] = i
            for reduced in itertools.product(*map(range, lengths)):
                for axis, i in zip(axes, reduced):
                    place[axis] = i
                element = source.element(tuple(place))
                total = element if total is None else combine(total, element)
        return as_dtype(const(empty) if total is None else total, dtype)

    return Field(shape, dtype, at)


def dot_general(params: dict, a: Field, b: Field, shape: tuple[int, ...], dtype: str) -> Field:
    (a_axes, b_axes), (a_batch, b_batch) = params["dimension_numbers"]
    lengths = [a.shape[axis] for axis in a_axes]
    a_free = [axis for axis in range(len(a.shape)) if axis not in (*a_axes, *a_batch)]
    b_free = [axis for axis in range(len(b.shape)) if axis not in (*b_axes, *b_batch)]
    is_whole = not shape and len(a.rows) == len(b.rows) == 1 and a.shape == b.shape and tuple(a_axes) == tuple(b_axes)

    def at(index: Index) -> Value:
        if is_whole:
            whole = _whole_sum((*a.rows, *b.rows))
            assert whole is not None
            return as_dtype(whole, dtype)
        _check_count(math.prod(lengths), "dot_general")
        batch, rest = index[: len(a_batch)], index[len(a_batch) :]
        own = {"a": dict(zip(a_batch, batch)), "b": dict(zip(b_batch, batch))}
        own["a"].update(zip(a_free, rest))
        own["b"].update(zip(b_free, rest[len(a_free) :]))
        total = None
        for reduced in itertools.product(*map(range, lengths)):
            places = [{**own[which], **dict(zip(axes, reduced))} for which, axes in (("a", a_axes), ("b", b_axes))]
            term = _at(a, places[0]) * _at(b, places[1])
            total = term if total is None else total + term
        return as_dtype(const(0.0) if total is None else total, dtype)

    return Field(shape, dtype, at)


def _at(field: Field, places: dict[int, Any]) -> Value:
    return field.element(tuple(places[axis] for axis in range(len(field.shape))))
