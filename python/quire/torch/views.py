"""Torch tensors as _core Views: an address, a dtype code, sizes and strides; nothing is copied.

Does not decide which tensors a call accepts (validate.py). Python layer, below everything else of quire.torch.
"""

from __future__ import annotations

import torch

from quire import _core
from quire.torch.transforms import without_wrappers

_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
}
CODES: dict[torch.dtype, int] = {dtype: _core.DTYPES[name] for dtype, name in _NAMES.items()}

_View = _core.View


def view_of(tensor: torch.Tensor) -> _core.View:
    """A View that keeps the tensor alive. Throws TypeError for a dtype Quire does not have."""
    if tensor.device.type != "cpu":
        raise ValueError(f"Quire computes on the CPU; got a tensor on {tensor.device}. Bring it here with .cpu()")
    code = CODES.get(tensor.dtype)
    if code is None:
        raise TypeError(f"Quire has no tensors of {tensor.dtype}; it has {', '.join(_NAMES.values())}")
    if tensor.is_neg():  # the imaginary part of a conjugate: its sign is not in memory
        tensor = tensor.resolve_neg()
    try:
        return _View(tensor.data_ptr(), code, tensor.shape, tensor.stride(), tensor)
    except RuntimeError:  # no memory of its own: wrapped by torch.func.grad
        inside = without_wrappers(tensor)
        if inside is tensor:
            raise
        return view_of(inside)
