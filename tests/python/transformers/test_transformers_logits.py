"""Logits of small models: the error against an f64 run is at most twice that of `eager` in the same precision."""

import copy

import pytest
import torch
from small_models import DECODERS, ENCODERS, logits, model, padding, tokens

MODELS = [*DECODERS, *ENCODERS]
LENGTHS = (14, 21, 23)


def errors(name, dtype, ids, mask):
    """Of eager and of quire against f64, at the places of tokens: [(root of the mean square, largest)]."""
    exact = logits(copy.deepcopy(model(name)).double(), "reference", ids, mask)
    made = model(name) if dtype is torch.float32 else copy.deepcopy(model(name)).to(dtype)
    seen = torch.ones_like(ids).bool() if mask is None else mask.bool()
    found = []
    for implementation in ("eager", "quire"):
        error = (logits(made, implementation, ids, mask).double() - exact)[seen]
        found.append((error.pow(2).mean().sqrt().item(), error.abs().max().item()))
    return found


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_f32_is_as_exact_as_eager(name, side):
    mask = None if side == "none" else padding(LENGTHS, 23, side)
    eager, quire = errors(name, torch.float32, tokens(3, 23), mask)
    assert quire[0] <= 2 * eager[0] and quire[1] <= 2 * eager[1]


@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_as_exact_as_eager(name):
    eager, quire = errors(name, torch.bfloat16, tokens(3, 23), padding(LENGTHS, 23, "left"))
    assert quire[0] <= 2 * eager[0] and quire[1] <= 2 * eager[1]


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "llama4", "modernbert"])
def test_more_than_one_block_of_a_mask(name):
    eager, quire = errors(name, torch.float32, tokens(2, 299), padding((299, 140), 299, "left"))
    assert quire[0] <= 2 * eager[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_mask_would_show(name):
    """The other tests can fail: what the padding hides matters far more than their tolerance."""
    ids, mask = tokens(3, 23), padding(LENGTHS, 23, "left")
    difference = logits(model(name), "eager", ids, mask) - logits(model(name), "eager", ids, torch.ones_like(mask))
    assert difference[0, -1].abs().max() > 1e-2 or name == "mistral"  # whose window ends before the padding


def test_packed_sequences():
    """Several sequences in a row, told apart by their positions."""
    ids, positions = tokens(2, 23), (torch.arange(23) % 9).repeat(2, 1)
    for name in ("llama", "gemma3"):
        results = [logits(model(name), how, ids, position_ids=positions, use_cache=False) for how in ("eager", "quire")]
        torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
        alone = logits(model(name), "quire", ids[:, 9:18])
        torch.testing.assert_close(results[1][:, 9:18], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["bool", "float"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_mask_of_four_axes_made_by_the_user(name, form):
    visible = (torch.rand(3, 1, 23, 23) < 0.5) | torch.eye(23, dtype=torch.bool)
    added = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    ids = tokens(3, 23)
    expected = logits(model(name), "eager", ids, added)
    got = logits(model(name), "quire", ids, visible if form == "bool" else added)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_autocast():
    ids, mask = tokens(3, 23), padding(LENGTHS, 23, "left")
    exact = logits(model("qwen3"), "eager", ids, mask)
    with torch.autocast("cpu", torch.bfloat16):
        eager, quire = (logits(model("qwen3"), how, ids, mask) for how in ("eager", "quire"))
    seen = mask.bool()
    assert (quire - exact)[seen].abs().mean() <= 2 * (eager - exact)[seen].abs().mean()


@pytest.mark.slow
def test_torch_compile():
    ids, mask = tokens(3, 23), padding(LENGTHS, 23, "left")
    made = model("llama")
    expected = logits(made, "eager", ids, mask)
    made.set_attn_implementation("quire")
    with torch.no_grad():
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        got = compiled(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)
