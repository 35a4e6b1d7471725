"""quire.torch: torch.nn.attention.flex_attention of PyTorch 2.13 on the CPU, by Quire.

    from quire.torch import flex_attention, create_block_mask, scaled_dot_product_attention

Same names, arguments, defaults, results and exception types; mods are written with torch operations as they are.
"""

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import (  # noqa: F401
    _DEFAULT_SPARSE_BLOCK_SIZE,
    _mask_mod_signature,
    _score_mod_signature,
    and_masks,
    AuxOutput,
    AuxRequest,
    FlexKernelOptions,
    noop_mask,
    or_masks,
)

from quire.torch.block_mask import BlockMask
from quire.torch.create_block_mask import create_block_mask, create_mask
from quire.torch.enable import disable, enable
from quire.torch.flex_attention import flex_attention
from quire.torch.merge_states import merge_states
from quire.torch.nested_flex import NestedBlockMask, create_nested_block_mask
from quire.torch.paged_attention import PagedAttention
from quire.torch.sdpa import scaled_dot_product_attention, why_not
from quire.torch import graph_backward as _graph_backward  # noqa: F401
from quire.torch import sdpa_operator as _sdpa_operator  # noqa: F401
from quire.torch.trace import TraceError

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "NestedBlockMask",
    "PagedAttention",
    "SDPBackend",
    "TraceError",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "create_nested_block_mask",
    "disable",
    "enable",
    "flex_attention",
    "merge_states",
    "noop_mask",
    "or_masks",
    "scaled_dot_product_attention",
    "sdpa_kernel",
    "why_not",
]
