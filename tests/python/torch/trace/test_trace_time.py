"""What tracing costs: the limits are those of the project, far above what is measured (docs/tracing.md)."""

import subprocess
import sys
import time

import pytest
import torch
from user_mods import USER_MODS

from quire.torch.trace import clear_cache, trace_mask_mod, trace_score_mod


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


@pytest.mark.parametrize(("name", "kind", "factory"), USER_MODS, ids=[m[0] for m in USER_MODS])
def test_the_first_call_of_a_mod(name, kind, factory):
    mod = factory(2, 4, 64, 64)
    trace = trace_score_mod if kind == "score" else trace_mask_mod

    def first():
        clear_cache()
        trace(mod)

    assert min(seconds(first) for _ in range(3)) < 0.020


FIRST = """
import time, torch
from quire.torch.trace import trace_score_mod
slopes = torch.ones(8)
begin = time.perf_counter()
trace_score_mod(lambda s, b, h, q, k: torch.where(q >= k, s + slopes[h] * (k - q), -float("inf")))
print(time.perf_counter() - begin)
"""


def test_the_very_first_call_of_a_process(python_env):
    command = [sys.executable, "-c", FIRST]
    times = [float(subprocess.run(command, env=python_env, capture_output=True, check=True).stdout) for _ in range(3)]
    assert min(times) < 0.020


def test_later_calls():
    slopes = torch.ones(8)
    mods = [lambda s, b, h, q, k: s + slopes[h] * (k - q), lambda s, b, h, q, k: torch.tanh(s)]
    for mod in mods:
        trace_score_mod(mod)
        thousand = lambda mod=mod: [trace_score_mod(mod) for _ in range(1000)]  # noqa: E731
        assert min(seconds(thousand) for _ in range(5)) / 1000 < 20e-6
