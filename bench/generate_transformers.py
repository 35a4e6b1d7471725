"""Steps of generate() with QuireCache against the dynamic cache with sdpa, and generate_batch with quire against sdpa.

Steps: the caches are filled with random keys, since only steps are timed; all take turns, medians are compared. Batches: whole runs,
one after the other, and the most memory that a run had beside what was there before. Random weights. "no attention" is the same model
with an attention that gives zeros: what is left of the time whatever the attention.

    python bench/generate_transformers.py steps [--model small|1b] [--context 8192] [--steps 5] [--dtype bfloat16] [--threads 2]
    python bench/generate_transformers.py batch [--requests 32] [--prompt 2048] [--new 64] [--layers 2] [--dtype bfloat16]
"""

import argparse
import resource
import statistics
import time

import quire.transformers
import quire.transformers.attention
import torch
from quire.transformers import QuireCache
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

logging.set_verbosity_error()
HEADS = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=64)
MODELS = {
    "small": dict(**HEADS, hidden_size=512, num_hidden_layers=8, intermediate_size=512, vocab_size=1000),
    "1b": dict(**HEADS, hidden_size=2048, num_hidden_layers=16, intermediate_size=8192, vocab_size=128256),
}
NOTHING = "no attention"


def made(implementation, dtype, **sizes):
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, max_position_embeddings=32768, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    with torch.device("cpu"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
        torch.set_default_dtype(before)
    return model


class Clock:
    """The seconds that a function took, in all calls; it is called through this."""

    def __init__(self, function):
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments, **options):
        start = time.perf_counter()
        found = self.function(*arguments, **options)
        self.seconds += time.perf_counter() - start
        return found


def nothing(module, query, *_, **__):
    return query.new_zeros(query.transpose(1, 2).shape), None


class NoCache(DynamicCache):
    """Keeps nothing, and says that it holds as many tokens."""

    def __init__(self, context):
        super().__init__()
        self.context = context

    def get_seq_length(self, layer=0):
        return self.context

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length, layer):
        return self.context + query_length, 0

    def update(self, keys, values, layer, *_, **__):
        return keys, values


def filled(cache, config, context, dtype):
    for layer in range(config.num_hidden_layers):
        size = (1, context, config.num_key_value_heads, config.head_dim)
        k, v = (torch.randn(size).to(dtype).transpose(1, 2) for _ in range(2))
        cache.update(k, v, layer)
    return cache


def bytes_of(cache):
    """Of the keys and values of a token, in all layers."""
    if isinstance(cache, QuireCache):
        return sum(pool.cache.stats().token_bytes for pool in cache.pools)
    return sum((one.keys.nbytes + one.values.nbytes) / one.keys.shape[2] for one in cache.layers)


def steps(given):
    dtype = getattr(torch, given.dtype)
    model = made("quire", dtype, **MODELS[given.model])
    AttentionInterface.register(NOTHING, nothing)
    AttentionMaskInterface.register(NOTHING, lambda *_, **__: None)
    sides = {
        "sdpa, dynamic cache": ("sdpa", DynamicCache(config=model.config)),
        "quire, QuireCache": ("quire", QuireCache(model.config)),
        "quire, QuireCache of int8": ("quire", QuireCache(model.config, kv_format="int8")),
        NOTHING: (NOTHING, NoCache(given.context)),
    }
    times = {name: [] for name in sides}
    with torch.no_grad():
        for name, (_, cache) in sides.items():
            if name != NOTHING:
                filled(cache, model.config, given.context, dtype)
        for turn in range(given.steps + 1):
            for name, (implementation, cache) in sides.items():
                model.set_attn_implementation(implementation)
                place = torch.tensor([[cache.get_seq_length()]])
                start = time.perf_counter()
                model(torch.tensor([[5]]), past_key_values=cache, position_ids=place)
                if turn:  # the first is not timed
                    times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(all_of) for name, all_of in times.items()}
    theirs = medians["sdpa, dynamic cache"]
    for name, median in medians.items():
        size = "" if name == NOTHING else f", {bytes_of(sides[name][1]) / 1024:6.1f} KiB a token"
        spread = f"{1e3 * min(times[name]):.1f}..{1e3 * max(times[name]):.1f}"
        print(f"{name:<26} {1e3 * median:8.1f} ms per step ({spread}), ratio {theirs / median:.2f}{size}")


def batch(given):
    sizes = dict(
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, hidden_size=512, intermediate_size=512, vocab_size=1000,
        num_hidden_layers=given.layers,
    )  # fmt: skip
    torch.manual_seed(0)
    prompts = torch.randint(3, 1000, (given.requests, given.prompt)).tolist()
    settings = GenerationConfig(max_new_tokens=given.new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    blocks = -(-given.requests * (given.prompt + given.new + 16) // 256) + given.requests
    rates, tokens = {}, {}
    ours, theirs = quire.transformers.attention.batched_attention, ALL_ATTENTION_FUNCTIONS["sdpa"]
    for name in (NOTHING, "quire", "sdpa") if not given.only else (given.only,):
        model = made("sdpa" if name == "sdpa" else "quire", getattr(torch, given.dtype), **sizes)
        attention = Clock({NOTHING: lambda *call: nothing(*call)[0], "quire": ours, "sdpa": theirs}[name])
        if name == "sdpa":
            AttentionInterface.register("sdpa", attention)
        else:
            quire.transformers.attention.batched_attention = attention
        forward = model.forward = Clock(model.forward)
        config = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=given.batch_tokens, page_size=256)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        found = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=config)
        seconds = time.perf_counter() - start
        assert len(found) == given.requests
        tokens[name] = {tuple(one.prompt_ids): one.generated_tokens for one in found.values()}
        rates[name] = given.requests * given.new / seconds
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        parts = f"model {forward.seconds:.1f}, attention {attention.seconds:.1f}"
        print(
            f"{name:<12} {rates[name]:8.1f} tokens/s, {seconds:.1f} s ({parts}), {more:.0f} MB more than before",
            flush=True,
        )
    if len(rates) == 3:
        same = sum(tokens["quire"][prompt] == tokens["sdpa"][prompt] for prompt in tokens["sdpa"])
        print(f"ratio {rates['quire'] / rates['sdpa']:.2f}, no attention {rates[NOTHING] / rates['sdpa']:.2f}")
        print(f"requests with the same tokens: {same} of {given.requests}")


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
    parser.add_argument("--only", choices=[NOTHING, "quire", "sdpa"])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    quire.transformers.register()
    {"steps": steps, "batch": batch}[arguments.what](arguments)
