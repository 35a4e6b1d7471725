"""Quantised keys and values over NumPy and DLPack arrays: the object that attention takes, quantize and dequantize.

The arithmetic is _core's. Python layer, below attention.py.
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._core import KVFormat, View
from .arrays import like
from .option_checks import check_flag, check_int

__all__ = ["KVFormat", "QuantizedTensor", "dequantize", "format_of", "kv_view", "quantize"]


def format_of(function: str, format: KVFormat | str, hadamard: bool = False) -> KVFormat:
    """A KVFormat from one or from its name, rotated if asked for."""
    hadamard = check_flag(function, "hadamard", hadamard)
    if isinstance(format, str):
        return KVFormat(format, hadamard)
    if not isinstance(format, KVFormat):
        raise TypeError(f"[{function}] format must be a KVFormat or the name of one; got {type(format).__name__}")
    return KVFormat(format.name, True) if hadamard else format


class QuantizedTensor:
    """Keys or values as codes: the result of quantize, or codes and scales made by another library, read in place.
    Every attention call of quire and quire.torch takes it as key or value.

    Args:
        codes: [.., dim] int8 for "int8" and "int8_channel"; uint8 for all others: [.., dim] for "u8", "fp8_e4m3" and
            "fp8_e5m2", [.., dim / 2] for "int4", [.., dim / 32 * 34] for "q8_0", [.., dim / 32 * 18] for "q4_0". Any
            strides, but the codes of a row must be contiguous.
        scales: float32 [..] for "int8", [.., 2] for "u8" (scale and zero point), [heads, dim] for "int8_channel",
            [heads] or [1] for fp8; float16 [.., dim / 32, 2] for "int4" (scale and minimum). None for "q8_0" and
            "q4_0", which contain theirs.
        format: a KVFormat or the name of one.

    >>> import numpy, quire
    >>> k = numpy.random.default_rng(0).standard_normal((1, 2, 100, 64), numpy.float32)
    >>> coded = quire.quantize(k, "int8")
    >>> coded
    quire.QuantizedTensor((1, 2, 100, 64), 'int8')
    >>> coded.codes.shape, coded.scales.shape
    ((1, 2, 100, 64), (1, 2, 100))
    >>> quire.QuantizedTensor(coded.codes, coded.scales, "int8").nbytes
    13600
    >>> quire.flex_attention(k[:, :, :1], coded, coded).shape
    (1, 2, 1, 64)
    """

    __slots__ = ("codes", "scales", "format")

    def __init__(self, codes: Any, scales: Any, format: KVFormat | str) -> None:
        self.codes, self.scales, self.format = codes, scales, format_of("QuantizedTensor", format)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the decoded numbers."""
        return _core.coded_shape(self.view())

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return sum(_bytes(one) for one in (self.codes, self.scales) if one is not None)

    def __repr__(self) -> str:
        rotated = ", hadamard=True" if self.format.hadamard else ""
        return f"quire.QuantizedTensor({self.shape}, {self.format.name!r}{rotated})"

    def view(self) -> View:
        """As _core takes it."""
        scales = None if self.scales is None else _core.view(self.scales)
        return _core.coded_view(_core.view(self.codes), scales, self.format)


def _bytes(array: Any) -> int:
    view = _core.view(array).numpy()
    return int(view.nbytes)


def kv_view(array: Any) -> View:
    """The view of keys or values: codes, or an array of floats."""
    return array.view() if isinstance(array, QuantizedTensor) else _core.view(array)


def quantize(
    x: Any, format: KVFormat | str, hadamard: bool = False, *, scales: Any = None, head_axis: int = 1
) -> QuantizedTensor:
    """Codes keys or values.

    Args:
        x: float32, float64, bfloat16 or float16, 2 to 4 axes: [B, H, S, D], [tokens, H, D], [pages, H, page_size, D], [tokens, D].
        format: "int8", "int8_channel", "u8", "int4", "fp8_e4m3", "fp8_e5m2", "q8_0" or "q4_0", or a KVFormat.
        hadamard: rotate rows before coding; attention undoes it.
        scales: for "int8_channel" and fp8, calibrated ones; by default derived from x.
        head_axis: the axis of heads.

    Raises ValueError, naming the row, for NaN, infinity, and what a float16 scale cannot hold.

    >>> import numpy, quire
    >>> x = numpy.linspace(-1, 1, 64, dtype=numpy.float32).reshape(1, 1, 1, 64)
    >>> coded = quire.quantize(x, "q4_0")
    >>> coded.codes.shape, float(abs(quire.dequantize(coded) - x).max()) < 0.07
    ((1, 1, 1, 36), True)
    """
    format = format_of("quantize", format, hadamard)
    given = None if scales is None else _core.view(scales)
    codes, found = _core.quantize(_core.view(x), format, given, check_int("quantize", "head_axis", head_axis))
    return QuantizedTensor(like(codes, x), None if found is None else like(found, x), format)


def dequantize(x: Any, dtype: Any = "f32", *, head_axis: int = 1) -> Any:
    """The numbers that attention computes with (before the rotation, if there is one), rounded to `dtype`, as an array
    of the codes' kind.

    >>> import numpy, quire
    >>> quire.dequantize(quire.quantize(numpy.full((1, 1, 1, 4), 2.0), "int8"))
    array([[[[2., 2., 2., 2.]]]], dtype=float32)
    """
    if not isinstance(x, QuantizedTensor):
        raise TypeError(f"[dequantize] x must be a QuantizedTensor; got {type(x).__name__}")
    head_axis = check_int("dequantize", "head_axis", head_axis)
    return like(_core.dequantize(x.view(), dtype, head_axis), x.codes)
