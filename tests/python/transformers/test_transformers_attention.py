"""quire_attention by itself: sinks, soft-caps, biases, masks, and dropout seen weight by weight."""

import copy
import subprocess
import sys

import pytest
import quire.transformers
import torch
from quire.transformers import quire_attention
from quire.transformers.masks import block_mask_of, quire_mask
from small_models import logits, model, padding, reference_attention, tokens


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
            torch.testing.assert_close(
                quire_attention(module, q, k, v, None, is_causal=given)[0], exact, atol=1e-6, rtol=1e-5
            )
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


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert"])
def test_weights_are_those_of_eager(name):
    ids, mask = tokens(2, 23), padding((23, 17), 23, "left")
    made, weights = model(name), []
    for how in ("eager", "quire"):
        made.set_attn_implementation(how)
        with torch.no_grad():
            weights.append(made(ids, attention_mask=mask, output_attentions=True).attentions)
    assert len(weights[1]) == 2
    seen = mask.bool()[:, None, :, None].expand(2, 6, 23, 23)
    for expected, got in zip(*weights, strict=True):
        assert got.shape == (2, 6, 23, 23)
        torch.testing.assert_close(got[seen], expected[seen], atol=1e-6, rtol=1e-4)
    assert made(ids).attentions is None


def test_weights_of_many_keys_and_of_a_layer_with_dropout():
    q, k, v = qkv(heads=2, q_len=3, kv_len=1100)
    weights = quire_attention(layer(), q, k, v, None, output_attentions=True)[1]
    _, exact = reference_attention(layer(), q, k, v, None)
    torch.testing.assert_close(weights, exact.float(), atol=1e-6, rtol=1e-4)
    out, dropped = quire_attention(layer(training=True), q, k, v, None, dropout=0.3, output_attentions=True)
    assert 0.2 < (dropped == 0).float().mean() < 0.4
    torch.testing.assert_close((dropped @ v).transpose(1, 2), out, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_chosen_keys(masked):
    q, k, v = qkv()
    mask = quire_mask(2, 11, 29, q_offset=18) if masked else None
    visible = torch.ones(11, 29, dtype=torch.bool).tril(18) if masked else torch.ones(11, 29, dtype=torch.bool)
    indices = torch.rand(2, 11, 29).topk(6).indices.int()
    indices[:, 4, 2:] = -1  # fewer
    chosen = torch.zeros(2, 11, 30, dtype=torch.bool).scatter(-1, torch.where(indices < 0, 29, indices).long(), True)[
        ..., :29
    ]
    exact, _ = reference_attention(layer(), q, k, v, (chosen & visible)[:, None])
    got = quire_attention(layer(), q, k, v, mask, indices=indices)[0]
    torch.testing.assert_close(got, exact, atol=1e-6, rtol=1e-5)
    added = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
    got = quire_attention(layer(), q, k, v, added, indices=indices)[0]
    rows = (chosen & visible).any(-1)
    torch.testing.assert_close(got[rows], exact[rows], atol=1e-6, rtol=1e-5)


def test_chosen_blocks_of_keys():
    q, k, v = qkv()
    module = layer()
    blocks = torch.tensor([0, 3]).expand(2, 2, 11, 2).clone()
    blocks[1, 1, :, 1] = -1
    with pytest.raises(NotImplementedError, match="block_indices .* no indexer.block_size"):
        quire_attention(module, q, k, v, None, block_indices=blocks)
    module.indexer = torch.nn.Module()
    module.indexer.block_size = 8
    visible = torch.zeros(2, 6, 11, 29, dtype=torch.bool)
    visible[..., :8] = visible[..., 24:] = True
    visible[1, 3:, :, 24:] = False
    exact, _ = reference_attention(module, q, k, v, visible)
    torch.testing.assert_close(
        quire_attention(module, q, k, v, None, block_indices=blocks)[0], exact, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("name", ["head_mask", "attention_similarity", "lengths", "score_mod"])
def test_keywords_that_are_not_understood_are_refused_by_name(name):
    with pytest.raises(NotImplementedError, match=rf"\[quire.transformers\] this model passes {name} to its attention"):
        quire_attention(layer(), *qkv(), None, **{name: torch.ones(1)})
    quire_attention(layer(), *qkv(), None, **{name: None})
    made = model("llama")
    made.set_attn_implementation("quire")
    with pytest.raises(NotImplementedError, match=name):
        made(tokens(2, 9), **{name: 1})


def test_packed_sequences_need_their_mask():
    q, k, v = qkv(batch=1, q_len=9, kv_len=9)
    packed = dict(cu_seq_lens_q=torch.tensor([0, 4, 9]), max_length_q=5)
    with pytest.raises(NotImplementedError, match="cu_seq_lens_q without an attention mask"):
        quire_attention(layer(), q, k, v, None, **packed)
    quire_attention(layer(), q, k, v, quire_mask(1, 9, 9), **packed)
    quire_attention(layer(), q, k, v, None, cu_seq_lens_q=torch.tensor([0, 9]), max_length_q=9)


def test_pages_of_continuous_batching_come_with_its_cache():
    with pytest.raises(NotImplementedError, match="block_table is continuous batching's"):
        quire_attention(layer(), *qkv(), None, block_table=object())


def test_kernel_options_are_looked_at():
    with pytest.raises(ValueError, match="BACKEND"):
        quire_attention(layer(), *qkv(), None, kernel_options={"BACKEND": "FAST"})


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


def test_dropout_is_one_pass(monkeypatch):
    calls = []
    attend = quire.transformers.attention.flex_attention
    monkeypatch.setattr(
        quire.transformers.attention,
        "flex_attention",
        lambda *args, **options: calls.append(options) or attend(*args, **options),
    )
    q, k, v = qkv(heads=4, q_len=30, kv_len=40)
    quire_attention(layer(training=True), q, k, v, None, dropout=0.25, softcap=2.0, s_aux=torch.zeros(4))
    assert [one["dropout_p"] for one in calls] == [0.25]


MEMORY = """
import sys, torch
from quire.transformers import quire_attention, quire_mask

def peak(length):
    layer = torch.nn.Module().train()
    q, k, v = (torch.randn(1, 4, length, 16, requires_grad=True) for _ in range(3))
    mask = quire_mask(1, length, length)
    open("/proc/self/clear_refs", "w").write("5")
    before = resident("VmRSS")
    out, _ = quire_attention(layer, q, k, v, mask, dropout=0.1, softcap=20.0, s_aux=torch.zeros(4))
    out.sum().backward()
    return resident("VmHWM") - before

def resident(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

peak(256)
print(peak(4096))
"""


def test_memory_of_training_with_dropout_does_not_grow_with_the_scores(python_env):
    """4 heads of 4,096 x 4,096 scores would be 64 MiB as bools and 256 MiB as floats; what is measured is in KiB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], env=python_env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 48 << 10, done.stdout
