"""Greedy generation gives the tokens of `eager`: padded batches, every kind of cache, beams, encoder-decoders."""

import pytest
import quire.transformers.masks
import torch
from small_models import DECODERS, TOKENS, VOCABULARY, logits, model, padding, tokens
from transformers import AutoModelForSeq2SeqLM, BartConfig, CompileConfig, DynamicCache, T5Config


def generated(made, implementation, ids, mask, **options):
    made.set_attn_implementation(implementation)
    settings = dict(max_new_tokens=14, do_sample=False, pad_token_id=0) | options
    return made.generate(ids, attention_mask=mask, **settings)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_padded_batch(name, cache):
    ids, mask = tokens(3, 11), padding((11, 4, 9), 11, "left")
    options = dict(cache_implementation="static") if cache == "static" else {}
    eager, quire = (generated(model(name), how, ids, mask, **options) for how in ("eager", "quire"))
    assert quire.shape == (3, 25) and torch.equal(eager, quire)
    assert len({tuple(row) for row in quire[:, 11:].tolist()}) == 3  # not one answer to everything


def test_steps_with_a_window_make_no_tensor_of_bools(monkeypatch):
    """Past the window, with padding and without."""
    ids = tokens(3, 11)
    for mask in (torch.ones_like(ids), padding((11, 4, 9), 11, "left")):
        eager = generated(model("gemma2"), "eager", ids, mask)
        with monkeypatch.context() as patch:
            patch.setattr(quire.transformers.masks, "_bools", lambda *_, **__: pytest.fail("bools"))
            assert torch.equal(generated(model("gemma2"), "quire", ids, mask), eager)


def compiled(name, backend):
    ids, mask = tokens(3, 11), padding((11, 4, 9), 11, "left")
    eager = generated(model(name), "eager", ids, mask, max_new_tokens=8)
    settings = CompileConfig(fullgraph=True, backend=backend, mode=None)
    settings._compile_all_devices = True  # transformers compiles for GPUs alone, if it is not asked
    torch._dynamo.reset()
    quire = generated(
        model(name), "quire", ids, mask, max_new_tokens=8, cache_implementation="static", compile_config=settings
    )
    assert torch.equal(eager, quire)
    assert model(name).__dict__.pop("_compiled_call") is not None
    torch._dynamo.reset()


def test_compiled_steps_over_a_static_cache():
    compiled("llama", "eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [("gemma2", "aot_eager"), ("mistral", "aot_eager"), ("gemma3", "aot_eager"), ("llama", "inductor")],
)
def test_compiled_steps_of_other_models(name, backend):
    compiled(name, backend)


@pytest.mark.parametrize("options", [dict(use_cache=False), dict(num_beams=3)], ids=str)
def test_other_ways(options):
    ids, mask = tokens(3, 11), padding((11, 4, 9), 11, "left")
    eager, quire = (generated(model("gemma3"), how, ids, mask, **options) for how in ("eager", "quire"))
    assert torch.equal(eager, quire)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_a_prompt_in_pieces(name):
    ids, mask = tokens(2, 23), padding((23, 16), 23, "left")
    whole = logits(model(name), "quire", ids, mask)
    cache, pieces = DynamicCache(config=model(name).config), []
    for begin, end in ((0, 9), (9, 10), (10, 21), (21, 23)):
        positions = torch.arange(begin, end).repeat(2, 1)
        pieces.append(
            logits(
                model(name), "quire", ids[:, begin:end], mask[:, :end], past_key_values=cache, position_ids=positions
            )
        )
    torch.testing.assert_close(torch.cat(pieces, 1)[mask.bool()], whole[mask.bool()], atol=1e-5, rtol=1e-5)


ENCODER_DECODERS = {
    "t5": lambda: T5Config(
        vocab_size=VOCABULARY,
        d_model=60,
        d_kv=10,
        d_ff=72,
        num_layers=2,
        num_heads=6,
        decoder_start_token_id=0,
        **TOKENS,
    ),
    "bart": lambda: BartConfig(
        vocab_size=VOCABULARY,
        d_model=60,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=72,
        decoder_ffn_dim=72,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
        **TOKENS,
    ),
}


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders(name):
    """Cross-attention over padded inputs; T5's position bias is added to the scores."""
    made = AutoModelForSeq2SeqLM.from_config(ENCODER_DECODERS[name]()).eval()
    for parameter in made.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=1.0 / parameter.shape[-1] ** 0.5)
    ids, mask = tokens(3, 11), padding((11, 4, 9), 11, "right")
    eager, quire = (generated(made, how, ids, mask) for how in ("eager", "quire"))
    assert torch.equal(eager, quire)


def test_masks_are_made_once_per_pass_and_not_per_layer(monkeypatch):
    made, create = [], quire.transformers.masks.create_block_mask

    def counting(*args, **kwargs):
        made.append(args[1:])
        return create(*args, **kwargs)

    monkeypatch.setattr(quire.transformers.masks, "create_block_mask", counting)
    ids = tokens(3, 11)
    logits(model("llama"), "quire", ids, padding((11, 4, 9), 11, "left"))
    assert made == [(3, None, 11, 11)]
    made.clear()
    logits(model("gemma2"), "quire", ids)
    assert len(made) == 2  # one for layers with a window, one for those without
    made.clear()
    generated(model("llama"), "quire", ids, torch.ones_like(ids))
    assert made == [(3, None, 11, 11)]  # a step of decoding sees all keys: there is no mask to make
