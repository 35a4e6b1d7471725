"""QuireMetadata: what the layers of a step share: where requests' queries and keys lie, and the plans, one for each rule.

A plan is made by the first layer of a step that has its rule and run by all of them, with nothing allocated. The builder takes vLLM's
CommonAttentionMetadata; nothing else here knows vLLM. Python layer, above rule.py and pages.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.torch.step_plan import StepPlan
from quire.torch.views import view_of
from quire.vllm.layer_mods import LayerMods
from quire.vllm.pages import Pages
from quire.vllm.rule import LayerRule, mask_around, mask_of_step, options_of


@dataclass
class QuireMetadata:
    """Of one step and one group of layers. query_start_loc [n + 1], seq_lens [n] (keys, those of this step included), block_table
    [n, most blocks], int32 or int64. causal: of all requests, or a flag for each. is_cross: queries over keys of another sequence.
    has_positions: a request's first key is its first token, as mods of one's own count; not so where vLLM cuts requests into chunks."""

    num_actual_tokens: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool | Tensor = True
    is_cross: bool = False
    has_positions: bool = True
    plans: dict[Any, StepPlan] = field(default_factory=dict)

    def over_pages(self, rule: LayerRule, q: Tensor, pages: Pages, threads: int) -> StepPlan:
        """The plan of queries [tokens, heads, dim] over pages."""
        key = (rule, q.shape[1:], q.dtype, pages.shape, threads)
        plan = self.plans.get(key)
        if plan is None:
            if rule.mods != LayerMods() and (self.is_cross or not self.has_positions):
                raise NotImplementedError(
                    "[quire.vllm] set_mods has no effect on cross attention and on layers that see a request in pieces: their queries' "
                    'positions in the request are not known here. Name the other layers (layers="*.self_attn.*")'
                )
            sinks = _room_for_sinks(rule, q)
            queries = _core.JaggedViews(view_of(q[: self.num_actual_tokens]), view_of(self.query_start_loc))
            keys = _core.PagedViews(pages.k, pages.v, view_of(self.block_table), view_of(self.seq_lens))
            window, mask = (0, mask_around(rule)) if self.is_cross else mask_of_step(rule, self.causal)
            options = options_of(rule, sinks, window, mask, threads)
            plan = StepPlan(_core.Plan(options, queries, keys, step=not self.is_cross), sinks)
            self.plans[key] = plan
        return plan

    def over_tokens(self, rule: LayerRule, q: Tensor, k: Tensor, v: Tensor, threads: int) -> StepPlan:
        """The plan of an encoder: requests' queries over their own keys and values, [tokens, heads, dim], which no cache has."""
        key = (rule, q.shape[1:], q.dtype, k.shape[1:], v.shape[2:], threads)
        plan = self.plans.get(key)
        if plan is None:
            offsets = self.query_start_loc, self.query_start_loc
            plan = self.plans[key] = plan_over_tokens(rule, (q, k, v), offsets, self.causal is True, threads)
        return plan


def plan_over_tokens(
    rule: LayerRule,
    tokens: tuple[Tensor, Tensor, Tensor],
    offsets: tuple[Tensor, Tensor],
    is_causal: bool,
    threads: int,
) -> StepPlan:
    """Of queries, keys and values [tokens, heads, dim] of requests that begin at offsets, [n + 1] of queries and of keys. is_causal: the
    first query is beside the first key."""
    q_offsets, k_offsets = (view_of(one) for one in offsets)
    q, k, v = (
        _core.JaggedViews(view_of(one), at) for one, at in zip(tokens, (q_offsets, k_offsets, k_offsets), strict=True)
    )
    mask = mask_around(rule)
    if is_causal:
        before = _core.MaskMod("kv_idx <= q_idx")
        mask = before if mask is None else before & mask
    sinks = _room_for_sinks(rule, tokens[0])
    return StepPlan(_core.Plan(options_of(rule, sinks, 0, mask, threads), q, k, v), sinks)


def _room_for_sinks(rule: LayerRule, q: Tensor) -> Tensor | None:
    return torch.empty(q.shape[1], dtype=torch.float32) if rule.has_sinks else None
