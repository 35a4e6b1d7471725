"""flex_attention under torch.compile: mods become texts, the call becomes torch.ops.quire.flex_attention.

Dynamo can take mods apart, captured tensors included, for the higher-order operator of torch's own flex_attention.
`quire_flex_attention` is another operator that it treats the same way; when the graph is traced further, or run, it
becomes a plain operator that every backend can call. graph_formula.py converts the mods. Python layer, above
graph_operator.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.nn.attention.flex_attention import AuxOutput, _identity, _sliced_mask_mod_error, noop_mask

from quire import _core
from quire.option_checks import check_dropout
from quire.torch import graph_operator, validate
from quire.torch.autocast import autocast
from quire.torch.block_mask import BlockMask, is_no_mask
from quire.torch.forward import HALF
from quire.torch.graph_formula import formula_of
from quire.torch.hooks import HookArguments, check_hooks, composed, has_hooks, operator_arguments
from quire.torch.trace import trace_mask_mod, trace_score_mod

# ---- the operator that dynamo sees


class _QuireFlexAttention(HigherOrderOperator):
    """Called with dynamo's subgraphs and with tensors of any kind: fake, functional or real. Calls the plain operator."""

    def __init__(self) -> None:
        super().__init__("quire_flex_attention")

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any,
        block_mask: tuple,
        scale: float | None,
        options: dict[str, Any],
        score_tensors: tuple = (),
        mask_tensors: tuple = (),
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *blocks, q_len, kv_len, q_size, kv_size, mask_mod = block_mask
        hooks = options.get("hooks", (None,))
        learns_captured = _is_recorded((*score_tensors, hooks[0]))
        is_recorded = learns_captured or _is_recorded((query, key, value))
        if torch.is_autocast_enabled("cpu"):
            query, key, value = autocast(query), autocast(key), autocast(value)
        score: tuple = options["score_mod"], [], []
        if score[0] is None:
            dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
            score = formula_of(score_mod, score_tensors, dtype)
        mask: tuple = options["mask_mod"], [], []
        if mask[0] is None:
            mask = formula_of(mask_mod, mask_tensors, None)
        if "packed" in options:
            sequences, rest = options["packed"]
            return torch.ops.quire.varlen_attn(
                query,
                key,
                value,
                *sequences,
                *score,
                *mask,
                scale,
                *rest,
                options["lse"] or is_recorded,
                options["max_scores"],
                learns_captured and query.dtype in HALF,
            )
        return graph_operator.flex_attention(
            query,
            key,
            value,
            *score,
            *mask,
            blocks,
            [q_len, kv_len],
            [q_size, kv_size],
            scale,
            options["lse"] or is_recorded,  # needed for gradients
            options["max_scores"],
            options.get("dropout_p", 0.0),
            options.get("seed"),
            learns_captured and query.dtype in HALF,
            options.get("key_indices"),
            *options.get("hooks", ()),
        )


def _is_recorded(tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in tensors)


quire_flex_attention = _QuireFlexAttention()


def tell_dynamo() -> bool:
    """Run by dynamo while it traces: makes Quire's operators take mods like torch's flex_attention."""
    from torch._dynamo.variables import higher_order_ops

    from quire.torch.graph_floats import QuireFlexAttentionVariable

    table = higher_order_ops._hop_name_to_variable_class
    for name in ("quire_flex_attention", "quire_create_block_mask"):
        table.setdefault(name, QuireFlexAttentionVariable)
    return True


tell_dynamo._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what assume_constant_result sets, without importing dynamo


def flex_attention_in_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Any,
    return_aux: Any,
    dropout_p: float,
    seed: int | None,
    key_indices: Tensor | None,
    given: HookArguments,
) -> Any:
    """What dynamo traces instead of flex_attention. Lengths are checked when the graph runs."""
    tell_dynamo()
    _validate_in_graph(query, key, value, block_mask, enable_gqa)
    want_lse, want_max = return_lse, False
    if return_aux is not None:
        if return_lse:
            raise ValueError("[flex_attention] give return_lse or return_aux, not both; return_lse is deprecated")
        want_lse, want_max = return_aux.lse, return_aux.max_scores
        if getattr(return_aux, "key_weights", False) or getattr(return_aux, "entropy", False):
            validate.refuse_weights_in_graph()
    if kernel_options is not None:
        validate.validate_options(kernel_options)
    *sizes, mask_mod = _mask_in_graph(block_mask)
    if has_hooks(given):
        check_hooks("flex_attention", given)
        _validate_hooks_in_graph(given)
        score_mod = composed(score_mod, given.weight_mod)
    score_function, score_text = function_or_text(score_mod, _identity, "flex_attention")
    mask_function, mask_text = function_or_text(
        None if mask_mod is noop_mask else mask_mod, noop_mask, "flex_attention"
    )
    options: dict[str, Any] = {"score_mod": score_text, "mask_mod": mask_text, "lse": want_lse, "max_scores": want_max}
    if key_indices is not None:
        validate.validate_key_indices(key_indices)
        options.update(key_indices=key_indices)
    if dropout_p:
        options.update(dropout_p=check_dropout("flex_attention", dropout_p), seed=seed_tensor(dropout_p, seed))
    if has_hooks(given):
        options["hooks"] = operator_arguments(given)
    out, lse, max_scores, _ = quire_flex_attention(
        query, key, value, score_function, (*sizes, mask_function), scale, options
    )
    if return_aux is not None:
        return out, AuxOutput(lse=lse if want_lse else None, max_scores=max_scores if want_max else None)
    return (out, lse) if return_lse else out


def packed_attention_by_dynamo(call: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    """What dynamo traces for a call over packed sequences (varlen.py: Packed) whose mods are functions."""
    tell_dynamo()
    score_function, score_text = function_or_text(call.score_mod, _identity, call.function)
    mask_function, mask_text = function_or_text(call.mask_mod, noop_mask, call.function)
    *sequences, window = call.sequences
    seed = seed_tensor(call.dropout_p, call.seed)
    options: dict[str, Any] = {
        "score_mod": score_text,
        "mask_mod": mask_text,
        "lse": call.want_lse,
        "max_scores": call.want_max,
        "packed": ((*sequences, list(window)), (call.enable_gqa, call.function, call.dropout_p, seed)),
    }
    out, lse, max_scores, _ = quire_flex_attention(
        query, key, value, score_function, (0, 0, 1, 1, mask_function), call.scale, options
    )
    return out, lse if call.want_lse else None, max_scores if call.want_max else None


def seed_tensor(dropout_p: float, seed: int | None) -> Tensor | None:
    """The seed of a call in a graph: drawn from torch's generator each time the graph runs, unless it is given."""
    if not dropout_p:
        return None
    if seed is None:
        return torch.randint(-(1 << 63), (1 << 63) - 1, (), dtype=torch.int64, device="cpu")
    return torch.full((), seed if seed < 1 << 63 else seed - (1 << 64), dtype=torch.int64, device="cpu")


def function_or_text(mod: Any, nothing: Callable, caller: str) -> tuple[Callable, str | None]:
    """A function for dynamo to trace, and its text if there already is one: "" for no mod."""
    if mod is None:
        return nothing, ""
    if isinstance(mod, str):
        return nothing, mod
    if isinstance(mod, (_core.ScoreMod, _core.MaskMod)):
        raise TypeError(f"[{caller}] under torch.compile a mod is a function over tensors or a text")
    return mod, None


def _validate_in_graph(query: Tensor, key: Tensor, value: Tensor, block_mask: Any, enable_gqa: bool) -> None:
    validate.validate_tensors(query, key, value)
    validate.validate_sizes(query, key, value, block_mask, enable_gqa)
    if block_mask is not None and block_mask.mask_mod is _sliced_mask_mod_error:
        raise RuntimeError("[flex_attention] Cannot use mask_mod from a sliced BlockMask: its mask_mod is gone")


def _validate_hooks_in_graph(given: HookArguments) -> None:
    """Checks what the operator's arguments cannot express."""
    if given.normalize is not None and given.weight_mod is None:
        raise ValueError("[flex_attention] normalize is for weight_mod, and there is none")


def _mask_in_graph(block_mask: Any) -> tuple:
    """Blocks as tensors, lengths, block sizes and the rule."""
    if block_mask is None or is_no_mask(block_mask):
        return (0, 0, 1, 1, noop_mask)
    if isinstance(block_mask, BlockMask) and block_mask._words is not None and not block_mask._is_exposed:
        blocks: tuple = (block_mask._words,)
    elif block_mask.full_kv_num_blocks is None:
        blocks = (block_mask.kv_num_blocks, block_mask.kv_indices)
    else:
        full = (block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        blocks = (block_mask.kv_num_blocks, block_mask.kv_indices, *full)
    return (*blocks, *block_mask.seq_lengths, *block_mask.BLOCK_SIZE, block_mask.mask_mod)


# ---- outside dynamo, if a mode is active or a tensor has no memory


def flex_attention_as_operator(
    query: Tensor, key: Tensor, value: Tensor, mods: tuple, lse: bool, max_scores: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The call as a plain operator, with the current formulas of the mods. mods: score_mod, block_mask, scale,
    dropout_p, seed, key_indices and hooks of the call."""
    score_mod, block_mask, scale, dropout_p, seed, key_indices, given = mods
    check_hooks("flex_attention", given)
    _validate_hooks_in_graph(given)
    score_mod = composed(score_mod, given.weight_mod)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    score = ("", [], []) if score_mod is None else text_of(score_mod, lambda mod: trace_score_mod(mod, dtype))
    learns_captured = _is_recorded((*score[2], given.sinks))
    is_recorded = learns_captured or _is_recorded((query, key, value))
    *blocks, q_len, kv_len, q_size, kv_size, mask_mod = _mask_in_graph(block_mask)
    mask = ("", [], []) if mask_mod is noop_mask else text_of(mask_mod, trace_mask_mod)
    sizes = [q_len, kv_len], [q_size, kv_size]
    outputs = graph_operator.flex_attention(
        query,
        key,
        value,
        *score,
        *mask,
        blocks,
        *sizes,
        scale,
        lse or is_recorded,
        max_scores,
        dropout_p,
        seed_tensor(dropout_p, seed),
        learns_captured and query.dtype in HALF,
        key_indices,
        *operator_arguments(given),
    )
    return outputs[0], outputs[1] if lse else None, outputs[2] if max_scores else None


def text_of(mod: Any, trace: Callable) -> tuple[str, list[str], list[Tensor]]:
    if isinstance(mod, str):
        return mod, [], []
    if isinstance(mod, (_core.ScoreMod, _core.MaskMod)):
        return mod.text, list(mod.buffer_names), [torch.from_dlpack(mod.buffers[name]) for name in mod.buffer_names]
    traced = trace(mod)
    return traced.text, list(traced.names), list(traced.tensors)
