"""Models with latent keys and models that choose keys, small and random: logits and a step of training are those of eager, with
the model's own mask and with a caller's."""

import pytest
import torch
from architecture_sweep import made
from tiny_configs import VOCABULARY
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

NAMES = ["deepseek_v3", "deepseek_v32", "glm_moe_dsa", "hy_v4"]
LENGTH = 29


def pair(name):
    kind = CONFIG_MAPPING[name]
    eager = made(AutoModelForCausalLM, kind, "eager")
    return eager, made(AutoModelForCausalLM, kind, "quire", eager.state_dict())


def difference(expected, got):
    return ((expected - got).abs().max() / expected.abs().max()).item()


def own_mask(batch, dtype):
    """Causal, and of the first row without key 3: [batch, 1, LENGTH, LENGTH], bools or floats that are added."""
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().repeat(batch, 1, 1, 1)
    visible[0, :, 4:, 3] = False
    if dtype is torch.bool:
        return visible
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", ["the model's", torch.bool, torch.float32])
def test_logits_are_those_of_eager(name, mask):
    eager, quire = pair(name)
    ids = torch.randint(3, VOCABULARY, (2, LENGTH))
    given = {} if isinstance(mask, str) else {"attention_mask": own_mask(2, mask)}
    eager_given = {} if isinstance(mask, str) else {"attention_mask": own_mask(2, torch.float32)}
    with torch.no_grad():
        assert difference(eager(ids, **eager_given).logits, quire(ids, **given).logits) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_training_is_that_of_eager(name):
    models = pair(name)
    ids = torch.randint(3, VOCABULARY, (2, LENGTH))
    for model in models:
        model.train()
        model(ids, labels=ids).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    eager, quire = ({name: p.grad for name, p in model.named_parameters() if p.grad is not None} for model in models)
    assert eager.keys() == quire.keys()
    largest = max(one.abs().max().item() for one in eager.values())
    for parameter in eager:
        bound = 1e-4 * eager[parameter].abs().max().item() + 1e-6 * largest
        assert (eager[parameter] - quire[parameter]).abs().max().item() <= bound, parameter
    with torch.no_grad():
        assert difference(models[0](ids).logits, models[1](ids).logits) < 1e-4


def test_a_keyword_that_is_not_understood_is_refused_by_name():
    _, quire = pair("deepseek_v3")
    layer = next(
        m for m in quire.modules() if hasattr(m, "attention_dropout") or type(m).__name__.endswith("Attention")
    )
    from quire.transformers import quire_attention

    x = torch.randn(1, 2, 5, 8)
    for mask in (None, torch.ones(1, 1, 5, 5, dtype=torch.bool)):
        with pytest.raises(NotImplementedError, match="passes sparse_pattern to its attention"):
            quire_attention(layer, x, x, x, mask, sparse_pattern=torch.zeros(3))
