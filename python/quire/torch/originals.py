"""Torch's own functions as they were when quire.torch was imported: enable() changes what the names of torch do.

Python layer, below what calls them.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

import torch.nested._internal.sdpa as torch_nested_sdpa
import torch.nn.attention.flex_attention as torch_flex
from torch.nn.attention.experimental._paged_attention import PagedAttention


def _copy(function: Any) -> Callable:
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = function.__module__
    return copy


flex_attention = _copy(torch_flex.flex_attention)
create_block_mask = _copy(torch_flex.create_block_mask)
create_mask = _copy(torch_flex.create_mask)
block_mask_to = _copy(torch_flex.BlockMask.to)
init_paged_attention = _copy(PagedAttention.__init__)
jagged_scaled_dot_product_attention = _copy(torch_nested_sdpa.jagged_scaled_dot_product_attention)


@functools.cache
def of_varlen(name: str) -> Callable:
    """varlen_attn or varlen_attn_out, as on first use: importing their module imports the compiler."""
    return _copy(getattr(importlib.import_module("torch.nn.attention.varlen"), name))
