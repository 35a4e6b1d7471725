"""quire.torch: torch.nn.attention.flex_attention of PyTorch 2.13 on the CPU, by Quire. Python layer.

    from quire.torch import flex_attention, create_block_mask, scaled_dot_product_attention

Same names, arguments, defaults, results and exception types; mods written with torch operations work unchanged.
"""

from quire.requirements import require

require("torch", "2.13")

from quire.torch import torch_names as _torch_names  # noqa: E402

_torch_names.check()

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.flex_attention import (  # noqa: F401, E402
    _DEFAULT_SPARSE_BLOCK_SIZE,
    AuxOutput,
    FlexKernelOptions,
    _mask_mod_signature,
    _score_mod_signature,
    and_masks,
    noop_mask,
    or_masks,
)

from quire.hooks import Rope  # noqa: E402
from quire.torch import block_mask_pytree as _block_mask_pytree  # noqa: F401, E402
from quire.torch import graph_backward as _graph_backward  # noqa: F401, E402
from quire.torch import sdpa_operator as _sdpa_operator  # noqa: F401, E402
from quire.torch.aux_request import AuxRequest, WeightsOutput  # noqa: E402
from quire.torch.block_mask import BlockMask  # noqa: E402
from quire.torch.create_block_mask import create_block_mask, create_mask  # noqa: E402
from quire.torch.enable import disable, enable  # noqa: E402
from quire.torch.flex_attention import flex_attention  # noqa: E402
from quire.torch.flex_attention_backward import flex_attention_backward  # noqa: E402
from quire.torch.merge_states import merge_states  # noqa: E402
from quire.torch.nested_flex import NestedBlockMask, create_nested_block_mask  # noqa: E402
from quire.torch.paged_attention import PagedAttention  # noqa: E402
from quire.torch.quantized import KVFormat, QuantizedTensor, dequantize, quantize  # noqa: E402
from quire.torch.sdpa import scaled_dot_product_attention, why_not  # noqa: E402
from quire.torch.top_k import top_k_keys  # noqa: E402
from quire.torch.trace import TraceError  # noqa: E402
from quire.torch.varlen import varlen_attn, varlen_attn_out  # noqa: E402

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "KVFormat",
    "NestedBlockMask",
    "PagedAttention",
    "QuantizedTensor",
    "Rope",
    "SDPBackend",
    "TraceError",
    "WeightsOutput",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "create_nested_block_mask",
    "dequantize",
    "disable",
    "enable",
    "flex_attention",
    "flex_attention_backward",
    "merge_states",
    "noop_mask",
    "or_masks",
    "quantize",
    "scaled_dot_product_attention",
    "sdpa_kernel",
    "top_k_keys",
    "varlen_attn",
    "varlen_attn_out",
    "why_not",
]
