"""device="cuda" of scripts that hard-code it: the CPU instead, with one warning, while enable(cuda_to_cpu=True) holds.

Layer: Python, below what takes a device.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

is_on = False  # set by enable.py
_has_warned = False


def device_here(device: Any) -> Any:
    """The device that is meant: as it is, but the CPU for a GPU of CUDA where that was asked for."""
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
