"""The text of a traced mod: readable, with the names of variables, and read back by the language as it was meant."""

import time

import pytest
import torch
from quire import _core
from quire.torch.trace import trace_mask_mod, trace_score_mod
from quire.trace.value import const
from traced_values import by_quire, by_torch

SIZES = (1, 2, 5, 6)
slopes = torch.ones(8)
ids = torch.arange(8)
sum = torch.arange(8.0)  # a name of the language
q_idx = torch.arange(8.0)

TEXTS = {
    "score + slopes[h] * (kv_idx - q_idx)": lambda s, b, h, q, k: s + slopes[h] * (k - q),
    "where(kv_idx - q_idx > 0, -inf, score + slopes[h] * (kv_idx - q_idx))": lambda s, b, h, q, k: twice_used(
        s, h, q, k
    ),
    "tanh(score / 30.0) * 30.0": lambda s, b, h, q, k: 30 * torch.tanh(s / 30),
    "float(q_idx - (kv_idx - b) - h)": lambda s, b, h, q, k: q - (k - b) - h,
    "float(q_idx * (kv_idx + 1) // (b * 2 + 1) % 5)": lambda s, b, h, q, k: q * (k + 1) // (b * 2 + 1) % 5,
    "-score * -score + -(score * score)": lambda s, b, h, q, k: (-s) ** 2 + -(s**2),
    "slopes[ids[q_idx]] + slopes[ids[kv_idx] - 8]": lambda s, b, h, q, k: slopes[ids[q]] + slopes[ids[k] - 8],
    "score * sum_1[q_idx] + q_idx_1[kv_idx]": lambda s, b, h, q, k: s * sum[q] + q_idx[k],
    "3.0": lambda s, b, h, q, k: 3,
    "1.0": lambda s, b, h, q, k: True,
    "score * 1e-08": lambda s, b, h, q, k: s * 1e-8,
    "score + -9223372036854775807": lambda s, b, h, q, k: s + -(2**63 - 1),
}


def twice_used(s, h, q, k):
    d = k - q
    return torch.where(d > 0, -float("inf"), s + slopes[h] * d)


@pytest.mark.parametrize(("text", "mod"), TEXTS.items(), ids=TEXTS.keys())
def test_text(text, mod):
    written = trace_score_mod(mod).text
    assert written == text
    assert torch.allclose(by_quire("score", mod, SIZES), as_float(mod), rtol=1e-6)


def as_float(mod):
    value = mod(torch.tensor(0.0), *[torch.tensor(0)] * 4)
    return by_torch("score", mod, SIZES).float() if isinstance(value, torch.Tensor) else torch.full(SIZES, float(value))


def test_masks_that_are_constants():
    assert trace_mask_mod(lambda b, h, q, k: True).text == "True"
    assert trace_mask_mod(lambda b, h, q, k: 0).text == "False"
    assert trace_mask_mod(lambda b, h, q, k: torch.tensor(2.5)).text == "True"
    assert trace_mask_mod(lambda b, h, q, k: slopes.sum() > 3).names == ["slopes"]


def test_no_name_is_one_of_the_language():
    größe = torch.ones(8)
    traced = trace_score_mod(lambda s, b, h, q, k: s + sum[q] + größe[k] + torch.arange(8)[k])
    assert traced.names[0] == "sum_1" and len(set(traced.names)) == 3
    assert (
        _core.ScoreMod(traced.text, dict(zip(traced.names, map(torch.Tensor.numpy, traced.tensors)))).text
        == traced.text
    )


def test_names_of_buffers():
    def of(table, tables):
        return lambda s, b, h, q, k: s + table[q] + tables[0][q] + tables[1][k] + table.exp()[k] + torch.arange(8)[k]

    traced = trace_score_mod(of(torch.ones(8), [torch.ones(8), torch.ones(8)]))
    assert traced.names == ["table", "tables", "tables_1", "table_1", "t5"]


def test_names_of_values_do_not_clash_with_buffers():
    t0 = torch.ones(8)

    def mod(s, b, h, q, k):
        d = q - k
        for _ in range(20):
            d = d * d + 1
        return d * t0[h]

    traced = trace_score_mod(mod)
    assert traced.names == ["t0"] and traced.text.startswith("t1 = ") and traced.text.endswith("* t0[h]")


@pytest.mark.parametrize(
    "value", [0, -1, 2**63 - 1, -(2**63), 1.5, -1e30, 1e-45, float("inf"), -float("inf"), True, False]
)
def test_constants_are_read_back(value):
    mod = _core.ScoreMod(const(value).node)
    for one in (mod, _core.ScoreMod(mod.text)):
        read = _core.evaluate_score(one, torch.zeros(1, 1, 1, 1).numpy())[0, 0, 0, 0]
        assert float(read) == float(torch.tensor(value, dtype=torch.float32))


def test_long_chains_and_shared_values():
    def chain(s, b, h, q, k):
        for i in range(3000):
            s = torch.sin(s) if i % 2 else s + 0.25
        return s

    def doubling(s, b, h, q, k):
        x = q - k
        for _ in range(40):
            x = x + x
        return x

    begin = time.perf_counter()
    for mod in (chain, doubling):
        expected, actual = by_torch("score", mod, SIZES).double(), by_quire("score", mod, SIZES).double()
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert time.perf_counter() - begin < 20
