"""varlen_attn and varlen_attn_out: torch.nn.attention.varlen's signatures, over packed sequences and over pages, by
Quire.

packed_attention is what they and flash_attn's functions share: eager, recorded by autograd, or an operator of a graph.
Python layer, top.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from quire import _core
from quire.hooks import Rope
from quire.option_checks import check_dropout, check_flag, check_int, check_scale, check_seed
from quire.torch import varlen_operator as _varlen_operator  # noqa: F401 (registers the operators)
from quire.torch.autocast import autocast
from quire.torch.autograd import Outputs, recorded
from quire.torch.compile import packed_attention_by_dynamo, seed_tensor, text_of
from quire.torch.forward import HALF, as_torch_gives, draw_seed
from quire.torch.graph_mod import bind
from quire.torch.hooks import HookArguments, bind_hooks, has_hooks
from quire.torch.mods import Bound, bind_mask_mod, bind_score_mod
from quire.torch.trace import trace_mask_mod, trace_score_mod
from quire.torch.transforms import is_forward_mode, refuse_transforms
from quire.torch.validate import validate_key_indices
from quire.torch.varlen_call import Varlen, varlen_call

_is_compiling = torch.compiler.is_dynamo_compiling
_INTEGERS = (torch.int32, torch.int64)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WIDEST = 1024  # head dim


class Text(NamedTuple):
    """A mod as operators of graphs take it: a formula, the names of its buffers and their tensors."""

    text: str
    names: list[str]
    tensors: list[Tensor]


_NOTHING = Text("", [], [])


class Packed(NamedTuple):
    """What a call over packed sequences is besides its tensors. score_mod, mask_mod: as for flex_attention, or a Text.
    hooks, key_indices: not in graphs."""

    function: str
    sequences: Varlen
    score_mod: Any = None
    mask_mod: Any = None
    scale: float | None = None
    enable_gqa: bool = False
    dropout_p: float = 0.0
    seed: int | None = None
    want_lse: bool = False
    want_max: bool = False
    hooks: HookArguments = HookArguments()
    key_indices: Tensor | None = None


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    score_mod: Any = None,
    mask_mod: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    key_indices: Tensor | None = None,
    sinks: Tensor | None = None,
    weight_mod: Any = None,
    normalize: str | None = None,
    rope: Rope | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over packed sequences of different lengths, like torch.nn.attention.varlen's.

    query [total_q, Hq, E], key [total_k, Hkv, E], value [total_k, Hkv, Ev], f32, f64, bf16 or f16, any strides, on the
    CPU; sequence i is rows cu_seq[i] .. cu_seq[i + 1] - 1. `window_size`: (left, right), aligned to the bottom right
    corner: query i of a sequence sees the keys i + len_k - len_q - left .. i + len_k - len_q + right; -1 for all, so
    that (-1, 0) is causal. `seqused_k` [n]: how many first keys of each sequence are used. `block_table` [n, most
    pages]: key and value are pages [pages, page_size, Hkv, dim] of any size, and seqused_k (or cu_seq_k) says how many
    keys there are; no gradients. `max_q`, `max_k`: no sequence may be longer. `num_splits` has no effect: a row's bits
    do not depend on it. Returns [total_q, Hq, Ev] and, if return_aux.lse, lse [Hq, total_q], natural log. Rows that see
    nothing are 0, with lse -inf.

    `score_mod`, `mask_mod`, `dropout_p` and `seed` are Quire's additions, as for flex_attention: b is the index of the
    sequence; q_idx and kv_idx count inside it, from 0. Gradients reach query, key, value and what score_mod captures.
    `key_indices` [total_q, k] or [total_q, Hq, k], `sinks`, `weight_mod`, `normalize` and `rope` are, too, outside graphs.

    >>> import torch
    >>> from quire.torch import varlen_attn
    >>> x = torch.randn(100, 4, 64)
    >>> cu_seq = torch.tensor([0, 30, 30, 100], dtype=torch.int32)
    >>> varlen_attn(x, x, x, cu_seq, cu_seq, 70, 70, window_size=(-1, 0)).shape
    torch.Size([100, 4, 64])
    """
    sequences = Varlen(cu_seq_q, cu_seq_k, seqused_k, block_table, max_q, max_k, _window("varlen_attn", window_size))
    want_lse = _checked_options("varlen_attn", return_aux, enable_gqa, num_splits)
    check_packed("varlen_attn", query, key, value, sequences, enable_gqa)
    if key_indices is not None:
        validate_key_indices(key_indices, "varlen_attn")
    call = Packed(
        "varlen_attn",
        sequences,
        score_mod,
        mask_mod,
        scale,
        enable_gqa,
        dropout_p,
        seed,
        want_lse=want_lse,
        hooks=HookArguments(sinks, False, weight_mod, normalize, rope),
        key_indices=key_indices,
    )
    out, lse, _ = packed_attention(call, query, key, value)
    return out if lse is None else (out, lse.t().contiguous())


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    score_mod: Any = None,
    mask_mod: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """varlen_attn into `out` [total_q, Hq, Ev], of query's dtype, any strides. Has no gradient: raises RuntimeError if
    one is asked for.

    >>> import torch
    >>> from quire.torch import varlen_attn, varlen_attn_out
    >>> x, cu_seq = torch.randn(100, 4, 64), torch.tensor([0, 30, 100])
    >>> out = torch.empty_like(x)
    >>> _ = varlen_attn_out(out, x, x, x, cu_seq, cu_seq, 70, 70)
    >>> torch.equal(out, varlen_attn(x, x, x, cu_seq, cu_seq, 70, 70))
    True
    """
    function = "varlen_attn_out"
    sequences = Varlen(cu_seq_q, cu_seq_k, seqused_k, block_table, max_q, max_k, _window(function, window_size))
    want_lse = _checked_options(function, return_aux, enable_gqa, num_splits)
    check_packed(function, query, key, value, sequences, enable_gqa)
    shape = (*query.shape[:2], value.shape[-1])
    if not isinstance(out, Tensor) or tuple(out.shape) != shape or out.dtype != query.dtype or out.device.type != "cpu":
        what = f"{out.dtype} {tuple(out.shape)} on {out.device}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"[{function}] out must be {query.dtype} {tuple(shape)} on the CPU; got {what}")
    if not _is_compiling() and _overlaps_itself(out):
        raise ValueError(f"[{function}] elements of out share memory: strides {out.stride()} of {tuple(shape)}")
    if _needs_grad((out, query, key, value)):
        raise RuntimeError(f"[{function}] writes into a tensor and has no gradient; take varlen_attn for gradients")
    if torch.is_autocast_enabled("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)
        if query.dtype != out.dtype:
            raise ValueError(f"[{function}] under autocast the result is {query.dtype}, and out is {out.dtype}")
    call = _checked_numbers(
        Packed(function, sequences, score_mod, mask_mod, scale, enable_gqa, dropout_p, seed, want_lse=want_lse)
    )
    texts = _texts(call, query)
    if texts is None:
        raise TypeError(f"[{function}] under torch.compile score_mod and mask_mod are texts")
    lse = torch.ops.quire.varlen_attn_out(out, query, key, value, *_operator_arguments(call, *texts), want_lse)
    return (out, lse.t().contiguous()) if want_lse else out


# ---- what every call over packed sequences does


def packed_attention(call: Packed, query: Tensor, key: Tensor, value: Tensor) -> Outputs:
    """(out, lse, max_scores): [total_q, Hq, Ev] and, if wanted, [total_q, Hq]. Sizes were checked."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)
    if _is_compiling():
        _refuse_hooks(call)
        call = _checked_numbers(call)
        texts = _texts(call, query)
        if texts is None:
            return packed_attention_by_dynamo(call, query, key, value)
        return _as_operator(call, query, key, value, *texts)
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    if transformed:
        refuse_transforms(call.function, query, key, value)
    call = _checked_numbers(call)
    tensors = (query, key, value)
    if torch._C._len_torch_dispatch_stack() or any(_is_watched(one) for one in tensors):
        texts = _texts(call, query)
        assert texts is not None
        return _as_operator(call, *tensors, *texts)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    score = _bound(_core.ScoreMod, call.score_mod, dtype)
    mask = _bound(_core.MaskMod, call.mask_mod, dtype)
    seed = (draw_seed() if call.seed is None else call.seed) if call.dropout_p else 0
    flex = varlen_call(
        call.function, call.sequences, score, mask, call.scale, call.enable_gqa, (call.dropout_p, seed), call.want_max
    )
    captured = [] if score is None else list(score.tensors)
    flex.mods = flex.mods._replace(key_indices=call.key_indices)
    bound = bind_hooks(call.function, call.hooks, dtype)
    if bound is not None:
        flex.mods, flex.weight_reads = flex.mods._replace(hooks=bound.hooks), bound.weight_reads
        captured += bound.tensors
        flex.reads = len(captured)
    if _needs_grad((*tensors, *captured)) or transformed or is_forward_mode():
        if flex.pages is not None:
            raise RuntimeError(f"[{call.function}] block_table is an inference-only parameter: pages have no gradient")
        flex.is_wide = _needs_grad(captured) and query.dtype in HALF
        out, lse, max_scores = as_torch_gives(query.dtype, *recorded(flex, tensors, captured))
        return out, lse if call.want_lse else None, max_scores
    return as_torch_gives(query.dtype, *flex.run(tensors, captured, call.want_lse))


def _refuse_hooks(call: Packed) -> None:
    """Those that no operator has an argument for."""
    if call.key_indices is not None or has_hooks(call.hooks):
        raise NotImplementedError(
            f"[{call.function}] in graphs packed sequences have no sinks, key_indices, weight_mod or rope"
        )


def _as_operator(call: Packed, query: Tensor, key: Tensor, value: Tensor, score: Text, mask: Text) -> Outputs:
    _refuse_hooks(call)
    learns_captured = _needs_grad(score.tensors)
    want_lse = call.want_lse or learns_captured or _needs_grad((query, key, value))
    wide = learns_captured and query.dtype in HALF
    arguments = _operator_arguments(call, score, mask)
    out, lse, max_scores, _ = torch.ops.quire.varlen_attn(query, key, value, *arguments, want_lse, call.want_max, wide)
    return out, lse if call.want_lse else None, max_scores if call.want_max else None


def _operator_arguments(call: Packed, score: Text, mask: Text) -> tuple:
    *sequences, window = call.sequences
    seed = seed_tensor(call.dropout_p, call.seed)
    rest = (call.scale, call.enable_gqa, call.function, call.dropout_p, seed)
    return (*sequences, list(window), *score, *mask, *rest)


def _texts(call: Packed, query: Tensor) -> tuple[Text, Text] | None:
    """The mods as texts; under torch.compile None if one is a function, which dynamo has to take apart."""
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    found = []
    for mod, trace in ((call.score_mod, lambda mod: trace_score_mod(mod, dtype)), (call.mask_mod, trace_mask_mod)):
        if mod is None:
            found.append(_NOTHING)
        elif isinstance(mod, Text):
            found.append(mod)
        elif isinstance(mod, str):
            found.append(Text(mod, [], []))
        elif _is_compiling():
            return None
        else:
            found.append(Text(*text_of(mod, trace)))
    return found[0], found[1]


def _bound(kind: Any, mod: Any, dtype: torch.dtype) -> Bound | None:
    if mod is None:
        return None
    if isinstance(mod, Text):
        return bind(kind, mod.text, mod.names, mod.tensors, dtype)
    return bind_score_mod(mod, dtype) if kind is _core.ScoreMod else bind_mask_mod(mod)


def _needs_grad(tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in tensors)


def _is_watched(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor)


# ---- checks: they read only sizes, so that they work in graphs


def _checked_numbers(call: Packed) -> Packed:
    scale = call.scale
    if scale is not None and type(scale) is not float:
        scale = check_scale(call.function, scale)
    if not call.dropout_p and call.seed is None:
        return call._replace(scale=scale, dropout_p=0.0)
    dropout_p = check_dropout(call.function, call.dropout_p)
    seed = None if call.seed is None else check_seed(call.function, dropout_p, call.seed)
    return call._replace(scale=scale, dropout_p=dropout_p, seed=seed)


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether two of its elements may be one: false for every view of a tensor that is not expanded."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _checked_options(function: str, return_aux: Any, enable_gqa: Any, num_splits: Any) -> bool:
    """Whether lse is wanted."""
    check_flag(function, "enable_gqa", enable_gqa)
    if num_splits is not None and check_int(function, "num_splits", num_splits) < 0:
        raise ValueError(f"[{function}] num_splits must not be negative; got {num_splits}")
    if return_aux is None:
        return False
    # torch.nn.attention.varlen has an AuxRequest of its own and imports the compiler, so it is not imported for this
    # check.
    if not hasattr(return_aux, "lse"):
        raise TypeError(f"[{function}] return_aux must be an AuxRequest; got {return_aux!r}")
    if getattr(return_aux, "max_scores", False):
        raise ValueError(f"[{function}] return_aux gives lse; max_scores is flex_attention's")
    return bool(return_aux.lse)


def _window(function: str, window_size: Any) -> tuple[int, int]:
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"[{function}] window_size must be (left, right); got {window_size!r}")
    left, right = window_size
    return check_int(function, "window_size", left), check_int(function, "window_size", right)


def check_packed(function: str, query: Any, key: Any, value: Any, sequences: Varlen, enable_gqa: bool) -> None:
    """Ranks, heads, dims, dtypes and devices. Raises ValueError, or TypeError for anything but tensors of the right
    kind."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"[{function}] {name} must be a tensor; got {type(tensor).__name__}")
        if tensor.device.type != "cpu":
            raise ValueError(f"[{function}] Quire computes on the CPU; got {name} on {tensor.device}")
        if tensor.dtype not in _FLOATS:
            raise TypeError(f"[{function}] {name} must be f32, f64, bf16 or f16; got {tensor.dtype}")
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise TypeError(f"[{function}] {name} must be a dense tensor; got one of layout {tensor.layout}")
        is_paged = name != "query" and sequences.block_table is not None
        axes, what = (4, "[pages, page_size, heads, dim]") if is_paged else (3, "[total, heads, dim]")
        if tensor.dim() != axes:
            raise ValueError(f"[{function}] {name} must be {what}; got {tuple(tensor.shape)}")
        if tensor.shape[-1] > _WIDEST:
            raise ValueError(f"[{function}] head dims go up to {_WIDEST}; {name} has {tensor.shape[-1]}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"[{function}] key and value must have the same tokens and heads; got {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"[{function}] query and key must have the same head dim; got {query.shape[-1]} and {key.shape[-1]}"
        )
    _check_heads(function, query.shape[1], key.shape[-2], enable_gqa)
    _check_sequences(function, sequences)


def _check_heads(function: str, q_heads: int, kv_heads: int, enable_gqa: bool) -> None:
    if not enable_gqa and q_heads != kv_heads:
        raise ValueError(
            f"[{function}] query and key must have the same number of heads, or enable_gqa must be set; got Hq={q_heads} and "
            f"Hkv={kv_heads}"
        )
    if enable_gqa and (kv_heads == 0 or q_heads % kv_heads != 0):
        raise ValueError(
            f"[{function}] query heads must be a multiple of key heads; got Hq={q_heads} and Hkv={kv_heads}"
        )


def _check_sequences(function: str, sequences: Varlen) -> None:
    count = None
    given = {
        "cu_seq_q": (sequences.cu_seq_q, 1),
        "cu_seq_k": (sequences.cu_seq_k, 1),
        "seqused_k": (sequences.seqused_k, 0),
        "block_table": (sequences.block_table, 0),
    }
    for name, (tensor, more) in given.items():
        if tensor is None and name != "cu_seq_q":
            continue
        axes = 2 if name == "block_table" else 1
        if not isinstance(tensor, Tensor) or tensor.dtype not in _INTEGERS or tensor.dim() != axes:
            what = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"[{function}] {name} must be int32 or int64 with {axes} axes; got {what}")
        if tensor.device.type != "cpu":
            raise ValueError(f"[{function}] Quire computes on the CPU; got {name} on {tensor.device}")
        here = tensor.shape[0] - more
        if count is not None and here != count:
            raise ValueError(f"[{function}] cu_seq_q has {count} sequences, {name} has {here}")
        count = here
    if sequences.cu_seq_k is None and (sequences.block_table is None or sequences.seqused_k is None):
        raise ValueError(f"[{function}] without cu_seq_k, block_table and seqused_k are needed")
    for name, most in (("max_q", sequences.max_q), ("max_k", sequences.max_k)):
        if most is not None and not isinstance(most, (int, torch.SymInt)):
            raise TypeError(f"[{function}] {name} must be an int; got {type(most).__name__}")
