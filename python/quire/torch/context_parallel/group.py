"""Group: what _core asks of a communicator, done by a process group of torch.distributed. Python layer, below the calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quire import _core

_MOST_TAGS = 1 << 16


class Group:
    """Of one call. Messages are uint8 tensors over memory of _core, which they keep alive while torch has them.

    Every message between two ranks has a tag of its own, so that none depends on how the transport orders those with the same.
    """

    sent_bytes = 0  # by this process so far, descriptions not counted: for benchmarks and tests

    def __init__(self, group: dist.ProcessGroup | None):
        if not dist.is_initialized():
            raise RuntimeError(
                "[context_parallel] there is no process group: call torch.distributed.init_process_group first"
            )
        self._group: Any = dist.group.WORLD if group is None else group
        if dist.get_rank(self._group) < 0:
            raise ValueError("[context_parallel] this process is not in the group")
        self._sent: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int], int] = {}

    def rank(self) -> int:
        return dist.get_rank(self._group)

    def size(self) -> int:
        return dist.get_world_size(self._group)

    def isend(self, message: Any, to: int, tag: int) -> Any:
        tensor = torch.from_dlpack(message)
        Group.sent_bytes += tensor.numel()
        tags = _next(self._sent, to, tag)
        return dist.isend(tensor, dist.get_global_rank(self._group, to), self._group, tags)

    def irecv(self, message: Any, source: int, tag: int) -> Any:
        tags = _next(self._received, source, tag)
        return dist.irecv(torch.from_dlpack(message), dist.get_global_rank(self._group, source), self._group, tags)

    def all_gather(self, mine: Any, everything: Any) -> None:
        into: list[Tensor] = list(torch.from_dlpack(everything).chunk(self.size()))
        dist.all_gather(into, torch.from_dlpack(mine), self._group)


@contextmanager
def refusing(function: str, group: dist.ProcessGroup | None) -> Iterator[None]:
    """What goes wrong inside, on this rank alone perhaps, is told to the others, which have called or will call `function`."""
    try:
        yield
    except Exception as error:
        _core.context_refuse(Group(group), function, str(error))
        raise


def _next(counts: dict[tuple[int, int], int], other: int, tag: int) -> int:
    count = counts.get((other, tag), 0)
    counts[other, tag] = count + 1
    return tag * _MOST_TAGS + count % _MOST_TAGS
