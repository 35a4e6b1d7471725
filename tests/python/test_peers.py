"""bench/peers: every peer that is installed computes small cases of each group as NumPy does, or says what it has not; a table
names what is missing."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import compare_peers  # noqa: E402
from peers.cases import Case, cases  # noqa: E402
from peers.unsupported import Unsupported  # noqa: E402

GROUPED = dict(q_heads=4, kv_heads=2, dim=32)
SMALL = {
    "prefill": Case("prefill", "", "f32", 4, 4, 32, (40,), (40,), False),
    "causal": Case("prefill", "", "f32", q_lengths=(40,), kv_lengths=(40,), is_causal=True, **GROUPED),
    "decode": Case("decode", "", "f32", q_lengths=(1,), kv_lengths=(70,), is_causal=True, **GROUPED),
    "half": Case("decode", "", "bf16", q_lengths=(1,), kv_lengths=(70,), is_causal=True, **GROUPED),
    "f16": Case("decode", "", "f16", q_lengths=(1,), kv_lengths=(70,), is_causal=True, **GROUPED),
    "jagged": Case("jagged", "", "f32", 4, 4, 32, (5, 33, 64), (5, 33, 64), True),
    "paged": Case("paged", "", "f32", q_lengths=(1, 1), kv_lengths=(40, 70), is_causal=True, page_size=32, **GROUPED),
    "q8_0": Case("quantised", "", "f32", q_lengths=(1,), kv_lengths=(70,), is_causal=True, format="q8_0", **GROUPED),
    "u8": Case(
        "quantised", "", "f32", q_lengths=(1,), kv_lengths=(70,), is_causal=True, page_size=32, format="u8", **GROUPED
    ),
}
SKIPPED = {
    ("torch", "paged"): "compiles for half a minute",
    ("openvino", "half"): "may end the process where AMX is not allowed",
}
PEERS = ["quire", *compare_peers.PEERS]


def by_numpy(case):
    q, k, v = case.arrays()
    out = []
    q_ends, kv_ends = np.cumsum(case.q_lengths), np.cumsum(case.kv_lengths)
    for q_end, q_len, kv_end, kv_len in zip(q_ends, case.q_lengths, kv_ends, case.kv_lengths):
        keys, values = (one[kv_end - kv_len : kv_end].repeat(case.q_heads // case.kv_heads, 1) for one in (k, v))
        score = np.einsum("qhd,khd->hqk", q[q_end - q_len : q_end], keys, dtype=np.float64) / np.sqrt(case.dim)
        if case.is_causal:
            score[:, np.arange(q_len)[:, None] + kv_len - q_len < np.arange(kv_len)] = -np.inf
        weights = np.exp(score - score.max(-1, keepdims=True))
        out.append(np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values))
    return np.concatenate(out)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_computes_the_case(peer, name, monkeypatch):
    try:
        module = importlib.import_module(f"peers.{peer}_peer")
    except (ImportError, OSError) as error:
        pytest.skip(f"{peer}: {error}")
    if (peer, name) in SKIPPED:
        pytest.skip(SKIPPED[peer, name])
    case = SMALL[name]
    monkeypatch.setattr(Case, "turns", 2 if case.is_decode else 1)
    try:
        call, output = module.prepare(case, 2 if peer != "jax" else len(os.sched_getaffinity(0)))
    except Unsupported as error:
        pytest.skip(f"{peer}: {error}")
    call()
    tolerance = compare_peers.TOLERANCES[case.format or case.dtype]
    assert np.abs(output() - by_numpy(case)).max() < tolerance
    call()
    assert np.abs(output() - by_numpy(case)).max() < tolerance  # whatever the turn


def test_cases_have_names_of_their_own():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) and {case.group for case in cases()} == {
        "prefill",
        "decode",
        "paged",
        "jagged",
        "quantised",
    }


def test_the_table_names_what_is_missing():
    result = {"group": "decode", "name": "one", "peer": "JAX", "peer_ms": 3.0, "quire_ms": 2.0, "ratio": 1.5}
    text = compare_peers.markdown([result], [("one", "vllm", "No module named 'vllm'")], ["jax", "torch"])
    assert "| decode: one | 2 | 1.50 | – |" in text and "vLLM: No module named 'vllm'" in text
