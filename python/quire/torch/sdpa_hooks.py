"""scaled_dot_product_attention with what torch's has no argument for (sinks, key_indices, weight_mod, rope, a seed): the same call of
flex_attention, with the mask as a mod or a block mask, so that gradients, graphs and nested tensors are flex_attention's.

Python layer, above flex_attention.py and below sdpa.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.hooks import Rope
from quire.torch.create_block_mask import create_block_mask
from quire.torch.flex_attention import flex_attention
from quire.torch.nested import are_nested
from quire.torch.nested_flex import create_nested_block_mask

_NAME = "scaled_dot_product_attention"
_HIDDEN = float("-inf")
_flex_attention: Callable[..., Any] = flex_attention  # a tensor, where nothing else is asked for


class SdpaHooks(NamedTuple):
    """As a user gives them, by the names of flex_attention."""

    seed: int | None = None
    key_indices: Tensor | None = None
    sinks: Tensor | None = None
    weight_mod: Any = None
    normalize: str | None = None
    rope: Rope | None = None


class SdpaMask(NamedTuple):
    """attn_mask, a tensor or a rule; or the diagonal of is_causal: "top_left", "bottom_right" or ""."""

    attn_mask: Any = None
    diagonal: str = ""

    def rule(self, q_len: int, kv_len: int) -> Any:
        """Of (b, h, q_idx, kv_idx); None if everything is visible or attn_mask is a tensor."""
        if self.diagonal:
            return _causal(kv_len - q_len if self.diagonal == "bottom_right" else 0)
        return None if isinstance(self.attn_mask, Tensor) else self.attn_mask


def attention_with_hooks(
    query: Any,
    key: Any,
    value: Any,
    mask: SdpaMask,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
    hooks: SdpaHooks,
) -> Tensor:
    """[..., Hq, L, Ev]; nested for nested tensors."""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"[{_NAME}] query, key and value must have the same dtype; got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    options: dict[str, Any] = dict(dropout_p=dropout_p or 0, **hooks._asdict())
    if are_nested(query, key, value):
        if isinstance(mask.attn_mask, Tensor):
            raise ValueError(f"[{_NAME}] a mask of nested tensors is a mask_mod f(b, h, q_idx, kv_idx), not a tensor")
        _check_heads(query.size(1), key.size(1), enable_gqa)
        rule = mask.rule(0, 0)  # a causal bias of torch's has lengths of its own: it was refused
        nested: Any = None if rule is None else create_nested_block_mask(rule, None, None, query, key)
        return _flex_attention(query, key, value, None, nested, scale, True, **options)
    lead, heads, kv_heads = _sizes(query, key, value, enable_gqa)
    q_len, kv_len = query.size(-2), key.size(-2)
    four = [_four_axes(one, lead, n) for one, n in ((query, heads), (key, kv_heads), (value, kv_heads))]
    batch = four[0].size(0)
    rule = mask.rule(q_len, kv_len)
    blocks = None if rule is None else create_block_mask(rule, batch, heads, q_len, kv_len, device="cpu")
    score_mod = None
    if isinstance(mask.attn_mask, Tensor):
        score_mod = _mask_as_mod(mask.attn_mask, (*lead, heads, q_len, kv_len))
    out = _flex_attention(*four, score_mod, blocks, scale, True, **options)
    has_heads = max(query.dim(), key.dim(), value.dim()) > 2
    return out.reshape(*lead, *((heads,) if has_heads else ()), q_len, value.size(-1))


def _causal(shift: int) -> Callable:
    def causal(b, h, q_idx, kv_idx):
        return q_idx + shift >= kv_idx

    return causal


def _sizes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[tuple[int, ...], int, int]:
    """The leading axes and the heads of query and key, broadcast."""
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(f"[{_NAME}] query, key and value must be [..., length, dim]")
    lead = torch.broadcast_shapes(*(one.shape[:-3] for one in (query, key, value)))
    of_query, of_key, of_value = (1 if one.dim() < 3 else one.size(-3) for one in (query, key, value))
    if of_key != of_value and of_key != 1 and of_value != 1:
        raise RuntimeError(
            f"[{_NAME}] key and value must have the same number of heads, or 1; got {of_key} and {of_value}"
        )
    kv_heads = max(of_key, of_value)
    heads = kv_heads if of_query == 1 else of_query
    _check_heads(heads, kv_heads, enable_gqa)
    return tuple(lead), heads, kv_heads


def _check_heads(heads: int, kv_heads: int, enable_gqa: bool) -> None:
    if heads == kv_heads or kv_heads == 1 or (enable_gqa and kv_heads > 0 and heads % kv_heads == 0):
        return
    raise RuntimeError(
        f"[{_NAME}] query and key must have the same number of heads, or 1, or with enable_gqa a multiple; "
        f"got {heads} and {kv_heads}"
    )


def _four_axes(tensor: Tensor, lead: tuple[int, ...], heads: int) -> Tensor:
    if tensor.dim() < 3:
        tensor = tensor.unsqueeze(0)
    expanded = tensor.expand(*lead, heads, *tensor.shape[-2:])
    return expanded.reshape(-1, heads, *tensor.shape[-2:]) if len(lead) != 1 else expanded


def _mask_as_mod(mask: Tensor, scores: tuple[int, ...]) -> Callable:
    """A score mod that hides what a bool mask hides, or adds a float one. Axes of size 1 of the mask are not indexed."""
    if len(scores) != 4 or mask.dim() > 4:
        mask = mask.expand(scores).reshape(-1, *scores[-3:])
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    full = (mask.size(0), *scores[-3:])
    if any(size not in (1, of) for size, of in zip(mask.shape, full, strict=True)):
        raise RuntimeError(f"[{_NAME}] attn_mask must broadcast to {scores}; got {tuple(mask.shape)}")
    varies = [axis for axis in range(4) if mask.size(axis) > 1] or [3]
    table = mask[tuple(slice(None) if axis in varies else 0 for axis in range(4))]
    is_bool = mask.dtype is torch.bool
    is_one = mask.numel() == 1

    def masked(score, b, h, q_idx, kv_idx):
        places = (b, h, q_idx, kv_idx)
        element = table[kv_idx * 0] if is_one else table[tuple(places[axis] for axis in varies)]
        return torch.where(element, score, _HIDDEN) if is_bool else score + element

    return masked
