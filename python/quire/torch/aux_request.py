"""What flex_attention can return besides its output: torch's AuxRequest and AuxOutput, and Quire's additions, the
weights of keys and the entropy. Python layer, below forward.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _torch

from quire.option_checks import check_weights

_CPU = torch.device("cpu")


class AuxRequest(_torch.AuxRequest):
    """What to return besides the output. lse and max_scores are torch's.

    `key_weights`: [B, Hq, S], per key, the sum of the softmax weights that queries gave to it. Only the queries in
    `key_weights_queries`, (begin, end), are counted and paid for: negative numbers count from the end, None is the end.
    `entropy`: [B, Hq, L], of each query's weights, in nats. Neither has a gradient or works in a torch.compile graph.

    >>> import torch
    >>> from quire.torch import AuxRequest, flex_attention
    >>> q, k, v = torch.randn(3, 1, 2, 60, 32)
    >>> out, aux = flex_attention(q, k, v, return_aux=AuxRequest(key_weights=True, key_weights_queries=(-8, None)))
    >>> aux.key_weights.shape, round(aux.key_weights.sum().item())
    (torch.Size([1, 2, 60]), 16)
    """

    key_weights: bool
    entropy: bool
    key_weights_queries: tuple[int, int | None] | None

    def __new__(
        cls,
        lse: bool = False,
        max_scores: bool = False,
        *,
        key_weights: bool = False,
        entropy: bool = False,
        key_weights_queries: tuple[int, int | None] | None = None,
    ) -> AuxRequest:
        made = super().__new__(cls, lse, max_scores)
        made.key_weights, made.entropy, made.key_weights_queries = key_weights, entropy, key_weights_queries
        return made


class WeightsOutput(NamedTuple):
    """AuxOutput with the weights of keys and the entropy; None if not asked for.

    >>> import torch
    >>> from quire.torch import AuxRequest, WeightsOutput, flex_attention
    >>> x = torch.ones(1, 1, 2, 4)
    >>> aux = flex_attention(x, x, x, return_aux=AuxRequest(key_weights=True))[1]
    >>> isinstance(aux, WeightsOutput), aux.key_weights.tolist()
    (True, [[[1.0, 1.0]]])
    """

    lse: Tensor | None = None
    max_scores: Tensor | None = None
    key_weights: Tensor | None = None
    entropy: Tensor | None = None


class Weights:
    """The weights of keys and the entropy of one call: what is wanted and, after it has run, the results."""

    def __init__(self, return_aux: Any):
        self.wants_weights, self.wants_entropy, self.queries = check_weights("flex_attention", return_aux)
        self.key_weights: Any = None
        self.entropy: Any = None

    def allocate(self, keys: Any, rows: Any, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Allocates tensors of these shapes for what is wanted."""
        if self.wants_weights:
            self.key_weights = torch.zeros(keys, dtype=dtype, device=_CPU)
        if self.wants_entropy:
            self.entropy = torch.zeros(rows, dtype=dtype, device=_CPU)
        return self.key_weights, self.entropy


def weights_of(return_aux: Any) -> Weights | None:
    """None if neither is wanted."""
    if not (getattr(return_aux, "key_weights", False) or getattr(return_aux, "entropy", False)):
        return None
    return Weights(return_aux)
