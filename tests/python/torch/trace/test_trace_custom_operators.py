"""Operators that users register with torch, inside mods: traced where they are pointwise, refused by name where not."""

import pytest
import torch
from quire.torch import TraceError, flex_attention

LIBRARY = torch.library.Library("quire_tests", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("opaque", lambda x: x * 3, "CPU")


@torch.library.custom_op("quire_tests::bent", mutates_args=())
def bent(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.tanh(x / by) * by


@bent.register_fake
def _(x, by):
    return torch.empty_like(x)


@torch.library.custom_op("quire_tests::sorted", mutates_args=())
def sorted_(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x.reshape(1)).values.reshape(())


def test_pointwise_ones_are_traced():
    q, k, v = torch.randn(3, 1, 2, 30, 16)
    expected = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: 2 * (torch.tanh(score / 3.0) * 3.0))
    found = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: torch.ops.quire_tests.twice(bent(score, 3.0)))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    again = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: bent(score, 1.0))
    assert not torch.allclose(again, flex_attention(q, k, v))


def test_others_are_refused_by_name():
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(TraceError, match=r"quire_tests\.opaque"):
        flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: torch.ops.quire_tests.opaque(score))
    with pytest.raises(TraceError, match="sort"):
        flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: sorted_(score))
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(TraceError, match=r"linear"):
        flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: layer(score.reshape(1)).reshape(()))
    out = flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score * layer.weight[0, 0])
    assert out.shape == q.shape
