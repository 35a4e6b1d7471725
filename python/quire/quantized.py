"""Quantised keys and values over NumPy and DLPack arrays: the object that attention takes, quantize and dequantize.

The arithmetic is _core's. Layer: Python, below attention.py.
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._core import KVFormat, View
from .arrays import like
from .option_checks import check_flag, check_int

__all__ = ["KVFormat", "QuantizedTensor", "dequantize", "format_of", "kv_view", "quantize"]


def format_of(function: str, format: KVFormat | str, hadamard: bool = False) -> KVFormat:
    """A KVFormat, or the name of one, rotated if asked for."""
    hadamard = check_flag(function, "hadamard", hadamard)
    if isinstance(format, str):
        return KVFormat(format, hadamard)
    if not isinstance(format, KVFormat):
        raise TypeError(f"[{function}] format must be a KVFormat or the name of one; got {type(format).__name__}")
    return KVFormat(format.name, True) if hadamard else format


class QuantizedTensor:
    """Keys or values as codes: what quantize gives, or codes and scales that another library made, read where they lie. Every
    attention call of quire and quire.torch takes it as key or value.

    Args:
        codes: [.., dim] int8 of "int8" and "int8_channel"; uint8 of all others: [.., dim] of "u8", "fp8_e4m3" and "fp8_e5m2",
            [.., dim / 2] of "int4", [.., dim / 32 * 34] of "q8_0", [.., dim / 32 * 18] of "q4_0". Any strides, but the codes of
            a row side by side.
        scales: float32 [..] of "int8", [.., 2] of "u8" (scale and zero point), [heads, dim] of "int8_channel", [heads] or [1] of
            fp8; float16 [.., dim / 32, 2] of "int4" (scale and minimum). None of "q8_0" and "q4_0", which hold their own.
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
        """Of the numbers."""
        return _core.coded_shape(self.view())

    @property
    def nbytes(self) -> int:
        """Of codes and scales."""
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
    """Of keys or values: codes, or an array of floats."""
    return array.view() if isinstance(array, QuantizedTensor) else _core.view(array)


def quantize(
    x: Any, format: KVFormat | str, hadamard: bool = False, *, scales: Any = None, head_axis: int = 1
) -> QuantizedTensor:
    """Keys or values to codes.

    Args:
        x: float32, float64, bfloat16 or float16, 2 to 4 axes: [B, H, S, D], [tokens, H, D], [pages, H, page_size, D], [tokens, D].
        format: "int8", "int8_channel", "u8", "int4", "fp8_e4m3", "fp8_e5m2", "q8_0" or "q4_0", or a KVFormat.
        hadamard: rotate rows before they are coded; attention undoes it.
        scales: of "int8_channel" and fp8, the calibrated ones; found from x if not given.
        head_axis: which axis counts heads.

    NaN, infinity, and what a float16 scale cannot hold are refused with a ValueError that names the row.

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
    """The numbers that attention computes with (before the rotation, if there is one), rounded to `dtype`. An array of the kind of
    the codes.

    >>> import numpy, quire
    >>> quire.dequantize(quire.quantize(numpy.full((1, 1, 1, 4), 2.0), "int8"))
    array([[[[2., 2., 2., 2.]]]], dtype=float32)
    """
    if not isinstance(x, QuantizedTensor):
        raise TypeError(f"[dequantize] x must be a QuantizedTensor; got {type(x).__name__}")
    head_axis = check_int("dequantize", "head_axis", head_axis)
    return like(_core.dequantize(x.view(), dtype, head_axis), x.codes)
