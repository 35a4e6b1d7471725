"""torch.ops.quire.scaled_dot_product_attention: what the call is inside a graph of torch.compile.

Its dropout draws from torch's generator when the graph runs. Layer: Python, above sdpa.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.torch import sdpa
from quire.torch.forward import output_strides

_library = torch.library.Library("quire", "FRAGMENT")
_library.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, "
    "bool is_causal, float? scale, bool enable_gqa) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)


def _run(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *options: Any) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return sdpa._dense(query, key, value, attn_mask, *options)


def _fake(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *options: Any) -> Tensor:
    heads_given = options[-1]  # enable_gqa: the heads are the query's
    skipped = -3 if heads_given and query.dim() > 2 else -2
    lead = torch.broadcast_shapes(*(tensor.shape[:skipped] for tensor in (query, key, value)))
    shape = (*lead, *query.shape[skipped:-1], value.shape[-1])
    if query.is_contiguous() or query.dim() != 4 or tuple(shape) != tuple(query.shape):
        return query.new_empty(shape)
    return query.new_empty_strided(shape, output_strides(shape, query.stride()))


_library.impl("scaled_dot_product_attention", _run, "CPU")
torch.library.register_fake("quire::scaled_dot_product_attention", _fake, lib=_library)
