"""enable() and disable(): run torch's own flex_attention, create_block_mask, varlen_attn and nested SDPA by Quire.

The code of torch's functions is exchanged, not their names, so modules that imported the names earlier are affected
too, and so are compiled callers: dynamo notices that a function has other code and traces again. Tensors that are not
on the CPU are left to torch. Python layer, top.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nested._internal.sdpa as torch_nested_sdpa
import torch.nn.attention.flex_attention as torch_flex
from torch.nn.attention.experimental._paged_attention import PagedAttention

from quire import fork
from quire.option_checks import check_flag
from quire.torch import cuda_to_cpu as cuda
from quire.torch import originals
from quire.torch.context_parallel import torch_ring
from quire.torch.create_block_mask import create_block_mask
from quire.torch.cuda_to_cpu import device_here
from quire.torch.flex_attention import flex_attention
from quire.torch.sdpa import scaled_dot_product_attention
from quire.torch.varlen import varlen_attn, varlen_attn_out

# ---- what torch's functions do while enabled


def behind_flex_attention(query: Any, key: Any, value: Any, *arguments: Any, return_aux: Any) -> Any:
    """Quire for tensors on the CPU, torch for others."""
    is_ours = isinstance(query, torch.Tensor) and query.device.type == "cpu"
    call = flex_attention if is_ours else originals.flex_attention
    return call(query, key, value, *arguments, return_aux=return_aux)


def behind_create_block_mask(*arguments: Any) -> Any:
    """Quire if the mask is for the CPU, torch otherwise."""
    device = arguments[5]
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    device = device_here(device)
    call: Any = create_block_mask if torch.device(device).type == "cpu" else originals.create_block_mask
    return call(*arguments[:5], device, *arguments[6:])


def behind_nested_sdpa(query: Any, key: Any, value: Any, *arguments: Any) -> Any:
    """Quire for tensors on the CPU. Torch for others, and inside torch.compile."""
    tensors = (query, key, value)
    is_ours = (
        query.device.type == "cpu" and not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0
    )
    call = scaled_dot_product_attention if is_ours else originals.jagged_scaled_dot_product_attention
    return call(*tensors, *arguments)


def behind_varlen_attn(query: Any, *arguments: Any, **options: Any) -> Any:
    """Quire for tensors on the CPU, torch for others."""
    is_ours = isinstance(query, torch.Tensor) and query.device.type == "cpu"
    return (varlen_attn if is_ours else originals.of_varlen("varlen_attn"))(query, *arguments, **options)


def behind_varlen_attn_out(out: Any, query: Any, *arguments: Any, **options: Any) -> Any:
    """The same for the function that writes into `out`."""
    is_ours = isinstance(query, torch.Tensor) and query.device.type == "cpu"
    return (varlen_attn_out if is_ours else originals.of_varlen("varlen_attn_out"))(out, query, *arguments, **options)


# Their code replaces that of torch's functions: it runs with torch's globals, hence the imports inside.


def _flex_attention(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
):
    from quire.torch.enable import behind_flex_attention

    return behind_flex_attention(
        query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux=return_aux
    )


def _create_block_mask(
    mask_mod,
    B,
    H,
    Q_LEN,
    KV_LEN,
    device=None,
    BLOCK_SIZE=128,
    _compile=False,
    separate_full_blocks=True,
    compute_dq_write_order=False,
    dq_kv_order=True,
):
    from quire.torch.enable import behind_create_block_mask

    return behind_create_block_mask(
        mask_mod,
        B,
        H,
        Q_LEN,
        KV_LEN,
        device,
        BLOCK_SIZE,
        _compile,
        separate_full_blocks,
        compute_dq_write_order,
        dq_kv_order,
    )


def _jagged_scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    from quire.torch.enable import behind_nested_sdpa

    return behind_nested_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _varlen_attn(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    from quire.torch.enable import behind_varlen_attn

    return behind_varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        return_aux=return_aux,
        scale=scale,
        window_size=window_size,
        enable_gqa=enable_gqa,
        seqused_k=seqused_k,
        block_table=block_table,
        num_splits=num_splits,
    )


def _varlen_attn_out(
    out,
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    from quire.torch.enable import behind_varlen_attn_out

    return behind_varlen_attn_out(
        out,
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        return_aux=return_aux,
        scale=scale,
        window_size=window_size,
        enable_gqa=enable_gqa,
        seqused_k=seqused_k,
        block_table=block_table,
        num_splits=num_splits,
    )


# The same for a hard-coded "cuda", while cuda_to_cpu is on.


def _create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    from quire.torch import originals
    from quire.torch.cuda_to_cpu import device_here

    return originals.create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device_here(device))


def _to(self, device):
    from quire.torch import originals
    from quire.torch.cuda_to_cpu import device_here

    return originals.block_mask_to(self, device_here(device))


def _init_paged_attention(self, n_pages, page_size, max_batch_size, device="cuda"):
    from quire.torch import originals
    from quire.torch.cuda_to_cpu import device_here

    return originals.init_paged_attention(self, n_pages, page_size, max_batch_size, device_here(device))


_EXCHANGED_FOR_CUDA = (
    (torch_flex.create_mask, originals.create_mask.__code__, _create_mask.__code__),
    (torch_flex.BlockMask.to, originals.block_mask_to.__code__, _to.__code__),
    (PagedAttention.__init__, originals.init_paged_attention.__code__, _init_paged_attention.__code__),
)

_EXCHANGED = (
    (torch_flex.flex_attention, originals.flex_attention.__code__, _flex_attention.__code__),
    (torch_flex.create_block_mask, originals.create_block_mask.__code__, _create_block_mask.__code__),
    (
        torch_nested_sdpa.jagged_scaled_dot_product_attention,
        originals.jagged_scaled_dot_product_attention.__code__,
        _jagged_scaled_dot_product_attention.__code__,
    ),
)


def _exchanged() -> tuple:
    """Each function, its code and ours. Those of varlen_attn are included from the first enable() on."""
    from torch.nn.attention import varlen

    return (
        *_EXCHANGED,
        (varlen.varlen_attn, originals.of_varlen("varlen_attn").__code__, _varlen_attn.__code__),
        (varlen.varlen_attn_out, originals.of_varlen("varlen_attn_out").__code__, _varlen_attn_out.__code__),
    )


# ---- on and off

_lock = fork.lock()
_is_on = False  # by enable()
_open = 0  # `with enable():` blocks in progress, in all threads
_takes_cuda = False  # by enable(cuda_to_cpu=True)
_open_for_cuda = 0  # such blocks


def _apply() -> None:
    wanted = _is_on or _open > 0
    cuda.is_on = _takes_cuda or _open_for_cuda > 0
    for is_wanted, exchanged in ((wanted, _exchanged()), (cuda.is_on, _EXCHANGED_FOR_CUDA)):
        for function, original, ours in exchanged:
            code = ours if is_wanted else original
            if function.__code__ is not code:
                function.__code__ = code
    torch_ring.apply(wanted)


class Enabled:
    """What enable() returns: can be ignored, or used as a `with` block that restores the previous state."""

    def __init__(self, turned_on: bool, turned_cuda_on: bool, is_for_cuda: bool):
        self._turned_on, self._turned_cuda_on, self._is_for_cuda = turned_on, turned_cuda_on, is_for_cuda

    def __enter__(self) -> Enabled:
        global _is_on, _open, _takes_cuda, _open_for_cuda
        with _lock:
            _open += 1
            _open_for_cuda += self._is_for_cuda
            if self._turned_on:
                _is_on = self._turned_on = False
            if self._turned_cuda_on:
                _takes_cuda = self._turned_cuda_on = False
            _apply()
        return self

    def __exit__(self, *exception: Any) -> None:
        global _open, _open_for_cuda
        with _lock:
            _open -= 1
            _open_for_cuda -= self._is_for_cuda
            _apply()


def enable(cuda_to_cpu: bool = False) -> Enabled:
    """Makes torch's own flex_attention, create_block_mask, varlen_attn and nested SDPA use Quire on the CPU, in all
    threads; and, if a process group is initialized, SDPA inside torch's context_parallel().

    Lasts until disable() or, as `with quire.torch.enable():`, until the end of the block. Blocks may nest and overlap.
    With `cuda_to_cpu`, device="cuda" in create_block_mask, create_mask, BlockMask.to and PagedAttention, torch's and
    Quire's, means the CPU, with one warning: for scripts that hard-code it.

    >>> import torch, quire.torch
    >>> from torch.nn.attention.flex_attention import flex_attention
    >>> x = torch.randn(1, 2, 100, 64)
    >>> with quire.torch.enable():
    ...     ours = flex_attention(x, x, x)
    >>> torch.equal(ours, quire.torch.flex_attention(x, x, x))
    True
    """
    global _is_on, _takes_cuda
    check_flag("enable", "cuda_to_cpu", cuda_to_cpu)
    with _lock:
        turned_on, turned_cuda_on = not _is_on, bool(cuda_to_cpu) and not _takes_cuda
        _is_on = True
        _takes_cuda = _takes_cuda or bool(cuda_to_cpu)
        _apply()
    return Enabled(turned_on, turned_cuda_on, bool(cuda_to_cpu))


def disable() -> None:
    """Undoes enable(): torch's functions are exactly what they were. A running `with` block stays enabled.

    >>> import quire.torch, torch.nn.attention.flex_attention as of_torch
    >>> before = of_torch.create_block_mask.__code__
    >>> _ = quire.torch.enable()
    >>> quire.torch.disable()
    >>> of_torch.create_block_mask.__code__ is before
    True
    """
    global _is_on, _takes_cuda
    with _lock:
        _is_on = _takes_cuda = False
        _apply()
