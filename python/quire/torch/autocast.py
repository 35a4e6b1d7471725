"""Applies autocast to the three inputs of attention, as for torch's flex_attention. Python layer."""

from __future__ import annotations

import torch
from torch import Tensor

_CAST = frozenset({torch.float32, torch.bfloat16, torch.float16})


def autocast(tensor: Tensor) -> Tensor:
    """Converts to the dtype of the active autocast; f64 stays."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if tensor.dtype in _CAST else tensor
