"""Torch's own flex_attention as the peer, and the tolerance: at most twice the peer's error against f64."""

import torch
import torch.nn.attention.flex_attention as torch_flex

# The same computation without wrapping every call into torch.compile(backend="eager").
torch_flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def exact_and_peer(query, key, value, score_mod=None, mask=None, **arguments):
    """Torch's (out, lse) in f64 and in the precision of the inputs."""
    call = torch_flex.flex_attention
    doubles = (query.double(), key.double(), value.double())
    exact = call(*doubles, score_mod, mask, return_lse=True, **arguments)
    return exact, call(query, key, value, score_mod, mask, return_lse=True, **arguments)


def largest_error(result, exact):
    """Of finite elements, absolute. Where the exact value is not finite, the result must be the same."""
    finite = exact.isfinite()
    assert torch.equal(result.double()[~finite], exact[~finite])
    return (result.double() - exact)[finite].abs().max().item() if finite.any() else 0.0


def root_mean_square(result, exact):
    """Of the errors of finite elements."""
    finite = exact.isfinite()
    return (result.double() - exact)[finite].square().mean().sqrt().item() if finite.any() else 0.0


def assert_as_exact_as_torch(result, exact, peer, terms, largest_score=0.0):
    """At most twice the peer's error. Where the peer happens to be exact: a rounding of the largest term. In f64 it always is,
    being the reference, whose own roundings differ from CPU to CPU: some such roundings, and those of scores, which a weight
    has as relative errors."""
    assert result.shape == exact.shape
    assert result.dtype == peer.dtype
    finite = terms[terms.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    unit = torch.finfo(result.dtype).eps * largest / 2 * (8 + largest_score if result.dtype == torch.float64 else 1)
    error, allowed = largest_error(result, exact), 2 * max(largest_error(peer, exact), unit)
    # The largest of a few thousand errors is a matter of luck, theirs and ours; all of them together are not.
    if root_mean_square(result, exact) <= 1.25 * root_mean_square(peer, exact):
        allowed *= 1.5
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


def check(quire_result, query, key, value, score_mod=None, mask=None, **arguments):
    """Compares (out, lse) with torch's."""
    (exact, exact_lse), (peer, peer_lse) = exact_and_peer(query, key, value, score_mod, mask, **arguments)
    finite = exact_lse[exact_lse.isfinite()]  # lse is no less than the largest score of its row
    assert_as_exact_as_torch(quire_result[0], exact, peer, value, finite.abs().max().item() if finite.numel() else 0.0)
    assert_as_exact_as_torch(quire_result[1], exact_lse, peer_lse, exact_lse)


def tensors(batch=2, q_heads=4, kv_heads=4, q_len=113, kv_len=203, dim=32, v_dim=48, dtype=torch.float32):
    query = torch.randn(batch, q_heads, q_len, dim)
    key = torch.randn(batch, kv_heads, kv_len, dim)
    value = torch.randn(batch, kv_heads, kv_len, v_dim)
    return query.to(dtype), key.to(dtype), value.to(dtype)
