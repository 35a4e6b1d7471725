"""QuireCache: the tokens of `eager` with other caches, by pages; beams, assisted decoding, windows that give pages back, growth, files."""

import copy
import io
import pickle

import pytest
import quire.transformers.cache
import torch
from quire.transformers import QuireCache
from small_models import DECODERS, model, padding
from small_models import tokens as random_tokens
from transformers import AutoModelForSeq2SeqLM, BartConfig, DynamicCache, EncoderDecoderCache, LlamaConfig


def tokens(batch, length):
    """The same at every call."""
    torch.manual_seed(batch + length)
    return random_tokens(batch, length)


def generated(made, cache=None, ids=None, mask=None, implementation="quire", **options):
    made.set_attn_implementation(implementation)
    ids = tokens(3, 11) if ids is None else ids
    settings = dict(max_new_tokens=14, do_sample=False, pad_token_id=0) | options
    return made.generate(
        ids, attention_mask=torch.ones_like(ids) if mask is None else mask, past_key_values=cache, **settings
    )


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("is_padded", [False, True])
def test_tokens_of_eager(name, is_padded):
    mask = padding((11, 4, 9), 11, "left") if is_padded else None
    eager = generated(model(name), mask=mask, implementation="eager")
    for page_size in (1, 16):
        cache = QuireCache(model(name).config, page_size=page_size)
        assert torch.equal(generated(model(name), cache, mask=mask), eager)
        assert cache.get_seq_length() == 24 and cache.batch_size == 3


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_logits_have_the_bits_of_a_dynamic_cache(name):
    made, ids = model(name), tokens(2, 30)
    made.set_attn_implementation("quire")
    ours, theirs = QuireCache(made.config), DynamicCache(config=made.config)
    with torch.no_grad():
        for part in ids.split([17, 1, 1, 4, 1, 6], 1):
            a, b = (made(part, past_key_values=cache).logits for cache in (ours, theirs))
            assert torch.equal(a, b)


@pytest.mark.parametrize("kv_format", ["int8", "u8+hadamard", "fp8_e5m2"])
def test_keys_and_values_are_coded(kv_format, tmp_path):
    made, ids = model("llama"), tokens(2, 30)
    made.set_attn_implementation("quire")
    plain, coded = QuireCache(made.config), QuireCache(made.config, kv_format=kv_format, page_size=4)
    with torch.no_grad():
        wanted = made(ids, past_key_values=plain).logits
        whole = made(ids, past_key_values=coded).logits
        limit = 0.2 if "fp8" in kv_format else 0.02
        assert 0 < (whole - wanted).norm() / wanted.norm() < limit
        chunked = QuireCache(made.config, kv_format=kv_format)
        parts = [made(part, past_key_values=chunked).logits for part in ids.split([17, 1, 12], 1)]
        # torch's products of other shapes round differently, and a code may be the next one.
        assert (torch.cat(parts, 1) - whole).norm() / whole.norm() < limit / 2
        coded.save(tmp_path / "cache")
        again = QuireCache(made.config, kv_format=kv_format).load(tmp_path / "cache")
        step = tokens(2, 2)
        assert torch.equal(made(step, past_key_values=again).logits, made(step, past_key_values=coded).logits)
        with pytest.raises(ValueError, match="k_format must be the cache's, plain; got"):
            QuireCache(made.config).load(tmp_path / "cache")
    assert generated(made, QuireCache(made.config, kv_format=kv_format), num_beams=2).shape == (3, 25)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_beams_share_pages(name):
    made = model(name)
    expected = generated(made, num_beams=4, implementation="eager")
    cache = QuireCache(made.config, page_size=4)
    assert torch.equal(generated(made, cache, num_beams=4), expected)
    full = next(pool for pool in cache.pools if not pool.window)
    assert full.cache.stats().shared_pages > 0


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_assisted_decoding_truncates(name):
    made, ids = model(name), tokens(1, 11).repeat(1, 3)
    expected = generated(made, ids=ids, implementation="eager", max_new_tokens=30)
    cache = QuireCache(made.config, page_size=2)
    assert torch.equal(generated(made, cache, ids=ids, prompt_lookup_num_tokens=3, max_new_tokens=30), expected)
    assert cache.get_seq_length() == 62


def test_windows_give_pages_back():
    made = model("mistral")  # a window of 7
    cache = QuireCache(made.config, page_size=2)
    generated(made, cache, ids=tokens(1, 40), max_new_tokens=20)
    (pool,) = cache.pools
    assert pool.cache.stats().used_pages <= 5 and cache.get_seq_length() == 59
    with pytest.raises(RuntimeError, match="keys behind the window were given back"):
        cache.crop(-9)
    assert cache.get_seq_length() == 59


def test_the_pool_grows(monkeypatch):
    monkeypatch.setattr(quire.transformers.cache, "_SPARE_TOKENS", 1)
    made = model("gemma3")
    eager = generated(made, ids=tokens(2, 1), implementation="eager", max_new_tokens=60)
    cache = QuireCache(made.config, page_size=1)
    assert torch.equal(generated(made, cache, ids=tokens(2, 1), max_new_tokens=60), eager)


def test_appending_a_token_writes_a_token():
    made = model("llama")
    made.set_attn_implementation("quire")
    cache = QuireCache(made.config)
    with torch.no_grad():
        made(tokens(1, 300), past_key_values=cache)
        (pool,) = cache.pools
        before = torch.from_numpy(pool.cache.k_pages(0)).data_ptr()
        made(tokens(1, 1), past_key_values=cache)
    assert torch.from_numpy(pool.cache.k_pages(0)).data_ptr() == before and pool.cache.stats().live_tokens == 301


def test_rows_are_chosen_and_repeated_by_forks():
    made = model("llama")
    made.set_attn_implementation("quire")
    ids = tokens(3, 9)
    ours, theirs = QuireCache(made.config, page_size=4), DynamicCache(config=made.config)
    with torch.no_grad():
        for cache in (ours, theirs):
            made(ids, past_key_values=cache)
            cache.batch_repeat_interleave(2)
            cache.batch_select_indices(torch.tensor([5, 0, 0, 3]))
            cache.crop(-2)
        step = tokens(4, 3)
        assert torch.equal(made(step, past_key_values=ours).logits, made(step, past_key_values=theirs).logits)
    with pytest.raises(IndexError, match="rows are 0..3; got 4"):
        ours.reorder_cache(torch.tensor([0, 1, 2, 4]))
    ours.reset()
    assert ours.get_seq_length() == 0 and ours.batch_size == -1


def test_a_file_brings_everything_back(tmp_path):
    made = model("gemma2")
    made.set_attn_implementation("quire")
    cache = QuireCache(made.config)
    with torch.no_grad():
        made(tokens(2, 30), past_key_values=cache)
        cache.save(tmp_path / "cache")
        again = QuireCache(made.config, page_size=3).load(tmp_path / "cache")
        step = tokens(2, 2)
        assert torch.equal(made(step, past_key_values=again).logits, made(step, past_key_values=cache).logits)
    assert cache.to("cpu") is cache
    with pytest.raises(ValueError, match="not of a cache of this model"):
        QuireCache(model("llama").config).load(tmp_path / "cache")


@pytest.mark.parametrize("kv_format", [None, "int8+hadamard"])
def test_copies_go_their_own_way(kv_format):
    """A prompt that many requests begin with is read once and copied, as transformers' guide does it."""
    made = model("gemma2")
    made.set_attn_implementation("quire")
    prompt, ends = tokens(1, 20), tokens(2, 6)
    shared = QuireCache(made.config, kv_format=kv_format, page_size=8)
    with torch.no_grad():
        made(prompt, past_key_values=shared)
        copies = [copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))]
        logits = [made(end[None], past_key_values=one).logits for end, one in zip(ends, copies)]
        assert shared.get_seq_length() == 20 and copies[0].get_seq_length() == 26
        for end, found in zip(ends, logits):
            again = copy.deepcopy(shared)
            assert torch.equal(made(end[None], past_key_values=again).logits, found)
    assert copy.deepcopy(QuireCache(made.config)).get_seq_length() == 0
    assert not torch.equal(*logits)


def test_a_file_that_is_none_changes_nothing(tmp_path):
    made = model("llama")
    made.set_attn_implementation("quire")
    cache, coded = QuireCache(made.config), QuireCache(made.config, kv_format="int8")
    with torch.no_grad():
        for one in (cache, coded):
            made(tokens(2, 9), past_key_values=one)
    damaged = io.BytesIO()
    torch.save({"format": 1, "pools": [{"window": 0, "written": [1, 1]}]}, damaged)
    damaged.seek(0)
    for file in (io.BytesIO(b"nothing"), damaged):
        with pytest.raises(ValueError, match="the file is not of a QuireCache"):
            cache.load(file)
    coded.save(tmp_path / "coded")
    with pytest.raises(ValueError, match="k_format must be the cache's, plain"):
        cache.load(tmp_path / "coded")
    with pytest.raises(FileNotFoundError):
        cache.load(tmp_path / "nowhere")
    assert cache.get_seq_length() == 9 and cache.batch_size == 2


@pytest.mark.parametrize("is_both", [False, True])
def test_decoders_with_an_encoder(is_both):
    torch.manual_seed(0)
    sizes = dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    config = BartConfig(
        vocab_size=50, d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, **sizes
    )
    made = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="quire").eval()
    ids = torch.randint(3, 50, (2, 9))
    settings = dict(max_new_tokens=8, min_new_tokens=8, do_sample=False, num_beams=3)
    ours = EncoderDecoderCache(QuireCache(config), QuireCache(config) if is_both else DynamicCache())
    assert torch.equal(made.generate(ids, past_key_values=ours, **settings), made.generate(ids, **settings))


def test_what_it_does_not_do_is_said():
    made, ids = model("llama"), tokens(2, 5)
    with pytest.raises(ValueError, match="there is no format int9; there are int8, "):
        QuireCache(made.config, kv_format="int9")
    with pytest.raises(NotImplementedError, match="kv_format='int8_channel' needs calibrated scales"):
        QuireCache(made.config, kv_format="int8_channel")
    with pytest.raises(ValueError, match="pages are on the CPU"):
        QuireCache(made.config).to("cuda")
    with pytest.raises(ValueError, match="page_size must be at least 1; got 0"):
        QuireCache(made.config, page_size=0)
    with pytest.raises(TypeError, match="config must be that of a model; got NoneType"):
        QuireCache(None)
    with pytest.raises(NotImplementedError, match="nothing to offload"):
        QuireCache(made.config).offload(0)
    with pytest.raises(TypeError, match=r"rows must be \[n\] ints; got torch.float32"):
        QuireCache(made.config).reorder_cache(torch.tensor([0.5]))
    with pytest.raises(ValueError, match="rows are repeated once at least; got 0"):
        QuireCache(made.config).batch_repeat_interleave(0)
    for implementation in ("eager", "sdpa"):
        made.set_attn_implementation(implementation)
        with torch.no_grad(), pytest.raises(NotImplementedError, match="only Quire's attention reads"):
            made(ids, past_key_values=QuireCache(made.config))
    made.set_attn_implementation("quire")
    with pytest.raises(RuntimeError, match="has no gradients"):
        made(ids, past_key_values=QuireCache(made.config))
    with torch.no_grad():
        with pytest.raises(NotImplementedError, match="output_attentions with keys in pages"):
            made(ids, past_key_values=QuireCache(made.config), output_attentions=True)
        cache = QuireCache(made.config)
        made(ids, past_key_values=cache)
        with pytest.raises(ValueError, match="it holds 2 rows; got a batch of 3"):
            made(tokens(3, 1), past_key_values=cache)
        with pytest.raises(ValueError, match="crop of 6 tokens, and there are 5"):
            cache.crop(-6)
    config = LlamaConfig(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"])
    with pytest.raises(NotImplementedError, match="layer 1 of this model is of the kind linear_attention"):
        QuireCache(config)


def test_masks_of_the_callers():
    made, ids = model("llama"), tokens(2, 12)
    visible = torch.rand(2, 1, 12, 12) < 0.6
    visible |= torch.eye(12, dtype=torch.bool)
    for mask in (visible, torch.where(visible, 0.0, -torch.inf)):
        made.set_attn_implementation("quire")
        with torch.no_grad():
            ours = made(ids, attention_mask=mask, past_key_values=QuireCache(made.config)).logits
            expected = made(ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
