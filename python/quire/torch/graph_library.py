"""The library torch.ops.quire.*: defines its operators, and registers gradients for those of attention.

An operator of attention returns lse next to its output, because the gradients need it, and has an operator
`<name>_backward`, which has no gradient itself. The code that registers it decides about sizes, mods and gradients
(graph_operator.py, graph_backward.py, sdpa_operator.py). Python layer, below them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quire.torch.transforms import no_second_gradient

_library = torch.library.Library("quire", "DEF")


def define(schema: str, run: Callable, fake: Callable, *tags: torch.Tag, key: str = "CPU") -> None:
    """Defines an operator. run: for tensors of the dispatch key; fake: its results for tensors without memory."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    _library.impl(name, run, key)
    torch.library.register_fake(f"quire::{name}", fake, lib=_library)


def give_gradients(name: str, setup_context: Callable, backward: Callable) -> None:
    """Registers autograd for an operator of attention. setup_context(ctx, inputs, output) sets ctx.has_lse, whether lse
    was asked for."""

    def checked_backward(ctx: Any, *gradients: Any) -> Any:
        if not ctx.has_lse:
            raise RuntimeError(f"[{name}] torch.ops.quire.{name} was called without lse=True, which gradients need")
        return backward(ctx, *gradients)

    def second_backward(ctx: Any, *gradients: Any) -> Any:
        raise no_second_gradient(name)

    torch.library.register_autograd(f"quire::{name}", checked_backward, setup_context=setup_context, lib=_library)
    torch.library.register_autograd(f"quire::{name}_backward", second_backward, lib=_library)


def in_their_places(found: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    """The computed gradients, with None for those not wanted."""
    rest = iter(found)
    return [next(rest) if is_wanted else None for is_wanted in wanted]
