"""Errors against f64 are no larger than torch's, rows of one key are exact, and bench/accuracy.py measures what it says."""

import math
import sys
from pathlib import Path

import pytest
import torch
from quire.torch import create_block_mask, flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
import accuracy  # noqa: E402


@pytest.mark.parametrize("kind", ["full", "causal", "window", "soft-cap", "GQA"])
def test_the_reference_is_what_autograd_gives(kind):
    row = accuracy.Row(70, 8, kind=kind)
    inputs = [t[:, :4].double() if t.shape[1] > 8 else t.double() for t in accuracy.tensors(row, 0)]
    q, k, v, d_out = inputs
    group = q.shape[1] // k.shape[1]

    def naive(q, k, v):
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(-1, -2) * row.factor
        if kind == "soft-cap":
            scores = accuracy.CAP * torch.tanh(scores / accuracy.CAP)
        seen = accuracy.visible(row, 0, 70)
        if seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        return torch.softmax(scores, -1) @ v

    want = accuracy.by_autograd(naive, (q, k, v), d_out)
    for a, b in zip(accuracy.reference(row, q, k, v, d_out), want):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_tables_and_limits():
    def result(length, rms, largest):
        part = {"rms": rms, "rms_worst": rms, "largest": largest, "largest_worst": largest}
        row = accuracy.Row(length, 64)
        return {"row": row.name, "dtype": "f32", "length": length, "flash": dict.fromkeys(accuracy.PARTS, part)}

    results = [result(128, 0.5, 1.2), result(512, 1.01, 0.5), result(2048, 0.9, 1.3), result(16, 2.0, 2.0)]
    assert [f.split()[1] for f in accuracy.failures(results)] == ["S=512"] * 4 + ["S=2,048"] * 4
    assert accuracy.markdown(results).split("\n")[2].startswith("| full S=128 D=64 | 0.50 (1.20) | 0.50 (1.20) |")
    assert "0.50 (0.50) / 1.20 (1.20)" in accuracy.line(results[0])
    assert accuracy.geometric_mean([0.5, 2.0]) == pytest.approx(1)
    ours, theirs = dict.fromkeys(accuracy.PARTS, (0.0, 1.0)), dict.fromkeys(accuracy.PARTS, (0.0, 2.0))
    assert accuracy.ratios(ours, theirs)["out"] == (1.0, 0.5)


@pytest.mark.parametrize("kind", ["full", "causal"])
def test_errors_in_f32_are_of_the_size_of_sdpas(kind):
    """torch's errors are the machine's and its BLAS's: the limits themselves are for make check-all."""
    found = accuracy.run(accuracy.Row(512, 64, kind=kind), 3)["flash"]
    for part in accuracy.PARTS:
        assert found[part]["rms"] <= 1.25, (part, found[part])


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("kind", ["full", "causal"])
def test_errors_in_f32_are_below_those_of_sdpa(kind, dim):
    found = accuracy.run(accuracy.Row(512, dim, kind=kind), 3)
    assert not accuracy.failures([found]), accuracy.line(found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_errors_in_16_bits_are_below_those_of_sdpa(dtype):
    found = accuracy.run(accuracy.Row(256, 64, dtype), 3)["flash"]
    for part in accuracy.PARTS:
        assert found[part]["rms"] <= 1.005 and found[part]["largest"] <= 1.25, (part, found[part])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 300.0])
@pytest.mark.parametrize("dim", [64, 80])
def test_a_row_of_one_key_is_that_value(dtype, size, dim):
    """Scores of any size: the weight is 1, so nothing is rounded, and the gradients of q and k are 0."""
    q = (torch.randn(1, 2, 40, dim) * size).to(dtype).requires_grad_()
    k, v = (torch.randn(1, 2, 40, dim).to(dtype).requires_grad_() for _ in range(2))
    d_out = torch.randn(1, 2, 40, dim).to(dtype)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx == kv_idx, None, None, 40, 40, device="cpu")
    for length in (40, 1):  # prefill, decode
        parts = [t[:, :, :length] for t in (q, k, v)]
        out = flex_attention(*parts, block_mask=mask if length == 40 else None, scale=0.3)
        assert torch.equal(out, parts[2])
        dq, dk, dv = torch.autograd.grad(out, parts, d_out[:, :, :length])
        assert not dq.any() and not dk.any()
        assert torch.equal(dv, d_out[:, :, :length])


def test_weights_of_huge_scores_in_the_backward_pass():
    """Scores near 1e6: lse is rounded to 1 / 16 there, and P knows it to no more; errors are of the size of torch's."""
    q, k, v, d_out = (torch.randn(1, 2, 96, 64) for _ in range(4))
    q, k = (q * 64).round() * 32, (k * 8).round() / 2  # products of these are exact
    row = accuracy.Row(96, 64, scale=8 * 4)  # scale 4
    want = accuracy.reference(row, q, k, v, d_out)
    assert (q @ k.transpose(-1, -2) * row.factor).abs().max() > 2e5
    ours = accuracy.errors(accuracy.by_quire(row, q, k, v, d_out), want)
    theirs = accuracy.errors(accuracy.by_flash(row, q, k, v, d_out), want)
    for part in accuracy.PARTS:
        assert ours[part][0] <= 1.5 * theirs[part][0] + 1e-7, (part, ours, theirs)


@pytest.mark.parametrize(("scale", "size"), [(1e-42, 1.0), (2e38, 1e-19)])
def test_scales_that_would_not_survive_a_product_with_log2(scale, size):
    """With a mask too: -inf times a factor of 0 would be NaN, and a difference of 0 times one of inf."""
    q, k, v = (torch.randn(1, 2, 40, 16) * x for x in (size, size, 1))
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 40, 40, device="cpu")
    scores = q.double() @ k.double().transpose(-1, -2) * scale
    want = torch.softmax(scores.masked_fill(~torch.ones(40, 40).tril().bool(), -math.inf), -1) @ v.double()
    torch.testing.assert_close(
        flex_attention(q, k, v, block_mask=mask, scale=scale).double(), want, rtol=1e-4, atol=1e-5
    )
