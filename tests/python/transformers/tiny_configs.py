"""A small configuration of any architecture of transformers, made from its class: every known size is cut, every list with an
entry per layer keeps one layer of each sort, and a table says what some architectures need on top of that.

Support of the sweep (architecture_sweep.py); knows nothing of Quire.
"""

from __future__ import annotations

import dataclasses
from typing import Any

VOCABULARY = 97
_FEWEST_LAYERS = 2
_MOST_SORTS = 4

# Sizes that are cut, by what they become; smaller ones stay. Head dims are 16 where hidden sizes are 64 and heads are 4.
_SIZES = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input decoder_vocab_size audio_vocab_size shape_vocab_size",
    64: """hidden_size d_model n_embd emb_dim embedding_size embedding_dim word_embed_proj_dim input_embedding_size dim
        output_embedding_size lru_width backbone_hidden_size hidden_size_global out_hidden_size projection_dim
        projector_input_dim projector_output_dim vision_output_dim shape_embed_dim pronunciation_embed_dim hc_lowrank""",
    72: """intermediate_size ffn_dim d_ff dff d_inner dim_ff encoder_ffn_dim decoder_ffn_dim ffn_hidden_size mlp_dim
        moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size intermediate_size_mlp
        dense_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size feed_forward_size hidden_dim""",
    4: """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads
        num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_experts num_local_experts
        n_routed_experts moe_num_experts index_n_heads linear_num_heads n_mamba_heads zero_expert_num""",
    2: """num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk
        moe_top_k moe_k linear_num_key_heads linear_num_value_heads n_group topk_group num_query_groups n_groups""",
    16: """head_dim v_head_dim d_kv attention_head_size dim_head d_head swa_head_dim kv_channels index_head_dim
        query_pre_attn_scalar linear_key_head_dim linear_value_head_dim linear_head_dim attention_head_dim mamba_d_state state_size
        ssm_state_size hidden_size_per_layer_input q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim""",
    8: "rotary_dim index_topk keep_window_size index_block_size",
    512: "max_position_embeddings n_positions n_ctx max_seq_len max_source_positions max_target_positions",
    7: "sliding_window attention_window_size window_size local_attention sliding_window_size attention_chunk_size",
}
_TARGETS = {name: size for size, names in _SIZES.items() for name in names.split()}
_LAYERS = """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers
    depth num_blocks""".split()
_TOKENS = dict(pad_token_id=0, bos_token_id=1, decoder_start_token_id=1, eos_token_id=2, sep_token_id=2, cls_token_id=1)

_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_GEMMA_4 = dict(global_head_dim=32)
_QWEN_4 = dict(indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=8, indexer_compress_ratio=2)
_MAMBA = dict(mamba_n_heads=4, mamba_d_head=32)
_ROUTED = dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, num_experts_per_tok=2)


def _sections(*sizes: int) -> dict[str, Any]:
    return dict(rope_parameters={**_ROPE, "mrope_section": list(sizes)})


# By model_type: what a small configuration needs that sizes alone do not say.
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": dict(attn_layer_indices=[1], **_MAMBA),
    "cohere_compass_text": dict(rope_parameters={"full_attention": _ROPE}),
    "dbrx": dict(attn_config=dict(rope_theta=10_000.0, kv_n_heads=2, clip_qkv=8)),
    "deepseek_v2": _ROUTED,
    "dots1": _ROUTED,
    "encoder-decoder": dict(decoder=dict(is_decoder=True, add_cross_attention=True)),
    "esm": dict(vocab_size=VOCABULARY, mask_token_id=2, pad_token_id=0),
    "esmc": dict(num_key_value_heads=4),
    "gemma3n_text": dict(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        intermediate_size=[72] * 4,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
    ),
    "gemma4": dict(text_config=_GEMMA_4),
    "gemma4_text": _GEMMA_4,
    "gemma4_unified": dict(text_config=_GEMMA_4),
    "gemma4_unified_text": _GEMMA_4,
    "blt": dict(encoder_hash_byte_group_vocab=50),
    "glm4v_moe_text": _sections(2, 1, 1),
    "glm4v_text": _sections(4, 2, 2),
    "glm5_next_text": dict(index_kpool=4),
    "glm_image_text": _sections(4, 2, 2),
    "glm_ocr_text": _sections(4, 2, 2),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]]),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"], **_MAMBA),
    "hunyuan_v1_dense": dict(head_dim=16),
    "hunyuan_v1_moe": dict(head_dim=16),
    "hunyuan_vl_text": dict(head_dim=16),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "mamba2": dict(num_heads=8),
    "minimax_m3_vl_text": dict(index_topk_blocks=1),
    "ministral": dict(head_dim=16),
    "mistral_large4_text": dict(kv_source_layers=None, no_rope_layers=None),
    "nemotron": dict(num_key_value_heads=2),
    "qwen2_5_vl_text": _sections(4, 2, 2),
    "qwen2_vl_text": _sections(4, 2, 2),
    "qwen4_exp": dict(text_config=_QWEN_4),
    "qwen4_exp_text": _QWEN_4,
    "reformer": dict(is_decoder=True, axial_pos_embds_dim=[32, 32], axial_pos_shape=[16, 32]),
    "xlstm": dict(num_heads=2, qk_dim_factor=1.0),
    "xmod": dict(default_language="en_XX"),
    "zamba": dict(
        num_hidden_layers=4, layers_block_type=["mamba", "hybrid"] * 2, attention_head_dim=32, attention_hidden_size=128
    ),
}


def tiny_config(kind: type, special: dict[str, Any] | None = None, default: Any = None) -> Any:
    """A small configuration of the class `kind`. `special`: what the table of a composite configuration says of this part;
    `default`: what it has in that place, else what the class makes of no arguments."""
    special = dict(SPECIAL.get(kind.model_type, {}) if special is None else special)
    values = vars(kind() if default is None else default)
    names = [field.name for field in dataclasses.fields(kind)]
    changes: dict[str, Any] = {}
    for name in names:
        value = values.get(name)
        if type(value) is int and value > _TARGETS.get(name, value):
            changes[name] = _TARGETS[name]
        elif name.endswith("_token_id") and value is not None and name != "image_token_id":
            changes[name] = _TOKENS.get(name, 2)
    changes |= _few_layers({name: values.get(name) for name in names})
    changes |= _narrow_rope(values.get("rope_parameters"))
    for name in kind.sub_configs:
        part = values.get(name)
        if dataclasses.is_dataclass(part):
            changes[name] = tiny_config(type(part), special.pop(name, None), part).to_dict()
    if "kv_lora_rank" in names and "num_key_value_heads" in changes:  # latent attention: a key head for each query head
        changes["num_key_value_heads"] = changes["num_attention_heads"]
    return kind(**changes | special)


def _narrow_rope(parameters: Any) -> dict[str, Any]:
    """Sections of multi-axis rotary embeddings cut to the head dim of 16."""
    if not isinstance(parameters, dict) or "mrope_section" not in parameters:
        return {}
    pairs = int(16 * parameters.get("partial_rotary_factor", 1.0)) // 2
    sections = [pairs // 2, pairs // 4, pairs - pairs // 2 - pairs // 4]
    return {"rope_parameters": {**parameters, "mrope_section": sections}}


def _few_layers(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers of layers, and lists with an entry for each, cut to layers that show every entry there is."""
    counts = {name: values[name] for name in _LAYERS if type(values.get(name)) is int}
    lists = {
        name: value
        for name, value in values.items()
        if isinstance(value, (list, tuple)) and len(value) > _FEWEST_LAYERS and len(value) in counts.values()
    }
    kept: list[int] = []
    for value in lists.values():
        firsts = {str(entry): i for i, entry in reversed(list(enumerate(value)))}
        if len(firsts) <= _MOST_SORTS:  # more are numbers of their own for each layer
            kept += [i for i in sorted(firsts.values()) if i not in kept]
    kept += [i for i in range(_FEWEST_LAYERS) if i not in kept][: max(0, _FEWEST_LAYERS - len(kept))]
    cut = {name: [value[i] for i in sorted(kept)] for name, value in lists.items() if max(kept) < len(value)}
    return cut | {name: min(count, len(kept)) for name, count in counts.items()}
