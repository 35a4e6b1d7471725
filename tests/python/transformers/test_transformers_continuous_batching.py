"""generate_batch with Quire: the tokens of one request after the other, pages of several sizes, chunks, windows, soft-caps and sinks."""

import pytest
import torch
from quire.transformers import continuous_batching
from small_models import model, tokens
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

PROMPTS = (5, 40, 1, 77)
NEW = 10


def one_by_one(made, prompts):
    made.set_attn_implementation("eager")
    settings = dict(max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return [made.generate(torch.tensor([one]), **settings)[0, len(one) :].tolist() for one in prompts]


def batched(made, prompts, **settings):
    made.set_attn_implementation("quire")
    given = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = ContinuousBatchingConfig(**(dict(num_blocks=128, max_batch_tokens=256, page_size=16) | settings))
    found = made.generate_batch(prompts, generation_config=given, continuous_batching_config=config)
    return [found[key].generated_tokens for key in sorted(found, key=lambda key: int(key.rpartition("_")[2]))]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"max_blocks_per_request": 0, "max_batch_tokens": 32}, {"page_size": 4, "max_batch_tokens": 32}],
    ids=["tables", "indices in chunks", "small pages"],
)
def test_tokens_of_one_request_after_the_other(name, settings):
    torch.manual_seed(3)
    prompts = [tokens(1, n)[0].tolist() for n in PROMPTS]
    assert batched(model(name), prompts, **settings) == one_by_one(model(name), prompts)


def test_no_keys_are_gathered_and_no_mask_is_made(monkeypatch):
    made = model("llama")
    prompts = [tokens(1, n)[0].tolist() for n in PROMPTS]
    expected = one_by_one(made, prompts)
    steps = []
    batched_attention = continuous_batching._keys_of

    def watched(allocator, layer, step, given, key, value):
        keys, values = batched_attention(allocator, layer, step, given, key, value)
        if step.sequences.block_table is not None:
            assert keys.untyped_storage().data_ptr() == allocator.cache_tensor.untyped_storage().data_ptr()
            steps.append(layer)
        return keys, values

    monkeypatch.setattr(continuous_batching, "_keys_of", watched)
    monkeypatch.setattr(torch, "index_select", lambda *_: pytest.fail("gathered"))
    for settings in ({}, {"max_blocks_per_request": 0}):
        assert batched(made, prompts, **settings) == expected
    assert len(steps) > 2 * NEW


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_step_is_planned_once_for_all_layers_of_a_kind(monkeypatch, name):
    made = model(name)
    prompts = [tokens(1, n)[0].tolist() for n in PROMPTS]
    plans, runs = [], []

    class Watched(continuous_batching.StepPlan):
        def __init__(self, *given):
            plans.append(self)
            super().__init__(*given)

        def run(self, *given):
            runs.append(self)
            super().run(*given)

    monkeypatch.setattr(continuous_batching, "StepPlan", Watched)
    assert batched(made, prompts) == one_by_one(made, prompts)
    kinds = len(set(getattr(made.config, "layer_types", None) or [0]))
    assert len(plans) * made.config.num_hidden_layers == len(runs) * kinds and len(plans) >= NEW - 1


def test_requests_with_the_same_beginning_share_pages():
    made = model("llama")
    begin = tokens(1, 48)[0].tolist()
    prompts = [begin + tokens(1, n)[0].tolist() for n in (3, 20, 1)] + [begin[:40]]
    assert batched(made, prompts, max_batch_tokens=64) == one_by_one(made, prompts)


def test_other_implementations_are_left_alone():
    made = model("llama")
    prompts = [tokens(1, n)[0].tolist() for n in PROMPTS]
    expected = one_by_one(made, prompts)
    made.set_attn_implementation("sdpa")
    given = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = ContinuousBatchingConfig(num_blocks=128, max_batch_tokens=256, page_size=16)
    found = made.generate_batch(prompts, generation_config=given, continuous_batching_config=config)
    assert sorted(one.generated_tokens for one in found.values()) == sorted(expected)
    made.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="flex_attention is not supported for continuous batching"):
        made.generate_batch(prompts, generation_config=given, continuous_batching_config=config)
