"""torch.ops.quire.scaled_dot_product_attention: the call inside a torch.compile graph, with its gradients.

Its dropout draws from torch's generator when the graph runs; the number drawn is a result, for the backward pass to
replay. Python layer, above sdpa.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.torch import sdpa
from quire.torch.graph_library import define, give_gradients, in_their_places
from quire.torch.sdpa_call import is_like_query

_NAME = "scaled_dot_product_attention"

# ---- forward: (out, lse if wanted, the seed, out before rounding if `wide`)


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    want_lse: bool,
    alignment: str = "top_left",
    wide: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call, read = sdpa.dense_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    call.alignment, call.is_wide = alignment, wide
    out, lse, _ = call.run((query, key, value), read, want_lse)
    return (
        out.to(query.dtype) if wide else out,
        query.new_empty(0) if lse is None else lse,
        torch.tensor(call.seed, device="cpu"),
        out if wide else query.new_empty(0),
    )


def _fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    want_lse: bool,
    alignment: str = "top_left",
    wide: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    skipped = -3 if enable_gqa and query.dim() > 2 else -2  # with enable_gqa the heads are the query's
    lead = torch.broadcast_shapes(*(tensor.shape[:skipped] for tensor in (query, key, value)))
    shape = (*lead, *query.shape[skipped:-1], value.shape[-1])
    is_like = is_like_query(query, key, value, shape, dropout_p)
    out = torch.empty_like(query) if is_like else query.new_empty(shape)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    lse = query.new_empty(shape[:-1], dtype=dtype) if want_lse else query.new_empty(0)
    wide_out = torch.empty_like(out, dtype=dtype) if wide else query.new_empty(0)
    return out, lse, query.new_empty((), dtype=torch.int64), wide_out


# ---- backward: the wanted ones of query, key, value and attn_mask


def _run_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    seed: Tensor,
    d_out: Tensor,
    wanted: list[bool],
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    alignment: str = "top_left",
) -> list[Tensor]:
    call, read = sdpa.dense_call(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
    call.dropout_p, call.seed, call.alignment = dropout_p, int(seed), alignment
    found = call.gradients((query, key, value), read, (out, lse), (d_out, None), wanted)
    return [one for one in found if one is not None]


def _fake_backward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *arguments: Any
) -> list[Tensor]:
    tensors = (query, key, value, attn_mask)
    return [
        tensor.new_empty(tensor.shape)
        for tensor, is_wanted in zip(tensors, arguments[4])
        if is_wanted and tensor is not None
    ]


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, attn_mask, *options, want_lse, alignment, is_wide = inputs
    ctx.options = *options, alignment
    out, lse, seed, wide_out = output
    ctx.mark_non_differentiable(lse, seed, wide_out)
    ctx.has_lse = want_lse
    ctx.save_for_backward(query, key, value, attn_mask, wide_out if is_wide else out, lse, seed)


def _backward(ctx: Any, d_out: Tensor, *_: Any) -> tuple:
    wanted = list(ctx.needs_input_grad[:4])
    found = torch.ops.quire.scaled_dot_product_attention_backward(*ctx.saved_tensors, d_out, wanted, *ctx.options)
    return (*in_their_places(found, wanted), *(None for _ in range(7)))


define(
    f"{_NAME}(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
    "bool enable_gqa, bool lse, str alignment='top_left', bool wide=False) -> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
    torch.Tag.nondeterministic_seeded,
)
define(
    f"{_NAME}_backward(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor out, Tensor lse, Tensor seed, "
    "Tensor d_out, bool[] wanted, float dropout_p, bool is_causal, float? scale, bool enable_gqa, "
    "str alignment='top_left') -> Tensor[]",
    _run_backward,
    _fake_backward,
)
give_gradients(_NAME, _setup_context, _backward)
