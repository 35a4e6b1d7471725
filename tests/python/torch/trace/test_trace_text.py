"""The text that tracing writes: readable, with names, and read back by the language as it was meant."""

import pathlib
import re
import time

import pytest
import torch
from quire import _core
from quire.torch.trace import trace_mask_mod, trace_score_mod
from quire.torch.trace.buffer_names import unique_names
from quire.torch.trace.expression import const
from quire.torch.trace.text import RESERVED, write
from traced_values import by_quire, by_torch

SIZES = (1, 2, 5, 6)
slopes = torch.ones(8)
ids = torch.arange(8)
sum = torch.arange(8.0)  # a name of the language
q_idx = torch.arange(8.0)

TEXTS = {
    "score + slopes[h] * (kv_idx - q_idx)": lambda s, b, h, q, k: s + slopes[h] * (k - q),
    "v0 = kv_idx - q_idx; where(v0 > 0, -inf, score + slopes[h] * v0)": lambda s, b, h, q, k: twice_used(s, h, q, k),
    "tanh(score / 30) * 30": lambda s, b, h, q, k: 30 * torch.tanh(s / 30),
    "float(q_idx - (kv_idx - b) - h)": lambda s, b, h, q, k: q - (k - b) - h,
    "float(q_idx * (kv_idx + 1) // (b * 2 + 1) % 5)": lambda s, b, h, q, k: q * (k + 1) // (b * 2 + 1) % 5,
    "(-score) ** 2 + -(score ** 2)": lambda s, b, h, q, k: (-s) ** 2 + -(s**2),
    "slopes[ids[q_idx]] + slopes[ids[kv_idx] - 8]": lambda s, b, h, q, k: slopes[ids[q]] + slopes[ids[k] - 8],
    "score * sum_[q_idx] + q_idx_[kv_idx]": lambda s, b, h, q, k: s * sum[q] + q_idx[k],
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


def test_reserved_names_are_those_of_the_language():
    buffer = torch.ones(3)
    for name in sorted(RESERVED):
        with pytest.raises(ValueError, match="\\[parse\\]"):
            _core.ScoreMod(f"score + {name}[0]", {name: buffer.numpy()})
    root = pathlib.Path(__file__).parents[4]
    rows = (root / "include/quire/op_table.inc").read_text()
    names = set(re.findall(r'_OP\(\w+, "(\w+)"', rows)) | set(
        re.findall(r"^QUIRE_FLOAT_FUNCTION\(\w+, (\w+)", rows, re.M)
    )
    names |= set(re.findall(r'{"(\w+)", Op::k', (root / "src/formula/op_table.cc").read_text()))
    assert len(names) > 50 and names - {"load"} <= RESERVED
    assert unique_names([buffer, slopes], {id(buffer): "where", id(slopes): "where"}) == ["where_", "where__2"]
    assert unique_names([None, slopes, buffer], {id(slopes): "größe", id(buffer): ""}) == ["t0", "gr__e", "t2"]


def test_names_of_buffers():
    def of(table, tables):
        return lambda s, b, h, q, k: s + table[q] + tables[0][q] + tables[1][k] + table.exp()[k] + torch.arange(8)[k]

    traced = trace_score_mod(of(torch.ones(8), [torch.ones(8), torch.ones(8)]))
    assert traced.names == ["table", "tables", "tables_2", "table_2", "t4"]


def test_names_of_values_do_not_clash_with_buffers():
    v0 = torch.ones(8)

    def mod(s, b, h, q, k):
        d = q - k
        return d * d * v0[h]

    assert trace_score_mod(mod).text == "vv0 = q_idx - kv_idx; vv0 * vv0 * v0[h]"


@pytest.mark.parametrize(
    "value", [0, -1, 2**63 - 1, -(2**63), 1.5, -1e30, 1e-45, float("inf"), -float("inf"), True, False]
)
def test_constants_are_read_back(value):
    mod = _core.ScoreMod(f"float({write(const(value), {})})")
    read = _core.evaluate_score(mod, torch.zeros(1, 1, 1, 1).numpy())[0, 0, 0, 0]
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
