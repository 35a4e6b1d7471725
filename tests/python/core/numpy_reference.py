"""Attention and mods in plain NumPy: what the results of the package are compared with.

A mod is a function of index arrays here, so that the lambdas of the tests serve both sides where they use operators only.
"""

import ml_dtypes
import numpy as np


def grids(batch, heads, q_len, kv_len, q_begin=0):
    """b, h, q_idx, kv_idx, each [batch, heads, q_len, kv_len] by broadcasting."""
    b, h, q, kv = np.ogrid[:batch, :heads, q_begin : q_begin + q_len, :kv_len]
    return b, h, q, kv


def attention(q, k, v, score_mod=None, mask_mod=None, scale=None, dtype=np.float64, store=None):
    """(out, lse, max_scores, the largest |score|), computed in `dtype`; scores and weights are rounded to `store` on the
    way. A row that sees nothing gives 0, -inf, -inf."""
    q, k, v = (np.asarray(one).astype(dtype) for one in (q, k, v))
    rounded = (lambda x: x) if store is None else (lambda x: x.astype(store).astype(dtype))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.broadcast_to(one, (q.shape[0], *one.shape[1:])), group, axis=1) for one in (k, v))
    scale = dtype(1 / np.sqrt(q.shape[3])) if scale is None else dtype(scale)
    scores = rounded(np.einsum("bhqe,bhke->bhqk", q, k) * scale)
    at = grids(*scores.shape)
    if score_mod is not None:
        scores = rounded(np.broadcast_to(score_mod(scores, *at), scores.shape).astype(dtype))
    if mask_mod is not None:
        scores = np.where(np.broadcast_to(mask_mod(*at), scores.shape), scores, -np.inf)
    most = scores.max(-1, initial=-np.inf)
    shift = np.where(np.isfinite(most), most, 0)
    weights = rounded(np.exp(scores - shift[..., None]))
    total = weights.sum(-1)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + shift
    out = np.einsum("bhqk,bhke->bhqe", weights, v) / np.where(total == 0, 1, total)[..., None]
    largest = np.abs(scores, where=np.isfinite(scores), out=np.zeros_like(scores)).max(initial=0)
    return out.astype(dtype), lse, most, largest


def assert_as_good_as_naive(got, q, k, v, **options):
    """The error against f64 is at most twice that of the plain computation in the precision of the call; or, where that is
    small by luck (of one key it has no error at all), twice what rounding scores, weights and result once can do."""
    dtypes = {np.asarray(one).dtype for one in (q, k, v)}
    compute = np.float64 if np.dtype(np.float64) in dtypes else np.float32
    store = dtypes.copy().pop() if len(dtypes) == 1 else None
    exact, _, _, largest_score = attention(q, k, v, **options)
    naive = attention(q, k, v, dtype=compute, store=store, **options)[0].astype(got.dtype).astype(np.float64)
    rounded = exact.astype(got.dtype).astype(np.float64)
    # Of f64 the "exact" result is one of the same precision, whose own error grows with the sums.
    eps = np.finfo(compute).eps * (32 if compute is np.float64 else 1)
    weight_eps = max(eps, float(ml_dtypes.finfo(store or compute).eps) / 2)
    of_parts = (eps * largest_score + weight_eps) * abs(np.asarray(v).astype(np.float64)).max(initial=0)
    allowed = 2 * max(abs(naive - exact).max(initial=0), abs(rounded - exact).max(initial=0) + of_parts)
    assert got.shape == exact.shape
    assert abs(got.astype(np.float64) - exact).max(initial=0) <= allowed
