"""bench/comparison.py: both sides of a row are run and timed, tables have a line a row, charts any number of groups."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import comparison  # noqa: E402


def result(group, ratio=2.0):
    return {
        "group": group,
        "name": f"row of {group}",
        "peer": "SDPA",
        "peer_ms": ratio,
        "quire_ms": 1.0,
        "ratio": ratio,
        "ratio_low": 1.5,
        "ratio_high": 3.0,
    }


def test_a_row_runs_both_sides_in_turn():
    calls = []
    row = comparison.Row(
        "g", "n", lambda: calls.append("theirs"), lambda: calls.append("ours"), repetitions=2, our_calls=3
    )
    found = row.run(7)
    assert calls == (["theirs"] + ["ours"] * 3) * 3  # once before it is timed
    assert found["ratio_low"] <= found["ratio_high"] and found["peer_ms"] > 0 and found["quire_ms"] > 0


def test_a_table_has_a_line_for_each_row_under_its_group():
    lines = comparison.table([result("prefill"), result("flex", 0.5)]).split("\n")
    assert [line.split()[0] for line in lines[1:]] == ["--", "row", "--", "row"]
    assert "0.5x" in lines[4]


def test_a_chart_has_any_number_of_groups(tmp_path):
    pytest.importorskip("matplotlib")
    groups = [f"group {i}" for i in range(len(comparison.COLOURS) + 1)]
    comparison.chart([result(group) for group in groups], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_dots_have_a_line_for_each_name(tmp_path):
    pytest.importorskip("matplotlib")
    comparison.dots([{**result("prefill"), "peer": peer} for peer in ("PyTorch", "JAX")], tmp_path / "dots.png")
    assert (tmp_path / "dots.png").stat().st_size > 1000
