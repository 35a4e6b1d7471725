"""The seam to autograd: one function that is called instead of forward() when a gradient is asked for.

Layer: Python, beside forward.py.
"""

from __future__ import annotations

from typing import Any

import torch

NO_GRADIENTS = (
    "[flex_attention] gradients are not implemented yet: call it under torch.no_grad(), or with tensors (query, key, value "
    "and those that the score_mod captures) that do not require grad"
)


def differentiable_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    want_lse: bool,
    want_max: bool,
    captured: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """forward(), recorded. `captured`: the tensors that the score mod reads, in the order of its buffers."""
    raise NotImplementedError(NO_GRADIENTS)


NO_SDPA_GRADIENTS = (
    "[scaled_dot_product_attention] gradients are not implemented yet: call it under torch.no_grad(), or with tensors that "
    "do not require grad"
)


def differentiable_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """scaled_dot_product_attention of dense or nested tensors, recorded."""
    raise NotImplementedError(NO_SDPA_GRADIENTS)
