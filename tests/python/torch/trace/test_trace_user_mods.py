"""Mods written the way users of torch write them, traced and evaluated, against torch's own evaluation."""

import pytest
import torch
from quire.torch.trace import trace_mask_mod, trace_score_mod
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import make_fx
from traced_values import assert_same_values, by_quire, scores_of
from user_mods import USER_MODS


def test_there_are_many():
    assert len(USER_MODS) >= 60
    assert len({name for name, _, _ in USER_MODS}) == len(USER_MODS)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 3), (2, 4, 13, 11), (3, 8, 17, 20)])
@pytest.mark.parametrize(("name", "kind", "factory"), USER_MODS, ids=[m[0] for m in USER_MODS])
def test_values_are_those_of_torch(name, kind, factory, sizes):
    assert_same_values(kind, factory(*sizes), sizes)


@pytest.mark.parametrize(("name", "kind", "factory"), USER_MODS, ids=[m[0] for m in USER_MODS])
def test_values_for_f64_scores(name, kind, factory):
    sizes = (2, 4, 9, 7)
    if kind == "score":
        assert_same_values(kind, factory(*sizes), sizes, scores_of(sizes, torch.float64))


@pytest.mark.parametrize(("name", "kind", "factory"), USER_MODS, ids=[m[0] for m in USER_MODS])
def test_the_second_call_uses_the_first_trace(name, kind, factory):
    mod = factory(2, 4, 9, 7)
    trace = trace_score_mod if kind == "score" else trace_mask_mod
    first, second = trace(mod), trace(mod)
    assert second.constant is first.constant
    assert [t.data_ptr() for t in second.tensors] == [
        t.data_ptr() for t in first.tensors
    ] or name == "whole_tensor_computed"


@pytest.mark.parametrize(("name", "kind", "factory"), USER_MODS, ids=[m[0] for m in USER_MODS])
def test_two_mods_from_one_factory_share_the_trace(name, kind, factory):
    if name in ("object_with_state", "bound_method", "dataclass_config"):
        pytest.skip("each call of the factory makes its own class")
    trace = trace_score_mod if kind == "score" else trace_mask_mod
    assert trace(factory(2, 4, 9, 7)).constant is trace(factory(2, 4, 9, 7)).constant


def graph_of(kind, mod):
    """The mod as torch's own tracer writes it: a GraphModule of ATen operations."""
    arguments = [torch.tensor(0) for _ in range(4)]
    call = lambda *args: mod(*args)  # noqa: E731
    with TransformGetItemToIndex():
        return make_fx(call)(*([torch.tensor(0.0)] if kind == "score" else []), *arguments)


@pytest.mark.parametrize(("name", "kind", "factory"), USER_MODS, ids=[m[0] for m in USER_MODS])
def test_graphs_that_torch_made_of_them(name, kind, factory):
    sizes = (2, 4, 9, 7)
    mod = factory(*sizes)
    graph = graph_of(kind, mod)
    assert torch.equal(by_quire(kind, graph, sizes), by_quire(kind, mod, sizes))
    trace = trace_score_mod if kind == "score" else trace_mask_mod
    assert trace(graph).constant is trace(graph).constant
