"""What tracing a mod written with torch operations costs: the first call, and the calls after it.

Over the mods of tests/python/torch/trace/user_mods.py; medians in this process. Needs torch and the package quire:

    python bench/trace_torch.py [--repetitions 15]
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/python/torch/trace"))

from quire.torch.trace import clear_cache, trace_mask_mod, trace_score_mod  # noqa: E402
from user_mods import USER_MODS  # noqa: E402


def seconds(call, calls=1):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(kind, mod, repetitions):
    """Medians of the first call, with an empty cache, and of a later one."""
    trace = trace_score_mod if kind == "score" else trace_mask_mod
    first, later = [], []
    for _ in range(repetitions):
        clear_cache()
        first.append(seconds(lambda: trace(mod)))
        later.append(seconds(lambda: trace(mod), 200))
    return statistics.median(first), statistics.median(later)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=15)
    repetitions = parser.parse_args().repetitions
    rows = [(name, *measure(kind, factory(2, 4, 64, 64), repetitions)) for name, kind, factory in USER_MODS]
    print(f"{'mod':32} {'first call, ms':>14} {'later ones, us':>14}")
    for name, first, later in rows:
        print(f"{name:32} {first * 1e3:14.3f} {later * 1e6:14.2f}")
    print(
        f"{'median':32} {statistics.median(r[1] for r in rows) * 1e3:14.3f} {statistics.median(r[2] for r in rows) * 1e6:14.2f}"
    )
    print(f"{'largest':32} {max(r[1] for r in rows) * 1e3:14.3f} {max(r[2] for r in rows) * 1e6:14.2f}")


if __name__ == "__main__":
    main()
