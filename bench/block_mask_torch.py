"""create_block_mask of Quire and of torch on the same masks, one after the other, several times: medians and ratios.

build/release/bench/block_mask must exist, and this Python needs torch (2.13.0 was compared):
python bench/block_mask_torch.py [longest number of tokens, default 8192]
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention.flex_attention import create_block_mask

PROGRAM = Path(__file__).resolve().parent.parent / "build/release/bench/block_mask"


def quire_seconds(tokens):
    out = subprocess.run(
        [PROGRAM, f"--benchmark_filter=^causal/{tokens}/", "--benchmark_format=json"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (run,) = json.loads(out)["benchmarks"]
    return run["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[run["time_unit"]]


def torch_seconds(tokens):
    start = time.perf_counter()
    create_block_mask(lambda b, h, q, kv: q >= kv, None, None, tokens, tokens, device="cpu")
    return time.perf_counter() - start


def main():
    longest = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; causal, blocks of 128")
    for tokens in (2048, 32768):
        if tokens > longest:
            continue
        torch_seconds(min(tokens, 2048))  # warm
        pairs = [(torch_seconds(tokens), quire_seconds(tokens)) for _ in range(5 if tokens < 10000 else 3)]
        theirs, ours = (statistics.median(column) for column in zip(*pairs))
        print(
            f"{tokens:>7} tokens: torch {theirs * 1e3:10.2f} ms   quire {ours * 1e3:8.3f} ms   ratio {theirs / ours:10.0f}"
        )


if __name__ == "__main__":
    main()
