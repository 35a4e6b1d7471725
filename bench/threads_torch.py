"""Quire's threads beside torch's: a loop that alternates a torch matmul and attention, against the sum of its parts.

Torch computes on OpenMP threads, Quire on a pool of its own; both have as many threads as there are cores. The loop should
take what its parts take alone, within 10 %. Rounds of the three are interleaved, medians compared.

    python bench/threads_torch.py [--threads 2] [--rounds 15] [--passive]
"""

import argparse
import os
import statistics
import sys
import time

if "--passive" in sys.argv:  # before torch is imported: its threads sleep at once instead of spinning for a while
    os.environ["OMP_WAIT_POLICY"] = "passive"

import quire  # noqa: E402
import quire.torch as quire_torch  # noqa: E402
import torch  # noqa: E402


def seconds(work, calls):
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - start


def compare(name, matmul, attend, rounds, calls):
    """Prints and returns how much longer the alternation takes than its parts, as a share."""

    def both():
        matmul()
        attend()

    for work in (matmul, attend, both):
        seconds(work, calls)
    times = [[seconds(work, calls) / calls for work in (matmul, attend, both)] for _ in range(rounds)]
    alone_matmul, alone_attend, together = (statistics.median(column) * 1e3 for column in zip(*times))
    excess = together / (alone_matmul + alone_attend) - 1
    print(
        f"{name:<34} matmul {alone_matmul:8.3f} ms   attention {alone_attend:8.3f} ms   "
        f"alternating {together:8.3f} ms   {excess:+7.1%}"
    )
    return excess


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passive", action="store_true", help="OMP_WAIT_POLICY=passive")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    quire.set_num_threads(options.threads)
    wait = os.environ.get("OMP_WAIT_POLICY", "not set")
    print(f"torch {torch.__version__}, {options.threads} threads each, OMP_WAIT_POLICY {wait}")
    worst = 0.0
    with torch.inference_mode():
        for length, width, calls in ((2048, 2048, 2), (512, 1024, 10), (128, 512, 100)):
            x, w = torch.randn(length, width), torch.randn(width, width)
            q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
            mask = quire_torch.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, length, length)
            name = f"{length} tokens, width {width}"
            attend = lambda q=q, k=k, v=v, m=mask: quire_torch.flex_attention(q, k, v, block_mask=m)  # noqa: E731
            worst = max(worst, compare(name, lambda x=x, w=w: x @ w, attend, options.rounds, calls))
    print(f"worst: {worst:+.1%}; 10 % is the aim")


if __name__ == "__main__":
    main()
