"""Hugging Face's own attn_implementation="flex_attention", which compiles torch's flex_attention, trained under enable()."""

import pytest
import quire.torch
import torch
from small_models import DECODERS, VOCABULARY
from transformers import AutoModelForCausalLM

STEPS = 10


def train(implementation):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(DECODERS["llama"](), attn_implementation=implementation)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(STEPS):
        tokens = torch.randint(3, VOCABULARY, (2, 40), generator=generator)
        padding = torch.ones_like(tokens)
        padding[1, : 2 + step] = 0  # another mask at every step, and nobody keeps it
        labels = tokens.clone()
        labels[1, : 3 + step] = -100  # what padding says about the first token differs: it sees nothing
        loss = model(tokens, attention_mask=padding, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_ten_steps():
    torch._dynamo.reset()
    with quire.torch.enable():
        found = train("flex_attention")
    assert found == pytest.approx(train("eager"), rel=1e-4)
