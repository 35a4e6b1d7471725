"""Runs bench/compare_torch.py and reads its results: how many times as fast as PyTorch. Only as many groups as there is
time for.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile

from section import ROOT

# (arguments, seconds it may need on 2 cores), the most wanted first. flex and first compile with torch, which is slow.
RUNS = [
    (["--groups", "prefill,decode,tiny", "--repetitions", "3"], 12),
    (["--groups", "masks", "--filter", "2048", "--repetitions", "3"], 4),
    (["--groups", "flex", "--filter", "ALiBi f32", "--repetitions", "3"], 12),
    (["--groups", "first", "--repetitions", "1"], 15),
    (["--groups", "masks", "--filter", "causal 16384", "--repetitions", "3"], 30),
]
QUICK_RUNS = [(["--groups", "tiny", "--repetitions", "1"], 10)]


def measure(context):
    """(rows of the comparison as dicts, what was left out and why)"""
    rows, left_out = [], []
    for arguments, seconds in QUICK_RUNS if context.quick else RUNS:
        name = " ".join(arguments[1:-2:2])
        if context.seconds_left() < seconds:
            left_out.append(f"{name}: no time left")
            continue
        found, why = _run(arguments, max(10.0, context.seconds_left()))
        rows += found
        if why:
            left_out.append(f"{name}: {why}")
    return rows, left_out


def _run(arguments, timeout):
    """(rows, why there are none)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ratios.json")
        command = [sys.executable, str(ROOT / "bench/compare_torch.py"), *arguments, "--json", path]
        # In a session of its own: torch's compiler starts processes, which have to end with it.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return [], f"stopped after {timeout:.0f} s"
        if process.returncode != 0:
            return [], (errors.strip().splitlines() or ["failed"])[-1]
        with open(path) as file:
            return json.load(file)["results"], ""
