"""scaled_dot_product_attention: torch's signature, results and exception types, for dense and for nested tensors.

Errors about nested tensors are ValueErrors, all others RuntimeErrors, as in torch. Under torch.compile the call is one
operator of the graph (sdpa_operator.py). Python layer, top.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import handle_torch_function, has_torch_function

from quire import _core
from quire.hooks import Rope
from quire.option_checks import check_scale
from quire.torch.autocast import autocast
from quire.torch.autograd import recorded
from quire.torch.backends import allowed_backends, may_be_fused, number_of
from quire.torch.forward import HALF, draw_seed, plain_plans
from quire.torch.mods import bind_mask_mod
from quire.torch.nested import (
    NestedTensor,
    are_nested,
    jagged_of,
    nested_from_values,
    nested_like,
    outside_graphs,
    plain_values_of,
    rewrap,
    rewrap_recorded,
    sequences_of,
    values_of,
)
from quire.torch.nested_graph import nested_in_graph
from quire.torch.nested_strided import are_strided_nested, can_be_packed, components_of, to_jagged, to_strided
from quire.torch.sdpa_call import SdpaCall
from quire.torch.sdpa_hooks import SdpaHooks, SdpaMask, attention_with_hooks
from quire.torch.transforms import is_forward_mode, refuse_transforms
from quire.torch.views import view_of

_is_compiling = torch.compiler.is_dynamo_compiling
_is_autocast = torch.is_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_jit = torch._C._get_tracing_state
_transforms = torch._C._functorch.peek_interpreter_stack
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_NAME = "scaled_dot_product_attention"
_quick_attention = _core.quick_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: int | None = None,
    key_indices: Tensor | None = None,
    sinks: Tensor | None = None,
    weight_mod: Any = None,
    normalize: str | None = None,
    rope: Rope | None = None,
) -> Tensor:
    """softmax(query key^T * scale + attn_mask) value, as torch.nn.functional's.

    query [..., Hq, L, E], key [..., Hkv, S, E], value [..., Hkv, S, Ev] on the CPU, of one dtype; or nested tensors of the
    layout torch.jagged: [B, H, j, D], that is [B, j, H, D] transposed. `attn_mask`: a bool or float tensor that broadcasts
    to [..., Hq, L, S], torch's causal_upper_left and causal_lower_right, or a mask_mod f(b, h, q_idx, kv_idx), which nested
    tensors take too. Each call with dropout_p > 0 draws one number from torch's default generator, unless it has a `seed`.

    `seed`, `key_indices`, `sinks`, `weight_mod`, `normalize` and `rope` are Quire's own, and those of flex_attention, which computes
    such a call; the B of key_indices counts all leading axes.

    >>> import torch
    >>> from quire.torch import scaled_dot_product_attention
    >>> x = torch.nested.nested_tensor([torch.randn(n, 4, 64) for n in (30, 7)], layout=torch.jagged).transpose(1, 2)
    >>> [tuple(one.shape) for one in scaled_dot_product_attention(x, x, x, is_causal=True).unbind()]
    [(4, 30, 64), (4, 7, 64)]
    """
    if not (seed is key_indices is sinks is weight_mod is normalize is rope is None):
        hooks = SdpaHooks(seed, key_indices, sinks, weight_mod, normalize, rope)
        return _with_hooks(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, hooks)
    if _is_compiling():
        return _in_graph(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is None and is_causal is False and dropout_p == 0 and may_be_fused():
        # Without a mod the two functions are the same. Arguments that are not tensors, and mixed dtypes, are reported
        # by the code below.
        dtype = getattr(query, "dtype", None)
        if getattr(key, "dtype", 0) is dtype and getattr(value, "dtype", 0) is dtype:
            quick = _quick_attention(query, key, value, None, None, scale, enable_gqa, plain_plans)
            if quick is not None:
                return quick
    if _transforms() is not None:
        refuse_transforms(_NAME, query, key, value)
    given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if not all(isinstance(one, Tensor) for one in given):
        if any(not isinstance(one, Tensor) and has_torch_function((one,)) for one in given):  # torch.fx's proxies
            return _overridden(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"[{_NAME}] {name} must be a tensor; got {type(tensor).__name__}")
    if scale is not None and type(scale) is not float:
        scale = check_scale(_NAME, scale)
    call = outside_graphs(_nested) if are_nested(query, key, value) else _dense
    return call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _with_hooks(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    hooks: SdpaHooks,
) -> Tensor:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"[{_NAME}] {name} must be a tensor; got {type(tensor).__name__}")
    if not _is_compiling() and not may_be_fused():
        raise RuntimeError(f"[{_NAME}] sinks, key_indices, weight_mod, rope and seed need the backend FLASH_ATTENTION")
    diagonal = "top_left" if is_causal else ""
    if attn_mask is not None and _is_causal_bias(attn_mask):
        attn_mask, diagonal = None, _alignment(attn_mask, is_causal, query, key)
    if attn_mask is not None and diagonal:
        raise RuntimeError(f"[{_NAME}] Explicit attn_mask should not be set when is_causal=True")
    if isinstance(attn_mask, Tensor) and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            f"[{_NAME}] attn_mask must be bool, float32 or of the query's dtype, {query.dtype}; got {attn_mask.dtype}"
        )
    mask = SdpaMask(attn_mask, diagonal)
    return attention_with_hooks(query, key, value, mask, dropout_p, scale, enable_gqa, hooks)


def _overridden(query: Any, key: Any, value: Any, attn_mask: Any, *options: Any) -> Any:
    """Lets an argument with its own __torch_function__ handle the call; options have the user's names."""
    names = ("dropout_p", "is_causal", "scale", "enable_gqa")
    usual = (0.0, False, None, False)
    given = {name: one for name, one, other in zip(names, options, usual, strict=True) if one is not other}
    if attn_mask is not None:
        given = {"attn_mask": attn_mask, **given}
    tensors = (query, key, value)
    return handle_torch_function(scaled_dot_product_attention, (*tensors, attn_mask), *tensors, **given)


def why_not(
    backend: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[str]:
    """Every reason why a backend (torch's SDPBackend or quire's) cannot compute such a call; empty if it can.

    >>> import torch
    >>> from quire.torch import SDPBackend, why_not
    >>> q = torch.randn(1, 2, 10, 2000)
    >>> why_not(SDPBackend.FLASH_ATTENTION, q, q, q)
    ['FLASH_ATTENTION takes head dims of 0 to 1024; got 2000 for query and key and 2000 for value.']
    >>> why_not(SDPBackend.MATH, q, q, q)
    []
    """
    number = number_of(backend)
    if number is None:
        return [f"{backend.name} is not a backend of a CPU."]
    if are_nested(query, key, value):
        if are_strided_nested("why_not", query, key, value):
            parts = components_of("why_not", query, key, value)
            if not can_be_packed(*parts):  # computed one by one
                options = (attn_mask, dropout_p, is_causal, scale, enable_gqa)
                found = (why_not(backend, *one, *options) for one in zip(*parts, strict=True))
                return list(dict.fromkeys(reason for reasons in found for reason in reasons))
            query, key, value = (to_jagged(part) for part in parts)
        _check_nested(query, key, value, attn_mask)
        views = [jagged_of(tensor) for tensor in (query, key, value)]
    else:
        views = [view_of(tensor) for tensor in (query, key, value)]
    mask, is_causal, alignment = _mask(attn_mask, is_causal, query, key)
    mask = view_of(mask) if isinstance(mask, Tensor) else mask
    options = _core.SdpaOptions(
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        alignment=alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        backends=allowed_backends(),
    )
    return _core.why_not(options, number, *views)


# ---- dense tensors


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    if _is_autocast("cpu"):
        query, key, value, attn_mask = _cast(query), _cast(key), _cast(value), _cast(attn_mask)
    if _modes() or _jit() or not {type(query), type(key), type(value), *_type_of_mask(attn_mask)} <= _PLAIN:
        if attn_mask is None or isinstance(attn_mask, Tensor):
            return _as_operator(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if any(isinstance(tensor, FakeTensor) for tensor in (query, key, value)):
            raise TypeError(f"[{_NAME}] in a graph, and of tensors without memory, attn_mask is a tensor")
    call, read = dense_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if _needs_grad(query, key, value, *read) or _transforms() is not None or is_forward_mode():
        call.is_wide = query.dtype in HALF and any(mask.requires_grad for mask in read)
        return recorded(call, (query, key, value), read)[0]
    return call.run((query, key, value), read, False)[0]


def _type_of_mask(attn_mask: Any) -> tuple[type, ...]:
    return (type(attn_mask),) if isinstance(attn_mask, Tensor) and not _is_causal_bias(attn_mask) else ()


def dense_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[SdpaCall, list[Tensor]]:
    """A checked call, with a new seed if there is dropout, and what it reads: the mask if it is a tensor."""
    if not query.device == key.device == value.device:
        raise RuntimeError(
            f"[{_NAME}] query, key and value must be on the same device; "
            f"got {query.device}, {key.device} and {value.device}"
        )
    if not query.is_cpu:
        raise ValueError(f"[{_NAME}] Quire computes on the CPU; got tensors on {query.device}")
    mask, is_causal, alignment = _mask(attn_mask, is_causal, query, key)
    rule, read = (None, [mask]) if isinstance(mask, Tensor) else (mask, [])
    call = _call(rule, dropout_p, is_causal, alignment, scale, enable_gqa)
    call.reads = len(read)
    return call, read


# ---- nested tensors


def _nested(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    if _is_autocast("cpu"):
        query, key, value = _cast(query), _cast(key), _cast(value)
    if are_strided_nested(_NAME, query, key, value):
        return _strided(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    _check_nested(query, key, value, attn_mask)
    if query._ragged_idx == 1 and query.dim() > 3:
        # As in torch: a ragged second batch axis before sequences of one length.
        is_recorded = _needs_grad(query, key, value)
        dense = [tensor.values() if is_recorded else tensor._values for tensor in (query, key, value)]
        out = _dense(*dense, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return rewrap_recorded(out, query) if is_recorded else rewrap(out, query)
    if query.dim() - query._ragged_idx != 2 or query.dim() > 4:
        raise RuntimeError(
            f"[{_NAME}] nested tensors must be [B, H, j, D], ragged on axis 2, or [B, j, D]; "
            f"got {query.dim()} axes, ragged on axis {query._ragged_idx}"
        )
    tensors = (query, key, value)
    rule = None if attn_mask is None else _rule(attn_mask)
    call = _call(rule, dropout_p, is_causal, "top_left", scale, enable_gqa)
    call.sequences = (sequences_of(query), sequences_of(key), sequences_of(value))
    if _needs_grad(*tensors) or is_forward_mode():
        return nested_from_values(recorded(call, [values_of(tensor) for tensor in tensors])[0], query)
    return nested_like(call.run([plain_values_of(tensor) for tensor in tensors], [], False)[0], query)


def _strided(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, *options: Any) -> Tensor:
    """Nested tensors of the layout torch.strided: packed if all sequences have the same heads, otherwise one by one."""
    _check_strided(query, key, value, attn_mask)
    parts = components_of(_NAME, query, key, value)
    if can_be_packed(*parts):
        query, key, value = (to_jagged(part) for part in parts)
        return to_strided(_nested(query, key, value, attn_mask, *options), parts[0])
    if attn_mask is not None:
        raise RuntimeError(f"[{_NAME}] a mask_mod of nested tensors needs the same heads and dims in all sequences")
    return torch.nested.as_nested_tensor([_dense(*one, None, *options) for one in zip(*parts, strict=True)])


def _check_strided(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any) -> None:
    if isinstance(attn_mask, Tensor):
        raise RuntimeError(
            f"[{_NAME}] nested tensors are not supported when an explicit attn_mask is set: their mask is a mask_mod "
            "f(b, h, q_idx, kv_idx), not a tensor"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"[{_NAME}] query, key and value must have the same dtype; got {query.dtype}, {key.dtype} and {value.dtype}"
        )


def _check_nested(query: Any, key: Any, value: Any, attn_mask: Any) -> None:
    """Checks in torch's order."""
    tensors = (query, key, value)
    if not all(isinstance(tensor, NestedTensor) for tensor in tensors):
        kinds = ", ".join("nested" if t.is_nested and t.layout is torch.jagged else str(t.layout) for t in tensors)
        raise ValueError(f"[{_NAME}] query, key and value must all be nested, of the layout torch.jagged; got {kinds}")
    for what in ("dtype", "device", "_ragged_idx"):
        if what == "_ragged_idx" and min(tensor.dim() for tensor in tensors) < 3:
            dims = ", ".join(str(tensor.dim()) for tensor in tensors)
            raise ValueError(f"[{_NAME}] nested query, key and value must have at least 3 axes; got {dims}")
        found = [getattr(tensor, what) for tensor in tensors]
        if not found[0] == found[1] == found[2]:
            said = {"_ragged_idx": "be ragged on the same axis"}.get(what, f"have the same {what}")
            raise ValueError(f"[{_NAME}] query, key and value must {said}; got {found[0]}, {found[1]} and {found[2]}")
    if query.device.type != "cpu":
        raise ValueError(f"[{_NAME}] Quire computes on the CPU; got tensors on {query.device}")
    if isinstance(attn_mask, Tensor):
        raise ValueError(
            f"[{_NAME}] nested tensors are not supported when an explicit attn_mask is set: their mask is a mask_mod "
            "f(b, h, q_idx, kv_idx), not a tensor"
        )


# ---- both


def _call(
    rule: Any, dropout_p: float, is_causal: bool, alignment: str, scale: float | None, enable_gqa: bool
) -> SdpaCall:
    """With a new seed if there is dropout."""
    seed = draw_seed() if dropout_p > 0 else 0
    return SdpaCall(rule, dropout_p, seed, is_causal, alignment, scale, enable_gqa, allowed_backends())


def _cast(value: Any) -> Any:
    return autocast(value) if isinstance(value, Tensor) and not _is_causal_bias(value) else value


def _is_causal_bias(attn_mask: Any) -> bool:
    """Whether it is from torch.nn.attention.bias, checked without importing that module, which imports the compiler."""
    if _is_compiling():
        from torch.nn.attention.bias import CausalBias

        return isinstance(attn_mask, CausalBias)
    bias = sys.modules.get("torch.nn.attention.bias")
    return bias is not None and isinstance(attn_mask, bias.CausalBias)


def _rule(mask_mod: Any) -> Any:
    if not callable(mask_mod) and not isinstance(mask_mod, str):
        raise TypeError(f"[{_NAME}] attn_mask must be a tensor or a mask_mod; got {type(mask_mod).__name__}")
    return bind_mask_mod(mask_mod).mod


def _mask(attn_mask: Any, is_causal: bool, query: Tensor, key: Tensor) -> tuple[Any, bool, str]:
    """A tensor or a _core rule, whether it is causal, and the corner its diagonal starts in."""
    if attn_mask is None:
        return None, is_causal, "top_left"
    if _is_causal_bias(attn_mask):
        return None, True, _alignment(attn_mask, is_causal, query, key)
    if not isinstance(attn_mask, Tensor):
        return _rule(attn_mask), is_causal, "top_left"
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            f"[{_NAME}] attn_mask must be bool, float32 or of the query's dtype, {query.dtype}; got {attn_mask.dtype}"
        )
    return attn_mask, is_causal, "top_left"


def _alignment(bias: Any, is_causal: bool, query: Tensor, key: Tensor) -> str:
    """The corner from which torch's causal bias is meant."""
    if is_causal:
        raise ValueError(
            f"[{_NAME}] CausalBias should not be used with causal=True: a causal bias and is_causal say the same; give one of them"
        )
    q_len, kv_len = bias.seq_len_q, bias.seq_len_kv
    if q_len != query.size(-2) or kv_len != key.size(-2):
        raise RuntimeError(
            f"[{_NAME}] the causal bias was made for {q_len} queries and {kv_len} keys; "
            f"got {query.size(-2)} and {key.size(-2)}"
        )
    return "top_left" if bias.variant.name == "UPPER_LEFT" else "bottom_right"


def _needs_grad(*inputs: Any) -> bool:
    return _is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in inputs)


def _in_graph(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, *options: Any) -> Tensor:
    """What dynamo traces."""
    if query.is_nested or key.is_nested or value.is_nested:
        return _nested_in_graph(query, key, value, attn_mask, *options)
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        raise TypeError(f"[{_NAME}] under torch.compile attn_mask is a tensor")
    if torch.is_autocast_enabled("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)
        attn_mask = attn_mask if attn_mask is None or _is_causal_bias(attn_mask) else autocast(attn_mask)
    return _as_operator(query, key, value, attn_mask, *options)


def _nested_in_graph(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    if isinstance(attn_mask, Tensor):
        raise ValueError(f"[{_NAME}] a mask of nested tensors is a mask_mod f(b, h, q_idx, kv_idx), not a tensor")
    if attn_mask is not None and is_causal:
        raise RuntimeError(f"[{_NAME}] inside torch.compile nested tensors take attn_mask or is_causal, not both")
    rule = "q_idx >= kv_idx" if is_causal else attn_mask
    tensors = (query, key, value)
    return nested_in_graph(_NAME, tensors, (None, rule), scale, enable_gqa, (False, False), (dropout_p, None))[0]


def _as_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    alignment = "top_left"
    if attn_mask is not None and _is_causal_bias(attn_mask):
        alignment = _alignment(attn_mask, is_causal, query, key)
        attn_mask, is_causal = None, True
    is_recorded = _needs_grad(query, key, value, attn_mask)
    is_wide = query.dtype in HALF and _needs_grad(attn_mask)
    return torch.ops.quire.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, is_recorded, alignment, is_wide
    )[0]
