"""The cache of traces: tensors are bound anew at each call, nothing stale comes out of it, and it is bounded."""

import gc
import threading
import types
import weakref

import numpy
import pytest
import torch
from quire.torch.trace import clear_cache, mod_cache, mod_key, trace_mask_mod, trace_score_mod
from torch._subclasses.fake_tensor import FakeTensorMode
from traced_values import by_quire, by_torch

SIZES = (1, 2, 5, 6)
TABLE = torch.arange(8.0)
CONFIG = types.SimpleNamespace(window=4)


def scaled(factor):
    return lambda s, b, h, q, k: s * factor


def biased(table):
    return lambda s, b, h, q, k: s + table[k]


def test_new_values_of_a_captured_tensor_are_seen():
    table = torch.ones(8)
    mod = biased(table)
    first = trace_score_mod(mod)
    table.mul_(5)
    second = trace_score_mod(mod)
    assert second.constant is first.constant and second.tensors[0] is table
    assert torch.equal(by_quire("score", mod, SIZES), by_torch("score", mod, SIZES))


def test_another_tensor_of_the_same_kind_is_bound_to_the_same_trace():
    one, other = torch.ones(8), torch.zeros(8)
    first, second = trace_score_mod(biased(one)), trace_score_mod(biased(other))
    assert first.constant is second.constant
    assert first.tensors[0] is one and second.tensors[0] is other


@pytest.mark.parametrize(
    "other",
    [torch.ones(8, dtype=torch.float64), torch.ones(9), torch.ones(8, 2)[:, :1], torch.ones(8, requires_grad=True)],
    ids=["dtype", "shape", "rank", "requires_grad"],
)
def test_a_tensor_of_another_kind_is_traced_anew(other):
    first = trace_score_mod(biased(torch.ones(8))).constant
    mod = biased(other) if other.dim() == 1 else lambda s, b, h, q, k, t=other: s + t[k, 0]
    assert trace_score_mod(mod).constant is not first
    assert trace_score_mod(mod).tensors[0] is other


def test_the_cache_keeps_no_captured_tensor_alive():
    table = torch.ones(8)
    trace_score_mod(biased(table))
    trace_score_mod(lambda s, b, h, q, k, t=table: s + (t * 2).exp()[k])
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None


def test_recording_of_gradients_counts_where_a_tensor_requires_them():
    table = torch.ones(8, requires_grad=True)
    mod = lambda s, b, h, q, k: s + (table * 2)[k]  # noqa: E731
    with torch.no_grad():
        without = trace_score_mod(mod)
    recorded = trace_score_mod(mod)
    assert not without.tensors[0].requires_grad and recorded.tensors[0].requires_grad
    assert without.constant is not recorded.constant


def test_a_captured_place_in_a_captured_tensor():
    table, place = torch.arange(24.0).reshape(3, 8), torch.tensor(1)

    def mod(s, b, h, q, k):
        return s + table[place][k] + table[place, 2] + table[torch.tensor(0)][q]

    first = trace_score_mod(mod)
    for value in (0, 2, -1):
        place.fill_(value)
        assert trace_score_mod(mod).constant is first.constant
        assert torch.equal(by_quire("score", mod, SIZES), by_torch("score", mod, SIZES))


def test_a_captured_divisor_that_is_0_is_not_looked_at():
    divisor = torch.tensor(0)
    mod = lambda s, b, h, q, k: s + q // divisor  # noqa: E731
    assert trace_score_mod(mod).text == "score + q_idx // divisor"
    with pytest.raises(ValueError, match="integer division by zero"):
        by_quire("score", mod, SIZES)


def test_a_captured_tensor_is_no_constant_because_it_is_lifted():
    table = torch.ones(8)
    mod = lambda s, b, h, q, k: s + torch.ops.aten.lift_fresh(table)[k] + torch.ops.aten.lift_fresh(table.exp())[k]  # noqa: E731
    trace_score_mod(mod)
    table.fill_(3)
    assert torch.equal(by_quire("score", mod, SIZES), by_torch("score", mod, SIZES))


def test_tensors_of_a_fake_mode():
    with FakeTensorMode() as mode:
        table, scale = mode.from_tensor(torch.ones(8)), mode.from_tensor(torch.tensor(2.0))
        traced = trace_score_mod(lambda s, b, h, q, k: s * scale + table[k] * torch.tensor(0.5))
    assert traced.text == "score * scale + table[kv_idx] * 0.5"
    assert traced.tensors[0] is scale and traced.tensors[1] is table


def two(a, c):
    return lambda s, b, h, q, k: s + a[q] - c[k]


def test_one_tensor_in_two_places_is_not_two_tensors():
    same, one, other = torch.arange(8.0), torch.arange(8.0) * 3, torch.arange(8.0) * 5
    assert len(trace_score_mod(two(same, same)).tensors) == 1
    for mod in (two(same, same), two(one, other), two(other, one), two(one, one)):
        assert torch.equal(by_quire("score", mod, SIZES), by_torch("score", mod, SIZES))


def three(a, c, d):
    return lambda s, b, h, q, k: s + a[q] - c[k] * d[h]


def test_tensors_are_never_mixed_up():
    x, y, z = torch.arange(8.0), torch.arange(8.0) * 3, torch.arange(8.0) * 5 - 7
    for mod in [three(a, c, d) for a in (x, y, z) for c in (x, y, z) for d in (x, y, z)]:
        assert torch.equal(by_quire("score", mod, SIZES), by_torch("score", mod, SIZES))


def test_score_and_mask_and_dtype_are_different_traces():
    mod = lambda *args: args[-1] > 2  # noqa: E731
    assert trace_score_mod(mod).constant is not trace_mask_mod(mod).constant
    asks = lambda s, b, h, q, k: s * (2 if s.dtype is torch.float64 else 3)  # noqa: E731
    assert "3" in trace_score_mod(asks).text
    assert "2" in trace_score_mod(asks, torch.float64).text


def test_what_is_computed_from_captured_tensors_is_computed_at_each_call():
    table = torch.ones(8)
    mod = lambda s, b, h, q, k: s + (table * 2).exp()[k]  # noqa: E731
    first = trace_score_mod(mod)
    table.mul_(3)
    second = trace_score_mod(mod)
    assert second.constant is first.constant
    assert torch.equal(second.tensors[0], (table * 2).exp())


def test_gradients_reach_captured_tensors_through_what_is_computed():
    table = torch.ones(8, requires_grad=True)
    mod = lambda s, b, h, q, k: s + (table * 2)[k]  # noqa: E731
    trace_score_mod(mod)
    bound = trace_score_mod(mod).tensors[0]
    assert bound.requires_grad
    bound.sum().backward()
    assert torch.equal(table.grad, torch.full((8,), 2.0))


UNCACHED = {
    "values read": lambda s, b, h, q, k: s * TABLE[3].item(),
    "values asked": lambda s, b, h, q, k: s * 2 if TABLE.sum() > 1 else s,
    "values as a list": lambda s, b, h, q, k: s * TABLE.tolist()[3],
    "shape follows values": lambda s, b, h, q, k: s + TABLE[TABLE > 2].sum() * len(TABLE[TABLE > 2]),
    "compared": lambda s, b, h, q, k: s * torch.equal(TABLE, TABLE),
    "dynamic attribute": lambda s, b, h, q, k: s * getattr(CONFIG, "window"),  # noqa: B009
    "all attributes": lambda s, b, h, q, k: s * vars(CONFIG)["window"],
    "strides": lambda s, b, h, q, k: s * TABLE.stride(0),
    "iterator": lambda s, b, h, q, k: s * next(COUNTER),
    "array": lambda s, b, h, q, k: s + torch.from_numpy(ARRAY)[k],
}
COUNTER = iter(range(1, 1000))
ARRAY = numpy.arange(8.0)


@pytest.mark.parametrize("mod", UNCACHED.values(), ids=UNCACHED.keys())
def test_what_no_key_holds_is_traced_at_each_call(mod):
    first, second = trace_score_mod(mod), trace_score_mod(mod)
    assert first.constant is not second.constant


def test_values_that_are_read_are_never_stale():
    table = torch.arange(8.0)
    mods = [lambda s, b, h, q, k: s * table[3].item(), lambda s, b, h, q, k: s * 2 if table.sum() > 50 else s]
    for factor in (1, 2, 4):
        table.copy_(torch.arange(8.0) * factor)
        for mod in mods:
            assert torch.equal(by_quire("score", mod, SIZES), by_torch("score", mod, SIZES))


def test_a_mod_that_changes_something_is_run_at_each_call():
    state = 0

    def mod(s, b, h, q, k):
        nonlocal state
        state = 1 - state
        return s * state

    assert [trace_score_mod(mod).text for _ in range(4)] == ["score * 1.0", "score * 0.0"] * 2


def test_values_that_hold_themselves():
    loop = []
    loop.append(loop)
    assert trace_score_mod(lambda s, b, h, q, k: s * len(loop)).text == "score * 1.0"

    def again(s, depth):
        return s if depth == 0 else again(s * 2, depth - 1)

    mod = lambda s, b, h, q, k: again(s, 2)  # noqa: E731
    assert trace_score_mod(mod).constant is trace_score_mod(mod).constant


def test_the_cache_is_bounded(monkeypatch):
    clear_cache()
    monkeypatch.setattr(mod_cache, "_MOST_ENTRIES", 4)
    first = trace_score_mod(scaled(0)).constant
    for factor in range(1, 4):
        trace_score_mod(scaled(factor))
    assert trace_score_mod(scaled(0)).constant is first  # and is now the newest
    trace_score_mod(scaled(4))
    assert trace_score_mod(scaled(0)).constant is first
    assert len(mod_cache._entries) == 4
    for factor in range(5, 9):
        trace_score_mod(scaled(factor))
    assert trace_score_mod(scaled(0)).constant is not first


def test_recipes_are_bounded(monkeypatch):
    monkeypatch.setattr(mod_key, "_MOST_RECIPES", 3)
    for i in range(10):
        mod = eval(f"lambda s, b, h, q, k: s * {i}")
        assert trace_score_mod(mod).text == f"score * {i}.0"
        assert len(mod_key._RECIPES) <= 3


def test_code_that_is_gone_is_not_mistaken_for_other_code():
    for i in range(200):
        mod = eval(f"lambda s, b, h, q, k: s * {i}")
        assert trace_score_mod(mod).text == f"score * {i}.0"
        del mod


def test_threads():
    clear_cache()
    tables = [torch.full((8,), float(i)) for i in range(8)]
    wrong = []

    def work(number):
        for i in range(100):
            mod = biased(tables[number]) if i % 2 else scaled(number + i % 5)
            traced = trace_score_mod(mod)
            if (
                i % 2
                and traced.tensors[0] is not tables[number]
                or not i % 2
                and traced.text != f"score * {number + i % 5}.0"
            ):
                wrong.append((number, i, traced.text))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize(
    "context", [torch.inference_mode, torch.no_grad, torch.enable_grad, lambda: torch.autocast("cpu")]
)
def test_modes_of_torch_change_nothing(context):
    clear_cache()
    table, flags = torch.ones(8, requires_grad=True), torch.ones(8, dtype=torch.bool)

    def mod(s, b, h, q, k):
        near = torch.where((q > k) & flags[k], 1.5, 0)
        return (
            s.to(torch.float64) + table.double()[q] * near + torch.nn.functional.softsign(s) + torch.dot(table, table)
        )

    expected = trace_score_mod(mod).text
    clear_cache()
    with context():
        assert trace_score_mod(mod).text == expected
        assert trace_score_mod(mod).text == expected
