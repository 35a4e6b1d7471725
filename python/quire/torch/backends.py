"""Which backends of scaled_dot_product_attention a call may use: those left on by torch.nn.attention.sdpa_kernel (or
the flags of torch.backends.cuda that it sets) and by quire.sdpa_kernel in this thread. Python layer."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from quire import sdpa

_SWITCHES = {
    sdpa.SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    sdpa.SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    sdpa.SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
}
_flash_enabled, _FLASH = torch.backends.cuda.flash_sdp_enabled, sdpa.SDPBackend.FLASH_ATTENTION
_OF_OTHER_DEVICES = (SDPBackend.CUDNN_ATTENTION, SDPBackend.OVERRIDEABLE)


def allowed_backends() -> list[sdpa.SDPBackend]:
    """In the order of preference."""
    return [backend for backend in sdpa.allowed_backends() if _SWITCHES[backend]()]


def may_be_fused() -> bool:
    """Whether the preferred backend, which takes every ordinary call, is left on."""
    return _flash_enabled() and _FLASH in sdpa.allowed_backends()


def number_of(backend: Any) -> int | None:
    """The number of torch's SDPBackend or quire's; None for one that no CPU has."""
    return None if backend in _OF_OTHER_DEVICES else int(sdpa.SDPBackend(int(backend)))
