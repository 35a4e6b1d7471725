"""PagedStates: what a QuireCache gives a layer as its keys and values: sizes, and where the pages are; no memory of its
own.

Quire's attention reads the pages. Any other use of such a tensor is refused by name, so that nothing computes with the
wrong keys. Python layer, bottom of this package.
"""

from __future__ import annotations

from typing import Any

import torch


class PagedStates(torch.Tensor):
    """[batch, heads, tokens so far, dim]. `pool`: the Pool (cache.py) that has the pages; `layer`: the layer's index in
    the pool."""

    pool: Any
    layer: int

    @staticmethod
    def of(pool: Any, layer: int, shape: tuple[int, ...], dtype: torch.dtype) -> PagedStates:
        made = torch.Tensor._make_wrapper_subclass(PagedStates, shape, dtype=dtype, device=torch.device("cpu"))
        made.pool, made.layer = pool, layer
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's would read elements
        return f"PagedStates({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        raise NotImplementedError(
            f"[QuireCache] keys and values are pages, which only Quire's attention reads; this model calls {func} on them. Use "
            'attn_implementation="quire" with models that hand them to their attention as they are, or another cache'
        )
