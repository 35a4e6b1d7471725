"""QuireAttentionBackend: what vLLM asks about attention on this CPU, and the builder of a step's metadata.

It answers to the name CPU_ATTN, the only one that vLLM's CPU platform asks for. Python layer, above impl.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import CrossAttentionSpec, KVCacheLayout

from quire.vllm.impl import QuireAttentionImpl
from quire.vllm.metadata import QuireMetadata


class QuireAttentionBackend(AttentionBackend):
    """Any head sizes, K's and V's of their own; any block size; batch invariant."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = [
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
    ]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)  # a head's rows of a block side by side

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in tuple(AttentionType)

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @staticmethod
    def get_impl_cls() -> type[QuireAttentionImpl]:
        return QuireAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[QuireMetadataBuilder]:
        return QuireMetadataBuilder


class QuireMetadataBuilder(AttentionMetadataBuilder[QuireMetadata]):
    """Once per step and group of layers."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._is_cross = isinstance(kv_cache_spec, CrossAttentionSpec)
        self._has_positions = type(self) is QuireMetadataBuilder  # vLLM's own variants cut requests and move them

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> QuireMetadata:
        common = common_attn_metadata
        refuse_unknown(common)
        n = common.num_reqs
        return QuireMetadata(
            num_actual_tokens=common.num_actual_tokens,
            query_start_loc=common.query_start_loc[: n + 1],
            seq_lens=common.seq_lens[:n],
            block_table=common.block_table_tensor[:n],
            slot_mapping=common.slot_mapping,
            causal=common.causal,
            is_cross=self._is_cross,
            has_positions=self._has_positions,
        )


def refuse_unknown(common: Any) -> None:
    """What changes the result and is not computed here. NotImplementedError."""
    for name, what in (
        ("mm_req_doc_ranges", "ranges of multimodal tokens that see each other"),
        ("rswa_prefix_lens", "reference sliding windows"),
        ("dcp_local_seq_lens", "decode context parallelism"),
    ):
        if getattr(common, name, None) not in (None, {}):
            raise NotImplementedError(
                f"[quire.vllm] {what} ({name}) are not supported; QUIRE_VLLM=0 switches Quire off"
            )
