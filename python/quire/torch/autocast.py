"""What autocast does to the three inputs of attention, as it does to torch's flex_attention. Python layer."""

from __future__ import annotations

import torch
from torch import Tensor

_CAST = frozenset({torch.float32, torch.bfloat16, torch.float16})


def autocast(tensor: Tensor) -> Tensor:
    """To the dtype of the running autocast; f64 stays."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if tensor.dtype in _CAST else tensor
