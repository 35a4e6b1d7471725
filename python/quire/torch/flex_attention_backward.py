"""flex_attention_backward: the gradients of flex_attention from its results, for callers that manage autograd
themselves.

For example ring attention: each rank has some of the keys, while out and lse are those over all of them. Python layer,
top.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.option_checks import check_dropout, check_scale, check_seed
from quire.torch import validate
from quire.torch.flex_attention import _checked, _mask_at_call
from quire.torch.flex_call import FlexCall
from quire.torch.forward import Mods
from quire.torch.mods import bind_score_mod

_NAME = "flex_attention_backward"


def flex_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None = None,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    wanted: tuple[bool, bool, bool] = (True, True, True),
    dropout_p: float = 0.0,
    seed: int | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(d_query, d_key, d_value) of sum(out * d_out) + sum(lse * d_lse); None for what is not wanted.

    query, key, value and the options as passed to flex_attention; out [B, Hq, L, Ev] and lse [B, Hq, L], natural log,
    as it returned them. The weights are exp(score - lse), so out and lse may also cover more keys than these
    (merge_states): then the gradients are the part due to these keys, and those of query add up over all parts. Dropout
    needs its seed. Tensors that score_mod captures get no gradient here. Autograd does not record the call.

    >>> import torch
    >>> from quire.torch import AuxRequest, flex_attention, flex_attention_backward, merge_states
    >>> q, k, v, d_out = torch.randn(4, 1, 2, 30, 16)
    >>> parts = [(k[:, :, :12], v[:, :, :12]), (k[:, :, 12:], v[:, :, 12:])]
    >>> states = [flex_attention(q, *part, return_aux=AuxRequest(lse=True)) for part in parts]
    >>> out, lse = merge_states(*((one, aux.lse) for one, aux in states))
    >>> found = [flex_attention_backward(q, *part, out, lse, d_out) for part in parts]
    >>> whole = q.clone().requires_grad_()
    >>> flex_attention(whole, k, v).backward(d_out)
    >>> torch.allclose(found[0][0] + found[1][0], whole.grad, atol=1e-5)
    True
    """
    scale = check_scale(_NAME, scale)
    dropout_p = check_dropout(_NAME, dropout_p)
    if dropout_p and seed is None:
        raise ValueError(f"[{_NAME}] dropout needs the seed of the forward pass")
    seed = check_seed(_NAME, dropout_p, seed)
    validate.validate_tensors(query, key, value)
    value, q_len, kv_len = _checked(query, key, value, block_mask, enable_gqa)
    mask = None if block_mask is None else _mask_at_call(block_mask, q_len, kv_len)[0]
    wide = torch.float64 if torch.float64 in (query.dtype, key.dtype, value.dtype) else torch.float32
    rows = tuple(query.shape[:3])
    shapes = {"out": (*rows, value.shape[3]), "lse": rows, "d_out": (*rows, value.shape[3]), "d_lse": rows}
    for name, tensor in (("out", out), ("lse", lse), ("d_out", d_out), ("d_lse", d_lse)):
        if tensor is None and name.startswith("d_"):
            continue
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shapes[name] or not tensor.is_floating_point():
            what = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"[{_NAME}] {name} must be floats of {shapes[name]}; got {what}")
    if len(wanted) != 3:
        raise ValueError(f"[{_NAME}] wanted must be three bools, for query, key and value; got {wanted!r}")
    with torch.no_grad():
        mod, captured = None, []
        if score_mod is not None:
            bound = bind_score_mod(score_mod, torch.float64 if query.dtype is torch.float64 else torch.float32)
            mod, captured = bound.mod, bound.tensors
        call = FlexCall(Mods(mod, mask, scale, dropout_p, seed), reads=len(captured))
        results = (out.detach(), lse.detach().to(wide))
        given = (query.detach(), key.detach(), value.detach())
        wants = [bool(one) for one in wanted]
        found = call.gradients(given, captured, results, (d_out, d_lse), [*wants, *(False for _ in captured)])
    return found[0], found[1], found[2]
