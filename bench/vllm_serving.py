"""vLLM's own attention on CPUs (CPU_ATTN) against Quire's, in the environment of scripts/vllm-venv, both in one process and in turns.

    python bench/vllm_serving.py attention [--rows WORDS] [--repetitions 9] [--no-amx] [--json F]
    python bench/vllm_serving.py engine [--model small|1b] [--rows WORDS] [--repetitions 5] [--layers N] [--json F]

attention: the attention of a step, as the engine calls it: the metadata once, then for each of 16 layers (2 of long prefills; of two
caches in turns) new keys and values into the cache and attention over it. engine: two engines of a model with random weights, each in its turn the same
requests: decoding of 8 requests over a context that is in the prefix cache, the prefill of a prompt, and a trace of requests that
begin alike. --no-amx: vLLM's attention as on a CPU without AMX. What vLLM cannot do on this CPU is said and left out. The ratio is vLLM's time divided by Quire's; medians. Needs a build in build/release/python on PYTHONPATH.
"""

import argparse
import json
import os
import sys
import tempfile
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

import comparison  # noqa: E402
import torch  # noqa: E402

PEER = "vLLM's CPU_ATTN"
LAYERS = 16
BLOCK = 128


# ---- attention of a step


class Step:
    """Requests of `lengths` keys, the last `counts` of them new; 32 query heads and 8 key heads of 64, or what is said."""

    def __init__(self, lengths, counts, dtype, heads=(32, 8), dim=64, cache_dtype="auto", shared=0):
        self.q_heads, self.kv_heads, self.dim, self.dtype = *heads, dim, dtype
        self.cache_dtype = cache_dtype
        wanted = [-(-n // BLOCK) for n in lengths]
        blocks = torch.randperm(sum(wanted))
        self.table = torch.zeros(len(lengths), max(wanted), dtype=torch.int32)
        first = 0
        for i, n in enumerate(wanted):
            self.table[i, :n] = blocks[first : first + n]
            first += n
        self.table[:, : shared // BLOCK] = self.table[0, : shared // BLOCK]
        self.blocks = len(blocks)
        self.starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        at = [torch.arange(n - count, n) for n, count in zip(lengths, counts)]
        self.slots = torch.cat([self.table[i, one // BLOCK].long() * BLOCK + one % BLOCK for i, one in enumerate(at)])
        tokens = int(self.starts[-1])
        self.q, self.k, self.v = (torch.randn(tokens, h, dim).to(dtype) for h in (heads[0], heads[1], heads[1]))
        self.out = torch.empty_like(self.q)
        self.tokens = tokens
        self.layers = LAYERS if tokens < 2048 else 2

    def cache(self):
        kind = torch.uint8 if self.cache_dtype.startswith("fp8") else self.dtype
        shape = (self.blocks, self.kv_heads, BLOCK, 2 * self.dim)
        return torch.randint(0, 100, shape, dtype=kind) if kind is torch.uint8 else torch.randn(shape).to(kind)

    def common(self):
        from vllm.v1.attention.backend import CommonAttentionMetadata

        return CommonAttentionMetadata(
            query_start_loc=self.starts,
            query_start_loc_cpu=self.starts,
            seq_lens=self.lengths,
            num_reqs=len(self.lengths),
            num_actual_tokens=self.tokens,
            max_query_len=int(self.starts.diff().max()),
            max_seq_len=int(self.lengths.max()),
            block_table_tensor=self.table,
            slot_mapping=self.slots,
        )

    def side(self, backend, config, caches):
        """A function that computes the step with a backend."""
        from types import SimpleNamespace

        from vllm.v1.kv_cache_interface import FullAttentionSpec

        one = torch.tensor(1.0)
        layer = SimpleNamespace(
            layer_name="layers.0.attn", _k_scale=one, _v_scale=one, _k_scale_float=1.0, _v_scale_float=1.0
        )
        impls = [  # as layers have them, one each
            backend.get_impl_cls()(self.q_heads, self.dim, self.dim**-0.5, self.kv_heads, None, None, self.cache_dtype)
            for _ in caches
        ]
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=self.kv_heads, head_size=self.dim, dtype=self.dtype)
        builder = backend.get_builder_cls()(spec, [], config, torch.device("cpu"))
        layer.isa = getattr(builder, "isa", None)
        builder.num_heads = self.q_heads
        common = self.common()

        def run():
            with torch.no_grad():
                metadata = builder.build(0, common)
                for i in range(self.layers):
                    cache, impl = caches[i % 2], impls[i % 2]
                    impl.do_kv_cache_update(layer, self.k, self.v, cache, self.slots)
                    impl.forward(layer, self.q, self.k, self.v, cache, metadata, self.out)

        return run


def attention_rows(words):
    from types import SimpleNamespace

    from quire.vllm.backend import QuireAttentionBackend
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    bf16, f32, f16 = torch.bfloat16, torch.float32, torch.float16
    decode = [1] * 8
    problems = {
        "decode bf16 8 x 8,192": lambda: Step([8192] * 8, decode, bf16),
        "decode bf16 8 x 2,048": lambda: Step([2048] * 8, decode, bf16),
        "decode bf16 1 x 8,192": lambda: Step([8192], [1], bf16),
        "decode bf16 1 x 512": lambda: Step([512], [1], bf16),
        "decode bf16 32 x 128": lambda: Step([128] * 32, [1] * 32, bf16),
        "decode bf16 8 x 8,192, D=128": lambda: Step([8192] * 8, decode, bf16, dim=128),
        "decode bf16 8 x 8,192, 6,144 shared": lambda: Step([8192] * 8, decode, bf16, shared=6144),
        "decode fp8 8 x 8,192": lambda: Step([8192] * 8, decode, bf16, cache_dtype="fp8"),
        "decode f32 8 x 8,192": lambda: Step([8192] * 8, decode, f32),
        "decode f16 8 x 8,192": lambda: Step([8192] * 8, decode, f16),
        "prefill bf16 2,048": lambda: Step([2048], [2048], bf16),
        "prefill bf16 8,192": lambda: Step([8192], [8192], bf16),
        "prefill bf16 512": lambda: Step([512], [512], bf16),
        "prefill f32 2,048": lambda: Step([2048], [2048], f32),
        "chunk bf16 512 of 8,192": lambda: Step([8192], [512], bf16),
        "mixed bf16 512 of 4,096 and 8 x 4,096": lambda: Step([4096] * 9, [512, *decode], bf16),
    }
    for name, made in problems.items():
        if not all(word in name for word in words):
            continue
        step = made()
        config = VllmConfig()
        config.cache_config.cache_dtype = step.cache_dtype
        config.model_config = SimpleNamespace(dtype=step.dtype, get_num_attention_heads=lambda _, h=step.q_heads: h)
        with set_current_vllm_config(config):
            try:
                sides = [
                    step.side(one, config, [step.cache(), step.cache()])
                    for one in (CPUAttentionBackend, QuireAttentionBackend)
                ]
            except NotImplementedError as error:  # vLLM has no fp8 caches on CPUs without AVX-512
                print(f"{name:<42} not compared: {error}", flush=True)
                continue
            long = name.startswith("prefill bf16 8,192")
            yield comparison.Row("attention of a step", name, *sides, repetitions=3 if long else None, peer=PEER)


# ---- engines

HEADS = dict(num_attention_heads=32, num_key_value_heads=8)
MODELS = {
    "small": dict(**HEADS, head_dim=128, hidden_size=512, num_hidden_layers=2, intermediate_size=512, vocab_size=1000),
    "1b": dict(**HEADS, head_dim=64, hidden_size=2048, num_hidden_layers=4, intermediate_size=8192, vocab_size=32000),
}


def engines(sizes):
    """vLLM's own and Quire's, of the same model."""
    import quire.vllm
    from quire.vllm.registration import unregister
    from vllm import LLM
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention import selector

    load_general_plugins()
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5, rope_theta=1e4, dtype="bfloat16",
        max_position_embeddings=16384, hidden_act="silu", tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, **sizes,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w") as file:
            json.dump(config, file)
        for prepare in (unregister, quire.vllm.register):
            prepare()
            selector._cached_get_attn_backend.cache_clear()
            yield LLM(
                model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=9216,
                max_num_seqs=16, max_num_batched_tokens=2048, seed=0,
            )  # fmt: skip


def engine_rows(words, sizes):
    import random

    from vllm import SamplingParams

    draw = random.Random(0)
    llms = list(engines(sizes))

    def prompt(n):
        return [draw.randrange(2, sizes["vocab_size"]) for _ in range(n)]

    def generate(llm, prompts, tokens):
        options = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": one} for one in prompts], options, use_tqdm=False)

    def decode(context, tokens=17):
        prompts = [prompt(context) for _ in range(8)]
        return [lambda llm=llm: generate(llm, prompts, tokens) for llm in llms]

    def prefill(length):
        return [lambda llm=llm: generate(llm, [prompt(length)], 1) for llm in llms]

    def trace():
        begin = prompt(3072)
        ends = [prompt(64) for _ in range(12)]
        return [
            lambda llm=llm: generate(llm, [begin + [draw.randrange(2, 100)] + end for end in ends], 16) for llm in llms
        ]

    rows = {
        "decode 8 requests at 2,048, 17 tokens": lambda: decode(2048),
        "decode 8 requests at 8,192, 17 tokens": lambda: decode(8192),
        "prefill 8,192": lambda: prefill(8192),
        "12 requests sharing 3,072, 16 tokens": trace,
    }
    for name, made in rows.items():
        if all(word in name for word in words):
            yield comparison.Row("engine", name, *made(), peer=PEER)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("attention", "engine"))
    parser.add_argument("--rows", nargs="*", default=[], help="only rows with these words")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--no-amx", action="store_true")
    parser.add_argument("--json")
    given = parser.parse_args()
    torch.cpu._init_amx()  # vLLM's attention uses AMX where there is; who asks the system for it is left open there
    if given.no_amx:
        torch.cpu._is_amx_tile_supported = lambda: False
    torch.manual_seed(0)
    sizes = {**MODELS[given.model], **({"num_hidden_layers": given.layers} if given.layers else {})}
    rows = attention_rows(given.rows) if given.what == "attention" else engine_rows(given.rows, sizes)
    results = []
    for row in rows:
        begin = time.perf_counter()
        results.append(row.run(given.repetitions or (9 if given.what == "attention" else 5)))
        last = results[-1]
        print(
            f"{last['name']:<42} {PEER} {last['peer_ms']:9.2f} ms  quire {last['quire_ms']:9.2f} ms  ratio {last['ratio']:5.2f} "
            f"({last['ratio_low']:.2f} to {last['ratio_high']:.2f}), {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    if given.json:
        with open(given.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
