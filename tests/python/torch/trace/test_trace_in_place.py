"""x += y inside a mod: values of the mod may be changed in place, captured tensors and views may not."""

import pytest
import torch
from quire.torch import TraceError, create_block_mask, flex_attention
from quire.torch.trace import trace_score_mod
from traced_values import by_elements, by_quire, scores_of

SIZES = (2, 3, 5, 7)
TABLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def augmented(score, b, h, q_idx, kv_idx):
    score += TABLE[h, 1]
    score *= 0.5
    score -= kv_idx
    score /= 3
    return score


def methods(score, b, h, q_idx, kv_idx):
    distance = q_idx - kv_idx
    before = distance * 1
    distance.abs_().clamp_(max=3)
    bias = distance * 0.25
    distance += 100  # bias was made before
    return score.tanh_() - bias + before


def integers(score, b, h, q_idx, kv_idx):
    q_idx = q_idx + 9
    q_idx //= 2
    q_idx %= 3
    q_idx <<= 1
    return score + q_idx


def an_argument(score, b, h, q_idx, kv_idx):
    q_idx += 1
    return score * q_idx


def a_row(score, b, h, q_idx, kv_idx):
    row = TABLE[h] * 2
    row += score
    return row.sum()


def filled(score, b, h, q_idx, kv_idx):
    return score.masked_fill_(q_idx < kv_idx, -1.0)


@pytest.mark.parametrize(
    "mod", [augmented, methods, integers, an_argument, a_row, filled], ids=lambda mod: mod.__name__
)
def test_values_are_those_of_torch(mod):
    scores = scores_of(SIZES)
    expected = by_elements(mod, SIZES, scores.clone()).float()
    torch.testing.assert_close(by_quire("score", mod, SIZES, scores), expected)


def rule(b, h, q_idx, kv_idx):
    seen = q_idx >= kv_idx
    seen &= q_idx - kv_idx < 9
    seen |= kv_idx == 0
    return seen


def test_a_rule():
    dense = create_block_mask(rule, None, None, 40, 40, BLOCK_SIZE=1).to_dense()[0, 0].bool()
    q_idx, kv_idx = torch.arange(40)[:, None], torch.arange(40)[None]
    assert torch.equal(dense, (q_idx >= kv_idx) & (q_idx - kv_idx < 9) | (kv_idx == 0))


def test_gradients_and_compiled_callers():
    bias = torch.randn(3, requires_grad=True)

    def mod(score, b, h, q_idx, kv_idx):
        score += bias[h] * kv_idx
        return score

    x = torch.randn(1, 3, 9, 8, requires_grad=True)
    plain = flex_attention(x, x, x, lambda s, b, h, q, kv: s + bias[h] * kv)
    expected = torch.autograd.grad(plain.square().sum(), (x, bias))
    torch.testing.assert_close(torch.autograd.grad(flex_attention(x, x, x, mod).square().sum(), (x, bias)), expected)
    with torch.no_grad():
        x, compiled = x.detach(), torch.compile(flex_attention, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, x, x, mod), plain)


def of_a_view(score, b, h, q_idx, kv_idx):
    row = TABLE[h]
    first = row[0]
    first += 1
    return score + row[0]


def of_what_is_viewed(score, b, h, q_idx, kv_idx):
    row = TABLE[h]
    first = row[0]
    row += 1
    return score + first


def of_an_alias(score, b, h, q_idx, kv_idx):
    other = score.view(())
    other += 1
    return score


def of_a_constant(score, b, h, q_idx, kv_idx):
    total = torch.zeros(())
    total += score
    return total


@pytest.mark.parametrize(
    "mod", [of_a_view, of_what_is_viewed, of_an_alias, of_a_constant], ids=lambda mod: mod.__name__
)
def test_what_somebody_else_looks_at_is_refused(mod):
    with pytest.raises(TraceError, match=r"the in-place operation aten.add_.Tensor cannot be traced; write x = x \+ y"):
        trace_score_mod(mod)


def test_what_torch_refuses_is_refused_by_torch():
    def halves(score, b, h, q_idx, kv_idx):
        q_idx += 0.5
        return score + q_idx

    def wider(score, b, h, q_idx, kv_idx):
        score += TABLE[h]
        return score.sum()

    for mod, text in ((halves, "result type Float can't be cast"), (wider, "doesn't match the broadcast shape")):
        with pytest.raises(RuntimeError, match=text):
            trace_score_mod(mod)
