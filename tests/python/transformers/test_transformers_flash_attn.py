"""transformers' own code for flash-attn, as it is installed, over quire.flash_attn: only its question whether there is a GPU is answered
for it. Padded batches are unpadded, packed and padded again by that code."""

import pytest
import quire.flash_attn
import torch
from small_models import model, padding
from small_models import tokens as random_tokens
from transformers import AutoModel, BertConfig
from transformers import modeling_flash_attention_utils as flash_utils


@pytest.fixture
def flash_attn(monkeypatch):
    assert quire.flash_attn.install()
    monkeypatch.setattr(flash_utils, "is_flash_attn_2_available", lambda *_, **__: True)
    flash_utils.lazy_import_flash_attention("flash_attention_2")
    yield
    monkeypatch.undo()
    for name in (
        "_flash_fn",
        "_flash_varlen_fn",
        "_flash_with_kvcache_fn",
        "_pad_fn",
        "_unpad_fn",
        "_loaded_implementation",
    ):
        monkeypatch.setattr(flash_utils, name, None, raising=False)


def counted(monkeypatch, name):
    """How often their code calls one of ours."""
    calls, ours = [], getattr(flash_utils, name)
    monkeypatch.setattr(flash_utils, name, lambda *given, **options: calls.append(1) or ours(*given, **options))
    return calls


def bert():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    made = AutoModel.from_config(BertConfig(vocab_size=97, **sizes), attn_implementation="eager").eval()
    return made


def both(made, ids, mask):
    """Hidden states of the tokens, and gradients of every parameter: theirs over our functions, and eager's."""
    found = []
    for implementation in ("flash_attention_2", "eager"):
        made.config._attn_implementation = implementation  # set_attn_implementation() asks for a GPU
        made.zero_grad()
        states = made(ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1][mask.bool()]
        states.square().sum().backward()
        found.append((states.detach(), [one.grad.clone() for one in made.parameters() if one.grad is not None]))
    return found


@pytest.mark.parametrize("name", ["bert", "llama", "mistral"])
def test_padded_batches(flash_attn, monkeypatch, name):
    calls = counted(monkeypatch, "_flash_varlen_fn")
    made = bert() if name == "bert" else model(name)
    torch.manual_seed(1)
    ids, mask = random_tokens(3, 20), padding((20, 3, 11), 20, "right")
    (ours, our_gradients), (theirs, their_gradients) = both(made, ids, mask)
    assert len(calls) == made.config.num_hidden_layers
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(our_gradients) == len(their_gradients) > 10
    for one, other in zip(our_gradients, their_gradients):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_tokens_of_generate(flash_attn, monkeypatch):
    calls = counted(monkeypatch, "_flash_fn")
    made = model("llama")
    torch.manual_seed(2)
    ids = random_tokens(2, 9)
    tokens = []
    for implementation in ("flash_attention_2", "eager"):
        made.config._attn_implementation = implementation
        tokens.append(made.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0))
    assert torch.equal(*tokens) and len(calls) >= 8
