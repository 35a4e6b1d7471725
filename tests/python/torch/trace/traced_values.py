"""A mod's values over all elements: by torch itself, and from the traced text by Quire. Shared by the tests of tracing."""

import numpy
import torch
from quire import _core
from quire.torch.trace import trace_mask_mod, trace_score_mod
from quire.torch.views import CODES
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import _vmap_for_bhqkv


def scores_of(sizes, dtype=torch.float32):
    """Scores from -6 to 6, the same for the same sizes."""
    return ((torch.rand(sizes, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5) * 12).to(dtype)


def by_torch(kind, mod, sizes, scores=None):
    """What torch's own flex_attention computes, without gradients: scores or bools [B, H, Q, KV]."""
    indices = [torch.arange(n) for n in sizes]
    scores = scores_of(sizes) if scores is None else scores
    with torch.no_grad(), TransformGetItemToIndex():
        if kind == "score":
            result = _vmap_for_bhqkv(mod, prefix=(0,))(scores, *indices)
        else:
            result = _vmap_for_bhqkv(mod, prefix=())(*indices)
    return result.broadcast_to(sizes)


def view(tensor):
    return _core.View(tensor.data_ptr(), CODES[tensor.dtype], tuple(tensor.shape), tensor.stride(), tensor)


def by_quire(kind, mod, sizes, scores=None):
    """The same from the traced mod. Its text gives the same bits."""
    scores = scores_of(sizes) if scores is None else scores
    traced = trace_score_mod(mod, scores.dtype) if kind == "score" else trace_mask_mod(mod)
    assert len(traced.names) == len(traced.tensors)
    views = [view(tensor.detach()) for tensor in traced.tensors]
    result, again = (
        _evaluated(one, sizes, scores)
        for one in (traced.mod.bind(traced.mod, views), type(traced.mod)(traced.text, dict(zip(traced.names, views))))
    )
    assert torch.equal(result, again) or torch.equal(result.nan_to_num(), again.nan_to_num())
    return result


def _evaluated(mod, sizes, scores):
    is_score = isinstance(mod, _core.ScoreMod)
    found = _core.evaluate_score(mod, scores.numpy()) if is_score else _core.evaluate_mask(mod, tuple(sizes))
    return torch.from_numpy(numpy.asarray(found))


def assert_same_values(kind, mod, sizes, scores=None, ulps=8):
    """Bools are equal; floats differ by at most some units in the last place of the value or, where a sum cancels, of 1."""
    expected, actual = by_torch(kind, mod, sizes, scores), by_quire(kind, mod, sizes, scores)
    assert actual.shape == expected.shape
    if kind == "mask":
        assert torch.equal(actual, expected.bool())
        return
    error = ulps * torch.finfo(torch.float32).eps
    torch.testing.assert_close(actual.double(), expected.double(), rtol=error, atol=error, equal_nan=True)


def by_elements(mod, sizes, scores=None):
    """A score mod run by torch for one element after the other, on plain tensors without dimensions: f64 [B, H, Q, KV]."""
    scores = scores_of(sizes) if scores is None else scores
    result = torch.empty(sizes, dtype=torch.float64)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in sizes)).tolist():
        indices = [torch.tensor(i) for i in place]
        result[tuple(place)] = mod(scores[tuple(place)], *indices)
    return result
