"""Engines of vLLM on Quire against the same engines on vLLM's own attention: greedy tokens and logprobs of many architectures, mixed batches,
chunked prefill, preemption, prefix caching, fp8 caches, mods of one's own."""

import pytest
import torch

pytest.importorskip("vllm")

import quire.vllm
import tiny_models
from engines import engine, generate, is_on_quire, prompts, sounds

DECODERS = ["llama", "qwen3", "gemma2", "gemma3", "gpt_oss", "qwen3_moe", "bloom"]
LENGTHS = (1, 7, 300, 130, 64, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def both(model, requests, theirs=None, tokens=12, **more):
    """Results of vLLM's own attention and of Quire's."""
    found = []
    for is_quire in (False, True):
        with engine(model, is_quire, **{**more, **({} if is_quire else theirs or {})}) as llm:
            assert is_on_quire(llm) == {is_quire}
            found.append(generate(llm, requests, tokens, prompt_logprobs=0))
    return found


def expect_close(theirs, ours, allowed):
    """Logprobs of the prompts within `allowed`; tokens equal up to the first that is open within `allowed`."""
    for (ids, logprobs, of_prompt), (our_ids, our_logprobs, of_our_prompt) in zip(theirs, ours):
        assert len(of_prompt) == len(of_our_prompt)
        differences = [abs(a - b) for a, b in zip(of_prompt, of_our_prompt)]
        assert max(differences, default=0) < allowed
        for a, b, x, y in zip(ids, our_ids, logprobs, our_logprobs):
            assert abs(x - y) < allowed
            if a != b:
                break


@pytest.mark.parametrize("name", DECODERS)
def test_tokens_of_architectures(name, folder):
    """f32: the same tokens, whatever the architecture."""
    model = tiny_models.save(name, folder)
    theirs, ours = both(model, prompts(LENGTHS), dtype="float32", max_num_batched_tokens=256, max_model_len=512)
    expect_close(theirs, ours, 2e-3)
    assert [one[0] for one in theirs] == [one[0] for one in ours]


def expect_no_more_error(model, **rounded):
    """Logprobs of the prompts' tokens against the same weights in f32: Quire's error is at most 1.25 times vLLM's own, RMS."""
    requests, sizes = prompts(LENGTHS), dict(max_num_batched_tokens=256, max_model_len=512)
    with engine(model, False, dtype="float32", **sizes) as llm:
        exact = logprobs_of_prompts(generate(llm, requests, prompt_logprobs=0))
    theirs, ours = (logprobs_of_prompts(one) for one in both(model, requests, **rounded, **sizes))
    their_error, our_error = ((one - exact).square().mean().sqrt().item() for one in (theirs, ours))
    assert 0 < our_error < 1.25 * their_error, (our_error, their_error)


def logprobs_of_prompts(results):
    return torch.tensor([logprob for _, _, of_prompt in results for logprob in of_prompt])


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_errors_in_bf16(name, folder):
    expect_no_more_error(tiny_models.save(name, folder, torch.bfloat16), dtype="bfloat16")


def test_preemption(folder):
    """A cache of 24 blocks of 16 tokens for 6 requests that grow to 90: some are put off and computed again."""
    model = tiny_models.save("llama", folder)
    tight = dict(
        dtype="float32", block_size=16, num_gpu_blocks_override=24, max_model_len=128, max_num_batched_tokens=128
    )
    requests = prompts([40, 45, 50, 30, 35, 48])
    roomy = {**tight, "num_gpu_blocks_override": 200}
    with engine(model, True, **roomy) as llm:
        expected = generate(llm, requests, tokens=40)
    theirs, ours = both(model, requests, theirs=dict(block_size=32, num_gpu_blocks_override=12), tokens=40, **tight)
    assert [one[0] for one in ours] == [one[0] for one in expected] == [one[0] for one in theirs]


def test_prefix_caching_and_chunks_give_the_same_tokens(folder):
    model = tiny_models.save("gemma3", folder)
    begin = prompts([200], seed=7)[0]["prompt_token_ids"]
    requests = [{"prompt_token_ids": begin + one["prompt_token_ids"]} for one in prompts([5, 20, 60, 1])]
    sizes = dict(dtype="float32", block_size=16, max_model_len=512)
    found = []
    for more in (
        dict(enable_prefix_caching=False, max_num_batched_tokens=2048),
        dict(enable_prefix_caching=True, max_num_batched_tokens=64),
    ):
        with engine(model, True, **sizes, **more) as llm:
            found += [generate(llm, requests), generate(llm, requests), generate(llm, requests[::-1])[::-1]]
    tokens = [[ids for ids, _, _ in run] for run in found]
    assert all(run == tokens[0] for run in tokens)


@pytest.mark.parametrize("format", ["fp8", "fp8_e5m2"])
def test_errors_of_fp8_caches(format, folder):
    """No more than vLLM's own; on CPUs where vLLM has none, no more than rounding to codes and rounding to bf16 make together."""
    model = tiny_models.save("llama", folder, torch.bfloat16)
    if torch.cpu._is_avx512_supported():
        return expect_no_more_error(model, dtype="bfloat16", kv_cache_dtype=format)
    kinds = [dict(), dict(dtype="bfloat16"), dict(kv_cache_dtype=format), dict(dtype="bfloat16", kv_cache_dtype=format)]
    sizes = dict(dtype="float32", max_num_batched_tokens=256, max_model_len=512)
    found = []
    for kind in kinds:
        with engine(model, True, **{**sizes, **kind}) as llm:
            assert is_on_quire(llm) == {True}
            found.append(logprobs_of_prompts(generate(llm, prompts(LENGTHS), prompt_logprobs=0)))
    exact, *others = found
    of_type, of_codes, of_both = ((one - exact).square().mean().sqrt().item() for one in others)
    assert of_type < of_codes < of_both * 1.25 and of_both < 1.25 * (of_type**2 + of_codes**2) ** 0.5


@pytest.mark.parametrize("name", ["deepseek", "deepseek_bf16"])
def test_latent_attention(name, folder):
    """MLA: f32 the same tokens as CPU_MLA's, bf16 no more error."""
    if name == "deepseek_bf16":
        return expect_no_more_error(tiny_models.save("deepseek", folder, torch.bfloat16), dtype="bfloat16")
    model = tiny_models.save("deepseek", folder)
    theirs, ours = both(model, prompts(LENGTHS), dtype="float32", max_num_batched_tokens=512, max_model_len=512)
    expect_close(theirs, ours, 2e-3)
    assert [one[0] for one in theirs] == [one[0] for one in ours]


def test_encoders(folder):
    """Embeddings of BERT."""
    model = tiny_models.save("bert", folder)
    found = []
    for is_quire in (False, True):
        with engine(
            model, is_quire, runner="pooling", dtype="float32", max_model_len=256, skip_tokenizer_init=False
        ) as llm:
            assert is_on_quire(llm) == {is_quire}
            pooled = llm.embed(prompts([3, 200, 64, 17]), use_tqdm=False)
            found.append(torch.tensor([one.outputs.embedding for one in pooled]))
    assert (found[0] - found[1]).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_encoder_decoders(dtype, folder):
    """Whisper: cross attention over what its encoder made of a sound, self attention over the tokens."""
    model = tiny_models.save("whisper", folder, getattr(torch, dtype))
    sizes = dict(dtype=dtype, max_model_len=128, max_num_seqs=8, skip_tokenizer_init=False, disable_log_stats=True)
    found = []
    for is_quire in (False, True):
        with engine(model, is_quire, **sizes) as llm:
            assert is_on_quire(llm) == {is_quire}
            found.append(generate(llm, sounds([1, 4, 40, 2, 17]), tokens=20))
    expect_close(*found, 2e-3 if dtype == "float32" else 0.2)
    if dtype == "float32":
        assert [one[0] for one in found[0]] == [one[0] for one in found[1]]
    assert len({tuple(ids) for ids, _, _ in found[1]}) == 5  # each heard something else


def test_mods_reach_the_layers(folder):
    """A window of 8 in all layers, as a rule of one's own, is the model with that window."""
    model = tiny_models.save("llama", folder)
    requests = prompts([60, 33])
    sizes = dict(dtype="float32", max_model_len=256)
    with engine(model, True, **sizes) as llm:
        plain = generate(llm, requests)
    try:
        quire.vllm.set_mods(mask_mod="q_idx - kv_idx < 8")
        with engine(model, True, **sizes) as llm:
            changed = generate(llm, requests)
    finally:
        quire.vllm.clear_mods()
    with engine(
        model,
        True,
        hf_overrides=dict(sliding_window=8, model_type="mistral", architectures=["MistralForCausalLM"]),
        **sizes,
    ) as llm:
        expected = generate(llm, requests)
    assert [one[0] for one in changed] == [one[0] for one in expected]
    assert [one[0] for one in changed] != [one[0] for one in plain]
