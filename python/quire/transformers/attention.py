"""The attention of a transformers layer by quire.torch: masks, soft-caps, biases, sinks and dropout as the layer asks.

Everything is one call of quire.torch.flex_attention, which handles autograd, autocast and torch.compile. keywords.py
lists what a layer may ask for. Python layer, top of this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from quire.torch import flex_attention
from quire.transformers.cached_attention import cached_attention
from quire.transformers.chosen_keys import chosen_keys
from quire.transformers.continuous_batching import batched_attention
from quire.transformers.keywords import BATCH, refuse_over_pages, refuse_unknown
from quire.transformers.masks import block_mask_of, causal_block_mask
from quire.transformers.paged_states import PagedStates

_WIDEST = 1024  # rows of values per call


def quire_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    output_attentions: bool | None = False,
    kernel_options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Called by transformers in every layer, with transformers' arguments.

    query [B, Hq, L, E], key [B, Hkv, S, E], value [B, Hkv, S, Ev]. `attention_mask`: the result of quire_mask, or a
    user's own [B or 1, Hq or 1, L, S]: bools, or floats that are added to the scores. `softcap`: scores become softcap
    * tanh(score / softcap). `s_aux`: a sink per head, [Hq]: a score that takes its share of the weights but has no
    value. `position_bias`: added to the scores. `indices`: [B, L, n], the only keys that a query may see, -1: unused;
    `block_indices`: [B, groups of heads, L, n], the same in blocks of `module.indexer.block_size` keys. Other keywords
    that could change the result raise a NotImplementedError that names them. Returns [B, L, Hq, Ev], contiguous, and
    the weights [B, Hq, L, S] if `output_attentions` asks for them, otherwise None.

    >>> import torch
    >>> from quire.transformers import quire_attention, quire_mask
    >>> query, key = torch.randn(2, 8, 5, 64), torch.randn(2, 2, 300, 64)
    >>> mask = quire_mask(batch_size=2, q_length=5, kv_length=300, q_offset=295)
    >>> quire_attention(torch.nn.Module(), query, key, key, mask, softcap=30.0, s_aux=torch.zeros(8))[0].shape
    torch.Size([2, 5, 8, 64])
    """
    if isinstance(key, PagedStates) or kwargs.get("cache") is not None:
        refuse_over_pages(indices, block_indices, position_bias, output_attentions)
        if isinstance(key, PagedStates):
            refuse_unknown(kwargs, has_mask=True)
            probability = dropout if module.training else 0.0
            options = (is_causal, scaling, softcap, s_aux, probability)
            return cached_attention(module, query, key, attention_mask, *options), None
        cache, batch = kwargs.pop("cache"), {name: kwargs.pop(name, None) for name in BATCH}
        refuse_unknown(kwargs, has_mask=True)
        return batched_attention(module, query, key, value, cache, batch, scaling, softcap, s_aux), None
    refuse_unknown(kwargs, has_mask=attention_mask is not None)
    mask, visible, biases = _mask_and_biases(module, query, key, attention_mask, is_causal)
    if position_bias is not None:
        biases = (*biases, position_bias[..., : key.shape[2]])
    every = (*query.shape[:3], -1)
    biases = tuple(bias.expand(every) for bias in biases)
    mod = _score_mod(softcap, biases, None if visible is None else visible.expand(every))
    probability = dropout if module.training else 0.0
    call: dict[str, Any] = {
        "block_mask": mask,
        "score_mod": mod,
        "scale": scaling,
        "enable_gqa": True,
        "kernel_options": kernel_options,
        "dropout_p": probability,
        "key_indices": chosen_keys(module, indices, block_indices, query.shape[1], key.shape[2]),
    }
    if s_aux is not None:
        call["sinks"] = s_aux.reshape(-1)
    state = torch.get_rng_state() if output_attentions and probability > 0.0 else None
    out: Any = flex_attention(query, key, value, **call)
    weights = _weights(query, key, value, call, state) if output_attentions else None
    return out.transpose(1, 2).contiguous(), weights


def _weights(query: Tensor, key: Tensor, value: Tensor, call: dict[str, Any], state: Tensor | None) -> Tensor:
    """[B, Hq, L, S]: the output for values that are unit vectors, some of the keys at a time. `state`: of the generator
    before the output was computed, so that the same weights are dropped."""
    unit = torch.eye(key.shape[2], dtype=value.dtype, device=value.device)
    parts: list[Any] = []
    for part in unit.split(_WIDEST, 1):
        if state is not None:
            torch.set_rng_state(state)
        parts.append(flex_attention(query, key, part.expand(*key.shape[:3], -1), **call))
    return torch.cat(parts, -1)


def _mask_and_biases(
    module: torch.nn.Module, query: Tensor, key: Tensor, attention_mask: Any, is_causal: bool | None
) -> tuple[BlockMask | None, Tensor | None, tuple[Tensor, ...]]:
    """What hides keys, as a block mask or as bools (True: visible), and what is added to the scores."""
    q_length, kv_length = query.shape[2], key.shape[2]
    if attention_mask is None:
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        return (causal_block_mask(q_length, kv_length) if is_causal and q_length > 1 else None), None, ()
    if isinstance(attention_mask, BlockMask):
        return attention_mask, None, ()
    if attention_mask.dtype is not torch.bool:
        return None, None, (attention_mask[..., :kv_length],)
    if torch.compiler.is_dynamo_compiling():  # a block mask would be made in the graph, by every layer at every call
        return None, attention_mask[..., :kv_length], ()
    return block_mask_of(attention_mask, *query.shape[:2], kv_length), None, ()


def _score_mod(softcap: float | None, biases: tuple[Tensor, ...], visible: Tensor | None) -> Callable | None:
    """The soft-cap first, as in eager. `biases`, `visible`: [B, Hq, L, S] each."""
    if softcap is None and not biases and visible is None:
        return None

    def score_mod(score, b, h, q_idx, kv_idx):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        for bias in biases:
            score = score + bias[b, h, q_idx, kv_idx]
        if visible is not None:
            score = torch.where(visible[b, h, q_idx, kv_idx], score, -math.inf)
        return score

    return score_mod
