"""Runs bench/attention and reads its results: how much of this machine's peak is reached. The program measures the peak
itself, before and after each repetition.
"""

import json
import statistics
import subprocess

import quire

# (groups, --only): prefill of 2,048 tokens, then one query over 8,192 keys.
RUNS = [(["prefill", "causal", "bf16"], "L2048 S2048"), (["decode"], "")]
QUICK_RUNS = [(["prefill", "causal"], "L512 S512 D64"), (["rows"], "L1 S8192")]


def measure(context):
    """Rows of the benchmark, as dicts; none if the program was not built. If a run takes too long, a quick one replaces
    it.
    """
    program = context.program("bench/attention")
    if program is None:
        return []
    rows = []
    for usual, quick in zip(RUNS, QUICK_RUNS):
        found = None if context.quick else _run(program, *usual, repetitions=3, timeout=context.seconds_left() / 2)
        rows += found if found is not None else _run(program, *quick, repetitions=1, timeout=60) or []
    return rows


def _run(program, groups, only, repetitions, timeout):
    """The rows of one run; None if it did not end in time."""
    command = [program, *groups, "--only", only, "--threads", str(quire.get_num_threads()), "--json"]
    command += ["--repetitions", str(repetitions)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    return [json.loads(line) for line in done.stdout.splitlines()]


def peaks(rows):
    """[(name, number, unit)]: the peaks that the shares are of, where there are rows of that kind."""
    kinds = [
        ("f32 multiply-adds", "GFLOP/s", lambda r: r["of"] == "fma" and "bf16" not in r["name"], "gflops"),
        ("bf16 products", "GFLOP/s", lambda r: r["of"] == "fma" and "bf16" in r["name"], "gflops"),
        ("reading memory", "GB/s", lambda r: r["of"] == "stream", "gbytes"),
    ]
    found = []
    for name, unit, is_kind, rate in kinds:
        values = [row[rate] / row["share"] for row in rows if is_kind(row) and row["share"] > 0]
        if values:
            found.append((name, statistics.median(values), unit))
    return found
