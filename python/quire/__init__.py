"""Quire: programmable attention for CPUs. Python layer.

    import numpy as np
    import quire

    mask = quire.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 2048, 2048)
    out = quire.flex_attention(q, k, v, score_mod=quire.mods.alibi(8), block_mask=mask)

Arrays are NumPy's or anything that supports DLPack; results are of the query's kind. `quire.torch` has the same names
with PyTorch's signatures.
"""

import sys as _sys

from . import argument_errors as _argument_errors
from . import fork as _fork
from . import mods
from . import pickling as _pickling
from ._core import (
    BlockMask,
    Buffer,
    BufferSlice,
    Expr,
    JaggedBlockMask,
    KVCache,
    KVCacheStats,
    KVFormat,
    KVLayerGroup,
    MaskMod,
    ScoreMod,
    SequenceId,
    View,
    __version__,
    abs,  # noqa: F401 (not in __all__: a star import must not hide Python's)
    and_masks,
    atan,
    ceil,
    clamp,
    cos,
    create_block_mask,
    create_mask,
    dot,
    draw,
    draw_png,
    draw_svg,
    erf,
    exp,
    exp2,
    explain,
    expm1,
    floor,
    floor_div,
    force_isa,
    gelu,
    gelu_tanh,
    get_num_threads,
    info,
    log,
    log1p,
    log2,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    or_masks,
    pow,  # noqa: F401 (not in __all__: a star import must not hide Python's)
    relu,
    remainder,
    round,  # noqa: F401 (not in __all__: a star import must not hide Python's)
    rsqrt,
    set_num_threads,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    sqrt,
    sum,  # noqa: F401 (not in __all__: a star import must not hide Python's)
    tanh,
    to_bool,
    to_float,
    to_int,
    true_div,
    trunc,
    where,
)
from .attention import AuxOutput, AuxRequest, FlexKernelOptions, WeightsOutput, evaluate, flex_attention
from .cache_attention import SequenceOptions, attend, merge_states
from .hooks import Rope
from .jagged import Jagged, create_jagged_block_mask
from .masks import noop_mask
from .paged_attention import PagedAttention
from .plans import AttendPlan, AttentionBackwardPlan, AttentionPlan
from .quantized import QuantizedTensor, dequantize, quantize
from .sdpa import SDPBackend, choose_backend, scaled_dot_product_attention, sdpa_kernel, why_not
from .top_k import top_k_keys
from .vjp import Gradients, flex_attention_vjp

create_nested_block_mask = create_jagged_block_mask  # the name PyTorch once had for it

_argument_errors.install(
    [_sys.modules[__name__], mods],
    [BlockMask, JaggedBlockMask, KVCache, KVLayerGroup, MaskMod, ScoreMod, mods.GalleryEntry],
)
_fork.install()
_pickling.install()

__all__ = [
    "AttendPlan",
    "AttentionBackwardPlan",
    "AttentionPlan",
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "Buffer",
    "BufferSlice",
    "Expr",
    "FlexKernelOptions",
    "Gradients",
    "Jagged",
    "JaggedBlockMask",
    "KVCache",
    "KVCacheStats",
    "KVFormat",
    "KVLayerGroup",
    "MaskMod",
    "PagedAttention",
    "QuantizedTensor",
    "Rope",
    "SDPBackend",
    "ScoreMod",
    "SequenceId",
    "SequenceOptions",
    "View",
    "WeightsOutput",
    "__version__",
    "and_masks",
    "atan",
    "attend",
    "choose_backend",
    "create_block_mask",
    "create_jagged_block_mask",
    "create_mask",
    "create_nested_block_mask",
    "dequantize",
    "draw",
    "draw_png",
    "draw_svg",
    "evaluate",
    "explain",
    "flex_attention",
    "flex_attention_vjp",
    "force_isa",
    "get_num_threads",
    "info",
    "merge_states",
    "mods",
    "noop_mask",
    "or_masks",
    "quantize",
    "scaled_dot_product_attention",
    "sdpa_kernel",
    "set_num_threads",
    "top_k_keys",
    "why_not",
    # The functions of mods. abs, pow, round and sum are also Python's: `from quire import *` does not replace those.
    "ceil",
    "clamp",
    "cos",
    "dot",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_div",
    "gelu",
    "gelu_tanh",
    "log",
    "log1p",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "relu",
    "remainder",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "tanh",
    "to_bool",
    "to_float",
    "to_int",
    "true_div",
    "trunc",
    "where",
]
