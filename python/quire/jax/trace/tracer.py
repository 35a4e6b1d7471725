"""trace_mod: turns a function of jax.numpy operations into a formula and the arrays that it reads.

JAX traces the function to a jaxpr of abstract scalars. What depends only on captured arrays is computed by JAX, outside
the formula, so that gradients flow through it; the rest becomes expressions, equation by equation. The ranges of the
indices are known from the sizes of the call, so that an index which JAX would clamp is clamped only if it can leave its
array. Trace layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from quire import _core, mod_calls
from quire.trace.buffer_names import array_names
from quire.trace.error import fail
from quire.trace.functions import logaddexp
from quire.trace.value import BOOL, FLOAT, INT, Value, call, cast, const

from .field import (
    MOVEMENTS,
    PARTS,
    Field,
    dot_general,
    dynamic_slice,
    gather,
    of_buffer,
    pointwise,
    product,
    reduction,
    single,
)
from .primitives import PRIMITIVES, REDUCTIONS, refuse

_NAMES = dict(float32="f32", float64="f64", bfloat16="bf16", float16="f16", uint8="u8", bool="bool")
_NAMES |= {f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}
CODES: dict[str, int] = {name: _core.DTYPES[own] for name, own in _NAMES.items()}  # dtypes that a buffer may have
_NO_LIMIT = 2**31 - 1
# Integer dtypes that Quire's buffers lack, and what can hold their values.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": None}


class Rule(NamedTuple):
    """A formula as text, with the names and the arrays it reads. Arrays may be JAX tracers."""

    text: str
    names: tuple[str, ...] = ()
    arrays: tuple[Any, ...] = ()


def trace_mod(function: Callable, score_dtype: Any, sizes: tuple[int | None, ...]) -> Rule:
    """score_dtype: for a score mod, None for a mask mod; sizes: B, H, L and S of the call, None if unknown. Raises
    TraceError for what a formula cannot express."""
    what = "MaskMod" if score_dtype is None else "ScoreMod"
    arguments = [jax.ShapeDtypeStruct((), jnp.int32)] * 4
    values = list(_core.mod_arguments())
    spans = [(0, (_NO_LIMIT if size is None else max(size, 1)) - 1) for size in sizes]
    inputs = [single(Value(node, INT, span), "int32") for node, span in zip(values[1:], spans)]
    if score_dtype is not None:
        arguments = [jax.ShapeDtypeStruct((), score_dtype), *arguments]
        inputs = [single(Value(values[0], FLOAT), np.dtype(score_dtype).name), *inputs]
    held = mod_calls.states_of_generators(function)
    try:
        closed = jax.make_jaxpr(function)(*arguments)
    except TypeError as error:
        mod_calls.refuse_other_kind(what, function, len(arguments), error)
        raise
    if drawn := mod_calls.generator_drawn(held):
        raise TypeError(f"[{what}] {drawn}")
    if len(closed.out_avals) != 1 or closed.out_avals[0].shape != ():
        shapes = ", ".join(str(one.shape) for one in closed.out_avals)
        fail(f"a mod must return one value; got arrays of shapes {shapes}")
    tracer = _Tracer(array_names(function, jax.Array))
    (result,) = tracer.run(closed, inputs)
    value = tracer.field(result).element()
    if score_dtype is None:
        return tracer.rule(_core.MaskMod(cast(value, BOOL).node))
    if value.kind == BOOL:
        mod_calls.warn_if_condition()
    return tracer.rule(_core.ScoreMod(cast(value, FLOAT).node))


def is_concrete(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def readable(array: Any, name: str) -> Any:
    """A captured array, converted to a dtype that buffers have."""
    array = jnp.asarray(array)
    wider = _WIDER.get(array.dtype.name, array.dtype.name)
    if wider is None or (wider == "int64" and array.dtype.name != "int64" and not jax.config.jax_enable_x64):
        fail(f"the array {name!r} of dtype {array.dtype} cannot be read by a mod; convert it to int32")
    if array.dtype.name not in CODES and wider == array.dtype.name:
        fail(f"the array {name!r} of dtype {array.dtype} cannot be read by a mod")
    return array if wider == array.dtype.name else array.astype(wider)


@functools.lru_cache(maxsize=256)
def _library_text(function: Callable, primitive: str, avals: tuple) -> str:
    """The inner jaxpr of one of JAX's own functions, as text."""
    arguments = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in avals]
    for eqn in jax.make_jaxpr(function)(*arguments).eqns:
        if eqn.primitive.name == primitive:
            return str(_inner(eqn))
    return ""


def _inner(eqn: Any) -> Any:
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in eqn.params:
            return eqn.params[name]
    return None


# JAX functions whose meaning is simpler than their jaxprs. A jaxpr is taken for one of them if it is identical.
_LIBRARY: dict[str, tuple[Callable, Callable]] = {
    "floor_divide": (jnp.floor_divide, lambda a, b: a // b),
    "remainder": (jnp.remainder, lambda a, b: a % b),
    "relu": (jax.nn.relu, lambda x: call("relu", x)),
    "relu6": (jax.nn.relu6, lambda x: 6.0 - call("relu", 6.0 - call("relu", x))),
    "silu": (jax.nn.silu, lambda x: call("silu", x)),
    "logaddexp": (jnp.logaddexp, lambda a, b: call("softplus", a) if b.constant == 0 else logaddexp(a, b)),
}


class _Tracer:
    """Goes through the equations of one mod. A variable holds a Field, or a JAX value that does not depend on the mod's
    arguments."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._buffers: list[Any] = []  # declared, in the order of _arrays
        self._arrays: list[Any] = []
        self._fields: dict[int, tuple[Any, Field]] = {}  # by the id of the array, which is kept alive
        # For values, by their ids: x, if they are x < 0; (x, n), if they are x + n; (x, n), if they are x, or x + n if
        # that is negative, which is how JAX indexes an axis of size n.
        self._negative: dict[int, Value] = {}
        self._moved: dict[int, tuple[Value, int]] = {}
        self._wrapped: dict[int, tuple[Value, int]] = {}
        self._alive: list[Value] = []

    def rule(self, mod: Any) -> Rule:
        places = mod.places_of_buffers(self._buffers)
        return Rule(mod.text, tuple(mod.buffer_names), tuple(self._arrays[place] for place in places))

    def run(self, closed: Any, inputs: list[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            known.update(zip(eqn.outvars, self._results(jaxpr, eqn, [read(one) for one in eqn.invars])))
        return [read(one) for one in jaxpr.outvars]

    def field(self, value: Any) -> Field:
        """A variable's value as something that the formula reads."""
        if isinstance(value, Field):
            return value
        if id(value) not in self._fields:
            self._fields[id(value)] = (value, self._captured(value))
        return self._fields[id(value)][1]

    def _captured(self, value: Any) -> Field:
        dtype = jnp.asarray(value).dtype.name
        if is_concrete(value) and np.size(value) == 1:
            number = single(const(np.asarray(value).reshape(()).item()), dtype)
            return Field(np.shape(value), dtype, lambda _: number.element())
        name = self._names.get(id(value), f"t{len(self._buffers)}")
        array = readable(value, name)
        declared = _core.Buffer.declare(CODES[array.dtype.name], array.shape, name)
        self._buffers.append(declared)
        self._arrays.append(array)
        return of_buffer(declared, array.shape, array.dtype.name)

    def _results(self, jaxpr: Any, eqn: Any, operands: list[Any]) -> list[Any]:
        if not any(isinstance(one, Field) for one in operands):
            return _computed(jaxpr, eqn, operands)
        name, params = eqn.primitive.name, eqn.params
        inner = _inner(eqn)
        if inner is not None:
            return self._called(eqn, inner, operands)
        fields = [self.field(one) for one in operands]
        if name in PARTS:
            return PARTS[name](params, fields[0], [one.aval.shape for one in eqn.outvars])
        if len(eqn.outvars) != 1:
            refuse(name)
        out = eqn.outvars[0]
        shape, dtype = out.aval.shape, out.aval.dtype.name
        if name in PRIMITIVES:
            return [self._pointwise(name, params, fields, shape, dtype)]
        if name in MOVEMENTS:
            return [MOVEMENTS[name](params, fields, shape)]
        if name in REDUCTIONS:
            return [reduction(name, params, fields[0], shape, dtype)]
        if name == "dynamic_slice":
            starts = [one.element() for one in fields[1:]]
            return [dynamic_slice(starts, params["slice_sizes"], fields[0], self._unwrapped)]
        if name == "gather":
            return [gather(params, fields[0], fields[1], shape, self._unwrapped)]
        if name == "dot_general":
            return [dot_general(params, fields[0], fields[1], shape, dtype)]
        refuse(name)

    def _called(self, eqn: Any, inner: Any, operands: list[Any]) -> list[Any]:
        """Handles a nested function: one of JAX's own, or its equations."""
        name = eqn.primitive.name
        own = eqn.params.get("name") or inner.jaxpr.debug_info.func_name.partition(" ")[0]
        function, rule = _LIBRARY.get(own, (None, None))
        if function is not None and rule is not None:
            avals = tuple((one.aval.shape, one.aval.dtype, one.aval.weak_type) for one in eqn.invars)
            if _library_text(function, name, avals) == str(inner):
                out = eqn.outvars[0].aval
                return [pointwise(rule, [self.field(one) for one in operands], out.shape, out.dtype.name)]
        if name in ("custom_jvp_call", "custom_vjp_call"):
            refuse(name)
        closed = inner if hasattr(inner, "consts") else core.ClosedJaxpr(inner, ())
        return self.run(closed, operands)

    def _pointwise(self, name: str, params: dict, fields: list[Field], shape: tuple[int, ...], dtype: str) -> Field:
        rule = functools.partial(PRIMITIVES[name], params)
        made = (product if name == "mul" else pointwise)(rule, fields, shape, dtype)
        if shape == ():
            self._note(name, made.element(), [one.element() for one in fields])
        return made

    def _note(self, name: str, value: Value, operands: list[Value]) -> None:
        """Recognises the steps by which JAX counts a negative index from the end."""
        first, *others = operands
        if value.kind == FLOAT or not others:
            return
        self._alive.append(value)
        if name == "lt" and others[0].constant == 0:
            self._negative[id(value)] = first
        elif name == "add" and others[0].is_const:
            self._moved[id(value)] = (first, others[0].constant)
        elif name == "select_n" and len(others) == 2:
            index, moved = others[0], self._moved.get(id(others[1]))
            if moved is not None and self._negative.get(id(first)) is index is moved[0]:
                self._wrapped[id(value)] = moved

    def _unwrapped(self, value: Value, length: int) -> Value | None:
        index, size = self._wrapped.get(id(value), (None, None))
        if index is None or size != length or not index.within(-length, length - 1):
            return None
        return index


def _computed(jaxpr: Any, eqn: Any, operands: list[Any]) -> list[Any]:
    """An equation that does not depend on the mod's arguments, computed by JAX; immediately if its operands are
    concrete."""
    given = {atom: value for atom, value in zip(eqn.invars, operands) if not isinstance(atom, core.Literal)}
    names = jaxpr.debug_info.with_unknown_names()
    alone = jaxpr.replace(constvars=[], invars=list(given), outvars=eqn.outvars, eqns=[eqn], debug_info=names)
    function = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))
    if not all(map(is_concrete, given.values())):
        return function(*given.values())
    with jax.ensure_compile_time_eval():
        return function(*given.values())
