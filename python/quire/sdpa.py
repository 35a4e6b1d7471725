"""scaled_dot_product_attention over arrays and jagged batches, and which backends may compute it.

Python layer, above jagged.py.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from . import _core
from ._core import MaskMod
from .arrays import like
from .hooks import Rope, hook_options
from .jagged import are_jagged
from .option_checks import check_flag, check_scale, check_seed

Alignment = Literal["top_left", "bottom_right"]


class SDPBackend(enum.IntEnum):
    """FLASH_ATTENTION and EFFICIENT_ATTENTION are two names for the same kernels. MATH is the f64 reference. ERROR: no
    backend is left.

    >>> import quire
    >>> list(quire.SDPBackend.__members__)
    ['ERROR', 'MATH', 'FLASH_ATTENTION', 'EFFICIENT_ATTENTION']
    """

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2


_ALL = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
_allowed = threading.local()


def allowed_backends() -> tuple[SDPBackend, ...]:
    """The backends that this thread may use, in the order of preference."""
    return getattr(_allowed, "backends", _ALL)


@contextlib.contextmanager
def sdpa_kernel(backends: SDPBackend | Sequence[SDPBackend]) -> Iterator[None]:
    """Allows only these backends inside the `with` block, in this thread. The order of preference stays FLASH,
    EFFICIENT, MATH.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 2, 3, 8), numpy.float32)
    >>> with quire.sdpa_kernel(quire.SDPBackend.MATH):
    ...     quire.choose_backend(x, x, x).name
    'MATH'
    """
    given = {SDPBackend(one) for one in ([backends] if isinstance(backends, int) else backends)}
    before = allowed_backends()
    _allowed.backends = tuple(one for one in _ALL if one in given)
    try:
        yield
    finally:
        _allowed.backends = before


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: int | None = None,
    alignment: Alignment = "top_left",
    sinks: Any = None,
    key_indices: Any = None,
    weight_mod: Any = None,
    normalize: str | None = None,
    rope: Rope | None = None,
) -> Any:
    """softmax(query key^T * scale + mask) value.

    Args:
        query: [..., Hq, L, E]; key: [..., Hkv, S, E]; value: [..., Hkv, S, Ev], of one dtype; batch and heads of size 1 are
            broadcast. Or all three Jagged.
        attn_mask: an array that broadcasts to [..., Hq, L, S], bool (True: visible) or float (added to the scores); or a
            rule: a MaskMod, a text or a function of (b, h, q_idx, kv_idx). Jagged batches take a rule.
        dropout_p: the probability that a weight is dropped; the others are divided by 1 - dropout_p.
        is_causal: a query sees the keys up to its own position; not together with attn_mask.
        scale: 1 / sqrt(E) if not given.
        enable_gqa: Hq may be a multiple of Hkv.
        seed: of the dropout, 64 bits; by default a new one. The same seed drops the same weights, on any number of
            threads.
        alignment: which corner the diagonal of is_causal starts in. "bottom_right": the last query sees the last key.
        sinks, key_indices, weight_mod, normalize, rope: as of flex_attention; the B of key_indices counts all leading axes.

    Returns:
        [..., Hq, L, Ev] of the query's kind and dtype; Jagged for Jagged.

    >>> import numpy, quire
    >>> q, k, v = numpy.random.default_rng(0).standard_normal((3, 2, 8, 300, 64), numpy.float32)
    >>> out = quire.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> out.shape, bool(numpy.allclose(out[:, :, 0], v[:, :, 0]))  # the first query sees the first key only
    ((2, 8, 300, 64), True)
    """
    where = "scaled_dot_product_attention"
    is_jagged = are_jagged(where, query, key, value)
    hooks = _hooks(where, sinks, key_indices, weight_mod, normalize, rope)
    options = _options(where, attn_mask, dropout_p, is_causal, alignment, scale, enable_gqa, seed, **hooks)
    out, _ = _core.sdpa(options, *_views(is_jagged, query, key, value))
    return query.with_values(out) if is_jagged else like(out, query)


def choose_backend(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alignment: Alignment = "top_left",
) -> SDPBackend:
    """The backend that such a call of scaled_dot_product_attention would use now; ERROR if none is left.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 2, 3, 8), numpy.float32)
    >>> wide = numpy.ones((1, 2, 3, 2000), numpy.float32)
    >>> quire.choose_backend(x, x, x).name, quire.choose_backend(wide, wide, wide).name
    ('FLASH_ATTENTION', 'MATH')
    """
    views = _views(are_jagged("choose_backend", query, key, value), query, key, value)
    options = _options("choose_backend", attn_mask, dropout_p, is_causal, alignment, scale, enable_gqa)
    return SDPBackend(_core.choose_backend(options, *views))


def why_not(
    backend: SDPBackend,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alignment: Alignment = "top_left",
) -> list[str]:
    """Every reason why a backend cannot compute such a call, as sentences; empty if it can.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 2, 3, 2000), numpy.float32)
    >>> quire.why_not(quire.SDPBackend.FLASH_ATTENTION, x, x, x)
    ['FLASH_ATTENTION takes head dims of 0 to 1024; got 2000 for query and key and 2000 for value.']
    """
    views = _views(are_jagged("why_not", query, key, value), query, key, value)
    options = _options("why_not", attn_mask, dropout_p, is_causal, alignment, scale, enable_gqa)
    return _core.why_not(options, SDPBackend(backend), *views)


def _options(
    where: str,
    attn_mask: Any,
    dropout_p: Any,
    is_causal: Any,
    alignment: Any,
    scale: Any,
    enable_gqa: Any,
    seed: Any = None,
    **hooks: Any,
) -> _core.SdpaOptions:
    """Checks the options, with error texts that name them."""
    if isinstance(dropout_p, (str, bytes)) or not hasattr(dropout_p, "__float__"):
        raise TypeError(f"[{where}] dropout_p must be a number; got {type(dropout_p).__name__} {dropout_p!r}")
    if not isinstance(alignment, str):
        raise TypeError(f"[{where}] alignment must be a str; got {type(alignment).__name__} {alignment!r}")
    return _core.SdpaOptions(
        attn_mask=_mask(attn_mask),
        dropout_p=float(dropout_p),
        seed=check_seed(where, dropout_p, seed) if where == "scaled_dot_product_attention" else 0,
        is_causal=check_flag(where, "is_causal", is_causal),
        alignment=alignment,
        scale=check_scale(where, scale),
        enable_gqa=check_flag(where, "enable_gqa", enable_gqa),
        backends=allowed_backends(),
        **hooks,
    )


def _hooks(where: str, sinks: Any, key_indices: Any, weight_mod: Any, normalize: Any, rope: Any) -> dict[str, Any]:
    """As _core.SdpaOptions takes them; nothing if none is given."""
    if sinks is key_indices is weight_mod is normalize is rope is None:
        return {}
    given = hook_options(where, sinks, False, weight_mod, normalize, rope)
    if given["weight_mod"] is None and normalize is not None:
        raise ValueError(f"[{where}] normalize is for weight_mod, and there is none")
    return dict(
        sinks=given["sinks"],
        key_indices=key_indices,
        weight_mod=given["weight_mod"],
        divides_by_sum=normalize == "sum",
        rope=given["rope"],
    )


def _views(is_jagged: bool, *inputs: Any) -> list[Any]:
    return [one.views() if is_jagged else _core.view(one) for one in inputs]


def _mask(attn_mask: Any) -> Any:
    """A rule as a MaskMod; arrays and None unchanged."""
    if isinstance(attn_mask, str) or (callable(attn_mask) and not isinstance(attn_mask, MaskMod)):
        return MaskMod(attn_mask)
    return attn_mask
