"""TraceError, and the line of the user's code it refers to.

Trace layer, shared by quire.torch and quire.jax. Knows nothing of formulas.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NoReturn

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = ("torch", "jax")


class TraceError(RuntimeError):
    """A mod does something that a formula cannot say. The text names the operation and the user's line.

    >>> import torch
    >>> from quire.torch import TraceError, create_block_mask
    >>> try:
    ...     create_block_mask(lambda b, h, q_idx, kv_idx: torch.special.bessel_j0(q_idx) > 0, None, None, 8, 8)
    ... except TraceError as error:
    ...     print("bessel_j0" in str(error))
    True
    """


def user_line() -> str:
    """`file.py:12` of the innermost running line that belongs neither to Quire nor to a traced library; "" if there is
    none.
    """
    inside = (_HERE, *(folder for name in _LIBRARIES if (folder := _folder(name))))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(inside):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _folder(library: str) -> str:
    """The folder of an imported library; "" if it is not imported, or only a folder of that name."""
    file = getattr(sys.modules.get(library), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) + os.sep if file else ""


def fail(message: str) -> NoReturn:
    """Raises TraceError with the user's line after the message."""
    line = user_line()
    raise TraceError(f"[trace] {message}" + (f" (at {line})" if line else ""))
