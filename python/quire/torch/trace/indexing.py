"""`tensor[index]` where the tensor or an index is traced: elements and rows of captured tensors.

Trace layer. The tracer turns tensors into fields and back (tracer.py).
"""

from __future__ import annotations

import torch

from quire.trace.error import fail
from quire.trace.value import const

from .buffer import Slots
from .field import Field, Gathered, Picked, Row, Single, moved, positions_of

_INDEX_DTYPES = (torch.int32, torch.int64)


def expanded(index, rank: int) -> list:
    """The index as a list with one entry per axis (and None for new axes): `...` and missing axes are full slices."""
    entries = list(index) if isinstance(index, (tuple, list)) else [index]
    count = sum(1 for e in entries if e is not None and e is not Ellipsis)
    if count > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    missing = [slice(None)] * (rank - count)
    places = [i for i, e in enumerate(entries) if e is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    return entries[: places[0]] + missing + entries[places[0] + 1 :] if places else entries + missing


def check_index_dtype(dtype: torch.dtype) -> None:
    if dtype in (torch.bool, torch.uint8):
        fail(f"an index of dtype {dtype} selects by a mask; convert it with .long() to index by 0 and 1")
    if dtype not in _INDEX_DTYPES:
        raise IndexError(f"tensors used as indices must be of dtype long or int; got {dtype}")


def index_plain(slots: Slots, tensor: torch.Tensor, entries: list) -> Field:
    """A plain tensor at traced indices. entries: per axis a Field, an int or a slice, as returned by `expanded`."""
    if any(e is None for e in entries):
        fail("a new axis (None) beside a traced index cannot be traced")
    tensor, entries = _without_slices(slots, tensor, entries)
    free = [axis for axis, e in enumerate(entries) if e is None]
    lead = _lead_shape([e for e in entries if e is not None])
    if lead:
        _check_adjacent(entries)
        return Gathered(slots.buffer(tensor), entries, lead)
    order = [axis for axis in range(len(entries)) if axis not in free] + free
    if order != sorted(order):
        # Free axes move to the end: a view, no copy.
        tensor = slots.run(torch.ops.aten.permute.default, (tensor, order), {})
    indices = tuple(e.element(()) for e in entries if e is not None)
    row = Row(slots.buffer(tensor), indices)
    if row.shape == ():
        return Single(row.element(()))
    return row


def _without_slices(slots: Slots, tensor: torch.Tensor, entries: list) -> tuple[torch.Tensor, list]:
    """Applies slices to the plain tensor; what remains is a Field or, for a free axis, None."""
    result: list[Field | None] = []
    for axis, entry in enumerate(entries):
        if isinstance(entry, slice):
            if entry != slice(None):
                begin, end, step = entry.start, entry.stop, 1 if entry.step is None else entry.step
                tensor = slots.run(torch.ops.aten.slice.Tensor, (tensor, axis, begin, end, step), {})
            result.append(None)
        elif isinstance(entry, Field):
            result.append(entry)
        else:
            check_place(entry, tensor.shape[axis], axis)
            result.append(Single(const(int(entry))))
    return tensor, result


def _lead_shape(fields: list[Field]) -> tuple[int, ...]:
    """The common shape of the indices. (torch.broadcast_shapes imports sympy.)"""
    if all(f.shape == () for f in fields):
        return ()
    return tuple(torch.broadcast_tensors(*(torch.empty(f.shape) for f in fields))[0].shape)


def _check_adjacent(entries: list) -> None:
    taken = [axis for axis, e in enumerate(entries) if e is not None]
    if taken != list(range(len(taken))):
        fail("rows of indices must stand on the first axes of the tensor")


def index_traced(field: Field, entries: list) -> Field:
    """A traced row at constant or traced positions."""
    if isinstance(field, Row):
        row = _longer_row(field, entries)
        if row is not None:
            return row
    if all(isinstance(e, (int, slice)) or e is None for e in entries):
        return moved([field], positions_of(field)[tuple(entries)])
    places = [_place(e, size) for e, size in zip(entries, field.shape)]
    return Picked(field, places)


def _place(entry, size: int):
    """An entry for Picked."""
    if entry == slice(None):
        return None
    if isinstance(entry, int):
        return check_place(entry, size)
    if isinstance(entry, Field) and entry.shape == ():
        return entry.element(())
    fail("of a computed row only elements and whole rows can be taken at traced places")


def check_place(place: int, size: int, axis: int = 0) -> int:
    """The position counted from the beginning."""
    if not -size <= place < size:
        raise IndexError(f"index {place} is out of bounds for dimension {axis} with size {size}")
    return place % size


def _longer_row(row: Row, entries: list) -> Field | None:
    """The row with indices for its first axes, if that is all the entries say."""
    count = len(entries)
    while count > 0 and entries[count - 1] == slice(None):
        count -= 1
    used = entries[:count]
    if not all(isinstance(e, int) or (isinstance(e, Field) and e.shape == ()) for e in used):
        return None
    for axis, entry in enumerate(used):
        if isinstance(entry, int):
            check_place(entry, row.shape[axis], axis)
    values = tuple(const(int(e)) if isinstance(e, int) else e.element(()) for e in used)
    longer = Row(row.buffer, row.indices + values)
    return Single(longer.element(())) if longer.shape == () else longer
