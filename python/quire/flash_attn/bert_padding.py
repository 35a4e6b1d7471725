"""flash_attn.bert_padding: from padded batches [batch, seqlen, ...] to packed tokens [total, ...] and back, with
gradients.

Uses only torch's own operations. Python layer, next to the attention functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of the first axis, [len(indices), ...].

    >>> import torch
    >>> from quire.flash_attn.bert_padding import index_first_axis
    >>> index_first_axis(torch.arange(6).view(3, 2), torch.tensor([2, 0]))
    tensor([[4, 5],
            [0, 1]])
    """
    _check("index_first_axis", "input", input, 2)
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros [first_axis_dim, ...] with the rows of `values` at `indices`.

    >>> import torch
    >>> from quire.flash_attn.bert_padding import index_put_first_axis
    >>> index_put_first_axis(torch.ones(1, 2), torch.tensor([1]), 2)
    tensor([[0., 0.],
            [1., 1.]])
    """
    _check("index_put_first_axis", "values", values, 2)
    _check("index_put_first_axis", "indices", indices, 1)
    if indices.shape != values.shape[:1]:
        raise ValueError(
            f"[index_put_first_axis] there must be an index for each of {values.shape[0]} rows; got {tuple(indices.shape)}"
        )
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_put((indices,), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """index_first_axis, and the input itself, so that a residual connection adds its gradient to that of the rows.

    >>> import torch
    >>> from quire.flash_attn.bert_padding import index_first_axis_residual
    >>> rows, same = index_first_axis_residual(torch.ones(3, 2), torch.tensor([1]))
    >>> rows.shape, same.shape
    (torch.Size([1, 2]), torch.Size([3, 2]))
    """
    _check("index_first_axis_residual", "input", input, 2)
    return input[indices], input.view_as(input)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(tokens [total, ...], indices [total], cu_seqlens [batch + 1], the longest sequence, used [batch]) of
    hidden_states [batch, seqlen, ...]. attention_mask [batch, seqlen]: 1 for tokens; unused_mask: 1 for tokens that are
    kept but not used. `used` counts only those of attention_mask.

    >>> import torch
    >>> from quire.flash_attn.bert_padding import unpad_input
    >>> tokens, indices, cu_seqlens, longest, used = unpad_input(torch.randn(2, 3, 8), torch.tensor([[1, 1, 0], [1, 1, 1]]))
    >>> tokens.shape, indices.tolist(), cu_seqlens.tolist(), longest, used.tolist()
    (torch.Size([5, 8]), [0, 1, 3, 4, 5], [0, 2, 5], 3, [2, 3])
    """
    _check_mask("unpad_input", hidden_states, attention_mask)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten()).flatten()
    longest = int(lengths.max()) if lengths.numel() else 0
    used = attention_mask.sum(-1, dtype=torch.int32)
    return _tokens(hidden_states, indices), indices, _offsets(lengths), longest, used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """(tokens, indices, cu_seqlens, the longest sequence) for rows that hold several sequences each:
    attention_mask_in_length [batch, seqlen] has the lengths of a row's sequences, then 0.

    >>> import torch
    >>> from quire.flash_attn.bert_padding import unpad_input_for_concatenated_sequences
    >>> lengths = torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0]])
    >>> tokens, indices, cu_seqlens, longest = unpad_input_for_concatenated_sequences(torch.randn(2, 4, 8), lengths)
    >>> tokens.shape, cu_seqlens.tolist(), longest
    (torch.Size([7, 8]), [0, 2, 3, 7], 4)
    """
    _check_mask("unpad_input_for_concatenated_sequences", hidden_states, attention_mask_in_length)
    places = torch.arange(attention_mask_in_length.shape[-1], device=attention_mask_in_length.device)
    is_token = places < attention_mask_in_length.sum(-1, keepdim=True)
    flat = attention_mask_in_length.flatten()
    lengths = flat[flat != 0]
    indices = torch.nonzero(is_token.flatten()).flatten()
    longest = int(lengths.max()) if lengths.numel() else 0
    return _tokens(hidden_states, indices), indices, _offsets(lengths), longest


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ...] from tokens [total, ...] and their indices from unpad_input; 0 elsewhere.

    >>> import torch
    >>> from quire.flash_attn.bert_padding import pad_input
    >>> pad_input(torch.ones(2, 1), torch.tensor([0, 2]), 2, 2)[:, :, 0]
    tensor([[1., 0.],
            [1., 0.]])
    """
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def _tokens(hidden_states: Tensor, indices: Tensor) -> Tensor:
    return hidden_states.flatten(0, 1)[indices]


def _offsets(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _check(function: str, name: str, tensor: Tensor, axes: int) -> None:
    if not isinstance(tensor, Tensor) or tensor.dim() < axes:
        what = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"[{function}] {name} must be a tensor with {axes} axes at least; got {what}")


def _check_mask(function: str, hidden_states: Tensor, mask: Tensor) -> None:
    _check(function, "hidden_states", hidden_states, 2)
    _check(function, "the mask", mask, 2)
    if mask.shape != hidden_states.shape[:2]:
        raise ValueError(
            f"[{function}] the mask must be [batch, seqlen], {tuple(hidden_states.shape[:2])}; got {tuple(mask.shape)}"
        )
