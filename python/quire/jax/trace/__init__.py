"""Mods written with jax.numpy, as formulas with the arrays they read. See docs/jax.md. Trace layer, above quire.trace."""

from .tracer import Rule, trace_mod

__all__ = ["Rule", "trace_mod"]
