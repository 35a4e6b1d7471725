"""quire.jax against jax.nn.dot_product_attention, both jitted, on the same arrays, in one process and in turn: forward, and forward
with gradients; and what each needs of memory.

    python bench/compare_jax.py [--length 2048] [--repetitions 9] [--filter causal]
"""

import argparse
import os
import subprocess
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import quire.jax  # noqa: E402
from comparison import Row, table  # noqa: E402

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}


def inputs(length, dtype, heads=8, dim=64):
    """q, k and v [B, H, L, E], and the same as jax.nn takes them."""
    ours = [jax.random.normal(key, (1, heads, length, dim), dtype) for key in jax.random.split(jax.random.key(0), 3)]
    return ours, [one.swapaxes(1, 2) for one in ours]


def calls(length, dtype, is_causal, has_gradient):
    """(theirs, ours)"""
    q, others = inputs(length, dtype)

    def own(q, k, v):
        return quire.jax.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def other(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)

    def with_gradient(call):
        return jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), (0, 1, 2))

    functions = [jax.jit(with_gradient(call) if has_gradient else call) for call in (other, own)]
    return [lambda f=f, x=x: jax.block_until_ready(f(*x)) for f, x in zip(functions, (others, q))]


def rows(length):
    for dtype in DTYPES:
        for is_causal in (False, True):
            for has_gradient in (False, True):
                what = "forward and gradients" if has_gradient else "forward"
                name = f"{'causal' if is_causal else 'full'} D=64 {dtype}, {what}"
                yield Row(
                    f"{length} tokens", name, *calls(length, DTYPES[dtype], is_causal, has_gradient), peer="jax.nn"
                )


def growth(length, side, has_gradient):
    """MiB by which a process grows at its largest in a first call of 8 heads, f32, causal."""
    code = (
        "import resource, sys\nsys.path.insert(0, sys.argv[1])\nfrom compare_jax import *\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        f"small, large = (calls(n, jnp.float32, True, {has_gradient})[{side}] for n in (128, {length}))\n"
        "small(); before = peak(); large(); print(peak() - before)\n"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    run = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--memory", action="store_true", help="measure memory instead, at 2,048 and 4,096 tokens")
    options = parser.parse_args()
    if options.memory:
        for length in (2048, 4096):
            for has_gradient in (False, True):
                theirs, ours = (growth(length, side, has_gradient) for side in (0, 1))
                what = "forward and gradients" if has_gradient else "forward"
                print(f"{length} tokens, {what}: jax.nn {theirs:.0f} MiB, quire.jax {ours:.0f} MiB")
        return
    results = []
    for row in rows(options.length):
        if options.filter in row.name:
            results.append(row.run(options.repetitions))
            print(f"{row.name}: {results[-1]['ratio']:.3g}x", file=sys.stderr, flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
