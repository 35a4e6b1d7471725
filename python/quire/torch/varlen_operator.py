"""torch.ops.quire.varlen_attn: a call over packed or paged sequences inside a graph, with its gradients.

It takes mods as texts, as torch.ops.quire.flex_attention does; the window is an argument, since its rule depends on
lengths that are known only when the graph runs. Python layer, above varlen_call.py, below compile.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.torch.graph_backward import through_score
from quire.torch.graph_library import define, give_gradients, in_their_places
from quire.torch.graph_mod import bind
from quire.torch.graph_operator import number_of_seed
from quire.torch.mods import Bound
from quire.torch.varlen_call import Varlen, varlen_call

# What follows query, key and value in both operators; `arguments` below are these, in this order.
_ARGUMENTS = (
    "Tensor cu_seq_q, Tensor? cu_seq_k, Tensor? seqused_k, Tensor? block_table, SymInt? max_q, SymInt? max_k, SymInt[] window, "
    "str score_mod, str[]? score_names, Tensor[]? score_tensors, str mask_mod, str[]? mask_names, Tensor[]? mask_tensors, "
    "float? scale, bool enable_gqa, str function, float dropout_p, Tensor? seed"
)


def _dtype_of_scores(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype is torch.float64 else torch.float32


def _sequences(arguments: tuple) -> Varlen:
    return Varlen(*arguments[:6], (arguments[6][0], arguments[6][1]))


def _call(query: Tensor, score: Bound | None, arguments: tuple, want_max: bool = False) -> Any:
    mask_mod, mask_names, mask_tensors, scale, enable_gqa, function, dropout_p, seed = arguments[10:]
    mask = bind(_core.MaskMod, mask_mod, mask_names, mask_tensors, torch.float32) if mask_mod else None
    dropout = (dropout_p, number_of_seed(seed))
    return varlen_call(function, _sequences(arguments), score, mask, scale, enable_gqa, dropout, want_max)


def _score(query: Tensor, arguments: tuple) -> Bound | None:
    text, names, tensors = arguments[7:10]
    return bind(_core.ScoreMod, text, names, tensors, _dtype_of_scores(query)) if text else None


# ---- forward: (out, lse, max_scores, out before rounding), empty if not wanted; lse as [total, heads]


def _run(query: Tensor, key: Tensor, value: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arguments, (want_lse, want_max, wide) = given[:18], given[18:]
    dtype = _dtype_of_scores(query)
    call = _call(query, _score(query, arguments), arguments, want_max)
    call.is_wide = wide
    out, lse, max_scores = call.run((query, key, value), (), want_lse)
    nothing = query.new_empty(0, dtype=dtype)
    return (
        out.to(query.dtype) if wide else out,
        nothing if lse is None else lse.to(dtype),
        nothing.clone() if max_scores is None else max_scores.to(dtype),
        out if wide else nothing.clone(),
    )


def _fake(query: Tensor, key: Tensor, value: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    want_lse, want_max, wide = given[18:]
    shape, dtype = (query.shape[0], query.shape[1], value.shape[-1]), _dtype_of_scores(query)
    wide_dtype = torch.float64 if torch.float64 in (query.dtype, key.dtype, value.dtype) else torch.float32
    return (
        query.new_empty(shape),
        query.new_empty(shape[:2] if want_lse else (0,), dtype=dtype),
        query.new_empty(shape[:2] if want_max else (0,), dtype=dtype),
        query.new_empty(shape, dtype=wide_dtype) if wide else query.new_empty(0, dtype=dtype),
    )


# ---- into a tensor of the caller's: lse, empty if not wanted


def _run_out(out: Tensor, query: Tensor, key: Tensor, value: Tensor, *given: Any) -> Tensor:
    arguments, want_lse = given[:18], given[18]
    call = _call(query, _score(query, arguments), arguments)
    is_f64 = torch.float64 in (query.dtype, key.dtype, value.dtype)
    compute = torch.float64 if is_f64 else torch.float32
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=compute) if want_lse else None
    call.run_into((query, key, value), out, lse)
    dtype = _dtype_of_scores(query)
    return query.new_empty(0, dtype=dtype) if lse is None else lse.to(dtype)


def _fake_out(out: Tensor, query: Tensor, key: Tensor, value: Tensor, *given: Any) -> Tensor:
    return query.new_empty(query.shape[:2] if given[18] else (0,), dtype=_dtype_of_scores(query))


# ---- backward: the wanted ones of query, key, value and the tensors of the score mod


def _run_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    wanted: list[bool],
    *arguments: Any,
) -> list[Tensor]:
    is_f64 = torch.float64 in (query.dtype, key.dtype, value.dtype)
    results = (out, lse.to(torch.float64 if is_f64 else torch.float32))

    def gradients(mod: Any, captured: list[Tensor], wants: list[bool]) -> list[Tensor | None]:
        score = None if mod is None else Bound(mod, captured, any(wants), mod)
        call = _call(query, score, arguments)
        return call.gradients((query, key, value), captured, results, (d_out, d_lse), [*wanted[:3], *wants])

    d = through_score(arguments[7:10], _dtype_of_scores(query), wanted[3:], gradients)
    return [one for one in d if one is not None]


def _fake_backward(query: Tensor, key: Tensor, value: Tensor, *given: Any) -> list[Tensor]:
    wanted, score_tensors = given[4], given[14]
    tensors = (query, key, value, *(score_tensors or ()))
    return [one.new_empty(one.shape) for one, is_wanted in zip(tensors, wanted, strict=True) if is_wanted]


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, *arguments = inputs
    *arguments, ctx.has_lse, _, is_wide = arguments
    out, lse, max_scores, wide_out = output
    if ctx.has_lse and arguments[3] is not None:
        raise RuntimeError(f"[{arguments[15]}] block_table is an inference-only parameter")
    ctx.mark_non_differentiable(max_scores, wide_out)
    ctx.set_materialize_grads(False)
    # Autograd keeps tensors; the other arguments are kept as they are, with None in place of tensors.
    score_tensors, mask_tensors = arguments[9] or [], arguments[12] or []
    ctx.counts = len(score_tensors), len(mask_tensors)
    ctx.names = arguments[8], arguments[11]
    ctx.rest = [None if i in (0, 1, 2, 3, 9, 12, 17) else one for i, one in enumerate(arguments)]
    kept = (*arguments[:4], arguments[17], *score_tensors, *mask_tensors)
    ctx.save_for_backward(query, key, value, wide_out if is_wide else out, lse, *kept)


def _backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any) -> tuple:
    scores, masks = ctx.counts
    needed = ctx.needs_input_grad
    captured = list(needed[12]) if isinstance(needed[12], (list, tuple)) else [False] * scores
    wanted = [*needed[:3], *captured]
    saved = ctx.saved_tensors
    arguments = list(ctx.rest)
    arguments[:4], arguments[17] = saved[5:9], saved[9]
    arguments[9], arguments[12] = list(saved[10 : 10 + scores]), list(saved[10 + scores :])
    d: list = [None] * (3 + scores)
    if (d_out is not None or d_lse is not None) and any(wanted):
        found = torch.ops.quire.varlen_attn_backward(*saved[:5], d_out, d_lse, wanted, *arguments)
        d = in_their_places(found, wanted)
    # Torch takes an empty list for a list of tensors, even if it is one of names.
    nothing: list = [None] * len(arguments)
    nothing[8], nothing[11] = (None if names else [] if names is not None else None for names in ctx.names)
    nothing[9], nothing[12] = d[3:], [None] * masks
    return (*d[:3], *nothing, None, None, None)


define(
    f"varlen_attn(Tensor query, Tensor key, Tensor value, {_ARGUMENTS}, bool lse, bool max_scores, bool wide) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
)
define(
    f"varlen_attn_out(Tensor(a!) out, Tensor query, Tensor key, Tensor value, {_ARGUMENTS}, bool lse) -> Tensor",
    _run_out,
    _fake_out,
)
define(
    "varlen_attn_backward(Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, Tensor? d_out, Tensor? d_lse, "
    f"bool[] wanted, {_ARGUMENTS}) -> Tensor[]",
    _run_backward,
    _fake_backward,
)
give_gradients("varlen_attn", _setup_context, _backward)
