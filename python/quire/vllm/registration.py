"""The plugin's entry point: puts Quire's backends in the place of vLLM's own for CPUs, in every process of an engine.

Where vLLM does not run on CPUs, or its seam is not the one that is known, it steps aside and says so in vLLM's log. Python layer, top.
"""

from __future__ import annotations

import os

import torch

from quire.vllm.log import inform, log

VARIABLE = "QUIRE_VLLM"
_BACKENDS = {"CPU_ATTN": "quire.vllm.backend.QuireAttentionBackend", "CPU_MLA": "quire.vllm.mla.QuireMLABackend"}
_MLA_PREFILL = {"CPU": "quire.vllm.mla.QuireMLAPrefill"}


def is_wanted() -> bool:
    """By the environment. ValueError for what is neither 0 nor 1."""
    value = os.environ.get(VARIABLE, "1")
    if value not in ("", "0", "1"):
        raise ValueError(f"[quire.vllm] {VARIABLE} must be 0 (off) or 1; got {value!r}")
    return value != "0"


def register() -> None:
    """vLLM calls it in each of its processes; calling it again is fine. With QUIRE_VLLM=0 vLLM keeps its own attention."""
    if not is_wanted():
        inform("Quire: attention is left to vLLM (%s=0).", VARIABLE)
        return
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        backends = {AttentionBackendEnum[name]: path for name, path in _BACKENDS.items()}
        prefill = {MLAPrefillBackendEnum[name]: path for name, path in _MLA_PREFILL.items()}
    except (ImportError, AttributeError, KeyError, ValueError) as error:
        log().warning("Quire steps aside: this vLLM has another seam for attention (%s).", error)
        return
    if not current_platform.is_cpu():
        inform("Quire steps aside: vLLM runs on %s, and Quire is for CPUs.", current_platform.device_name)
        return
    for backend, path in backends.items():
        register_backend(backend, path)
    for backend, path in prefill.items():
        register_mla_prefill_backend(backend, path)
    inform("Quire computes vLLM's attention on this CPU (%s=0 switches it off).", VARIABLE)
    if torch.cpu._is_amx_tile_supported():
        inform("Quire steps aside for latent attention (MLA) where vLLM takes AMX_MLA for it, as on this CPU.")


def unregister() -> None:
    """vLLM's own backends again, for engines that are made from now on in this process."""
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for name in _BACKENDS:
        AttentionBackendEnum[name].clear_override()
    for name in _MLA_PREFILL:
        MLAPrefillBackendEnum[name].clear_override()
