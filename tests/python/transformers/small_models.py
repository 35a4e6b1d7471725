"""Small models with random weights, and an f64 attention that shares nothing with Quire: the reference of the tests.

Weights are larger than those of a fresh model, whose attention is so flat that a wrong mask would hardly show.
"""

import functools

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.masking_utils import sdpa_mask

VOCABULARY = 97
SIZES = dict(vocab_size=VOCABULARY, hidden_size=60, intermediate_size=72, num_hidden_layers=2, num_attention_heads=6)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=None)
DECODER = dict(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=20, max_position_embeddings=512)
# All experts: which of several is chosen may hang on the last bit of a bf16.
EXPERTS = dict(num_local_experts=2, num_experts_per_tok=2, experts_implementation="eager")

DECODERS = {
    "llama": lambda: LlamaConfig(**{**DECODER, "head_dim": 10}),
    "qwen2": lambda: Qwen2Config(**DECODER),
    "qwen3": lambda: Qwen3Config(**DECODER),
    "mistral": lambda: MistralConfig(**DECODER, sliding_window=7),
    "gemma2": lambda: Gemma2Config(**DECODER, sliding_window=7, attn_logit_softcapping=3.0, query_pre_attn_scalar=20),
    "gemma3": lambda: Gemma3TextConfig(
        **DECODER, sliding_window=7, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=20
    ),
    "gpt_oss": lambda: GptOssConfig(**DECODER, **EXPERTS, sliding_window=7),
    "llama4": lambda: Llama4TextConfig(**DECODER, **EXPERTS, attention_chunk_size=8, intermediate_size_mlp=72),
}
ENCODERS = {
    "bert": lambda: BertConfig(**SIZES),
    "modernbert": lambda: ModernBertConfig(
        **SIZES, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0, cls_token_id=1, sep_token_id=2
    ),
}


@functools.cache
def model(name):
    """The model of that name, f32, in eval mode. Others see it too: put back what you change."""
    kind = AutoModelForCausalLM if name in DECODERS else AutoModelForMaskedLM
    config = (DECODERS | ENCODERS)[name]()
    torch.manual_seed(1)
    made = kind.from_config(config).eval()
    for parameter_name, parameter in made.named_parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=1.2 / parameter.shape[-1] ** 0.5)
        elif "sinks" in parameter_name:
            torch.nn.init.normal_(parameter)
    return made


def tokens(batch, length):
    return torch.randint(3, VOCABULARY, (batch, length))


def padding(lengths, length, side):
    """1 for tokens, 0 for padding, [batch, length]."""
    place = torch.arange(length)
    rows = [place < n if side == "right" else place >= length - n for n in lengths]
    return torch.stack(rows).long()


def logits(made, implementation, ids, mask=None, **kwargs):
    made.set_attn_implementation(implementation)
    assert made.config._attn_implementation == implementation
    with torch.no_grad():
        return made(ids, attention_mask=mask, **kwargs).logits


def reference_attention(
    module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, dropout=0.0, **kwargs
):
    """In f64. A row that sees nothing is 0, so that it spoils no other."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(groups, 1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query.double() @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : key.shape[2]]
    return (weights @ value).to(query.dtype).transpose(1, 2).contiguous(), weights


def _reference_mask(*args, **kwargs):
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


AttentionInterface.register("reference", reference_attention)
AttentionMaskInterface.register("reference", _reference_mask)
