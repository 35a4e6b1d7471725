"""Further architectures, at a glance: logits of padded batches and greedy generation are those of `eager`."""

import functools

import pytest
import torch
import transformers
from small_models import DECODER, SIZES, TOKENS, VOCABULARY, logits, padding, tokens
from transformers import AutoModel, AutoModelForCausalLM

GPT2 = dict(vocab_size=VOCABULARY, n_embd=60, n_layer=2, n_head=6, n_positions=512, **TOKENS)
MORE_DECODERS = {
    "gpt2": ("GPT2Config", GPT2),
    "gpt_neox": ("GPTNeoXConfig", SIZES | TOKENS),
    "opt": ("OPTConfig", SIZES | TOKENS | dict(ffn_dim=72, word_embed_proj_dim=60, max_position_embeddings=512)),
    "phi3": ("Phi3Config", DECODER | dict(head_dim=10, sliding_window=7)),
    "olmo2": ("Olmo2Config", DECODER | dict(head_dim=10)),
    "cohere2": ("Cohere2Config", DECODER | dict(sliding_window=7)),
    "granite": ("GraniteConfig", DECODER | dict(attention_multiplier=0.2, head_dim=10)),
    "smollm3": ("SmolLM3Config", DECODER | dict(head_dim=10)),
}
MORE_ENCODERS = {
    "roberta": ("RobertaConfig", SIZES),
    "distilbert": ("DistilBertConfig", dict(vocab_size=VOCABULARY, dim=60, n_layers=2, n_heads=6, hidden_dim=72)),
    "electra": ("ElectraConfig", SIZES | dict(embedding_size=60)),
}


@functools.cache
def made(name):
    config, options = (MORE_DECODERS | MORE_ENCODERS)[name]
    torch.manual_seed(1)
    kind = AutoModelForCausalLM if name in MORE_DECODERS else AutoModel
    result = kind.from_config(getattr(transformers, config)(**options)).eval()
    for parameter in result.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=1.2 / parameter.shape[-1] ** 0.5)
    return result


def assert_close(eager, quire):
    torch.testing.assert_close(quire, eager, rtol=1e-4, atol=1e-4 * eager.abs().max().item())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MORE_DECODERS)
def test_logits_of_decoders(name, side):
    ids, mask = tokens(3, 19), padding((19, 4, 11), 19, side)
    eager, quire = (logits(made(name), how, ids, mask)[mask.bool()] for how in ("eager", "quire"))
    assert_close(eager, quire)


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", MORE_DECODERS)
def test_greedy_generation(name, cache):
    ids, mask, results = tokens(3, 11), padding((11, 4, 9), 11, "left"), []
    for how in ("eager", "quire"):
        made(name).set_attn_implementation(how)
        results.append(made(name).generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False, **cache))
    assert results[0].shape == (3, 20) and torch.equal(*results)


@pytest.mark.parametrize("name", MORE_ENCODERS)
def test_states_of_encoders(name):
    ids, mask, states = tokens(3, 19), padding((19, 4, 11), 19, "right"), []
    for how in ("eager", "quire"):
        made(name).set_attn_implementation(how)
        assert made(name).config._attn_implementation == how
        with torch.no_grad():
            states.append(made(name)(ids, attention_mask=mask).last_hidden_state[mask.bool()])
    assert_close(*states)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("BloomConfig", dict(vocab_size=VOCABULARY, hidden_size=60, n_layer=1, n_head=6)),
        ("MptConfig", dict(vocab_size=VOCABULARY, d_model=64, n_layers=1, n_heads=4)),
        ("XGLMConfig", dict(vocab_size=VOCABULARY, d_model=60, ffn_dim=72, num_layers=1, attention_heads=6)),
    ],
)
def test_models_with_an_attention_of_their_own_say_so(config, options):
    one = AutoModel.from_config(getattr(transformers, config)(**options), attn_implementation="quire")
    with pytest.raises(NotImplementedError, match="it has an attention of its own"):
        one(tokens(2, 9))
