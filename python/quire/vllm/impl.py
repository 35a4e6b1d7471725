"""QuireAttentionImpl: one attention layer of a vLLM model: new keys and values into vLLM's cache, and the step's plan over it.

Python layer, above metadata.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from quire.vllm import pages as _pages
from quire.vllm.layer_mods import LayerMods, mods_of, shifted_heads
from quire.vllm.log import inform_of_the_unheard
from quire.vllm.metadata import QuireMetadata
from quire.vllm.rule import LayerRule

_threads = torch.get_num_threads
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
_MEANS_NOTHING = {"chunk_lookback": -1}  # values of arguments that only some backends know, by which models say "none"


class QuireAttentionImpl(AttentionImpl[QuireMetadata]):
    """Arguments as vLLM passes them. What would change the result and is not known is refused."""

    can_return_lse_for_decode: bool = True
    lse_base_on_e: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
        use_alibi_sqrt: bool = False,
        **others: Any,
    ) -> None:
        unknown = sorted(name for name, value in others.items() if value not in (None, _MEANS_NOTHING.get(name)))
        if unknown:
            raise NotImplementedError(
                f"[quire.vllm] a layer with {', '.join(unknown)} is not supported; QUIRE_VLLM=0 switches Quire off"
            )
        inform_of_the_unheard()
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        if sinks is not None and tuple(sinks.shape) != (num_heads,):
            raise ValueError(f"[quire.vllm] sinks must be one per head, ({num_heads},); got {tuple(sinks.shape)}")
        self._rule = LayerRule(
            scale=self.scale,
            window=window_of(sliding_window),
            softcap=float(logits_soft_cap or 0.0),
            alibi=tuple(float(slope) for slope in alibi_slopes or ()),
            is_alibi_sqrt=bool(use_alibi_sqrt),
            has_sinks=sinks is not None,
        )
        self._format = None if attn_type in _ENCODERS else _pages.format_of(kv_cache_dtype)
        self._named_rule: LayerRule | None = None  # with the mods of the layer's name
        self._cache: tuple[Any, ...] = ()  # what _split and _views were made from
        self._split: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self._views: _pages.Pages | None = None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: Tensor,
        attn_metadata: QuireMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query [tokens, heads, head_size]; into output [tokens, heads, head size of V]. The new keys are in the cache already."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("[quire.vllm] an output in codes (fused output quantisation) is not supported")
        if attn_metadata is None:  # vLLM measures memory: nothing is to be computed
            return output.zero_()
        tokens = attn_metadata.num_actual_tokens
        threads = _threads()
        rule = self._named_rule or self._rule_of(layer)
        if self.attn_type in _ENCODERS:
            assert key is not None and value is not None
            q, k, v = query[:tokens], key[:tokens], value[:tokens]
            plan = attn_metadata.over_tokens(rule, q, k, v, threads)
            plan.run(q, _pages.view_of(k), _pages.view_of(v), output, self.sinks, tokens=tokens)
            return output
        views = self._look_at(layer, kv_cache)
        plan = attn_metadata.over_pages(rule, query, views, threads)
        plan.run(query, views.k, views.v, output, self.sinks, tokens=tokens)
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """New keys and values [tokens, kv_heads, dim] to their slots."""
        if self.attn_type in _ENCODERS or kv_cache.numel() == 0:
            return
        self._look_at(layer, kv_cache)
        scales = (layer._k_scale, layer._v_scale)
        _pages.write((key, value), slot_mapping, self._split, self._format, scales, _threads())

    def _look_at(self, layer: Any, cache: Tensor) -> _pages.Pages:
        """Views of the layer's cache, made anew only when it lies elsewhere."""
        known = (cache.data_ptr(), cache.shape)
        if known != self._cache or self._views is None:
            self._split = _pages.split(cache, self.head_size, cache.shape[-1] - self.head_size)
            self._views = _pages.pages_of(*self._split, self._format, layer._k_scale, layer._v_scale)
            self._cache = known
        return self._views

    def _rule_of(self, layer: Any) -> LayerRule:
        self._named_rule = self._rule._replace(mods=local_mods(layer.layer_name, self.num_heads))
        return self._named_rule


def window_of(sliding_window: int | None) -> int | None:
    """vLLM counts the query itself among the keys of a window; -1 stands for none."""
    return sliding_window if sliding_window is not None and sliding_window > 0 else None


def local_mods(layer_name: str, num_heads: int) -> LayerMods:
    """Those of a layer, as this worker's heads see them."""
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    mods = mods_of(layer_name)
    return mods if mods == LayerMods() else shifted_heads(mods, get_tensor_model_parallel_rank() * num_heads)
