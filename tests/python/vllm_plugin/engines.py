"""Engines of vLLM in this process, with its own attention or with Quire's, one after the other."""

import contextlib
import gc
import random

import numpy as np
import quire.vllm
from quire.vllm.registration import unregister


@contextlib.contextmanager
def engine(model, is_quire, **more):
    """An LLM of small sizes; gone afterwards."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.model_executor.models import registry
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.mla.prefill import selector as prefill_selector

    registry._run_in_subprocess = lambda look: look()  # at a model's class: a process of its own takes ten seconds
    load_general_plugins()  # which registers Quire; not again afterwards
    if is_quire:
        quire.vllm.register()
    else:
        unregister()
    selector._cached_get_attn_backend.cache_clear()
    prefill_selector._auto_select_mla_prefill_backend.cache_clear()
    options = dict(skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024, max_num_seqs=32, seed=0)
    llm = LLM(model=model, **{**options, **more})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
        quire.vllm.register()


def is_on_quire(llm):
    """For each attention layer, and the prefill of latent ones, whether Quire computes it."""
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    parts = [getattr(layer, name, None) for layer in layers for name in ("impl", "prefill_backend")]
    return {
        any(kind.__module__.startswith("quire.vllm") for kind in type(part).__mro__)
        for part in parts
        if part is not None
    }


def prompts(lengths, vocabulary=300, seed=0):
    draw = random.Random(seed)
    return [{"prompt_token_ids": [draw.randrange(2, vocabulary) for _ in range(n)]} for n in lengths]


def sounds(lengths, seed=0):
    """Prompts of an encoder-decoder model: noise of 2 seconds and the first tokens of what is said."""
    from vllm.inputs import ExplicitEncoderDecoderPrompt, TextPrompt, TokensPrompt

    noise = np.random.default_rng(seed)
    found = []
    for one in prompts(lengths, seed=seed):
        heard = (noise.standard_normal(32000).astype(np.float32), 16000)
        encoder = TextPrompt(prompt="", multi_modal_data={"audio": heard})
        found.append(ExplicitEncoderDecoderPrompt(encoder_prompt=encoder, decoder_prompt=TokensPrompt(**one)))
    return found


def generate(llm, requests, tokens=12, **more):
    """(tokens, their logprobs, the logprobs of the prompt's tokens) of each request, greedily."""
    from vllm import SamplingParams

    options = dict(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=2)
    found = llm.generate(requests, SamplingParams(**{**options, **more}), use_tqdm=False)
    results = []
    for one in found:
        ids = list(one.outputs[0].token_ids)
        logprobs = [step[token].logprob for step, token in zip(one.outputs[0].logprobs, ids)]
        given = one.prompt_token_ids
        of_prompt = [step[token].logprob for step, token in zip(one.prompt_logprobs or [], given) if step is not None]
        results.append((ids, logprobs, of_prompt))
    return results
