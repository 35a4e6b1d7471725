"""What the tracers of quire.torch and quire.jax share: values of a formula, functions of them, and TraceError.

Trace layer, above _core.
"""

from .error import TraceError

__all__ = ["TraceError"]
