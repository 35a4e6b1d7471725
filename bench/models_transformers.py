"""attn_implementation="quire" against "sdpa" and "eager" in small models of Hugging Face transformers, random weights.

Whole forward passes are timed, with everything that is not attention. The implementations take turns; medians are
compared. "-": the implementation cannot do it. Needs transformers and the package quire:

    python bench/models_transformers.py [--threads 2] [--rounds 5] [--rows prefill]
"""

import argparse
import copy
import os
import statistics
import time

import quire.transformers
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig, LlamaConfig, MistralConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

logging.set_verbosity_error()
SIZES = dict(
    vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=8192, pad_token_id=0, bos_token_id=1, eos_token_id=None,
)  # fmt: skip
# Latent attention; an indexer that chooses 512 tokens for every query.
LATENT = dict(
    SIZES, num_key_value_heads=8, head_dim=32, q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32,
    v_head_dim=64, moe_intermediate_size=512, n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1,
)  # fmt: skip
CHOOSING = dict(LATENT, index_topk=512, index_n_heads=8, index_head_dim=64)
CONFIGS = {
    "Llama": LlamaConfig(**SIZES),
    "Mistral, window 256": MistralConfig(**SIZES, sliding_window=256),
    "Gemma 2, soft-cap, window 256": Gemma2Config(**SIZES, sliding_window=256, query_pre_attn_scalar=64),
    "GPT-OSS, sinks, window 256": GptOssConfig(**SIZES, sliding_window=256, num_local_experts=2, num_experts_per_tok=1),
    "DeepSeek-V3, latent": CONFIG_MAPPING["deepseek_v3"](**LATENT),
    "DeepSeek-V3.2, 512 chosen": CONFIG_MAPPING["deepseek_v32"](**CHOOSING),
    "GLM-MoE-DSA, 512 chosen": CONFIG_MAPPING["glm_moe_dsa"](**CHOOSING),
}
IMPLEMENTATIONS = ("eager", "sdpa", "quire")
# Of a row: what is done, the model, dtype, sequences, tokens, whether all but the first sequence are padded.
ROWS = [
    ("prefill", "Llama", torch.float32, 1, 2048, False),
    ("prefill", "Llama", torch.float32, 4, 1024, True),
    ("prefill", "Llama", torch.bfloat16, 1, 2048, False),
    ("prefill", "Mistral, window 256", torch.float32, 1, 2048, False),
    ("prefill", "Gemma 2, soft-cap, window 256", torch.float32, 1, 2048, False),
    ("prefill", "GPT-OSS, sinks, window 256", torch.float32, 1, 2048, False),
    ("prefill", "DeepSeek-V3, latent", torch.float32, 1, 2048, False),
    ("prefill", "DeepSeek-V3.2, 512 chosen", torch.float32, 1, 2048, False),
    ("prefill", "GLM-MoE-DSA, 512 chosen", torch.float32, 1, 2048, False),
    ("decode", "Llama", torch.float32, 1, 2048, False),
    ("decode", "Llama", torch.float32, 4, 2048, True),
    ("decode", "Gemma 2, soft-cap, window 256", torch.float32, 1, 2048, False),
    ("decode", "GPT-OSS, sinks, window 256", torch.float32, 1, 2048, False),
    ("decode", "DeepSeek-V3, latent", torch.float32, 1, 2048, False),
    ("decode", "DeepSeek-V3.2, 512 chosen", torch.float32, 1, 2048, False),
    ("decode", "GLM-MoE-DSA, 512 chosen", torch.float32, 1, 2048, False),
]
STEPS = 8  # of decoding, per time taken


class Workload:
    """A model with one implementation, its tokens and, to decode from, the cache of all but the last STEPS of them."""

    def __init__(self, row, implementation):
        self.kind, name, dtype, batch, length, is_padded = row
        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), attn_implementation=implementation)
        self.model = self.model.to(dtype).eval()
        self.ids = torch.randint(3, 1000, (batch, length))
        self.mask = torch.ones_like(self.ids)
        if is_padded:
            for i in range(1, batch):
                self.mask[i, : i * length // (2 * batch)] = 0
        if self.kind == "decode":
            self.begin = length - STEPS
            self.cache = self.model(
                self.ids[:, : self.begin], attention_mask=self.mask[:, : self.begin]
            ).past_key_values

    def seconds(self):
        if self.kind == "prefill":
            start = time.perf_counter()
            self.model(self.ids, attention_mask=self.mask, use_cache=False, logits_to_keep=1)
            return time.perf_counter() - start
        cache = copy.deepcopy(self.cache)
        start = time.perf_counter()
        for end in range(self.begin + 1, self.begin + STEPS + 1):
            self.model(self.ids[:, end - 1 : end], attention_mask=self.mask[:, :end], past_key_values=cache)
        return (time.perf_counter() - start) / STEPS


def medians(row, rounds):
    """Milliseconds of each implementation that can do it."""
    workloads = {}
    for implementation in IMPLEMENTATIONS:
        try:
            workloads[implementation] = Workload(row, implementation)
            workloads[implementation].seconds()
        except ValueError:  # sdpa has no soft-cap and no sinks
            workloads.pop(implementation, None)
    times = {implementation: [] for implementation in workloads}
    for _ in range(rounds):
        for implementation, workload in workloads.items():
            times[implementation].append(workload.seconds() * 1e3)
    return {implementation: statistics.median(taken) for implementation, taken in times.items()}


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="", help="only rows whose line holds this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    quire.transformers.register()
    print("| | model | sequences x tokens | eager ms | sdpa ms | quire ms | eager / quire | sdpa / quire |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in ROWS:
        kind, name, dtype, batch, length, is_padded = row
        size = f"{batch} x {length}{', padded' if is_padded else ''}, {'f32' if dtype is torch.float32 else 'bf16'}"
        if options.rows not in f"{kind} {name} {size}":
            continue
        taken = medians(row, options.rounds)
        shown = [f"{taken[how]:.1f}" if how in taken else "-" for how in IMPLEMENTATIONS]
        ratios = [f"{taken[how] / taken['quire']:.2f}" if how in taken else "-" for how in ("eager", "sdpa")]
        print("|", " | ".join([kind, name, size, *shown, *ratios]), "|", flush=True)


if __name__ == "__main__":
    main()
