"""quire_attention by itself: sinks, soft-caps, biases, masks, and dropout seen weight by weight."""

import copy

import pytest
import torch
from small_models import logits, model, padding, reference_attention, tokens

import quire.transformers
from quire.transformers import quire_attention
from quire.transformers.masks import block_mask_of, quire_mask


def layer(training=False, is_causal=False):
    made = torch.nn.Module().train(training)
    made.is_causal = is_causal
    return made


def qkv(batch=2, heads=6, kv_heads=2, q_len=11, kv_len=29, dim=20, v_dim=12, dtype=torch.float32):
    sizes = ((heads, q_len, dim), (kv_heads, kv_len, dim), (kv_heads, kv_len, v_dim))
    return [torch.randn(batch, h, n, d).to(dtype) * 1.5 for h, n, d in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("softcap", [None, 2.5])
def test_sinks(dtype, softcap):
    q, k, v = qkv(dtype=dtype)
    sinks = torch.tensor([-200.0, -3.0, 0.0, 2.0, 9.0, 200.0]).to(dtype)
    options = dict(scaling=0.3, softcap=softcap, s_aux=sinks)
    visible = torch.rand(2, 1, 11, 29) < 0.6
    visible[0, 0, 3] = False  # a row that sees nothing but the sink
    got, weights = quire_attention(layer(), q, k, v, visible, **options)
    exact, _ = reference_attention(layer(), q.double(), k, v, visible, **options)
    rounding = torch.finfo(dtype).eps if dtype is not torch.float64 else 1e-9
    assert weights is None and got.dtype == dtype and got.shape == (2, 11, 6, 12) and got.is_contiguous()
    assert (got - exact).abs().max() <= 4 * rounding * exact.abs().max()
    assert (got[0, 3] == 0).all() and got[:, :, 5].double().abs().max() < 1e-40


def test_no_mask_is_causal_only_where_the_layer_is():
    q, k, v = qkv(q_len=9, kv_len=9)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    for is_causal, visible in ((True, causal), (False, None)):
        exact, _ = reference_attention(layer(), q, k, v, visible)
        for module, given in ((layer(is_causal=is_causal), None), (layer(is_causal=not is_causal), is_causal)):
            torch.testing.assert_close(quire_attention(module, q, k, v, None, is_causal=given)[0], exact, atol=1e-6, rtol=1e-5)
    exact, _ = reference_attention(layer(), q[:, :, :1], k, v, None)  # one query is the last: it sees all
    got = quire_attention(layer(is_causal=True), q[:, :, :1], k, v, None)[0]
    torch.testing.assert_close(got, exact, atol=1e-6, rtol=1e-5)


def test_keys_beyond_the_users_mask_are_not_there():
    """A mask made for a longer cache is cut."""
    q, k, v = qkv()
    visible = torch.rand(1, 6, 11, 40) < 0.5
    exact, _ = reference_attention(layer(), q, k, v, visible[..., :29])
    for mask in (visible, torch.where(visible, 0.0, -torch.inf)):
        torch.testing.assert_close(quire_attention(layer(), q, k, v, mask)[0], exact, atol=1e-6, rtol=1e-5)


def test_a_users_mask_is_looked_at_once_and_again_when_edited():
    visible = torch.rand(1, 1, 11, 29) < 0.5
    first = block_mask_of(visible, 2, 6, 29)
    assert block_mask_of(visible, 2, 6, 29) is first
    visible[0, 0, 0, 0] ^= True
    assert block_mask_of(visible, 2, 6, 29) is not first
    before = len(quire.transformers.masks._of_bools)
    del visible
    assert len(quire.transformers.masks._of_bools) == before - 1


ROWS_OF_WEIGHTS = {
    "plain": dict(),
    "softcap": dict(softcap=2.0),
    "sinks": dict(s_aux=torch.linspace(-1, 1, 4)),
    "both": dict(softcap=2.0, s_aux=torch.linspace(-1, 1, 4)),
    "bias": dict(position_bias=torch.linspace(-1, 1, 40).expand(1, 4, 30, 40)),
}


@pytest.mark.parametrize("name", ROWS_OF_WEIGHTS)
@pytest.mark.parametrize("masked", [False, True])
def test_dropout(name, masked):
    """Values that are unit vectors make the output the weights: each is dropped, or what it was / (1 - p)."""
    options = dict(ROWS_OF_WEIGHTS[name], dropout=0.25)
    q, k, _ = qkv(heads=4, q_len=30, kv_len=40)
    v = torch.eye(40).expand(2, 2, 40, 40)
    mask = quire_mask(2, 30, 40, q_offset=10) if masked else None
    weights, _ = quire_attention(layer(training=False), q, k, v, mask, **options)
    dropped, _ = quire_attention(layer(training=True), q, k, v, mask, **options)
    again, _ = quire_attention(layer(training=True), q, k, v, mask, **options)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, atol=1e-6, rtol=1e-5)
    assert 0.22 < 1 - kept[weights != 0].float().mean() < 0.28
    assert not torch.equal(dropped, again)


def test_dropout_of_a_model_in_training():
    made = copy.deepcopy(model("llama")).train()
    made.config.attention_dropout = 0.4
    for part in made.modules():
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.4
    ids = tokens(2, 9)
    assert not torch.equal(logits(made, "quire", ids), logits(made, "quire", ids))
    made.eval()
    assert torch.equal(logits(made, "quire", ids), logits(made, "quire", ids))


def test_weights_cannot_be_returned():
    with pytest.warns(UserWarning, match='"quire" has no weights'):
        quire_attention(layer(), *qkv(), None, output_attentions=True)


def test_paged_caches_are_refused():
    with pytest.raises(NotImplementedError, match="continuous batching"):
        quire_attention(layer(), *qkv(), None, cache=object())


def test_register_under_another_name():
    quire.transformers.register("quire_again")
    ids, mask = tokens(2, 9), padding((9, 5), 9, "left")
    assert torch.equal(logits(model("qwen2"), "quire_again", ids, mask), logits(model("qwen2"), "quire", ids, mask))


def test_rows_that_see_nothing_are_0():
    """Those of padding. In eager, whose masks add the least number there is, they are the mean of all values."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    q, k, v = qkv(heads=2)
    visible = torch.ones(2, 1, 11, 29, dtype=torch.bool)
    visible[1, 0, :4] = False
    module = layer()
    module.num_key_value_groups = 1
    added = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    eager, _ = eager_attention_forward(module, q, k, v, added, scaling=0.3)
    got, _ = quire_attention(module, q, k, v, visible, scaling=0.3)
    assert (got[1, :4] == 0).all()
    torch.testing.assert_close(eager[1, :4], v[1].mean(1).expand(4, -1, -1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got[0], eager[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got[1, 4:], eager[1, 4:], atol=1e-6, rtol=1e-5)
