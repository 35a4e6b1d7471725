"""Steps of generate() with QuireCache against the dynamic cache with sdpa, and generate_batch with quire against sdpa.

Steps: the caches are filled with random keys, since only steps are timed; both take turns, medians are compared. Batches: whole runs,
one after the other, and the most memory that a run had beside what was there before. Random weights.

    python bench/generate_transformers.py steps [--model small|1b] [--context 8192] [--steps 5] [--threads 2]
    python bench/generate_transformers.py batch [--requests 32] [--prompt 2048] [--new 64] [--layers 2]
"""

import argparse
import resource
import statistics
import time

import quire.transformers
import torch
from quire.transformers import QuireCache
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils import logging

logging.set_verbosity_error()
HEADS = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=64)
MODELS = {
    "small": dict(**HEADS, hidden_size=512, num_hidden_layers=8, intermediate_size=512, vocab_size=1000),
    "1b": dict(**HEADS, hidden_size=2048, num_hidden_layers=16, intermediate_size=8192, vocab_size=128256),
}


def made(implementation, **sizes):
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, max_position_embeddings=32768, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    with torch.device("cpu"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
        torch.set_default_dtype(before)
    return model


def filled(cache, config, context):
    for layer in range(config.num_hidden_layers):
        size = (1, context, config.num_key_value_heads, config.head_dim)
        k, v = (torch.randn(size).bfloat16().transpose(1, 2) for _ in range(2))
        cache.update(k, v, layer)
    return cache


def steps(given):
    model = made("quire", **MODELS[given.model])
    sides = {
        "sdpa, dynamic cache": ("sdpa", DynamicCache(config=model.config)),
        "quire, QuireCache": ("quire", QuireCache(model.config)),
    }
    times = {name: [] for name in sides}
    with torch.no_grad():
        for _, cache in sides.values():
            filled(cache, model.config, given.context)
        for turn in range(given.steps + 1):
            for name, (implementation, cache) in sides.items():
                model.set_attn_implementation(implementation)
                start = time.perf_counter()
                model(torch.tensor([[5]]), past_key_values=cache)
                if turn:  # the first is not timed
                    times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(all_of) for name, all_of in times.items()}
    for name, median in medians.items():
        print(f"{name:<24} {1e3 * median:8.1f} ms per step")
    theirs, ours = medians.values()
    print(f"ratio {theirs / ours:.2f}")


def batch(given):
    sizes = dict(
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, hidden_size=512, intermediate_size=512, vocab_size=1000,
        num_hidden_layers=given.layers,
    )  # fmt: skip
    torch.manual_seed(0)
    prompts = torch.randint(3, 1000, (given.requests, given.prompt)).tolist()
    settings = GenerationConfig(max_new_tokens=given.new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    blocks = -(-given.requests * (given.prompt + given.new + 16) // 256) + given.requests
    rates = {}
    for implementation in ("quire", "sdpa") if not given.only else (given.only,):
        model = made(implementation, **sizes)
        config = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=given.batch_tokens, page_size=256)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        found = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=config)
        seconds = time.perf_counter() - start
        assert len(found) == given.requests
        rates[implementation] = given.requests * given.new / seconds
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(
            f"{implementation:<6} {rates[implementation]:8.1f} tokens/s, {seconds:.1f} s, {more:.0f} MB more than before",
            flush=True,
        )
    if len(rates) == 2:
        print(f"ratio {rates['quire'] / rates['sdpa']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "batch"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--only", choices=["quire", "sdpa"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    quire.transformers.register()
    {"steps": steps, "batch": batch}[arguments.what](arguments)
