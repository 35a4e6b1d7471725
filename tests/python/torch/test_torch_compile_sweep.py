"""Every operation of the tracer's tables with every kind of number, compiled against eager.

Generated from the tables: an operation without a case in number_cases.py fails. A case is compiled as score mod and as mask mod,
with an int, a float and a size that change from call to call, forward and backward. Slow: the same with inductor.
"""

import pytest
import torch
from number_cases import CASES, OF_INTS
from quire.torch import create_block_mask, flex_attention, graph_mod
from quire.torch.trace import operations

TABLES = (
    operations.OPERATIONS,
    operations.MOVEMENTS,
    operations.CREATIONS,
    operations.FILLS,
    operations.REDUCTIONS,
    operations.PRODUCTS,
    operations.SEARCHES,
    operations.LOOKUPS,
    (operations.CAST,),
)
# An int, a float and a length, each of which takes part. A size is length // 8.
CALLS = ((3, 0.75, 24), (5, 1.25, 32), (11, 2.5, 40))
KINDS = ("int", "float", "size")
CHUNK = 16
NAMES = sorted(CASES)
CHUNKS = [NAMES[i : i + CHUNK] for i in range(0, len(NAMES), CHUNK)]


def kinds_of(name):
    return [kind for kind in KINDS if kind != "float" or name not in OF_INTS]


def score_mod_of(name, numbers):
    """One kind of number after the other, so that each of them counts."""
    case = CASES[name]

    def score_mod(score, b, h, q_idx, kv_idx):
        for number in numbers:
            # Softmax does not see what is added to all keys of a query.
            score = score + case(score, q_idx - kv_idx, number) * (kv_idx % 3 * 0.1)
        return score

    return score_mod


def mask_mod_of(name, numbers):
    case = CASES[name]

    def mask_mod(b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        shows = distance == 0
        for number in numbers:
            shows = shows | (torch.sin(case(distance * 0.25, distance, number) * 10.0 + kv_idx) > 0.5)
        return shows

    return mask_mod


def numbers_of(name, integer, real, size):
    return (integer, size) if name in OF_INTS else (integer, real, size)


def attend(names, queries, masks, integer, real):
    """What is compiled: all the operations of a chunk, each in a score mod and in the rule of a mask."""
    size = queries.size(3) // 8
    outs = []
    for name, query, mask in zip(names, queries.unbind(0), masks):
        outs.append(
            flex_attention(query, query, query, score_mod_of(name, numbers_of(name, integer, real, size)), mask)
        )
    return torch.stack(outs)


def mask_of(name, numbers, length):
    """All blocks are in part visible, so the rule is asked for every element."""
    mask = create_block_mask(lambda b, h, q, k: (q + k) % 2 == 0, None, None, length, length, BLOCK_SIZE=16)
    mask.mask_mod = mask_mod_of(name, numbers)
    return mask


def results(function, names, call):
    """Outputs and gradients of all operations."""
    integer, real, length = call
    queries = torch.randn(len(names), 1, 2, length, 8, generator=torch.Generator().manual_seed(length)).requires_grad_()
    masks = [mask_of(name, numbers_of(name, integer, real, length // 8), length) for name in names]
    out = function(names, queries, masks, integer, real)
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    return out.detach(), torch.autograd.grad((out * weights).sum(), queries)[0]


def check(names, backend, dynamic):
    torch._dynamo.reset()
    run = torch.compile(attend, backend=backend, dynamic=dynamic, fullgraph=True)
    for call in CALLS:
        parts = zip(("output", "gradient"), results(run, names, call), results(attend, names, call))
        for part, ours, theirs in parts:
            for name, one, other in zip(names, ours, theirs, strict=True):
                message = lambda text: f"{name}, {part}, numbers {call}, {backend}: {text}"  # noqa: B023, E731
                torch.testing.assert_close(one, other, msg=message)


def test_every_operation_has_a_case():
    assert set(CASES) == {name for table in TABLES for name in table}


@pytest.mark.parametrize("names", CHUNKS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_every_number_counts(names):
    """Otherwise a wrong one would not be seen."""
    query = torch.randn(1, 2, 24, 8, generator=torch.Generator().manual_seed(1))
    unseen = []
    for name in names:
        for kind in kinds_of(name):
            outs = []
            for call in CALLS[:2]:
                number = (call[0], call[1], call[2] // 8)[KINDS.index(kind)]
                mask = mask_of(name, (number,), 24)
                score = flex_attention(query, query, query, score_mod_of(name, (number,)))
                outs.append((score, flex_attention(query, query, query, block_mask=mask)))
            for mod, one, other in zip(("score", "mask"), *outs):
                assert one.isfinite().all() and other.isfinite().all(), (name, kind, mod)
                if torch.allclose(one, other, atol=1e-4):
                    unseen.append((name, kind, mod))
    assert not unseen


def sweep(names, backend, dynamic, monkeypatch):
    # The first numbers are constants of a formula, the others its arguments where they can be.
    monkeypatch.setattr(graph_mod, "MOST_CONSTANT", 1)
    graph_mod.forget()
    check(names, backend, dynamic)


EVERY_CHUNK = pytest.mark.parametrize("names", CHUNKS, ids=lambda names: f"{names[0]}-{names[-1]}")


def test_a_slice_compiled_as_eager(monkeypatch):
    """Every tenth operation. All of them, below, take minutes."""
    sweep(NAMES[::10], "eager", True, monkeypatch)


@pytest.mark.slow
@EVERY_CHUNK
def test_compiled_as_eager(names, monkeypatch):
    sweep(names, "eager", True, monkeypatch)


def test_aot_as_eager(monkeypatch):
    """Some others. All of them are slow."""
    sweep(NAMES[2::52], "aot_eager", None, monkeypatch)


@pytest.mark.slow
@EVERY_CHUNK
@pytest.mark.parametrize("backend, dynamic", [("eager", None), ("aot_eager", True), ("aot_eager", None)])
def test_slowly_compiled_as_eager(names, backend, dynamic, monkeypatch):
    sweep(names, backend, dynamic, monkeypatch)


@pytest.mark.slow
@EVERY_CHUNK
@pytest.mark.parametrize("dynamic", [None, True])
def test_inductor_as_eager(names, dynamic):
    check(names, "inductor", dynamic)


def test_counts(capsys, record_property):
    """What the sweep covers: operations x kinds of numbers x mods x backends, forward and backward, three values each."""
    pairs = sum(len(kinds_of(name)) for name in CASES)
    record_property("operations", len(CASES))
    record_property("pairs of operation and number", pairs)
    assert len(CASES) >= 150 and pairs == 3 * len(CASES) - len(OF_INTS)
    with capsys.disabled():
        print(f"\nsweep: {len(CASES)} operations, {pairs} with a kind of number, x 2 mods x 3 backends x 3 values")
