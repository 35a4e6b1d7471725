"""flex_attention under torch.compile: mods become texts, the call becomes torch.ops.quire.flex_attention.

Dynamo knows how to take mods apart for the higher-order operator of torch's own flex_attention, captured tensors and
all. `quire_flex_attention` is another operator that it treats the same way; when the graph is traced further, or run, it
turns into a plain operator that every backend can call. Layer: Python, above graph_operator.py.
"""

from __future__ import annotations

import weakref
from typing import Any
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.nn.attention.flex_attention import _identity, _sliced_mask_mod_error, AuxOutput, noop_mask

from quire import _core
from quire.torch import graph_operator, validate
from quire.torch.autocast import autocast
from quire.torch.block_mask import BlockMask
from quire.torch.trace import trace_mask_mod, trace_score_mod, TraceError

# ---- from dynamo's subgraph to a text


def _stand_in(value: Any) -> Any:
    """A tensor of the same dtype and shape that has memory; for a number a tensor with that number."""
    if not isinstance(value, Tensor):
        return torch.tensor(1.5 if isinstance(value, (float, torch.SymFloat)) else 1, device="cpu")
    shape = [size if isinstance(size, int) else size.node.hint or 2 for size in value.shape]
    stand_in = torch.zeros((), dtype=value.dtype, device="cpu").expand(shape)
    return stand_in.requires_grad_(value.requires_grad) if value.requires_grad else stand_in


class _Formula:
    """Of a subgraph: its text, and which of its tensors the text reads under which names."""

    def __init__(self, graph: Callable, values: tuple, is_score: bool):
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            stand_ins = [_stand_in(value) for value in values]
            self.text, self.names, self.positions = self._trace(graph, stand_ins, is_score)
        if self.text is None:
            self.text = graph_operator.name_function(graph)
            self.names = ["tensor" if isinstance(value, Tensor) else "number" for value in values]
            self.positions = range(len(values))

    @staticmethod
    def _trace(graph: Callable, stand_ins: list[Tensor], is_score: bool) -> tuple[Any, Any, Any]:
        try:
            if is_score:
                traced = trace_score_mod(lambda s, b, h, q_idx, kv_idx: graph(s, b, h, q_idx, kv_idx, *stand_ins))
            else:
                traced = trace_mask_mod(lambda b, h, q_idx, kv_idx: graph(b, h, q_idx, kv_idx, *stand_ins))
        except (TraceError, TypeError, RuntimeError):
            # Numbers that are not used as numbers only, say as sizes. Traced with the real ones when it runs.
            return None, None, None
        positions = [next((i for i, one in enumerate(stand_ins) if one is t), None) for t in traced.tensors]
        return (None, None, None) if None in positions else (traced.text, list(traced.names), positions)


_formulas: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


def _formula(graph: Any, values: tuple, is_score: bool) -> tuple[str, list[str], list[Tensor]]:
    known = _formulas.setdefault(graph, {})
    key = tuple((v.dtype, v.dim()) if isinstance(v, Tensor) else "number" for v in values)
    formula = known.get(key)
    if formula is None:
        formula = known[key] = _Formula(graph, values, is_score)
    tensors = [values[position] for position in formula.positions]
    return formula.text, formula.names, [t if isinstance(t, Tensor) else _as_tensor(t) for t in tensors]


def _as_tensor(number: Any) -> Tensor:
    is_float = isinstance(number, (float, torch.SymFloat))
    return torch.ops.aten.scalar_tensor(number, dtype=torch.float32 if is_float else torch.int64, device="cpu")


# ---- the operator that dynamo sees


class _QuireFlexAttention(HigherOrderOperator):
    """Called with dynamo's subgraphs and tensors of any kind: fake, functional or real. Calls the plain operator."""

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
    ) -> tuple[Tensor, Tensor, Tensor]:
        *blocks, q_len, kv_len, q_size, kv_size, mask_mod = block_mask
        inputs = (query, key, value, *score_tensors)
        is_recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs)
        if torch.is_autocast_enabled("cpu"):
            query, key, value = autocast(query), autocast(key), autocast(value)
        score = options["score_mod"], [], []
        if score[0] is None:
            score = _formula(score_mod, score_tensors, True)
        mask = options["mask_mod"], [], []
        if mask[0] is None:
            mask = _formula(mask_mod, mask_tensors, False)
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
            options["lse"] or is_recorded,  # gradients need it
            options["max_scores"],
        )


quire_flex_attention = _QuireFlexAttention()


def _tell_dynamo() -> bool:
    """Run by dynamo while it traces: quire_flex_attention takes mods as torch's flex_attention does."""
    from torch._dynamo.variables import higher_order_ops

    table = higher_order_ops._hop_name_to_variable_class
    table.setdefault("quire_flex_attention", higher_order_ops.FlexAttentionHigherOrderVariable)
    return True


_tell_dynamo._dynamo_marked_constant = True  # what torch.compiler.assume_constant_result sets, without importing dynamo


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
) -> Any:
    """What dynamo traces instead of flex_attention. Lengths are checked when the graph runs."""
    _tell_dynamo()
    _validate_in_graph(query, key, value, block_mask, enable_gqa)
    want_lse, want_max = return_lse, False
    if return_aux is not None:
        if return_lse:
            raise ValueError("[flex_attention] give return_lse or return_aux, not both; return_lse is deprecated")
        want_lse, want_max = return_aux.lse, return_aux.max_scores
    if kernel_options is not None:
        validate.validate_options(kernel_options)
    *sizes, mask_mod = _mask_in_graph(block_mask)
    score_function, score_text = _function_or_text(score_mod, _identity)
    mask_function, mask_text = _function_or_text(None if mask_mod is noop_mask else mask_mod, noop_mask)
    options = {"score_mod": score_text, "mask_mod": mask_text, "lse": want_lse, "max_scores": want_max}
    out, lse, max_scores = quire_flex_attention(
        query, key, value, score_function, (*sizes, mask_function), scale, options
    )
    if return_aux is not None:
        return out, AuxOutput(lse=lse if want_lse else None, max_scores=max_scores if want_max else None)
    return (out, lse) if return_lse else out


def _function_or_text(mod: Any, nothing: Callable) -> tuple[Callable, str | None]:
    """A function for dynamo to trace, and the text if there is one already: "" for no mod."""
    if mod is None:
        return nothing, ""
    if isinstance(mod, str):
        return nothing, mod
    if isinstance(mod, (_core.ScoreMod, _core.MaskMod)):
        raise TypeError("[flex_attention] under torch.compile a mod is a function over tensors or a text")
    return mod, None


def _validate_in_graph(query: Tensor, key: Tensor, value: Tensor, block_mask: Any, enable_gqa: bool) -> None:
    validate.validate_tensors(query, key, value)
    validate.validate_sizes(query, key, value, block_mask, enable_gqa)
    if block_mask is not None and block_mask.mask_mod is _sliced_mask_mod_error:
        raise RuntimeError("[flex_attention] Cannot use mask_mod from a sliced BlockMask: its mask_mod is gone")


def _mask_in_graph(block_mask: Any) -> tuple:
    """Blocks as tensors, lengths, block sizes and the rule."""
    if block_mask is None:
        return (0, 0, 1, 1, noop_mask)
    if isinstance(block_mask, BlockMask) and block_mask._handle is not None and not block_mask._is_exposed:
        blocks = (block_mask._handle,)
    elif block_mask.full_kv_num_blocks is None:
        blocks = (block_mask.kv_num_blocks, block_mask.kv_indices)
    else:
        full = (block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        blocks = (block_mask.kv_num_blocks, block_mask.kv_indices, *full)
    return (*blocks, *block_mask.seq_lengths, *block_mask.BLOCK_SIZE, block_mask.mask_mod)


# ---- outside of dynamo, where a mode or a tensor without memory looks on


def flex_attention_as_operator(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: Any, lse: bool, max_scores: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The call as a plain operator, with the formulas of the mods as they are now."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = autocast(query), autocast(key), autocast(value)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    score = ("", [], []) if score_mod is None else _text(score_mod, lambda mod: trace_score_mod(mod, dtype))
    is_recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value, *score[2]))
    *blocks, q_len, kv_len, q_size, kv_size, mask_mod = _mask_in_graph(block_mask)
    mask = ("", [], []) if mask_mod is noop_mask else _text(mask_mod, trace_mask_mod)
    sizes = [q_len, kv_len], [q_size, kv_size]
    outputs = graph_operator.flex_attention(
        query, key, value, *score, *mask, blocks, *sizes, scale, lse or is_recorded, max_scores
    )
    return outputs[0], outputs[1] if lse else None, outputs[2] if max_scores else None


def _text(mod: Any, trace: Callable) -> tuple[str, list[str], list[Tensor]]:
    if isinstance(mod, str):
        return mod, [], []
    if isinstance(mod, (_core.ScoreMod, _core.MaskMod)):
        return mod.text, list(mod.buffer_names), [torch.from_dlpack(mod.buffers[name]) for name in mod.buffer_names]
    traced = trace(mod)
    return traced.text, list(traced.names), list(traced.tensors)
