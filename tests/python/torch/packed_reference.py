"""Attention of packed sequences, one after the other with torch's own SDPA, in f64: what varlen_attn and flash_attn's functions are
compared with."""

import torch
import torch.nn.functional as F


def offsets(lengths, dtype=torch.int32):
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()], dtype=dtype)


def window_mask(q_len, k_len, window):
    """Bools [q_len, k_len]; the window is counted from the bottom right corner."""
    place = torch.arange(q_len)[:, None] + k_len - q_len
    key = torch.arange(k_len)[None]
    left, right = window
    visible = torch.ones(q_len, k_len, dtype=torch.bool)
    if left >= 0:
        visible &= key >= place - left
    if right >= 0:
        visible &= key <= place + right
    return visible


def one_sequence(q, k, v, window=(-1, -1), scale=None, bias=None, visible=None):
    """q [n, Hq, E], k and v [m, Hkv, .]: [n, Hq, Ev] in f64. A row that sees nothing is 0. bias, visible: added, and-ed: [Hq or 1, n, m]."""
    if k.shape[0] == 0:
        return q.new_zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64) + 0 * q.double().sum()
    mask = window_mask(q.shape[0], k.shape[0], window)[None]
    if visible is not None:
        mask = mask & visible
    mask = mask.expand(q.shape[1], -1, -1)
    is_empty = ~mask.any(-1)
    added = torch.zeros(mask.shape, dtype=torch.float64)
    if bias is not None:
        added = added + bias
    added = added.masked_fill(~mask & ~is_empty[..., None], -torch.inf)
    out = F.scaled_dot_product_attention(
        *(one.double().transpose(0, 1)[None] for one in (q, k, v)), attn_mask=added[None], scale=scale, enable_gqa=True
    )[0]
    return out.masked_fill(is_empty[..., None], 0).transpose(0, 1)


def packed(q, k, v, q_lengths, k_lengths, **options):
    """options: as of one_sequence, but bias and visible are functions of (number of the sequence, q_len, k_len)."""
    outs = []
    functions = {name: options.pop(name) for name in ("bias", "visible") if name in options}
    for i, (one_q, one_k, one_v) in enumerate(zip(q.split(q_lengths), k.split(k_lengths), v.split(k_lengths))):
        more = {name: function(i, q_lengths[i], k_lengths[i]) for name, function in functions.items()}
        outs.append(one_sequence(one_q, one_k, one_v, **options, **more))
    return torch.cat(outs)


def assert_near(result, exact, dtype=torch.float32):
    """Within a few roundings of the dtype, relative to the largest value."""
    assert result.shape == exact.shape
    allowed = {torch.float64: 1e-12, torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    error = (result.double() - exact).abs().max().item() if result.numel() else 0.0
    assert error <= allowed * max(1.0, exact.abs().max().item() if exact.numel() else 0.0), error
