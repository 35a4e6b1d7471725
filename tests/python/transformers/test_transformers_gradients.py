"""Gradients of the loss by every parameter are those of `eager`."""

import copy

import pytest
import torch
from small_models import model, padding, tokens


def gradients(made, implementation, ids, mask):
    made.set_attn_implementation(implementation)
    made.zero_grad()
    # Nor the first token behind padding on the left: a padded query, which sees nothing, would have to predict it.
    counts = mask * torch.nn.functional.pad(mask[:, :-1], (1, 0))
    made(ids, attention_mask=mask, labels=ids.masked_fill(counts == 0, -100)).loss.backward()
    return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert"])
def test_gradients_are_those_of_eager(name, side):
    ids, mask = tokens(3, 23), padding((14, 21, 23), 23, side)
    made = copy.deepcopy(model(name))
    eager, quire_ = (gradients(made, how, ids, mask) for how in ("eager", "quire"))
    assert eager.keys() == quire_.keys()
    largest = max(gradient.abs().max().item() for gradient in eager.values())
    for parameter in eager:  # a bias of keys has none but rounding: hence the second part
        bound = 1e-5 * eager[parameter].abs().max().item() + 1e-6 * largest
        assert (eager[parameter] - quire_[parameter]).abs().max().item() <= bound, parameter


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_training_with_dropout(name):
    """Steps of training lower the loss; attention drops weights."""
    made = copy.deepcopy(model(name)).train()
    for part in made.modules():
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.2
    made.set_attn_implementation("quire")
    optimiser = torch.optim.Adam(made.parameters(), lr=1e-2)
    ids, losses = tokens(3, 23), []
    for _ in range(12):
        loss = made(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in made.parameters() if p.grad is not None)
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
