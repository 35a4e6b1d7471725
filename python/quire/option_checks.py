"""Options of attention that are checked in Python, with error texts that name them: flags, numbers, scale, seed and
kernel_options.

Shared by quire and quire.torch. Python layer, bottom.
"""

from __future__ import annotations

import difflib
import numbers
import operator
import secrets
import warnings
from collections.abc import Mapping
from typing import Any

# PyTorch's names. They tune GPU kernels and mean nothing here; any other name is probably a typo.
_KERNEL_OPTIONS = frozenset(
    """BACKEND BLOCKS_ARE_CONTIGUOUS BLOCK_M BLOCK_M1 BLOCK_M2 BLOCK_N BLOCK_N1 BLOCK_N2 FLOAT32_PRECISION FORCE_USE_FLEX_ATTENTION
    GQA_SHARED_HEADS HAS_FULL_BLOCKS IS_DIVISIBLE OUTPUT_LOGSUMEXP OUTPUT_MAX PRESCALE_QK QK_HEAD_DIM QK_HEAD_DIM_ROUNDED
    ROWS_GUARANTEED_SAFE SAFE_HEAD_DIM SM_SCALE SPARSE_KV_BLOCK_SIZE SPARSE_Q_BLOCK_SIZE SPLIT_KV USE_TMA V_HEAD_DIM
    V_HEAD_DIM_ROUNDED WRITE_DQ kpack matrix_instr_nonkdim num_stages num_warps waves_per_eu""".split()
)


def check_scale(where: str, scale: Any, name: str = "scale") -> float | None:
    """The scale as a float; None if it is not given. NumPy numbers and tensors of one element are accepted."""
    if scale is None or type(scale) is float:
        return scale
    if isinstance(scale, (str, bytes)) or not (isinstance(scale, numbers.Real) or hasattr(scale, "__float__")):
        raise TypeError(f"[{where}] {name} must be a number; got {type(scale).__name__} {scale!r}")
    return float(scale)


def check_dropout(where: str, dropout_p: Any) -> float:
    """The probability as a float in 0..1."""
    if not isinstance(dropout_p, numbers.Real):
        raise TypeError(f"[{where}] dropout_p must be a number; got {type(dropout_p).__name__} {dropout_p!r}")
    probability = float(dropout_p)
    if not 0 <= probability <= 1:
        raise ValueError(f"[{where}] dropout_p must be in 0..1; got {dropout_p}")
    return probability


def check_seed(where: str, dropout_p: float, seed: int | None) -> int:
    """The seed of a dropout, 64 bits: a new one if none is given, 0 without dropout."""
    if seed is None:
        return secrets.randbits(64) if dropout_p else 0
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"[{where}] the seed must be an int; got {type(seed).__name__} {seed!r}")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"[{where}] the seed must have 64 bits and no sign; got {seed}")
    return int(seed)


def check_flag(where: str, name: str, value: Any) -> bool:
    """A bool of Python or NumPy, or 0 or 1."""
    if value is True or value is False:
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if type(value).__name__ in ("bool", "bool_") and hasattr(value, "item"):
        return bool(value)
    raise TypeError(f"[{where}] {name} must be a bool; got {type(value).__name__} {value!r}")


def check_int(where: str, name: str, value: Any) -> int:
    """An int of 64 bits, of Python, NumPy or torch."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"[{where}] {name} must be an int; got {type(value).__name__} {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise TypeError(f"[{where}] {name} must be an int of 64 bits; got {number}")
    return number


def check_aux(where: str, return_lse: Any, return_aux: Any) -> tuple[bool, bool]:
    """Whether lse and the largest scores are wanted."""
    if return_aux is None:
        return check_flag(where, "return_lse", return_lse), False
    if return_lse:
        raise ValueError(f"[{where}] return_lse and return_aux cannot be given both; AuxRequest(lse=True) is the same")
    if not isinstance(return_aux, tuple) or len(return_aux) not in (2, 5):
        raise TypeError(f"[{where}] return_aux must be an AuxRequest; got {type(return_aux).__name__} {return_aux!r}")
    lse, max_scores = return_aux[:2]
    return check_flag(where, "lse of return_aux", lse), check_flag(where, "max_scores of return_aux", max_scores)


def check_weights(where: str, return_aux: Any) -> tuple[bool, bool, tuple[int, int]]:
    """Whether the weights of keys and the entropy are wanted, and over which queries the weights are summed: [begin,
    end)."""
    weights = check_flag(where, "key_weights of return_aux", getattr(return_aux, "key_weights", False))
    entropy = check_flag(where, "entropy of return_aux", getattr(return_aux, "entropy", False))
    return weights, entropy, check_queries(where, getattr(return_aux, "key_weights_queries", None))


def check_queries(where: str, queries: Any) -> tuple[int, int]:
    """A range (begin, end) of queries; an end of None means the last one."""
    if queries is None:
        return 0, (1 << 63) - 1
    if not isinstance(queries, (tuple, list)) or len(queries) != 2:
        raise TypeError(f"[{where}] key_weights_queries must be (begin, end); got {queries!r}")
    begin, end = queries
    begin = check_int(where, "the begin of key_weights_queries", begin)
    return begin, (1 << 63) - 1 if end is None else check_int(where, "the end of key_weights_queries", end)


def check_kernel_options(where: str, options: Any, more: frozenset[str] = frozenset()) -> None:
    """Raises TypeError unless it is a mapping; warns about names that PyTorch does not have. more: additional names."""
    if not isinstance(options, Mapping):
        raise TypeError(f"[{where}] kernel_options must be a dict; got {type(options).__name__} {options!r}")
    known = _KERNEL_OPTIONS | more
    for name in options:
        if not isinstance(name, str) or name.removeprefix("fwd_").removeprefix("bwd_") in known:
            continue
        near = difflib.get_close_matches(name, known, 1)
        meant = f"; {near[0]} may be meant" if near else ""
        warnings.warn(
            f"[{where}] kernel_options has no option {name!r}{meant}. It has no effect", UserWarning, stacklevel=4
        )
