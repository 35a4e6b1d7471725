"""Maps device="cuda" in scripts that hard-code it to the CPU, with one warning, while enable(cuda_to_cpu=True) is
active.

Python layer, below what takes a device.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

is_on = False  # set by enable.py
_has_warned = False


def device_here(device: Any) -> Any:
    """The device to use: unchanged, or the CPU instead of a CUDA device if that was asked for."""
    global _has_warned
    if not is_on or device is None or torch.device(device).type != "cuda":
        return device
    if not _has_warned and not torch.compiler.is_dynamo_compiling():
        _has_warned = True
        warnings.warn(
            f"[quire.torch] device={str(device)!r} is the CPU here, by enable(cuda_to_cpu=True)",
            UserWarning,
            stacklevel=3,
        )
    return "cpu"
