"""Returns results as arrays of the caller's library, over the same memory. Python layer."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._core import View


def like(view: View, array: Any) -> Any:
    """The memory of `view` as an array of the library of `array`; NumPy's if that has no from_dlpack."""
    if isinstance(array, np.ndarray):
        return view.numpy()
    if isinstance(array, View):
        return view
    from_dlpack = getattr(_namespace(array), "from_dlpack", None)
    return view.numpy() if from_dlpack is None else from_dlpack(view)


def _namespace(array: Any) -> Any:
    """The module of the array's library: by the array API standard, otherwise the top-level module of its class."""
    find = getattr(array, "__array_namespace__", None)
    if find is not None:
        return find()
    return sys.modules.get(type(array).__module__.partition(".")[0])
