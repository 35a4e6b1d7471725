"""Models of the architectures that quire.vllm is compared on, small, with random weights large enough that attention matters."""

import torch
import transformers
from tokenizers import Tokenizer, models

SIZES = dict(
    vocab_size=300,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    initializer_range=0.15,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=0,
)


def _config(kind, **more):
    return getattr(transformers, f"{kind}Config")(**{**SIZES, **more})


CONFIGS = {
    "llama": lambda: _config("Llama"),
    "qwen3": lambda: _config("Qwen3", head_dim=48),
    # Windows and soft-caps in turns with global layers.
    "gemma2": lambda: _config("Gemma2", sliding_window=40, attn_logit_softcapping=20.0, query_pre_attn_scalar=32),
    "gemma3": lambda: _config(
        "Gemma3Text", num_hidden_layers=3, sliding_window=40, layer_types=["sliding_attention"] * 2 + ["full_attention"]
    ),
    # Sinks, windows, experts.
    "gpt_oss": lambda: _config(
        "GptOss", num_local_experts=4, num_experts_per_tok=2, sliding_window=64, head_dim=64, intermediate_size=128
    ),
    "qwen3_moe": lambda: _config("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128),
    "bloom": lambda: transformers.BloomConfig(  # ALiBi
        vocab_size=300, hidden_size=256, n_layer=2, n_head=8, initializer_range=0.15, bos_token_id=0, eos_token_id=1
    ),
    # Latent attention, in the one size of vLLM's kernel: 512 latent and 64 rotary dims; experts.
    "deepseek": lambda: transformers.DeepseekV2Config(
        **{**SIZES, "num_key_value_heads": 8, "head_dim": 64},
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=64,
        first_k_dense_replace=1,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
    ),
    "bert": lambda: transformers.BertConfig(
        vocab_size=300,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        intermediate_size=256,
        initializer_range=0.15,
    ),
}


def save(name, folder, dtype=torch.float32):
    """Writes the model into a folder of its own; returns its path."""
    path = folder / f"{name}-{str(dtype).removeprefix('torch.')}"
    if not path.exists():
        torch.manual_seed(0)
        config = CONFIGS[name]()
        kind = transformers.AutoModel if name == "bert" else transformers.AutoModelForCausalLM
        kind.from_config(config, dtype=dtype).save_pretrained(path)
        if name == "bert":  # engines that pool want a tokenizer, and do not use it for tokens that are given
            words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
            transformers.PreTrainedTokenizerFast(
                tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]"
            ).save_pretrained(path)
    return str(path)
