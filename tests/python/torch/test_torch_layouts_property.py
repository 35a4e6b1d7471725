"""Random shapes, strides and dtypes against torch's own flex_attention in f64."""

import hypothesis.strategies as st
import torch
import torch.nn.attention.flex_attention as torch_flex
from hypothesis import HealthCheck, given, settings
from peer import check
from quire.torch import AuxRequest, create_block_mask, flex_attention

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def strided(draw, shape, dtype):
    """A tensor of this shape: axes stored in any order, with steps, an offset, some axes expanded."""
    order = draw(st.permutations(range(4)))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    is_expanded = [draw(st.integers(0, 9)) == 0 for _ in shape]
    offset = draw(st.integers(0, 3))
    stored = [1 if is_expanded[axis] else shape[axis] * steps[axis] + offset for axis in order]
    tensor = torch.randn(stored).to(dtype).permute([order.index(axis) for axis in range(4)])
    for axis, (size, step) in enumerate(zip(shape, steps)):
        if not is_expanded[axis]:
            tensor = tensor.narrow(axis, offset, size * step) if size else tensor.narrow(axis, 0, 0)
            index = [slice(None)] * 4
            index[axis] = slice(None, None, step)
            tensor = tensor[tuple(index)]
    return tensor.expand(shape)


@st.composite
def problems(draw):
    dtype = st.sampled_from(DTYPES)
    dtypes = draw(st.one_of(dtype.map(lambda one: (one,) * 3), st.tuples(dtype, dtype, dtype)))
    batch, groups, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    q_len, kv_len = draw(st.integers(1, 70)), draw(st.integers(1, 90))
    dim, v_dim = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    torch.manual_seed(draw(st.integers(0, 1000)))
    query = draw(strided((batch, groups * kv_heads, q_len, dim), dtypes[0]))
    key = draw(strided((batch, kv_heads, kv_len, dim), dtypes[1]))
    value = draw(strided((batch, kv_heads, kv_len, v_dim), dtypes[2]))
    return query, key, value


@FEW
@given(problems(), st.booleans(), st.one_of(st.none(), st.integers(1, 64)), st.integers(-20, 60))
def test_any_strides_and_dtypes(problem, is_biased, block_size, width):
    query, key, value = problem
    bias = torch.randn(query.shape[1], dtype=torch.float32)
    score_mod = (lambda s, b, h, q, kv: s * 0.7 + bias[h]) if is_biased else None
    mask = theirs = None
    if block_size is not None:
        mod = lambda b, h, q, kv: (q - kv <= width) & (kv + h != q)  # noqa: E731
        sizes = (1, query.shape[1], query.shape[2], key.shape[2])
        mask = create_block_mask(mod, *sizes, BLOCK_SIZE=block_size)
        theirs = torch_flex.create_block_mask(mod, *sizes, device="cpu", BLOCK_SIZE=block_size)
        assert torch.equal(mask.kv_num_blocks, theirs.kv_num_blocks)
        assert torch.equal(mask.full_q_indices, theirs.full_q_indices)
    out, aux = flex_attention(query, key, value, score_mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
    check((out, aux.lse), query, key, value, score_mod, theirs, enable_gqa=True)
    assert out.stride() == torch_flex.flex_attention(query, key, value, enable_gqa=True).stride()
    dense = flex_attention(query.contiguous(), key.contiguous(), value.contiguous(), score_mod, mask, enable_gqa=True)
    assert torch.equal(out, dense)
