"""The gradients of torch.ops.quire.flex_attention, and torch.ops.quire.flex_attention_backward, which computes them.

Python layer, above graph_operator.py and flex_call.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.torch.flex_call import FlexCall
from quire.torch.forward import Mods
from quire.torch.graph_library import define, give_gradients, in_their_places
from quire.torch.graph_mod import bind, bind_program
from quire.torch.graph_operator import HOOKS, bound_mask, number_of_seed
from quire.torch.graph_program import PREFIX
from quire.torch.hooks import operator_hooks

_SINKS = 19  # its position among the operator's arguments


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    wanted: list[bool],
    score_mod: str,
    score_names: list[str] | None,
    score_tensors: list[Tensor] | None,
    *arguments: Any,
) -> list[Tensor]:
    """Gradients of query, key, value and the score tensors: the wanted ones."""
    mask_arguments, (scale, *dropout) = arguments[:6], arguments[6:]
    # Torch omits trailing arguments that have their default.
    dropout_p = dropout[0] if dropout else 0.0
    seed = dropout[1] if len(dropout) > 1 else None
    key_indices, hooks = dropout[2] if len(dropout) > 2 else None, dropout[3:]
    mods = Mods(None, bound_mask(*mask_arguments), scale, dropout_p, number_of_seed(seed), key_indices=key_indices)
    sinks = [] if not hooks or hooks[0] is None else [hooks[0]]
    is_f64 = torch.float64 in (query.dtype, key.dtype, value.dtype)
    results = (out, lse.to(torch.float64 if is_f64 else torch.float32))
    whole_value = value if value.size(0) == key.size(0) else value.expand(key.size(0), -1, -1, -1)

    count = len(wanted) - len(sinks)
    wants_sinks, d_sinks = wanted[count:], []
    wants_score = wanted[3:count]

    def gradients(mod: Any, captured: list[Tensor], wants: list[bool]) -> list[Tensor | None]:
        score_mod, bound = operator_hooks(mod, *hooks)
        is_weight = bound is not None and bound.weight_mod is not None
        call = FlexCall(
            mods._replace(score_mod=score_mod, hooks=bound),
            reads=len(captured) + len(sinks),
            weight_reads=len(captured) if is_weight else 0,
        )
        read, wants = [*captured, *sinks], [*wants, *wants_sinks]
        found = call.gradients((query, key, whole_value), read, results, (d_out, d_lse), [*wanted[:3], *wants])
        if sinks:
            d_sinks.append(found.pop())
        return found

    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    d = through_score((score_mod, score_names, score_tensors), dtype, wants_score, gradients)
    if d[2] is not None and whole_value is not value:
        d[2] = d[2].sum(0, keepdim=True)
    return [one for one in (*d, *d_sinks) if one is not None]


def through_score(score: tuple, dtype: torch.dtype, wanted: list[bool], gradients: Any) -> list[Tensor | None]:
    """Gradients of query, key, value and the score tensors, by gradients(mod, the tensors that it reads, which are
    wanted). score: text, names and tensors of the score mod; dtype: of the score; wanted: which of the tensors want a
    gradient."""
    text, names, tensors = score
    through = _through_program if text.startswith(PREFIX) else _through_text
    return through((text, names or [], tensors or [], dtype), wanted, gradients)


def _through_text(score: tuple, wanted: list[bool], gradients: Any) -> list[Tensor | None]:
    """The mod reads the tensors themselves."""
    text, names, tensors, _ = score
    mod = bind(_core.ScoreMod, *score).mod if text else None
    order = [] if mod is None or not names else [names.index(name) for name in mod.buffer_names]
    d = gradients(mod, [tensors[i] for i in order], [wanted[i] for i in order])
    found = dict(zip(order, d[3:]))
    # 0 for a tensor that the formula turned out not to need.
    captured = [found.get(i, torch.zeros_like(tensors[i])) if wanted[i] else None for i in range(len(tensors))]
    return [*d[:3], *captured]


def _through_program(score: tuple, wanted: list[bool], gradients: Any) -> list[Tensor | None]:
    """The mod reads values computed from the tensors."""
    text, names, tensors, dtype = score
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU).add(torch._C.DispatchKey.ADInplaceOrView)
    excluded = torch._C._dispatch_tls_local_exclude_set() - autograd
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        leaves = [tensor.detach().requires_grad_(want) for tensor, want in zip(tensors, wanted, strict=True)]
        bound = bind_program(_core.ScoreMod, text, names, leaves, dtype)
        wants = [tensor.requires_grad for tensor in bound.tensors]
        d = gradients(bound.mod, [tensor.detach() for tensor in bound.tensors], wants)
        computed = [(tensor, one) for tensor, one in zip(bound.tensors, d[3:], strict=True) if one is not None]
        sought = [leaf for leaf in leaves if leaf.requires_grad]
        captured: Any = iter(())
        if computed and sought:
            outputs, d_outputs = zip(*computed)
            captured = iter(torch.autograd.grad(outputs, sought, d_outputs, allow_unused=True, materialize_grads=True))
    return [*d[:3], *(next(captured, torch.zeros_like(t)) if want else None for t, want in zip(tensors, wanted))]


def _fake(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> list[Tensor]:
    wanted, score_tensors = arguments[4], arguments[7]
    like = [torch.empty_like(tensor) for tensor in (query, key, value)]
    like += [tensor.new_empty(tensor.shape) for tensor in score_tensors or ()]
    sinks = arguments[18] if len(arguments) > 18 else None
    like += [] if sinks is None else [sinks.new_empty(sinks.shape)]
    return [one for one, is_wanted in zip(like, wanted, strict=True) if is_wanted]


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, score_mod, score_names, score_tensors, mask_mod, mask_names, mask_tensors, blocks, *rest = inputs
    out, lse, max_scores, wide_out = output
    *sizes, ctx.has_lse, _, dropout_p, seed, is_wide, key_indices = rest[:9]
    sinks, *ctx.hooks, cos, sin = rest[9:]
    ctx.texts = (score_mod, score_names), (mask_mod, mask_names), (*sizes, dropout_p)
    score_tensors, mask_tensors, blocks = (given or [] for given in (score_tensors, mask_tensors, blocks))
    ctx.counts = len(score_tensors), len(mask_tensors), len(blocks)
    ctx.mark_non_differentiable(max_scores, wide_out)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        query,
        key,
        value,
        wide_out if is_wide else out,
        lse,
        seed,
        key_indices,
        sinks,
        cos,
        sin,
        *score_tensors,
        *mask_tensors,
        *blocks,
    )


def _backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any) -> tuple:
    scores, masks, blocks = ctx.counts
    needed = ctx.needs_input_grad
    score, mask, sizes = ctx.texts
    # Torch takes an empty list for a list of tensors, even if it is one of names.
    score_nothing: tuple
    mask_nothing: tuple
    score_nothing, mask_nothing = ((None, None if names else []) for _, names in (score, mask))
    # Torch omits trailing inputs that have their default.
    nothing: tuple = (*mask_nothing, [None] * masks, [None] * blocks, *([None] * (len(needed) - 10)))
    if d_out is None and d_lse is None:
        return (None, None, None, *score_nothing, [None] * scores, *nothing)
    saved = iter(ctx.saved_tensors)  # once: with checkpointing a second look is an error
    results = [next(saved) for _ in range(5)]
    seed, key_indices, sinks, cos, sin = (next(saved) for _ in range(5))
    has_sinks = sinks is not None
    wanted = [*needed[:3], *needed[5], *([needed[_SINKS]] if has_sinks else [])]
    found = torch.ops.quire.flex_attention_backward(
        *results,
        d_out,
        d_lse,
        wanted,
        *score,
        [next(saved) for _ in range(scores)],
        *mask,
        [next(saved) for _ in range(masks)],
        [next(saved) for _ in range(blocks)],
        *sizes,
        seed,
        key_indices,
        sinks,
        *ctx.hooks,
        cos,
        sin,
    )
    d = in_their_places(found, wanted)
    all_d = [*d[:3], *score_nothing, d[3 : 3 + scores], *nothing]
    if has_sinks:
        all_d[_SINKS] = d[-1]
    return tuple(all_d)


define(
    "flex_attention_backward(Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, Tensor? d_out, Tensor? d_lse, "
    "bool[] wanted, str score_mod, str[]? score_names, Tensor[]? score_tensors, str mask_mod, str[]? mask_names, "
    "Tensor[]? mask_tensors, Tensor[]? blocks, SymInt[] seq_lengths, SymInt[] block_size, float? scale, float dropout_p=0.0, "
    "Tensor? seed=None, Tensor? key_indices=None, " + HOOKS + ") -> Tensor[]",
    _run,
    _fake,
)
give_gradients("flex_attention", _setup_context, _backward)
