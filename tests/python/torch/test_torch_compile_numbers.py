"""Numbers that a mod captures, under torch.compile: every call computes with its own numbers, never with others.

Each case is called with three values and lengths in turn, with dynamo's own idea of what is dynamic and with dynamic=True.
All operations are swept in test_torch_compile_sweep.py.
"""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from quire.torch import TraceError, create_block_mask, flex_attention, graph_mod, graph_program

VALUES = (3, 5, 11)
LENGTHS = (24, 32, 40)
BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])
DYNAMIC = pytest.mark.parametrize(
    "backend, dynamic",
    [("eager", None), ("eager", True), ("aot_eager", None), pytest.param("aot_eager", True, marks=pytest.mark.slow)],
)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    graph_mod.forget()


def query_of(length, seed=0):
    return torch.randn(1, 2, length, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(function, calls, backend="aot_eager", **options):
    """function(*arguments), compiled and not: outputs, and gradients of the first argument."""
    run = torch.compile(function, backend=backend, fullgraph=True, **options)
    for arguments in calls:
        outs = [f(*arguments) for f in (run, function)]
        gradients = [torch.autograd.grad(out.square().sum(), arguments[0])[0] for out in outs]
        torch.testing.assert_close(*outs, msg=lambda text: f"{arguments[1:]}: {text}")  # noqa: B023
        torch.testing.assert_close(*gradients, msg=lambda text: f"gradient, {arguments[1:]}: {text}")  # noqa: B023


# As in projects: n is an int that changes from call to call. Everything is weighted by the key, since softmax does not see what
# is added to all keys of a query.
INT_MODS = {
    "clamp": lambda n: lambda s, b, h, q, k: s + 0.1 * (q - k).clamp(0, n),
    "full": lambda n: lambda s, b, h, q, k: s + torch.full((), n) * (k % 3),
    "full_like": lambda n: lambda s, b, h, q, k: s + torch.full_like(s, n) * (k % 3),
    "new_full": lambda n: lambda s, b, h, q, k: s + s.new_full((), n) * (k % 3),
    "scalar_tensor": lambda n: lambda s, b, h, q, k: s + torch.scalar_tensor(n) * (k % 3),
    "alpha": lambda n: lambda s, b, h, q, k: torch.add(s, k % 3, alpha=n),
    "value": lambda n: lambda s, b, h, q, k: torch.addcmul(s, s, s, value=n),
    "leaky_relu": lambda n: lambda s, b, h, q, k: F.leaky_relu(s, n / 10),
    "threshold": lambda n: lambda s, b, h, q, k: F.threshold(s, 0.1, n),
    "torch.tensor": lambda n: lambda s, b, h, q, k: s + torch.tensor(n) * (k % 3),
    "min": lambda n: lambda s, b, h, q, k: s * min(n, 8),
    "max": lambda n: lambda s, b, h, q, k: s * max(n, 4),
    "round": lambda n: lambda s, b, h, q, k: s * round(n / 3),
    "isin": lambda n: lambda s, b, h, q, k: s + torch.isin(k, torch.tensor([n, n + 1])),
    "log": lambda n: lambda s, b, h, q, k: s * math.exp(-n / 10) + math.log(n) * (k % 3),
    "float": lambda n: lambda s, b, h, q, k: s * float(n),
    "index": lambda n: lambda s, b, h, q, k: s + torch.arange(16.0)[n] * (k % 3),
    "size": lambda n: lambda s, b, h, q, k: s + torch.arange(n)[k % n],
    "sqrt": lambda n: lambda s, b, h, q, k: s * math.sqrt(n),
    "pow": lambda n: lambda s, b, h, q, k: s * 2**n + (k % 3) ** n * 0.01,
    # In floats of 32 bits this is 29 for n = 100.
    "exactly": lambda n: lambda s, b, h, q, k: s * int((n + 89) * 0.29),
}


@DYNAMIC
def test_ints(backend, dynamic):
    """All in one graph, so that it is compiled once."""

    def function(query, n):
        return torch.stack([flex_attention(query, query, query, make(n)) for make in INT_MODS.values()])

    query = query_of(24)
    assert_same(function, [(query, n) for n in VALUES], backend, dynamic=dynamic)


@pytest.mark.parametrize("name", ["clamp", "min", "isin"])
def test_the_function_itself_compiled(name):
    """As most projects write it: flex = torch.compile(flex_attention)."""
    flex = torch.compile(flex_attention, backend="eager")
    query = query_of(24)
    for n in VALUES:
        expected = flex_attention(query, query, query, INT_MODS[name](n))
        assert torch.equal(flex(query, query, query, score_mod=INT_MODS[name](n)), expected)


SIZE_MODS = {
    "division": lambda x: lambda s, b, h, q, k: s + (k - q) / float(x.size(2)),
    "clamp": lambda x: lambda s, b, h, q, k: s + (q - k).clamp(0, x.size(2) // 2) * 0.1,
    "int": lambda x: lambda s, b, h, q, k: torch.where(k < int(x.size(2) * 0.5), s, -s),
    "round": lambda x: lambda s, b, h, q, k: torch.where(k < round(x.size(2) / 3), s, -s),
    "new": lambda x: lambda s, b, h, q, k: s + s.new_full((), x.size(2)) * (k % 3) * 0.1,
}


@DYNAMIC
def test_sizes(backend, dynamic):
    def function(query, other):
        return torch.stack([flex_attention(query, query, query, make(query)) for make in SIZE_MODS.values()])

    assert_same(function, [(query_of(length), None) for length in LENGTHS], backend, dynamic=dynamic)


@BACKENDS
def test_sizes_of_captured_tensors(backend):
    """Rows whose length is not fixed are gone over for the length of the call; elements are read whatever it is."""
    table = torch.randn(4, 40)

    def function(query, length):
        rows = table[:, :length]
        mods = (
            lambda s, b, h, q, k: s + rows[h].mean() * (k % 3) + rows[h].amax() * (k % 2),
            lambda s, b, h, q, k: s * rows[h, k] * rows.size(1),
            lambda s, b, h, q, k: s + rows[h, k],
            lambda s, b, h, q, k: s + (rows * 2)[h][k] + rows[h][-1] * (k % 3),
        )
        return torch.stack([flex_attention(query, query, query, mod) for mod in mods])

    assert_same(function, [(query_of(length), length) for length in LENGTHS], backend, dynamic=True)


CAP = 2.0


class Held:
    cap = 2.0
    caps = [0.5, 2.0]


@BACKENDS
def test_floats_wherever_they_are_kept(backend):
    """At their second value they are dynamic."""
    held = Held()

    def by_attribute(s, b, h, q, k):
        return held.cap * torch.tanh(s / held.cap)

    def by_item(s, b, h, q, k):
        return held.caps[1] * torch.tanh(s / held.caps[1])

    def by_global(s, b, h, q, k):
        return CAP * torch.tanh(s / CAP)

    def function(query, cap):
        def by_default(s, b, h, q, k, cap=cap):
            return cap * torch.tanh(s / cap)

        def by_closure(s, b, h, q, k):
            return cap * torch.tanh(s / cap)

        by_partial = functools.partial(lambda s, b, h, q, k, cap: torch.tanh(s / cap) * (cap * 2), cap=cap)
        mods = (by_attribute, by_item, by_global, by_default, by_closure, by_partial)
        return torch.stack([flex_attention(query, query, query, mod) for mod in mods])

    run, query = torch.compile(function, backend=backend, fullgraph=True), query_of(24)
    for cap in (0.75, 1.25, 2.5, 7.0):
        held.cap, held.caps[1], globals()["CAP"] = cap, cap * 2, cap * 3
        torch.testing.assert_close(run(query, cap), function(query, cap))


@DYNAMIC
def test_floats_in_several_mods_and_outside(backend, dynamic):
    """Computed before the mod, in it, and in the next layer. Nothing is compiled for each value."""

    def function(query, slope):
        window = slope * 4 + query.size(2) // 8
        out = flex_attention(query, query, query, lambda s, b, h, q, k: s + slope * (k - q))
        return flex_attention(out, query, query, lambda s, b, h, q, k: s * (slope * 0.5) + k / window)

    query = query_of(24)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert_same(function, [(query, 0.5 + i) for i in range(4)], backend, dynamic=dynamic)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 2


def test_floats_of_checkpointed_layers():
    from torch.utils.checkpoint import checkpoint

    def layer(query, cap):
        return flex_attention(query, query, query, lambda s, b, h, q, k: cap * torch.tanh(s / cap))

    def function(query, cap):
        query = checkpoint(layer, query, cap, use_reentrant=False)
        return checkpoint(layer, query, cap, use_reentrant=False)

    query = query_of(24)
    assert_same(function, [(query, 0.5 + i) for i in range(3)])


@BACKENDS
def test_rules_made_inside(backend):
    """A size and a float in a rule that compiled code gives to a mask."""

    def function(query, slope, mask):
        window = query.size(2) // 4
        mask.mask_mod = lambda b, h, q, k: (q - k).abs() <= torch.clamp(q, 2, window) * slope
        return flex_attention(query, query, query, lambda s, b, h, q, k: s * slope, mask)

    masks = [create_block_mask(lambda b, h, q, k: (q + k) % 2 == 0, None, None, n, n, BLOCK_SIZE=16) for n in LENGTHS]
    calls = [(query_of(length), 0.5 + i, mask) for i, (length, mask) in enumerate(zip(LENGTHS, masks))]
    assert_same(function, calls, backend, dynamic=True)


@DYNAMIC
def test_mask_mods(backend, dynamic):
    def mods(n, f):
        return (
            lambda b, h, q, k: q - k <= (q * 0 + 40).clamp(0, n),
            lambda b, h, q, k: (q - k) * f <= min(n, 8) + torch.full((), n) * 0.1,
            lambda b, h, q, k: torch.where(k > 3, q - k < n, k < round(n / 3)),
        )

    def function(query, masks):
        return torch.stack([flex_attention(query, query, query, block_mask=mask) for mask in masks])

    query = query_of(24)
    calls = []
    for n, f in zip(VALUES, (0.5, 0.75, 1.5)):
        calls.append((query, [create_block_mask(mod, None, None, 24, 24, BLOCK_SIZE=16) for mod in mods(n, f)]))
    assert_same(function, calls, backend, dynamic=dynamic)


@BACKENDS
def test_gradients_of_captured_tensors_beside_numbers(backend):
    def function(bias, query, n, f):
        return flex_attention(
            query, query, query, lambda s, b, h, q, k: s * f + (bias * n).tanh()[k] + bias[q].clamp(max=n)
        )

    bias, query = torch.randn(24, requires_grad=True), query_of(24).detach()
    assert_same(function, [(bias, query, n, n / 4) for n in VALUES], backend)


@pytest.mark.slow
def test_inductor():
    """Little beside attention: the C++ compiler has little to do."""

    def function(query, n, f):
        out = flex_attention(query, query, query, lambda s, b, h, q, k: f * torch.tanh(s / f) + (q - k).clamp(0, n))
        return flex_attention(query, query, out, lambda s, b, h, q, k: s + (k - q) / float(query.size(2)) * f)

    calls = [(query_of(length), n, n / 4) for length, n in zip(LENGTHS, VALUES)]
    assert_same(function, calls, "inductor")


class Net(torch.nn.Module):
    """Soft-caps that differ from layer to layer and, as training goes on, from step to step."""

    def __init__(self, layers):
        super().__init__()
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(16, 48) for _ in range(layers))
        self.caps = [1.0 + 0.5 * layer for layer in range(layers)]

    def forward(self, x, window):
        for layer, cap in zip(self.qkv, self.caps):
            qkv = layer(x).view(1, x.size(1), 3, 2, 8).permute(2, 0, 3, 1, 4)

            def mod(s, b, h, q, k, cap=cap):
                return cap * torch.tanh(s / cap) + torch.clamp(q - k, 0, window) * (0.1 * cap)

            x = x + flex_attention(*qkv.unbind(0), mod).transpose(1, 2).reshape(x.shape)
        return x


def losses(net, run):
    """Ten steps; caps change at every one, lengths at some."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    found = []
    for step in range(10):
        net.caps = [1.0 + 0.5 * layer + 0.125 * step for layer in range(len(net.caps))]
        x = torch.randn(1, 24 if step < 6 else 32, 16, generator=torch.Generator().manual_seed(step))
        loss = run(x, 2 + step % 4).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@BACKENDS
def test_ten_steps_with_another_float_per_layer_and_step(backend):
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(Net(3))
    assert losses(nets[0], torch.compile(nets[0], backend=backend, fullgraph=True)) == pytest.approx(
        losses(nets[1], nets[1]), rel=1e-5
    )
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


# ---- programs


def graph_of(mod):
    return torch.fx.symbolic_trace(mod).graph


def traces(monkeypatch):
    """Counts runs of the tracer for programs."""
    found = []
    trace = graph_mod.Program._trace
    monkeypatch.setattr(graph_mod.Program, "_trace", lambda *args: (found.append(1), trace(*args))[1])
    return found


def test_a_number_that_always_changes_is_traced_no_more(monkeypatch):
    found, query = traces(monkeypatch), query_of(24).detach()
    run = torch.compile(
        lambda query, n, f: flex_attention(query, query, query, lambda s, b, h, q, k: s * f + (q - k).clamp(0, n)),
        backend="eager",
    )
    expected = lambda n, f: flex_attention(query, query, query, lambda s, b, h, q, k: s * f + (q - k).clamp(0, n))  # noqa: E731
    for n in range(2, 30):
        assert torch.equal(run(query, n, n / 4), expected(n, n / 4))
    assert len(found) <= graph_mod.MOST_CONSTANT + 2  # one of them with numbers that have no value
    before = len(found)
    assert torch.equal(run(query, 2**40, 0.5), expected(2**40, 0.5))  # does not fit into the 32 bits of the others
    assert len(found) == before + 1


def test_numbers_that_cannot_be_arguments_are_traced_for_each_value(monkeypatch):
    monkeypatch.setattr(graph_mod, "MOST_CONSTANT", 0)
    found, query = traces(monkeypatch), query_of(24).detach()
    make = lambda n: lambda s, b, h, q, k: s + torch.arange(n)[k % n]  # noqa: E731
    run = torch.compile(lambda query, n: flex_attention(query, query, query, make(n)), backend="eager", dynamic=True)
    for n in (*VALUES, *VALUES):
        assert torch.equal(run(query, n), flex_attention(query, query, query, make(n)))
    assert len(found) == 1 + len(VALUES)


def test_a_program_is_the_same_in_every_process():
    """It is a text that says all: nothing of this process is in it."""

    def mod(s, b, h, q, k, table, n):
        x = torch.clamp(s, min=-math.inf, max=n) + table[k, 0:1].sum() + n // 2
        return torch.where(q >= k, x, s.new_full((), 0.1, dtype=torch.float32))

    text = graph_program.to_text(graph_of(mod))
    assert text == graph_program.to_text(graph_of(mod)) and "0x" not in text
    table = torch.randn(24, 2)
    query = query_of(24).detach()
    arguments = text, ["tensor", "number"], [table, torch.tensor(4)], "", [], [], [], [0, 0], [1, 1], None, True, False
    out = torch.ops.quire.flex_attention(query, query, query, *arguments)[0]
    expected = flex_attention(query, query, query, lambda s, b, h, q, k: mod(s, b, h, q, k, table, 4))
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "step",
    [
        ["function", "os.system", ["true"], {"dict": []}],
        ["function", "builtins.eval", ["1"], {"dict": []}],
        ["function", "torch.load", ["file"], {"dict": []}],
        ["function", "torch.hub.load", ["file"], {"dict": []}],
        ["function", "torch.from_file", ["file"], {"dict": []}],
        ["method", "__reduce_ex__", [{"step": 0}, 2], {"dict": []}],
        ["method", "_make_subclass", [{"step": 0}], {"dict": []}],
        ["code", "x", [], {"dict": []}],
    ],
    ids=lambda step: step[1],
)
def test_a_program_only_computes(step):
    import json

    with pytest.raises(TraceError, match="cannot be a part of a mod|is not known"):
        graph_program.from_text("@" + json.dumps([["input", None, [], {"dict": []}], step]))


def test_errors_say_what_is_wrong():
    query = query_of(24).detach()
    run = torch.compile(
        lambda query, n: flex_attention(query, query, query, lambda s, b, h, q, k: torch.special.bessel_j0(s) * n),
        backend="eager",
        dynamic=True,
    )
    with pytest.raises(TraceError, match="bessel_j0"):
        run(query, 3)
