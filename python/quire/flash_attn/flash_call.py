"""What all functions of flash_attn share: soft-cap and ALiBi as formulas, windows, dropout, and the weights on request.

Everything goes through quire.torch's packed_attention, which handles autograd and torch.compile. Python layer, above
quire.torch.varlen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quire.option_checks import check_dropout, check_flag, check_int, check_scale
from quire.torch.forward import draw_seed
from quire.torch.varlen import Packed, Text, check_packed, packed_attention
from quire.torch.varlen_call import Varlen

_WIDEST = 1024  # rows of values per call


class Flash(NamedTuple):
    """The options of flash_attn's functions."""

    function: str
    dropout_p: float = 0.0
    softmax_scale: float | None = None
    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: Tensor | None = None
    deterministic: bool = False
    return_attn_probs: bool = False

    def window(self) -> tuple[int, int]:
        """Left and right; causal means nothing to the right."""
        left, right = self.window_size
        return left, 0 if self.causal else right

    def checked(self) -> Flash:
        """Raises ValueError or TypeError for invalid options."""
        name = self.function
        for flag in ("causal", "deterministic", "return_attn_probs"):
            check_flag(name, flag, getattr(self, flag))
        window = self.window_size
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise ValueError(f"[{name}] window_size must be (left, right); got {window!r}")
        numbers = {}
        for option in ("softmax_scale", "softcap"):
            numbers[option] = number = check_scale(name, getattr(self, option), option)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"[{name}] {option} must be finite; got {number}")
        return self._replace(
            dropout_p=check_dropout(name, self.dropout_p),
            softmax_scale=numbers["softmax_scale"],
            window_size=(check_int(name, "window_size", window[0]), check_int(name, "window_size", window[1])),
            softcap=numbers["softcap"] or 0.0,
        )


def packed_call(
    flash: Flash,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sequences: Varlen,
    mask: Text | None = None,
    want_lse: bool = False,
) -> Packed:
    """The call for packed_attention; everything that sizes can show to be wrong is rejected here. mask: what hides keys
    besides the window."""
    sequences = sequences._replace(window=flash.window())
    check_packed(flash.function, q, k, v, sequences, True)
    seed = None
    if flash.return_attn_probs and flash.dropout_p:
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(f"[{flash.function}] return_attn_probs with dropout inside torch.compile")
        seed = draw_seed()
    return Packed(
        flash.function,
        sequences,
        _score_mod(flash, q, sequences),
        mask,
        flash.softmax_scale,
        True,
        flash.dropout_p,
        seed,
        want_lse=want_lse or flash.return_attn_probs,
    )


def attend(
    flash: Flash, q: Tensor, k: Tensor, v: Tensor, sequences: Varlen
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(out [total, heads, dim], lse [total, heads], weights [batch, heads, longest query, longest key]); the last two
    if wanted."""
    call = packed_call(flash, q, k, v, sequences)
    out, lse, _ = packed_attention(call, q, k, v)
    return out, lse, _weights(call, q, k, v) if flash.return_attn_probs else None


def _score_mod(flash: Flash, q: Tensor, sequences: Varlen) -> Text | None:
    """The soft-cap first, then the bias, as in flash_attn."""
    if flash.softcap <= 0 and flash.alibi_slopes is None:
        return None
    text = f"{flash.softcap!r} * tanh(score / {flash.softcap!r})" if flash.softcap > 0 else "score"
    slopes = flash.alibi_slopes
    if slopes is None:
        return Text(text, [], [])
    batch, heads = sequences.cu_seq_q.shape[0] - 1, q.shape[1]
    if not isinstance(slopes, Tensor) or tuple(slopes.shape) not in ((heads,), (batch, heads)):
        what = tuple(slopes.shape) if isinstance(slopes, Tensor) else type(slopes).__name__
        raise ValueError(f"[{flash.function}] alibi_slopes must be [{heads}] or [{batch}, {heads}]; got {what}")
    if not slopes.is_floating_point() or slopes.device.type != "cpu":
        raise TypeError(
            f"[{flash.function}] alibi_slopes must be floats on the CPU; got {slopes.dtype} on {slopes.device}"
        )
    index = "h" if slopes.dim() == 1 else "b, h"
    text = f"{text} - slopes[{index}] * abs(q_idx + shift[b] - kv_idx)"
    return Text(text, ["slopes", "shift"], [slopes.detach(), sequences.shifts()])


def _weights(call: Packed, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The weights after the softmax, before dropout; dropped ones have a minus sign. Computed as the output for values
    that are unit vectors, some of the keys at a time."""
    sequences = call.sequences
    q_lengths, k_lengths = sequences.q_lengths().tolist(), sequences.k_lengths().tolist()
    longest = max(k_lengths, default=0)
    weights = q.new_zeros(len(q_lengths), q.shape[1], max(q_lengths, default=0), longest)
    call = call._replace(want_lse=False)
    with torch.no_grad():
        for begin in range(0, longest, _WIDEST):
            width = min(_WIDEST, longest - begin)
            unit = _unit_values(sequences, k, v, begin, width)
            part, _, _ = packed_attention(call._replace(dropout_p=0.0, seed=None), q, k, unit)
            if call.dropout_p:
                left, _, _ = packed_attention(call, q, k, unit)
                part = torch.where((left == 0) & (part != 0), -part, part)
            for i, (first, n) in enumerate(zip(sequences.cu_seq_q.tolist(), q_lengths)):
                weights[i, :, :n, begin : begin + width] = part[first : first + n].transpose(0, 1)
    return weights


def _unit_values(sequences: Varlen, k: Tensor, v: Tensor, begin: int, width: int) -> Tensor:
    """Values for as many tokens as k: unit vector i for key `begin + i` of each sequence, 0 for all others."""
    values = v.new_zeros((*k.shape[:-2], 1, width))
    for i, n in enumerate(sequences.k_lengths().tolist()):
        places = torch.arange(begin, min(begin + width, n))
        if sequences.block_table is not None:
            size = k.shape[1]
            pages = sequences.block_table[i].long()[places // size]
            values[pages, places % size, 0, places - begin] = 1
        elif sequences.cu_seq_k is not None:
            values[int(sequences.cu_seq_k[i]) + places, 0, places - begin] = 1
    return values.expand(*k.shape[:-1], width)
