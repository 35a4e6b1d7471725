"""The definition of attention in NumPy and f64. It shares nothing with Quire; the errors of the report are against it."""

import numpy as np


def attention_f64(q, k, v, score_mod=None, mask_mod=None):
    """[B, Hq, L, E], [B, Hkv, S, E], [B, Hkv, S, Ev] -> [B, Hq, L, Ev]. Mods are functions over arrays of indices."""
    q, k, v = (np.asarray(one).astype(np.float64) for one in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(one, group, axis=1) for one in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    at = np.ogrid[tuple(slice(n) for n in scores.shape)]
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if mask_mod is not None:
        scores = np.where(mask_mod(*at), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def max_error(got, exact):
    return float(np.abs(np.asarray(got).astype(np.float64) - exact).max())
