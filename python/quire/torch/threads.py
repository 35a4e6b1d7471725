"""Which threads a call runs on: those of torch's OpenMP runtime.

After each torch operation its threads spin for a while, waiting for the next. A second pool on the same cores would
compete with them; on the same threads a call begins at once. Python layer, below everything else of quire.torch.
"""

from __future__ import annotations

import ctypes

import torch
from torch.autograd import forward_ad

from quire import _core

_torch_threads = torch.get_num_threads
# The extension's function itself: it takes no arguments that would have to be explained (quire/argument_errors.py).
_quire_threads = getattr(_core.get_num_threads, "__wrapped__", _core.get_num_threads)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _use_torchs_runtime() -> bool:
    """Whether torch has loaded one into the process (with globally visible symbols); otherwise Quire's own pool is
    used."""
    try:
        process = ctypes.CDLL(None)
        _core.use_openmp(_address(process, "GOMP_parallel"), _address(process, "omp_get_thread_num"))
    except (AttributeError, OSError):
        return False
    return True


_HAS_RUNTIME = _use_torchs_runtime()


def openmp_threads() -> int:
    """How many of torch's threads a call uses: all, or 0 (none) if Quire was told to use fewer."""
    threads = _torch_threads()
    return threads if _HAS_RUNTIME and threads <= _quire_threads() else 0


_core.use_torch(
    torch.Tensor,
    torch.nn.Parameter,
    torch.empty_like,
    torch.is_grad_enabled,
    torch.get_num_threads,
    forward_ad,
    [
        torch._C._len_torch_dispatch_stack,
        torch._C._get_tracing_state,
        torch._C._functorch.peek_interpreter_stack,
        torch._C._is_any_autocast_enabled,
    ],
)
