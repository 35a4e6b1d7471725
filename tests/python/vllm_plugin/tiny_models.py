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
    # An encoder of sounds, and a decoder with cross attention over its 150 positions.
    "whisper": lambda: transformers.WhisperConfig(
        vocab_size=300,
        num_mel_bins=20,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=150,
        max_target_positions=128,
        init_std=0.15,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        decoder_start_token_id=2,
    ),
}
KINDS = {"bert": transformers.AutoModel, "whisper": transformers.WhisperForConditionalGeneration}


def save(name, folder, dtype=torch.float32):
    """Writes the model into a folder of its own; returns its path."""
    path = folder / f"{name}-{str(dtype).removeprefix('torch.')}"
    if not path.exists():
        torch.manual_seed(0)
        config = CONFIGS[name]()
        if name == "whisper":
            KINDS[name](config).to(dtype).save_pretrained(path)
            save_ears(path)
        else:
            KINDS.get(name, transformers.AutoModelForCausalLM).from_config(config, dtype=dtype).save_pretrained(path)
        if name == "bert":  # engines that pool want a tokenizer, and do not use it for tokens that are given
            words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
            transformers.PreTrainedTokenizerFast(
                tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]"
            ).save_pretrained(path)
    return str(path)


def save_ears(path):
    """What turns 3 seconds of sound into 300 frames, and a tokenizer, whose words nobody reads."""
    words = {f"w{i}": i for i in range(298)} | {"<|endoftext|>": 298, "<|startoftranscript|>": 299}
    transformers.WhisperProcessor(
        transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=3),
        transformers.WhisperTokenizer(vocab=words, merges=[]),
    ).save_pretrained(path)
