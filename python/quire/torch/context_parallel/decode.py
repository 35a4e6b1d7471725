"""attend: decode over contexts that are spread over ranks. Python layer, top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quire import _core
from quire._core import Shards
from quire.torch.context_parallel.group import Group, refusing
from quire.torch.mods import bind_mask_mod, bind_score_mod
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of


def attend(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    score_mod: Any = None,
    mask_mod: Any = None,
    *,
    shards: Sequence[Shards],
    group: dist.ProcessGroup | None = None,
    scale: float | None = None,
    q_begin: Sequence[int] = (),
    exact: bool = True,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """query [n, Hq, L, E], the same on every rank, over keys of n sequences of which each rank holds the pieces that its shards say.

    key_pages [pages, Hkv, page_size, E], value_pages and page_table int [n, most pages], lengths int [n]: this rank's, its pieces
    one after the other. Every rank gets the whole output. exact: states of every 1,024 keys travel, and the bits are those of one
    process; otherwise one state per rank, within the error bound. q_begin: positions of first queries; the last tokens if not given.
    No gradient.
    """
    with refusing("context_parallel.attend", group):
        mod = None if score_mod is None else bind_score_mod(score_mod).mod
        rule = None if mask_mod is None else bind_mask_mod(mask_mod).mod
        pages = tuple(view_of(one.detach()) for one in (key_pages, value_pages, page_table, lengths))
    out, lse = _core.context_attend(
        view_of(query.detach()),
        pages,
        list(shards),
        Group(group),
        mod,
        rule,
        scale,
        list(q_begin),
        exact,
        openmp_threads(),
    )
    made = torch.from_dlpack(out), torch.from_dlpack(lse)
    return made if return_lse else made[0]
