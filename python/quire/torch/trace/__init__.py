"""Mods written with torch operations, as formulas with the tensors they read. See docs/tracing.md. Trace layer."""

from quire.trace import TraceError

from .mod_cache import Traced, clear_cache, trace_mask_mod, trace_score_mod
from .mod_guard import guard_steps
from .mod_key import KeyUnknown, mod_key

__all__ = [
    "KeyUnknown",
    "TraceError",
    "Traced",
    "clear_cache",
    "guard_steps",
    "mod_key",
    "trace_mask_mod",
    "trace_score_mod",
]
