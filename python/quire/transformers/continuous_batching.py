"""Continuous batching of transformers (generate_batch) with Quire: pages are read in place; no keys are gathered and no
mask is made.

`admit` adds an implementation's name to transformers' lists of known implementations. Python layer, below attention.py
of this package.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.torch.graph_mod import bind
from quire.torch.hooks import HookArguments
from quire.torch.step_plan import StepPlan
from quire.torch.threads import openmp_threads
from quire.torch.varlen import Packed, Text, packed_attention
from quire.torch.varlen_call import Varlen
from quire.torch.views import view_of

_names: set[str] = set()
_NO_MASK = torch.empty(1, 1, 0, 0)  # has four axes: models pass it on unchanged, and attention ignores it


def admit(name: str) -> None:
    """Enables generate_batch for models with attn_implementation=name."""
    if not _names:
        _let_in()
    _names.add(name)


def _let_in() -> None:
    """By module: names that 5.22 has. A missing one is skipped; generate_batch then rejects the implementation by name."""
    try:
        from transformers.generation.continuous_batching import cache, continuous_api, initialization, input_outputs
    except ImportError:
        return

    for module in (cache, continuous_api, initialization):
        asked = getattr(module, "is_flash_attention_requested", None)
        if asked is not None:
            module.is_flash_attention_requested = _or_ours(asked)  # type: ignore[attr-defined]
    ensure = getattr(initialization, "ensure_decode_fast_path_is_available", None)
    if ensure is not None:
        initialization.ensure_decode_fast_path_is_available = _with_pages(ensure, initialization)
    inputs = input_outputs.ContinuousBatchingIOs
    if hasattr(inputs, "get_model_kwargs"):
        inputs.get_model_kwargs = _without_mask(inputs.get_model_kwargs)  # type: ignore[method-assign]


def _is_ours(config: Any) -> bool:
    return getattr(config, "_attn_implementation", None) in _names


def _or_ours(asked: Any) -> Any:
    """Like flash attention, ours wants no mask and no repeated keys."""

    @functools.wraps(asked)
    def is_requested(
        config: Any = None, requested_attention_implementation: str | None = None, version: Any = None
    ) -> bool:
        if version is None and (_is_ours(config) or requested_attention_implementation in _names):
            return True
        return asked(config, requested_attention_implementation, version)

    return is_requested


def _with_pages(ensure: Any, module: Any) -> Any:
    """Makes block tables for steps of one token each, if all layers can use them."""

    @functools.wraps(ensure)
    def ensured(config: Any, cb_config: Any, user_requested: bool) -> None:
        if not _is_ours(config):
            return ensure(config, cb_config, user_requested)
        kinds = (module.ATTN_TYPE_TO_ALLOCATOR[kind] for kind in module.group_layers_by_attn_type(config))
        if not all(kind.supports_block_table for kind in kinds):
            cb_config.max_blocks_per_request = 0

    return ensured


def _without_mask(get: Any) -> Any:
    @functools.wraps(get)
    def given(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = get(self, *args, **kwargs)
        if _is_ours(self.config) and found.get("attention_mask") is None:
            kinds = list(self.cumulative_seqlens_k)
            found["attention_mask"] = dict.fromkeys(kinds, _NO_MASK) if len(kinds) > 1 else _NO_MASK
        return found

    return given


@dataclass
class _Step:
    """What the layers of an allocator share in a step. pages: of one token each (sliding windows) or of the allocator's
    size. plans: over pages, made by the first layer that has its soft-cap, scale and heads."""

    sequences: Varlen
    places: Any = None  # page and slot of each new token, if attention finds it through a table
    plans: dict[Any, StepPlan] = field(default_factory=dict)
    pages: int = 0  # as many first pages of the pool as the tables name; the views of layers have different numbers

    def count_pages(self, page_size: int) -> None:
        table, lengths = self.sequences.block_table, self.sequences.seqused_k
        assert table is not None and lengths is not None
        used = torch.arange(table.shape[1]) < (-(-lengths // page_size))[:, None]
        self.pages = 1 + int(torch.where(used, table, 0).max()) if table.numel() else 0

    def over_pages(
        self, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None, score: Text | None, sinks: Any
    ) -> Tensor:
        """[tokens, heads, dim] for query [tokens, heads, dim] over pages [pages, page_size, heads, dim]."""
        if not self.pages:
            self.count_pages(keys.shape[1])
        keys, values = keys[: self.pages], values[: self.pages]
        k, v = (view_of(one.transpose(1, 2)) for one in (keys, values))
        threads = openmp_threads()
        key = (score and score.text, scaling, sinks is None, query.shape, query.dtype, keys.shape, keys.dtype, threads)
        plan = self.plans.get(key)
        if plan is None:
            table, lengths = self.sequences.block_table, self.sequences.seqused_k
            assert table is not None and lengths is not None
            dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
            room = None if sinks is None else torch.empty(query.shape[1], dtype=dtype)
            options = _core.Options(
                "quire_attention",
                None if score is None else bind(_core.ScoreMod, *score, dtype).mod,
                None,
                window=self.sequences.window[0] + 1,
                scale=scaling,
                enable_gqa=True,
                openmp_threads=threads,
                sinks=None if room is None else view_of(room),
            )
            queries = _core.JaggedViews(view_of(query), view_of(self.sequences.cu_seq_q))
            pages = _core.PagedViews(k, v, view_of(table), view_of(lengths))
            plan = self.plans[key] = StepPlan(_core.Plan(options, queries, pages, step=True), room)
        out = query.new_zeros((*query.shape[:2], values.shape[3]))  # of tokens that only pad the batch as well
        plan.run(query, k, v, out, sinks)
        return out


def batched_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: Any,
    given: dict[str, Any],
    scaling: float | None,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """[1, tokens, Hq, Ev] for query [1, Hq, tokens, E]; new keys and values are written to the cache. given:
    cu_seq_lens_q, cu_seq_lens_k, read_index, write_index and block_table, as transformers passes them."""
    layer: Any = module.layer_idx
    allocator = cache.layer_to_allocator[layer]
    tokens = [one[0].transpose(0, 1) for one in (query, key, value)]
    step = _step_of(cache, allocator, given)
    keys, values = _keys_of(allocator, layer, step, given, tokens[1], tokens[2])
    score = None if softcap is None else Text(f"{float(softcap)!r} * tanh(score / {float(softcap)!r})", [], [])
    sinks = None if s_aux is None else s_aux.detach().reshape(-1)
    if step.sequences.block_table is not None:
        return step.over_pages(tokens[0], keys, values, scaling, score, sinks).unsqueeze(0)
    call = Packed("quire_attention", step.sequences, score, None, scaling, enable_gqa=True, hooks=HookArguments(sinks))
    with torch.no_grad():
        out, _, _ = packed_attention(call, tokens[0], keys, values)
    return out.unsqueeze(0)


def _step_of(cache: Any, allocator: Any, given: dict[str, Any]) -> _Step:
    """Made by the first layer of an allocator in a step."""
    found: dict[int, _Step]
    marker, found = getattr(cache, "_quire_steps", (None, {}))
    if marker is not given["cu_seq_lens_q"]:
        marker, found = given["cu_seq_lens_q"], {}
        cache._quire_steps = marker, found
    if allocator.index not in found:
        found[allocator.index] = _new_step(allocator, given)
    return found[allocator.index]


def _new_step(allocator: Any, given: dict[str, Any]) -> _Step:
    cu_seq_q = given["cu_seq_lens_q"].clone()  # transformers writes the next step into the same memory
    cu_seq_k = given["cu_seq_lens_k"][allocator.layer_type].clone()
    window = int(getattr(allocator, "sliding_window", 0))
    packed = Varlen(cu_seq_q, cu_seq_k, window=(window - 1 if window else -1, 0))
    lengths = cu_seq_k.diff()
    if given.get("block_table") is not None:
        table = given["block_table"][allocator.index].clone()
        sequences = packed._replace(cu_seq_k=None, seqused_k=lengths, block_table=table)
        rows = (cu_seq_q.diff() > 0).nonzero().flatten()  # the others only pad the batch
        last = lengths[rows].long() - 1
        size = allocator.tokens_per_page
        return _Step(sequences, (table[rows, last // size].long(), last % size))
    reads = given["read_index"][allocator.index]
    if reads.numel() == 0:
        return _Step(packed)  # nothing is in the cache yet: the new keys are all keys
    if not window:
        table = _table(reads, cu_seq_k, allocator.tokens_per_page) // allocator.tokens_per_page
    elif int(cu_seq_q.diff().max()) <= 1:
        # The new token takes the slot of the one that has just left the window, so it is written first. Pages of one
        # token.
        reads = reads.clone()
        reads[reads == allocator.sentinel_index] = given["write_index"][allocator.index]
        table = _table(reads, cu_seq_k, 1)
    else:
        return _Step(packed)  # chunks overwrite keys that they still see: at most a window of them is gathered
    return _Step(packed._replace(cu_seq_k=None, seqused_k=lengths, block_table=table))


def _table(reads: Tensor, cu_seq_k: Tensor, page_size: int) -> Tensor:
    """[n, most pages]: the slot of the first token of each page."""
    bounds = cu_seq_k.tolist()
    rows = [reads[begin:end:page_size] for begin, end in zip(bounds, bounds[1:])]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _keys_of(
    allocator: Any, layer: int, step: _Step, given: dict[str, Any], key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Writes the new ones; returns pages, or packed keys and values."""
    if step.places is not None:
        pages = allocator.get_cache_for_block_table(layer)
        for pool, new in zip(pages, (key, value)):
            pool[step.places] = new[: len(step.places[0])]
        return pages
    reads, writes = given["read_index"][allocator.index], given["write_index"][allocator.index]
    if step.sequences.block_table is None:
        return allocator.update(key, value, layer, reads, writes)
    pools = allocator._kv_token_views[layer]
    for pool, new in zip(pools, (key, value)):
        pool.index_copy_(0, writes, new[: len(writes)])
    size = 1 if hasattr(allocator, "sliding_window") else allocator.tokens_per_page
    pages = [pool[: pool.shape[0] // size * size].unflatten(0, (-1, size)) for pool in pools]
    fewest = min(len(one) for one in pages)
    return pages[0][:fewest], pages[1][:fewest]
