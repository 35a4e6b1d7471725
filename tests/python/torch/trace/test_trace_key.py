"""What the key of a traced mod holds: whatever is changed that a mod depends on, its next trace is another."""

import enum
import functools
import math
import operator
import random
import time
import types
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from quire.torch.trace import trace_mask_mod, trace_score_mod
from torch.nn.attention.flex_attention import and_masks

NUMBER = 3
TABLE = torch.arange(8.0)
CONFIG = types.SimpleNamespace(window=4, inner=types.SimpleNamespace(scale=2.0))


class Settings:
    window = 5


class Mode(enum.Enum):
    NEAR = 1
    FAR = 2


Pair = namedtuple("Pair", "low high")


@dataclass
class Limits:
    low: int
    high: int


def is_kept(make):
    """Whether two mods from make() share a trace."""
    return trace_score_mod(make()).constant is trace_score_mod(make()).constant


def differ(mod, change, trace=trace_score_mod):
    """The texts before and after something that the mod depends on was changed."""
    before = trace(mod).text
    assert trace(mod).text == before
    change()
    after = trace(mod).text
    assert after != before
    assert trace(mod).text == after


def scaled(factor):
    return lambda s, b, h, q, k: s * factor


@pytest.mark.parametrize(
    ("one", "other"),
    [(2, 3), (2, 2.0), (1, True), (0.0, -0.0), (2.0, math.nan), (torch.tensor(2), 2), (np.float32(2), 2.0)],
)
def test_numbers_count_by_type_and_value(one, other):
    assert trace_score_mod(scaled(one)).constant is not trace_score_mod(scaled(other)).constant
    assert trace_score_mod(scaled(one)).constant is trace_score_mod(scaled(one)).constant
    assert trace_score_mod(scaled(other)).constant is trace_score_mod(scaled(other)).constant


def test_a_changed_global(monkeypatch):
    mod = lambda s, b, h, q, k: s * NUMBER  # noqa: E731
    differ(mod, lambda: monkeypatch.setitem(globals(), "NUMBER", 4))


def test_a_changed_global_in_a_function_it_calls(monkeypatch):
    mod = lambda s, b, h, q, k: helper(s)  # noqa: E731
    differ(mod, lambda: monkeypatch.setitem(globals(), "NUMBER", 4))
    differ(mod, lambda: monkeypatch.setitem(globals(), "helper", lambda s: s - 1))


def helper(s):
    return s * NUMBER


def test_a_changed_global_in_an_inner_function(monkeypatch):
    def mod(s, b, h, q, k):
        return sum(NUMBER * x for x in [s, s])

    differ(mod, lambda: monkeypatch.setitem(globals(), "NUMBER", 4))


def test_a_global_that_appears(monkeypatch):
    def mod(s, b, h, q, k):
        return s * (abs(-2) if q is not None else 0)

    differ(mod, lambda: monkeypatch.setitem(globals(), "abs", lambda x: 7))


def test_a_changed_closure_variable():
    factor = 2

    def mod(s, b, h, q, k):
        return s * factor

    def change():
        nonlocal factor
        factor = 3

    differ(mod, change)


def test_a_changed_closure_variable_of_an_inner_function():
    config = types.SimpleNamespace(scale=2)

    def mod(s, b, h, q, k):
        return (lambda x: x * config.scale)(s)

    differ(mod, lambda: setattr(config, "scale", 5))


def test_changed_defaults():
    def mod(s, b, h, q, k, factor=2, *, offset=1):
        return s * factor + offset

    differ(mod, lambda: setattr(mod, "__defaults__", (3,)))
    differ(mod, lambda: mod.__kwdefaults__.update(offset=9))


def test_changed_partials():
    def mod(factor, s, b, h, q, k, *, offset=1):
        return s * factor + offset

    traces = [
        trace_score_mod(functools.partial(mod, *a, **o)) for a in ((1,), (2,), (2.0,)) for o in ({}, {"offset": 4})
    ]
    assert len({one.constant for one in traces}) == 6
    assert len({one.text for one in traces}) == 4  # 2 and 2.0 are two traces of one formula
    assert is_kept(lambda: functools.partial(mod, 2, offset=TABLE[0]))
    assert is_kept(lambda: functools.partial(functools.partial(mod, 2), offset=3))


def test_changed_attributes_of_globals(monkeypatch):
    mod = lambda s, b, h, q, k: s * CONFIG.window * CONFIG.inner.scale + Settings.window  # noqa: E731
    differ(mod, lambda: monkeypatch.setattr(CONFIG, "window", 8))
    differ(mod, lambda: monkeypatch.setattr(CONFIG.inner, "scale", 8.0))
    differ(mod, lambda: monkeypatch.setattr(Settings, "window", 8))


class Bias:
    shift = 1

    def __init__(self, scale, table):
        self.scale = scale
        self.table = table
        self.unrelated = object()

    def __call__(self, s, b, h, q, k):
        return self.scaled(s) + self.table[k] + self.offset

    def scaled(self, s):
        return s * self.scale

    @property
    def offset(self):
        return self.shift * NUMBER

    @staticmethod
    def plain(s, b, h, q, k):
        return s * NUMBER


def test_changed_attributes_of_an_instance(monkeypatch):
    bias = Bias(2, torch.ones(8))
    differ(bias, lambda: setattr(bias, "scale", 3))
    differ(bias, lambda: setattr(bias, "shift", 3))
    differ(bias, lambda: monkeypatch.setattr(Bias, "scaled", lambda self, s: s - self.scale))
    differ(bias, lambda: monkeypatch.setitem(globals(), "NUMBER", 77))
    assert trace_score_mod(Bias(2, torch.ones(8))).constant is trace_score_mod(Bias(2, torch.zeros(8))).constant


def test_an_attribute_that_no_code_names_does_not_matter():
    bias = Bias(2, torch.ones(8))
    first = trace_score_mod(bias).constant
    bias.unrelated = object()
    assert trace_score_mod(bias).constant is first


def test_bound_and_static_methods(monkeypatch):
    bias = Bias(2, torch.ones(8))
    differ(lambda s, b, h, q, k: bias.plain(s, b, h, q, k), lambda: monkeypatch.setitem(globals(), "NUMBER", 6))
    mod = Bias(5, torch.ones(8)).__call__
    assert trace_score_mod(mod).constant is trace_score_mod(mod).constant


class Layer(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.bias = torch.nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("table", torch.zeros(8))

    def forward(self, s, b, h, q, k):
        return s * self.scale + self.bias[q] + self.table[k]

    def score_mod(self, s, b, h, q, k):
        return s * self.scale - self.bias[q]


def test_modules():
    layer = Layer(2)
    traced = trace_score_mod(layer)
    assert traced.names == ["bias", "table"] and traced.tensors[0] is layer.bias
    assert trace_score_mod(layer).constant is traced.constant
    assert trace_score_mod(Layer(2)).constant is traced.constant
    layer.table = torch.arange(8.0)
    assert trace_score_mod(layer).tensors[1] is layer.table
    differ(layer, lambda: setattr(layer, "scale", 3))
    differ(layer.score_mod, lambda: setattr(layer, "scale", 4))
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 100, *args[1:]))
    assert "100" in trace_score_mod(layer).text


def test_containers():
    def of(holder):
        return lambda s, b, h, q, k: s + holder["a"][0] * holder["b"]

    assert is_kept(lambda: of({"a": [1, 2], "b": 3}))
    holder = {"a": [1, 2], "b": 3}
    differ(of(holder), lambda: holder["a"].__setitem__(0, 9))
    differ(of(holder), lambda: holder.update(b=2.5))
    pair = lambda p: lambda s, b, h, q, k: s.clamp(p.low, p.high)  # noqa: E731
    assert is_kept(lambda: pair(Pair(1, 2)))
    assert trace_score_mod(pair(Pair(1, 2))).text != trace_score_mod(pair(Pair(1, 3))).text
    assert is_kept(lambda: pair(Limits(1, 2)))
    assert trace_score_mod(pair(Limits(1, 2))).text != trace_score_mod(pair(Limits(1, 3))).text


def test_an_instance_that_is_handed_on():
    def low_of(limits):
        return limits.low

    def of(limits):
        return lambda s, b, h, q, k: s * low_of(limits)

    assert is_kept(lambda: of(Limits(1, 2)))
    assert trace_score_mod(of(Limits(1, 2))).text != trace_score_mod(of(Limits(3, 2))).text


def test_enumerations_and_dtypes():
    def of(mode, dtype):
        return lambda s, b, h, q, k: (s if mode is Mode.NEAR else -s) * q.to(dtype)

    assert is_kept(lambda: of(Mode.NEAR, torch.int32))
    assert trace_score_mod(of(Mode.NEAR, torch.bool)).text != trace_score_mod(of(Mode.FAR, torch.bool)).text
    assert trace_score_mod(of(Mode.NEAR, torch.bool)).text != trace_score_mod(of(Mode.NEAR, torch.int64)).text


def test_compositions():
    def window(size):
        return lambda b, h, q, k: q - k < size

    def causal(b, h, q, k):
        return q >= k

    first = trace_mask_mod(and_masks(causal, window(3))).constant
    assert trace_mask_mod(and_masks(causal, window(3))).constant is first
    assert trace_mask_mod(and_masks(causal, window(4))).constant is not first
    assert trace_mask_mod(and_masks(window(3), causal)).constant is not first


def test_functions_as_values():
    def of(function):
        return lambda s, b, h, q, k: function(s)

    functions = [torch.abs, torch.Tensor.abs, torch.nn.functional.relu, torch.nn.functional.gelu, abs, operator.neg]
    for function in functions:
        assert is_kept(lambda function=function: of(function))
    texts = {trace_score_mod(of(f)).text for f in functions}
    assert texts == {"abs(score)", "relu(score)", "gelu(score)", "-score"}


def test_numpy_values():
    mod = lambda s, b, h, q, k: s * np.sqrt(2.0) * np.pi * np.float32(0.5)  # noqa: E731
    assert trace_score_mod(mod).constant is trace_score_mod(mod).constant


def test_random_and_time_are_asked_at_each_call():
    for mod in (lambda s, b, h, q, k: s * random.random(), lambda s, b, h, q, k: s * time.perf_counter()):
        assert trace_score_mod(mod).text != trace_score_mod(mod).text
    assert (
        trace_score_mod(lambda s, b, h, q, k: s * np.random.rand()).text
        != trace_score_mod(lambda s, b, h, q, k: s).text
    )


def test_a_mod_that_hides_what_it_reads():
    class Hidden:
        def __init__(self):
            self.held = {"scale": 2}

        def __getattr__(self, name):
            return self.held[name]

    hidden = Hidden()
    mod = lambda s, b, h, q, k: s * hidden.scale  # noqa: E731
    differ(mod, lambda: hidden.held.update(scale=3))

    class Slotted:
        __slots__ = ("scale",)

    slotted = Slotted()
    slotted.scale = 2
    differ(lambda s, b, h, q, k: s * slotted.scale, lambda: setattr(slotted, "scale", 5))

    class Number(float):
        pass

    numbers = [Number(2.0)]
    differ(lambda s, b, h, q, k: s * numbers[0], lambda: numbers.__setitem__(0, Number(3.0)))


def test_an_alias_of_an_instance():
    settings = Limits(2, 3)

    def mod(s, b, h, q, k):
        alias = settings
        return s * alias.low

    differ(mod, lambda: setattr(settings, "low", 7))


class Base:
    scale = 2

    def factor(self):
        return self.scale


class Derived(Base):
    def factor(self):
        return super().factor() * 2

    def __call__(self, s, b, h, q, k):
        return s * self.factor()


def test_an_inherited_method(monkeypatch):
    mod = Derived()
    differ(mod, lambda: monkeypatch.setattr(Base, "scale", 3))
    differ(mod, lambda: monkeypatch.setattr(Base, "factor", lambda self: 100))
    differ(mod, lambda: setattr(mod, "factor", lambda: 5))
