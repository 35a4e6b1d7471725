"""Section: gradients, compared with the chain rule written out in NumPy and f64, with finite differences of attention
in f64, and with other numbers of threads.
"""

import mod_spellings
import numpy as np
import quire
from arrays import bits, random_arrays, short_hash
from attention_f64 import attention_f64
from layouts import causal_numpy
from markup import Raw, paragraph, table, tick
from section import Section

HEADS, DIM, STEP = mod_spellings.HEADS, 64, 1e-4
TOLERANCE = 2e-5  # of f32 gradients, relative to the largest
NAMES = ("query", "key", "value", "decay")


def forward(q, k, v, decay):
    """Attention in f64 with a mod that reads decay [heads], causal."""

    def fading(score, b, h, q_idx, kv_idx):
        return 20.0 * np.tanh((score - decay[h] * np.log1p(abs(q_idx - kv_idx))) / 20.0)

    return attention_f64(q, k, v, fading, causal_numpy)


def by_chain_rule(q, k, v, decay, d_out):
    """The gradients of sum(out * d_out), by hand: the definition of the expected result."""
    q, k, v, decay, d_out = (one.astype(np.float64) for one in (q, k, v, decay, d_out))
    i, j = np.ogrid[: q.shape[2], : k.shape[2]]
    far = np.log1p(abs(i - j))
    squeezed = np.tanh((q @ k.swapaxes(2, 3) / np.sqrt(DIM) - decay[:, None, None] * far) / 20.0)
    weights = np.where(i >= j, np.exp(20.0 * squeezed), 0.0)
    weights /= weights.sum(-1, keepdims=True)
    d_weights = d_out @ v.swapaxes(2, 3)
    d_score = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True)) * (1.0 - squeezed**2)
    d_q, d_k = d_score @ k / np.sqrt(DIM), d_score.swapaxes(2, 3) @ q / np.sqrt(DIM)
    return d_q, d_k, weights.swapaxes(2, 3) @ d_out, -(d_score * far).sum((0, 2, 3))


def by_differences(inputs, d_out, directions):
    """How fast sum(out * d_out) grows along a direction of each input, by central differences in f64."""
    inputs = [one.astype(np.float64) for one in inputs]
    found = []
    for i, direction in enumerate(directions):
        moved = [forward(*inputs[:i], inputs[i] + sign * STEP * direction, *inputs[i + 1 :]) for sign in (1, -1)]
        found.append(float(((moved[0] - moved[1]) * d_out).sum() / (2 * STEP)))
    return found


def with_quire(q, k, v, decay, d_out, threads):
    before = quire.get_num_threads()
    quire.set_num_threads(threads)
    try:
        mask = quire.create_block_mask("q_idx >= kv_idx", None, None, q.shape[2], k.shape[2])
        _, vjp = quire.flex_attention_vjp(q, k, v, quire.ScoreMod(mod_spellings.TEXT, {"decay": decay}), mask)
        found = vjp(d_out)
    finally:
        quire.set_num_threads(before)
    return found.query, found.key, found.value, found.buffers["decay"]


def gradients(context):
    length = 48 if context.quick else 333
    q, k, v, d_out = random_arrays([(1, HEADS, length, DIM)] * 4, "f32", seed=2)
    inputs = (q, k, v, mod_spellings.RATES)
    found = {threads: with_quire(*inputs, d_out, threads) for threads in (1, 2, 3)}
    exact = by_chain_rule(*inputs, d_out)
    random = np.random.default_rng(3)
    directions = [random.standard_normal(one.shape) for one in inputs]
    slopes = by_differences(inputs, d_out, directions)
    rows, lines, good = [], [], True
    for i, name in enumerate(NAMES):
        ours, ways = found[1][i].astype(np.float64), [bits(one[i]) for one in found.values()]
        error = float(abs(ours - exact[i]).max() / abs(exact[i]).max())
        slope = float((ours * directions[i]).sum())
        is_equal = len(set(ways)) == 1
        is_right = error < TOLERANCE and abs(slope - slopes[i]) < 1e-3 * max(1.0, abs(slopes[i]))
        good &= is_right and is_equal
        hashed = Raw(f'<span class="hash">{short_hash(ways[0])}</span>')
        rows.append((name, f"{error:.1e}", f"{slope:.6g}", f"{slopes[i]:.6g}", tick(is_right), hashed, tick(is_equal)))
        lines.append(
            f"{name:<6} error against f64 {error:.1e}; along a direction {slope:.6g}, by differences {slopes[i]:.6g}; "
            f"bits equal: {'yes' if is_equal else 'NO'}"
        )
    html = paragraph(
        f"{HEADS} heads, {length} tokens, f32, causal, with the mod from above and the gradient of its table. The error is "
        "the largest difference from the chain rule in f64, as a share of the largest number. Then one random direction for "
        "each: the gradient along it, and the same by finite differences of attention in f64. Bits: on 1, 2 and 3 threads."
    )
    head = ("gradient of", "error against f64", "along a direction", "by differences", "right", "hash", "bits equal")
    return Section(html + table(head, rows, numeric=(1, 2, 3)), lines, good)
