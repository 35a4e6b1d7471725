"""Mods written with torch operations, as formulas with the tensors they read. See docs/tracing.md. Trace layer."""

from quire.trace import TraceError

from .mod_cache import Traced, clear_cache, trace_mask_mod, trace_score_mod

__all__ = ["TraceError", "Traced", "clear_cache", "trace_mask_mod", "trace_score_mod"]
