"""Pickles a mask's rule that is a function without an importable name: as its formula and its tensors.

Python layer, above trace/.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from quire import _core
from quire.torch.trace import trace_mask_mod
from quire.torch.views import view_of


def is_importable(mask_mod: Any) -> bool:
    """Whether pickle can store it as it is: a text, or something importable by its name."""
    if isinstance(mask_mod, str):
        return True
    if isinstance(mask_mod, _core.MaskMod):
        return False
    if not hasattr(mask_mod, "__qualname__"):
        return True  # an object: it defines how it is pickled
    found: Any = sys.modules.get(getattr(mask_mod, "__module__", None) or "")
    for name in mask_mod.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is mask_mod


class PickledRule:
    """What a rule computes. Unpickled as a quire.MaskMod."""

    def __init__(self, mask_mod: Any):
        if isinstance(mask_mod, _core.MaskMod):
            self.text = mask_mod.text
            self.names = list(mask_mod.buffer_names)
            self.tensors = [torch.from_dlpack(mask_mod.buffers[name]).clone() for name in self.names]
        else:
            traced = trace_mask_mod(mask_mod)
            self.text, self.names, self.tensors = traced.text, list(traced.names), list(traced.tensors)

    def mask_mod(self) -> _core.MaskMod:
        buffers = {name: view_of(tensor) for name, tensor in zip(self.names, self.tensors, strict=True)}
        return _core.MaskMod(self.text, buffers) if buffers else _core.MaskMod(self.text)
