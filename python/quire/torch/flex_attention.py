"""flex_attention: torch's signature, results and exceptions, Quire's kernels.

The quick checks here cover nearly every call; the others go to validate.py, which finds torch's exception. Under
torch.compile the call becomes one operator of the graph (compile.py). Python layer, top.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    BlockMask,
    FlexKernelOptions,
    _score_mod_signature,
    _sliced_mask_mod_error,
)

from quire import _core
from quire.hooks import Rope
from quire.option_checks import check_dropout, check_scale, check_seed
from quire.torch import validate
from quire.torch.autocast import autocast
from quire.torch.autograd import recorded
from quire.torch.aux_request import AuxRequest, Weights, WeightsOutput, weights_of
from quire.torch.block_mask import BlockMask as OurBlockMask
from quire.torch.block_mask import blocks_of, is_no_mask
from quire.torch.compile import flex_attention_as_operator, flex_attention_in_graph
from quire.torch.flex_call import FlexCall
from quire.torch.forward import HALF, Mods, as_torch_gives, draw_seed, forward, forward_as_computed, plain_plans
from quire.torch.hooks import HookArguments, bind_hooks
from quire.torch.mods import bind_score_mod
from quire.torch.nested import are_nested, outside_graphs
from quire.torch.nested_flex import nested_flex_attention
from quire.torch.nested_graph import nested_in_graph, rule_in_graph
from quire.torch.quantized import QuantizedTensor, coded_flex_attention
from quire.torch.transforms import is_forward_mode, refuse_transforms

_is_compiling = torch.compiler.is_dynamo_compiling
_is_autocast = torch.is_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_jit = torch._C._get_tracing_state
_transforms = torch._C._functorch.peek_interpreter_stack
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_F32, _F64 = torch.float32, torch.float64
_NO_HOOKS = HookArguments()
_quick_attention = _core.quick_attention
_warned = False


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: _score_mod_signature | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: FlexKernelOptions | None = None,
    *,
    return_aux: AuxRequest | None = None,
    dropout_p: float = 0,  # dynamo would treat 0.0 as a float that may change, and compile twice
    seed: int | None = None,
    key_indices: Tensor | None = None,
    sinks: Tensor | None = None,
    lse_with_sinks: bool = False,
    weight_mod: _score_mod_signature | None = None,
    normalize: str | None = None,
    rope: Rope | None = None,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    """softmax(score_mod(query key^T * scale)) value over the keys that block_mask leaves visible, in one fused pass.

    query [B, Hq, L, E], key [B, Hkv, S, E] and value [B, Hkv, S, Ev]: f32, f64, bf16 or f16 each, any strides, on the
    CPU. `score_mod`: f(score, b, h, q_idx, kv_idx) over tensors, a quire.ScoreMod or a text. `scale`: 1 / sqrt(E) if not
    given. `enable_gqa`: Hq may be a multiple of Hkv. Returns [B, Hq, L, Ev] in query's dtype; with return_aux, that and an
    AuxOutput; with return_lse (deprecated), that and lse. lse is natural log. Exceptions are of torch's types.

    `dropout_p`: the probability that a weight is dropped; the others are divided by 1 - dropout_p. `seed`: of the
    dropout, 64 bits; by default drawn from torch's generator. Gradients replay it. These two are Quire's additions, and
    so are:

    `key_indices`: int32 [B, L, k], or [B, Hq, L, k]: each query sees only these keys, further restricted by the mask;
    -1 marks an unused entry; other keys are never read.

    `sinks`: [Hq], a logit per head that takes part in the sum of weights but has no value; with a gradient.
    `lse_with_sinks`: lse covers the whole sum, otherwise only the keys. `weight_mod`: replaces softmax: the weight of a
    key, f(score, b, h, q_idx, kv_idx), with the score after scale and score_mod; lse is then the sum of a row's
    weights. `normalize`: None, or "sum": weights are divided by that sum. `rope`: a quire.Rope, which rotates queries
    by q_idx and keys by kv_idx when they are read.

    key and value may be QuantizedTensors (quantize): inference, and the gradient of the query.

    Nested tensors [B, H, j, D] of the layout torch.jagged give nested results; b is the sequence, q_idx and kv_idx
    count inside it, and the block mask comes from create_nested_block_mask.

    >>> import torch
    >>> from quire.torch import flex_attention
    >>> query, key, value = torch.randn(1, 8, 100, 64), torch.randn(1, 2, 100, 64), torch.randn(1, 2, 100, 64)
    >>> distance = lambda score, b, h, q_idx, kv_idx: score - 0.5 * abs(q_idx - kv_idx)
    >>> flex_attention(query, key, value, distance, enable_gqa=True).shape
    torch.Size([1, 8, 100, 64])
    """
    if (
        not (_is_compiling() or return_lse or dropout_p or lse_with_sinks)
        and return_aux is key_indices is sinks is weight_mod is normalize is rope is seed is kernel_options is None
    ):
        quick = _quick_attention(query, key, value, score_mod, block_mask, scale, enable_gqa, plain_plans)
        if quick is not None:
            return quick
    is_coded = type(key) is QuantizedTensor or type(value) is QuantizedTensor
    if _is_compiling():
        if is_coded:
            raise NotImplementedError(
                "[flex_attention] torch.compile does not take quantised keys and values; call it outside"
            )
        if query.is_nested or key.is_nested or value.is_nested:
            hooks = (sinks, weight_mod, normalize, rope, key_indices, lse_with_sinks or None)
            if any(one is not None for one in hooks):
                raise NotImplementedError(
                    "[flex_attention] in compiled graphs nested tensors have no sinks, weight_mod, rope or key_indices"
                )
            return _nested_in_graph(
                (query, key, value), score_mod, block_mask, scale, enable_gqa, return_lse, return_aux, dropout_p, seed
            )
        return flex_attention_in_graph(
            query,
            key,
            value,
            score_mod,
            block_mask,
            scale,
            enable_gqa,
            return_lse,
            kernel_options,
            return_aux,
            dropout_p,
            seed,
            key_indices,
            HookArguments(sinks, lse_with_sinks, weight_mod, normalize, rope),
        )
    is_transformed = _transforms() is not None
    if is_transformed:
        refuse_transforms("flex_attention", query, key, value)
    want_lse, want_max, weights = return_lse, False, None
    if return_aux is not None:
        want_lse, want_max = _requested(return_lse, return_aux)
        weights = weights_of(return_aux)
    elif return_lse:
        _warn_return_lse()
    if kernel_options is not None:
        validate.validate_options(kernel_options)
    if scale is not None and type(scale) is not float:
        scale = check_scale("flex_attention", scale)
    if key_indices is not None:
        validate.validate_key_indices(key_indices)
    if dropout_p or seed is not None:
        dropout_p = check_dropout("flex_attention", dropout_p)
        seed = draw_seed() if seed is None else check_seed("flex_attention", dropout_p, seed)
    given = _NO_HOOKS
    if sinks is not None or lse_with_sinks or weight_mod is not None or normalize is not None or rope is not None:
        given = HookArguments(sinks, lse_with_sinks, weight_mod, normalize, rope)
    if is_coded:
        if is_transformed or _modes() or _jit():
            raise NotImplementedError(
                "[flex_attention] quantised keys and values have no place under transforms and tracers"
            )
        mask = None
        if block_mask is not None:
            mask, _ = _mask_at_call(block_mask, query.shape[2], key.shape[2])
        mods = Mods(None, mask, scale, dropout_p, seed or 0, key_indices, weights)
        coded = coded_flex_attention((query, key, value), score_mod, mods, given, enable_gqa, (want_lse, want_max))
        return _results(coded, return_lse, return_aux, weights)
    is_plain = type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN and not query.is_nested
    if not is_plain or _modes() or _jit():
        if are_nested(query, key, value):
            outputs = outside_graphs(nested_flex_attention)(
                query,
                key,
                value,
                score_mod,
                block_mask,
                scale,
                enable_gqa,
                want_lse,
                want_max,
                (dropout_p, seed or 0),
                key_indices,
                weights,
                given,
            )
            return _results(outputs, return_lse, return_aux, weights)
        if _is_watched(query, key, value):
            validate.validate_sizes(query, key, value, block_mask, enable_gqa)
            if weights is not None:
                validate.refuse_weights_in_graph()
            outputs = flex_attention_as_operator(
                query,
                key,
                value,
                (score_mod, block_mask, scale, dropout_p, seed, key_indices, given),
                want_lse,
                want_max,
            )
            return _results(outputs, return_lse, return_aux)
    if _is_autocast("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)

    value, q_len, kv_len = _checked(query, key, value, block_mask, enable_gqa)
    mask = blocks = None
    if block_mask is not None:
        mask, blocks = _mask_at_call(block_mask, q_len, kv_len)
    needs_grad = _is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    mod, captured_needs_grad = None, False
    captured: list[Tensor] = []
    if score_mod is not None:
        mod, captured, captured_needs_grad, _ = bind_score_mod(score_mod, _F64 if query.dtype is _F64 else _F32)
        needs_grad = needs_grad or (captured_needs_grad and _is_grad_enabled())
    mods = Mods(mod, mask, scale, dropout_p, seed or 0, key_indices, weights)
    weight_reads = 0
    if given is not _NO_HOOKS:
        bound = bind_hooks("flex_attention", given, _F64 if query.dtype is _F64 else _F32)
        if bound is not None:
            mods = mods._replace(hooks=bound.hooks)
            captured, weight_reads = [*captured, *bound.tensors], bound.weight_reads
            captured_needs_grad = captured_needs_grad or bound.needs_grad
            needs_grad = needs_grad or (bound.needs_grad and _is_grad_enabled())
    if needs_grad or is_transformed or is_forward_mode():
        is_wide = captured_needs_grad and query.dtype in HALF
        call = FlexCall(mods, want_max, len(captured), is_wide, weight_reads=weight_reads)
        kept = [] if blocks is None else [tensor for tensor in blocks.rule_reads() if not tensor.is_inference()]
        if key_indices is not None and not key_indices.is_inference():
            kept.append(key_indices)
        out, lse, max_scores = as_torch_gives(query.dtype, *recorded(call, (query, key, value), captured, kept))
        outputs = (out, lse if want_lse else None, max_scores)
    elif want_lse or want_max:
        outputs = forward(query, key, value, mods, want_lse, want_max)
    else:
        plan = None if blocks is None else blocks.kept_plan
        outputs = forward_as_computed(query, key, value, mods, False, False, kept_plan=plan)
        if blocks is not None and type(block_mask) is OurBlockMask:
            blocks.teach(block_mask, mask)
    return outputs[0] if return_aux is None and not return_lse else _results(outputs, return_lse, return_aux, weights)


def _nested_in_graph(
    tensors: tuple[Any, Any, Any],
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    return_aux: Any,
    dropout_p: float,
    seed: int | None,
) -> Any:
    wanted = (return_lse, False) if return_aux is None else _requested(return_lse, return_aux)
    mods = (score_mod, rule_in_graph("flex_attention", block_mask))
    outputs = nested_in_graph("flex_attention", tensors, mods, scale, enable_gqa, wanted, (dropout_p, seed))
    return _results(outputs, return_lse, return_aux)


def _checked(query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool) -> tuple[Tensor, int, int]:
    """The value, with the key's batch, and the lengths of query and key. Raises what torch raises."""
    try:
        batch, q_heads, q_len, dim = query.shape
        kv_batch, kv_heads, kv_len, k_dim = key.shape
        v_batch, v_heads, v_len, _ = value.shape
        if (
            query.is_cpu
            and key.is_cpu
            and value.is_cpu
            and batch == kv_batch == v_batch
            and (q_heads == kv_heads or (enable_gqa and kv_heads and q_heads % kv_heads == 0))
            and kv_heads == v_heads
            and kv_len == v_len
            and dim == k_dim
        ):
            return value, q_len, kv_len
    except (ValueError, RuntimeError, AttributeError):  # another rank, a nested tensor, or not a tensor
        pass
    validate.validate_tensors(query, key, value)
    validate.validate_sizes(query, key, value, block_mask, enable_gqa)
    if value.size(0) != key.size(0):
        value = value.expand(key.size(0), -1, -1, -1)
    return value, query.size(2), key.size(2)


def _mask_at_call(block_mask: Any, q_len: int, kv_len: int) -> tuple[Any, Any]:
    """The _core.BlockMask of this call and its Blocks; None for torch's placeholder for "no mask"."""
    try:
        is_usual = block_mask.seq_lengths == (q_len, kv_len) and block_mask.mask_mod is not _sliced_mask_mod_error
    except AttributeError:
        is_usual = False
    if not is_usual:
        if isinstance(block_mask, BlockMask) and is_no_mask(block_mask):
            return None, None
        validate.validate_mask(block_mask, q_len, kv_len)
    blocks = blocks_of(block_mask)
    return blocks.with_rule(block_mask.mask_mod), blocks


def _requested(return_lse: bool, return_aux: AuxRequest) -> tuple[bool, bool]:
    if return_lse:
        raise ValueError("[flex_attention] give return_lse or return_aux, not both; return_lse is deprecated")
    return return_aux.lse, return_aux.max_scores


def _results(
    outputs: tuple[Tensor, Tensor | None, Tensor | None],
    return_lse: bool,
    return_aux: AuxRequest | None,
    weights: Weights | None = None,
) -> Any:
    out, lse, max_scores = outputs
    if weights is not None:
        return out, WeightsOutput(lse, max_scores, weights.key_weights, weights.entropy)
    if return_aux is not None:
        return out, AuxOutput(lse=lse, max_scores=max_scores)
    return (out, lse) if return_lse else out


def _warn_return_lse() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "return_lse is deprecated, as in torch; use return_aux=AuxRequest(lse=True)", FutureWarning, stacklevel=3
        )


def _is_watched(query: Any, key: Any, value: Any) -> bool:
    """Whether a mode is active (a tracer, a counter of operations) or a tensor has no memory, like fake ones. Raises
    RuntimeError under torch.jit.trace, as torch does: it would record the result as a constant."""
    if _jit() is not None:
        raise RuntimeError("[flex_attention] torch.jit.trace cannot record it; use torch.export or torch.compile")
    validate.validate_tensors(query, key, value)
    is_wrapper = torch.utils._python_dispatch.is_traceable_wrapper_subclass
    return _modes() > 0 or any(is_wrapper(t) or isinstance(t, FakeTensor) for t in (query, key, value))
