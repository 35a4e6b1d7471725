"""flex_attention over nested tensors, and create_nested_block_mask. Python layer, above nested.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE, _mask_mod_signature

from quire import _core
from quire.torch.autocast import autocast
from quire.torch.autograd import Outputs, recorded
from quire.torch.aux_request import Weights
from quire.torch.blocks import Seen
from quire.torch.flex_call import FlexCall
from quire.torch.forward import HALF, Mods, as_torch_gives
from quire.torch.hooks import HookArguments, bind_hooks
from quire.torch.mods import bind_mask_mod, bind_score_mod
from quire.torch.nested import (
    NestedTensor,
    lengths_of,
    nested_from_values,
    nested_like,
    plain_values_of,
    sequences_of,
    values_of,
)
from quire.torch.nested_strided import are_strided_nested, can_be_packed, components_of, to_jagged, to_strided
from quire.torch.transforms import is_forward_mode

_F32, _F64 = torch.float32, torch.float64
_NO_HOOKS = HookArguments()
_UNEVEN = (
    "[flex_attention] nested tensors must be [B, H, j, D] with the same heads and dims in all sequences; "
    "theirs differ, or they have another number of axes"
)


class NestedBlockMask:
    """The block masks of the sequences of a nested tensor, made from one rule.

    They are proved again if a tensor that the rule reads has changed, or `mask_mod` was assigned.

    >>> import torch
    >>> from quire.torch import NestedBlockMask, create_nested_block_mask
    >>> x = torch.nested.nested_tensor([torch.randn(n, 4, 64) for n in (30, 7)], layout=torch.jagged).transpose(1, 2)
    >>> isinstance(create_nested_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, x), NestedBlockMask)
    True
    """

    def __init__(self, mask_mod: Any, heads: int | None, q: Any, kv: Any, block_size: Any):
        self.mask_mod = mask_mod
        self._sizes = (heads, lengths_of(q), lengths_of(kv), block_size)
        self._proved: tuple = (None, None, ())  # the masks, the rule, what it reads; replaced in one assignment
        self.current()

    def current(self) -> _core.JaggedBlockMask:
        """The masks for the current rule and the current contents of what it reads."""
        rule = bind_mask_mod(self.mask_mod)
        masks, key, reads = self._proved
        if key is not rule.key or not all(seen.is_unchanged(t) for seen, t in zip(reads, rule.tensors, strict=True)):
            masks = _core.create_jagged_block_mask(rule.mod, *self._sizes)
            self._proved = (masks, rule.key, tuple(Seen(tensor, is_small=True) for tensor in rule.tensors))
        return masks

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.current())

    def __getitem__(self, sequence: int) -> _core.BlockMask:
        """The quire.BlockMask of one sequence."""
        return self.current()[sequence]

    def __repr__(self) -> str:
        return f"quire.torch.NestedBlockMask({len(self)} sequences, mask_mod={self.mask_mod})"


def create_nested_block_mask(
    mask_mod: _mask_mod_signature,
    B: int | None,
    H: int | None,
    q_nt: Tensor,
    kv_nt: Tensor | None = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
    _compile: bool = False,
) -> NestedBlockMask:
    """The block masks of a rule f(b, h, q_idx, kv_idx) for the sequences of nested tensors: b is the index of the
    sequence, q_idx and kv_idx count inside it. H=None: the same for all heads. `kv_nt`: by default q_nt.

    >>> import torch
    >>> from quire.torch import create_nested_block_mask, flex_attention
    >>> x = torch.nested.nested_tensor([torch.randn(n, 4, 64) for n in (30, 7)], layout=torch.jagged).transpose(1, 2)
    >>> mask = create_nested_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, x)
    >>> [tuple(one.shape) for one in flex_attention(x, x, x, block_mask=mask).unbind()]
    [(4, 30, 64), (4, 7, 64)]
    """
    kv_nt = q_nt if kv_nt is None else kv_nt
    q_nt, kv_nt = _packed(q_nt), _packed(kv_nt)
    for name, tensor in (("q_nt", q_nt), ("kv_nt", kv_nt)):
        if not isinstance(tensor, NestedTensor):
            raise ValueError(f"[create_nested_block_mask] {name} must be a nested tensor [B, H, j, D]")
    if B not in (None, 1, q_nt.size(0)):
        raise ValueError(f"[create_nested_block_mask] B must be None, 1 or {q_nt.size(0)}, the sequences; got {B}")
    size = BLOCK_SIZE if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    return NestedBlockMask(mask_mod, H, q_nt, kv_nt, size)


def _packed(tensor: Any) -> Any:
    """A nested tensor of the layout torch.strided converted to torch.jagged; anything else unchanged."""
    if isinstance(tensor, Tensor) and tensor.is_nested and tensor.layout is torch.strided and tensor.dim() > 2:
        parts = tensor.detach().unbind()
        return to_jagged(parts) if can_be_packed(parts) else tensor
    return tensor


def nested_flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    want_lse: bool,
    want_max: bool,
    dropout: tuple[float, int] = (0.0, 0),
    key_indices: Tensor | None = None,
    weights: Weights | None = None,
    given: HookArguments = _NO_HOOKS,
) -> Outputs:
    """(out, lse, max_scores), nested: [B, Hq, j, Ev], [B, Hq, j]. dropout: its probability and seed. key_indices:
    nested [B, j, k] or [B, Hq, j, k], or their values."""
    if are_strided_nested("flex_attention", query, key, value):
        parts = components_of("flex_attention", query, key, value)
        if query.dim() != 4 or not can_be_packed(*parts):
            raise ValueError(_UNEVEN)
        options = (score_mod, block_mask, scale, enable_gqa, want_lse, want_max, dropout, key_indices, weights, given)
        query, key, value = (to_jagged(part) for part in parts)
        outputs = nested_flex_attention(query, key, value, *options)
        if weights is not None:
            weights.key_weights = None if weights.key_weights is None else to_strided(weights.key_weights, parts[1])
            weights.entropy = None if weights.entropy is None else to_strided(weights.entropy, parts[0])
        return _each(outputs, lambda one: to_strided(one, parts[0]))
    _check(query, key, value)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)
    mods = Mods(None, _masks(block_mask), scale, *dropout, _packed_indices(key_indices), weights)
    captured: list[Tensor] = []
    learns_captured = False
    if score_mod is not None:
        bound = bind_score_mod(score_mod, _F64 if query.dtype is _F64 else _F32)
        mods = mods._replace(score_mod=bound.mod)
        captured, learns_captured = bound.tensors, bound.needs_grad
    weight_reads = 0
    bound_hooks = bind_hooks("flex_attention", given, _F64 if query.dtype is _F64 else _F32)
    if bound_hooks is not None:
        mods = mods._replace(hooks=bound_hooks.hooks)
        captured, weight_reads = [*captured, *bound_hooks.tensors], bound_hooks.weight_reads
        learns_captured = learns_captured or bound_hooks.needs_grad
    tensors = (query, key, value)
    sequences = (sequences_of(query), sequences_of(key), sequences_of(value))
    call = FlexCall(
        mods, want_max, len(captured), sequences=sequences, enable_gqa=enable_gqa, weight_reads=weight_reads
    )
    needs_grad = learns_captured or any(tensor.requires_grad for tensor in tensors)
    if (needs_grad and torch.is_grad_enabled()) or is_forward_mode():
        call.is_wide = learns_captured and query.dtype in HALF
        results: Outputs = recorded(call, [values_of(tensor) for tensor in tensors], captured)
        wrap: Callable = nested_from_values
    else:
        results, wrap = call.run([plain_values_of(tensor) for tensor in tensors], captured, want_lse), nested_like
    out, lse, max_scores = as_torch_gives(query.dtype, *results)
    if weights is not None:
        weights.key_weights = None if weights.key_weights is None else nested_like(weights.key_weights, key)
        weights.entropy = None if weights.entropy is None else nested_like(weights.entropy, query)
    return _each((out, lse if want_lse else None, max_scores), lambda one: wrap(one, query))


def _each(outputs: Outputs, change: Callable) -> Outputs:
    out, lse, max_scores = outputs
    return change(out), None if lse is None else change(lse), None if max_scores is None else change(max_scores)


def _check(*tensors: Any) -> None:
    for name, tensor in zip(("query", "key", "value"), tensors, strict=True):
        if not isinstance(tensor, NestedTensor):
            raise ValueError(
                "[flex_attention] query, key and value must all be nested tensors of the layout torch.jagged, or none of "
                f"them; {name} is a {type(tensor).__name__} of the layout {tensor.layout}"
            )
        if tensor.dim() != 4 or tensor._ragged_idx != 2:
            raise ValueError(
                f"[flex_attention] nested tensors must be [B, H, j, D], ragged on axis 2; {name} has {tensor.dim()} axes "
                f"and is ragged on axis {tensor._ragged_idx}"
            )
        if tensor.device.type != "cpu":
            raise ValueError(f"[flex_attention] Quire computes on the CPU; got tensors on {tensor.device}")


def _packed_indices(key_indices: Tensor | None) -> Tensor | None:
    """[total, k], or [total, Hq, k]."""
    if not isinstance(key_indices, NestedTensor):
        return key_indices
    if key_indices.dim() == 3 and key_indices._ragged_idx == 1:
        return key_indices.values()
    if key_indices.dim() == 4 and key_indices._ragged_idx == 2:
        return plain_values_of(key_indices)
    raise ValueError(
        "[flex_attention] nested key_indices must be [B, j, k] or [B, Hq, j, k], ragged on j; got "
        f"{key_indices.dim()} axes, ragged on axis {key_indices._ragged_idx}"
    )


def _masks(block_mask: Any) -> _core.JaggedBlockMask | None:
    if block_mask is None or isinstance(block_mask, _core.JaggedBlockMask):
        return block_mask
    if not isinstance(block_mask, NestedBlockMask):
        raise TypeError(
            "[flex_attention] the block mask of nested tensors is made by create_nested_block_mask; "
            f"got {type(block_mask).__name__}"
        )
    return block_mask.current()
