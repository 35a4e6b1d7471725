"""How dynamo takes mods apart for quire_flex_attention: as for torch's own flex_attention, with captured floats fixed.

Dynamo turns a float that changes from call to call into an f64 tensor and calls item() on it in the subgraph of the
first mod that uses it. A second mod with the same float then fails inside dynamo ("lift_tracked_freevar_to_input"), in
torch's flex_attention too. Here item() is called outside all mods, and each subgraph takes the tensor and computes
item(), and what depends on it, itself: a float passed to the operator as a number would be compiled again for each
value. Python layer, below compile.py; imported only by dynamo, since importing dynamo takes a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.higher_order_ops import FlexAttentionHigherOrderVariable
from torch.fx import Node


@contextlib.contextmanager
def _floats_outside(output: Any) -> Iterator[None]:
    """Makes dynamo create floats in the outermost graph. Dynamo compiles in one thread at a time."""
    wrap = VariableBuilder.wrap_symfloat

    def wrap_outside(self: Any, value: float) -> Any:
        output.tracers.append(output.root_tracer)
        try:
            return wrap(self, value)
        finally:
            output.tracers.pop()

    VariableBuilder.wrap_symfloat = wrap_outside  # type: ignore[method-assign]
    try:
        yield
    finally:
        VariableBuilder.wrap_symfloat = wrap  # type: ignore[method-assign]


class QuireFlexAttentionVariable(FlexAttentionHigherOrderVariable):
    """Dynamo's representation of quire_flex_attention."""

    def create_wrapped_node(self, tx: Any, query: Any, fn: Any, fn_name: str) -> tuple[Any, tuple]:
        with _floats_outside(tx.output):
            subgraph, captured = super().create_wrapped_node(tx, query, fn, fn_name)
        module = tx.output.nn_modules[subgraph.node.target]
        inputs = module.graph.find_nodes(op="placeholder")
        given: dict[Node, Any] = {}  # what the subgraph takes: node outside -> node inside
        tracers = {}
        for proxy, inside in zip(captured, inputs[len(inputs) - len(captured) :], strict=True):
            given[proxy.node] = inside
            tracers[proxy.node.graph] = proxy.tracer
        for outside, inside in list(given.items()):
            if _is_of_floats(outside):
                _move_in(module.graph, outside, inside, given)
        # Of math.log(x) and the like dynamo takes the number itself, guarded, and leaves the call: of a float without a value it fails.
        module.graph.eliminate_dead_code()
        module.recompile()
        # In the order of the inputs, some of which are new.
        order = {node: i for i, node in enumerate(module.graph.find_nodes(op="placeholder"))}
        outsides = sorted(given, key=lambda outside: order[given[outside]])
        return subgraph, tuple(torch.fx.Proxy(outside, tracers[outside.graph]) for outside in outsides)


def _is_of_floats(node: Node) -> bool:
    """Whether a node is a float derived from a captured one: item(), or something computed from it."""
    if node.op == "call_method" and node.target == "item":
        return True
    is_float = isinstance(node.meta.get("example_value"), torch.SymFloat)
    return node.op == "call_function" and is_float and any(_is_of_floats(arg) for arg in node.all_input_nodes)


def _move_in(graph: torch.fx.Graph, outside: Node, inside: Node, given: dict[Node, Any]) -> None:
    """Lets the subgraph compute `outside` itself, from its inputs, instead of taking it as the input `inside`."""
    del given[outside]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        made = _copied(graph, outside, given)
    inside.replace_all_uses_with(made)
    graph.erase_node(inside)


def _copied(graph: torch.fx.Graph, node: Node, given: dict[Node, Any]) -> Node:
    if _is_of_floats(node):
        copy = graph.node_copy(node, lambda arg: _copied(graph, arg, given))
    elif node in given:
        return given[node]
    else:
        last = graph.find_nodes(op="placeholder")[-1]
        with graph.inserting_after(last):
            copy = given[node] = graph.placeholder(f"{node.name}_taken")
        copy.meta.update(node.meta)
    return copy
