"""Latent attention (DeepSeek's MLA) in vLLM on CPUs: decode over latent pages, where values are the first columns of keys, and prefill
over the keys and values that the model has made of them.

In the place of CPU_MLA and of its prefill in plain PyTorch; what is around them, and where the cache lies, stays vLLM's. Python layer,
above metadata.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl
from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend

from quire.vllm.layer_mods import LayerMods, mods_of
from quire.vllm.log import inform_of_the_unheard
from quire.vllm.metadata import QuireMetadata, StepPlan, plan_over_tokens
from quire.vllm.pages import latent_pages, view_of
from quire.vllm.rule import LayerRule


class QuireMLABackend(CPUMLABackend):
    """vLLM keeps blocks of 16 tokens for it, and neither chunks prompts nor shares prefixes."""

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any

    @staticmethod
    def get_impl_cls() -> type[QuireMLAImpl]:
        return QuireMLAImpl


class QuireMLAImpl(CPUMLAImpl):
    """Of vLLM's own, all but decode."""

    can_return_lse_for_decode: bool = True
    lse_base_on_e: bool = True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        inform_of_the_unheard()
        self._rule = LayerRule(scale=self.scale)

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Tensor | None]:
        """q [tokens, heads, latent and rotary dims], or both apart; cache [blocks, block_size, the same]. (out, lse or None)."""
        refuse_mods(layer.layer_name)
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        pages = latent_pages(kv_c_and_k_pe_cache, self.kv_lora_rank)
        out = torch.empty(*q.shape[:2], self.kv_lora_rank, dtype=q.dtype)
        lse = torch.empty(q.shape[:2], dtype=torch.float32) if self.need_to_return_lse_for_decode else None
        plan = step_of(attn_metadata).over_pages(self._rule, q, pages, torch.get_num_threads())
        plan.run(q, pages.k, pages.v, out, lse=lse)
        return out, lse


def step_of(attn_metadata: Any) -> QuireMetadata:
    """Of the requests that decode; made once per step and kept on vLLM's metadata."""
    found = getattr(attn_metadata.decode, "quire_step", None)
    if found is None:
        n = attn_metadata.num_decodes
        found = attn_metadata.decode.quire_step = QuireMetadata(
            num_actual_tokens=attn_metadata.num_decode_tokens,
            query_start_loc=attn_metadata.query_start_loc[: n + 1],
            seq_lens=attn_metadata.decode.seq_lens[:n],
            block_table=attn_metadata.decode.block_table[:n],
            slot_mapping=attn_metadata.slot_mapping,
        )
    return found


class QuireMLAPrefill(CPUSDPAMLAPrefillBackend):
    """Prompts' queries over keys of one size and values of another, all requests in one plan. Layers share it."""

    @staticmethod
    def get_name() -> str:
        return "QUIRE_MLA"

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        super().prepare_metadata(prefill_metadata)
        self._plans: dict[Any, StepPlan] = {}

    def _ragged_sdpa(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_cu_seq_lens: Tensor,
        kv_cu_seq_lens: Tensor,
        causal: bool,
        return_softmax_lse: bool,
    ) -> Any:
        """q, k, v [tokens, heads, dim], requests one after the other; returns [tokens, heads, dim] and, if wanted, lse [heads, tokens]."""
        threads = torch.get_num_threads()
        key = (q_cu_seq_lens.data_ptr(), kv_cu_seq_lens.data_ptr(), causal, q.dtype, q.shape, k.shape, threads)
        plan = self._plans.get(key)
        if plan is None:
            offsets = q_cu_seq_lens, kv_cu_seq_lens
            plan = self._plans[key] = plan_over_tokens(LayerRule(self.scale), (q, k, v), offsets, causal, threads)
        out = torch.empty(*q.shape[:2], v.shape[2], dtype=v.dtype)
        lse = torch.empty(q.shape[:2], dtype=torch.float32) if return_softmax_lse else None
        plan.run(q, view_of(k), view_of(v), out, lse=lse)
        return out if lse is None else (out, lse.t().contiguous())


def refuse_mods(layer_name: str) -> None:
    """NotImplementedError for a layer that set_mods names: prefill does not know whose keys it gets."""
    if mods_of(layer_name) != LayerMods():
        raise NotImplementedError(f"[quire.vllm] set_mods has no effect on latent attention ({layer_name})")
