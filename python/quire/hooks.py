"""Options of attention besides masks and score mods: sinks, weights by a formula, rotation on read (Rope), converted
for _core.

Shared by quire and quire.torch. Python layer, above _core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import _core
from ._core import ScoreMod
from .option_checks import check_flag, check_int


class Rope(NamedTuple):
    """Rotary positions, applied when queries and keys are read: queries by q_idx, keys by kv_idx. So a cache can store
    keys unrotated, and drop or shift tokens.

    theta: the angle of pair i is position * theta ** (-2 * i / dims). cos, sin: instead, tables [positions, dims / 2].
    dims: how many numbers of a row are rotated, from the first; by default all. interleaved: pair i is (2 * i, 2 * i +
    1); otherwise (i, i + dims / 2), the two halves.

    >>> import numpy, quire
    >>> q, k, v = numpy.random.default_rng(0).standard_normal((3, 1, 2, 9, 64), numpy.float32)
    >>> angles = numpy.arange(9)[:, None] * 10000.0 ** (-numpy.arange(32) / 32)
    >>> tables = quire.Rope(cos=numpy.cos(angles), sin=numpy.sin(angles))
    >>> one, two = (quire.flex_attention(q, k, v, rope=rope) for rope in (quire.Rope(theta=10000.0), tables))
    >>> bool(numpy.allclose(one, two, atol=1e-5))
    True
    """

    theta: float = 10000.0
    cos: Any = None
    sin: Any = None
    dims: int | None = None
    interleaved: bool = False


def rope_tables(where: str, rope: Any, view: Callable[[Any], Any] = _core.view) -> _core.RopeTables | None:
    """As _core takes it. view: makes a View of a table."""
    if rope is None:
        return None
    if not isinstance(rope, Rope):
        raise TypeError(f"[{where}] rope must be a Rope; got {type(rope).__name__} {rope!r}")
    if rope.dims is not None and check_int(where, "dims of rope", rope.dims) <= 0:
        raise ValueError(f"[{where}] dims of rope must be positive; got {rope.dims}")
    if isinstance(rope.theta, (str, bytes)) or not hasattr(rope.theta, "__float__"):
        raise TypeError(f"[{where}] theta of rope must be a number; got {type(rope.theta).__name__} {rope.theta!r}")
    cos, sin = (None if table is None else view(table) for table in (rope.cos, rope.sin))
    interleaved = check_flag(where, "interleaved of rope", rope.interleaved)
    return _core.RopeTables(float(rope.theta), cos, sin, rope.dims or 0, interleaved)


def check_normalize(where: str, normalize: Any) -> str | None:
    """None or "sum"."""
    if normalize is None or normalize == "sum":
        return normalize
    raise ValueError(f"[{where}] normalize must be None or 'sum'; got {normalize!r}")


def hook_options(
    where: str, sinks: Any, lse_with_sinks: Any, weight_mod: Any, normalize: Any, rope: Any
) -> dict[str, Any]:
    """For a call over arrays, as _core.Options takes them."""
    if weight_mod is not None and type(weight_mod) is not ScoreMod:
        weight_mod = ScoreMod(weight_mod)
    return dict(
        sinks=None if sinks is None else _core.view(sinks),
        lse_with_sinks=check_flag(where, "lse_with_sinks", lse_with_sinks),
        weight_mod=weight_mod,
        normalize=check_normalize(where, normalize),
        rope=rope_tables(where, rope),
    )
