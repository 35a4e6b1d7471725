"""Attention written out in torch operations, which autograd differentiates: what gradients are compared with."""

import torch


class _Weighted(torch.autograd.Function):
    """Softmax and values, with the gradient that a fused backward pass computes: weights again from lse, and the sum of
    out * d_out in the place of a sum over keys. What that costs in precision, the naive computation has too."""

    @staticmethod
    def forward(ctx, scores, value):
        lse = torch.logsumexp(scores, -1)
        out = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0).unsqueeze(-1)) @ value
        ctx.save_for_backward(scores, value, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        scores, value, out, lse = ctx.saved_tensors
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0).unsqueeze(-1))
        delta = (out * d_out).sum(-1) - d_lse
        d_scores = weights * (d_out @ value.transpose(-1, -2) - delta.unsqueeze(-1))
        return d_scores.masked_fill(scores == -torch.inf, 0), weights.transpose(-1, -2) @ d_out


def naive(query, key, value, score_mod=None, mask_mod=None, scale=None):
    """(out, lse), computed in the dtype of the inputs. A row with nothing to see gives 0 and -inf."""
    batch, q_heads, _, dim = query.shape
    group = q_heads // key.shape[1]
    key, value = (t.expand(batch, -1, -1, -1).repeat_interleave(group, 1) for t in (key, value))
    scores = query @ key.transpose(-1, -2) * (dim**-0.5 if scale is None else scale)
    b, h, i, j = (
        torch.arange(n).view([-1 if a == axis else 1 for a in range(4)]) for axis, n in enumerate(scores.shape)
    )
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(b, h, i, j), -torch.inf)
    return _Weighted.apply(scores, value)


def gradients(attention, tensors, d_out, d_lse=None):
    """Of sum(out * d_out) + sum(lse * d_lse) with respect to `tensors`."""
    out, lse = attention()
    outputs = [(out, d_out)] + ([] if d_lse is None else [(lse, d_lse)])
    values, directions = zip(*[(value, d.to(value.dtype)) for value, d in outputs])
    return torch.autograd.grad(values, tensors, directions, allow_unused=True, materialize_grads=True)


def assert_close_enough(results, exact, naives, rows):
    """Error against f64 at most twice that of the naive computation in the same precision, whose matrix products sum in
    blocks, and what rounding `rows` terms one after the other adds, on the whole."""
    for n, (result, truth, other) in enumerate(zip(results, exact, naives, strict=True)):
        assert result.shape == truth.shape
        assert not result.isnan().any()
        error, allowed = ((one.double() - truth).abs().max().item() for one in (result, other))
        unit = torch.finfo(torch.float32 if result.dtype.itemsize < 4 else result.dtype).eps * rows**0.5
        unit = max(unit, torch.finfo(result.dtype).eps)
        allowed = 2 * allowed + unit * truth.abs().max().item()
        assert error <= allowed, f"tensor {n}: error {error:.3g}, allowed {allowed:.3g}"
