"""Calls that the extension makes in one step, because nothing is new: the same bits, and whatever has changed is noticed."""

import gc
import weakref

import pytest
import torch
from quire import _core
from quire.torch import PagedAttention, create_block_mask, flex_attention, scaled_dot_product_attention
from quire.torch.forward import plain_plans
from torch.nn.attention import SDPBackend, sdpa_kernel

OFFSET = 3


def qkv(batch=1, heads=4, q_len=1, kv_len=16, dim=64, kv_heads=None, dtype=torch.float32):
    keys = (batch, kv_heads or heads, kv_len, dim)
    return [torch.randn(shape).to(dtype) for shape in ((batch, heads, q_len, dim), keys, keys)]


def quick(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False):
    """The result of the call in one step, or None."""
    return _core.quick_attention(q, k, v, score_mod, block_mask, scale, enable_gqa, plain_plans)


def learn(*arguments, **options):
    """Calls until the extension could know the call; the result before it did."""
    first = flex_attention(*arguments, **options)
    for _ in range(3):
        assert torch.equal(flex_attention(*arguments, **options), first)
    return first


def slowly(*arguments, **options):
    """The same call by the way that knows everything."""
    return flex_attention(*arguments, return_lse=True, **options)[0]


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 4, 1, 16, 64), (2, 3, 5, 33, 16), (1, 2, 70, 300, 40)])
def test_results_are_those_of_other_calls(dtype, shape):
    tensors = qkv(*shape, dtype=dtype)
    mask = create_block_mask(lambda b, h, q, kv: kv <= q + shape[3] - shape[2], None, None, shape[2], shape[3])
    for arguments in ((), (alibi(torch.rand(shape[1])),), (None, mask), (alibi(torch.rand(shape[1])), mask)):
        expected = slowly(*tensors, *arguments)
        learn(*tensors, *arguments)
        found = quick(*tensors, *arguments)
        assert torch.equal(found, expected)
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())


def test_the_query_decides_the_strides_of_the_result():
    q, k, v = (torch.randn(2, 16, 4, 8).transpose(1, 2) for _ in range(3))
    assert quick(q, k, v).stride() == slowly(q, k, v).stride() == q.stride()
    step = torch.randn(2, 1, 4 * 8).view(2, 1, 4, 8).transpose(1, 2)
    assert quick(step, k, v).stride() == slowly(step, k, v).stride()
    gaps = torch.randn(2, 4, 16, 16)[..., :8]
    assert quick(gaps, k, v) is None
    assert flex_attention(gaps, k, v).stride() == slowly(gaps, k, v).stride()


def test_new_values_of_a_captured_tensor_are_read():
    q, k, v = qkv()
    slopes = torch.rand(4)
    learn(q, k, v, alibi(slopes))
    slopes.mul_(2)
    assert torch.equal(quick(q, k, v, alibi(slopes)), slowly(q, k, v, alibi(slopes)))
    other = torch.rand(4)
    assert torch.equal(quick(q, k, v, alibi(other)), slowly(q, k, v, alibi(other)))
    wide = torch.rand(8)[::2]
    assert torch.equal(quick(q, k, v, alibi(wide)), slowly(q, k, v, alibi(wide)))


def test_captured_tensors_are_not_kept():
    q, k, v = qkv()
    slopes = torch.rand(4)
    learn(q, k, v, alibi(slopes))
    assert quick(q, k, v, alibi(slopes)) is not None
    gone = weakref.ref(slopes)
    del slopes
    gc.collect()
    assert gone() is None


def test_what_a_mod_is_made_of_is_looked_at():
    q, k, v = qkv()
    factor = 2.0

    def scaled(score, b, h, q_idx, kv_idx):
        return score * factor

    learn(q, k, v, scaled)
    assert quick(q, k, v, scaled) is not None
    factor = 3.0
    assert quick(q, k, v, scaled) is None
    assert torch.equal(flex_attention(q, k, v, scaled), flex_attention(q, k, v, lambda s, b, h, q, kv: s * 3.0))
    factor = -0.0
    learn(q, k, v, scaled)
    factor = 0.0
    assert quick(q, k, v, scaled) is None


def test_globals_defaults_helpers_and_attributes_are_looked_at(monkeypatch):
    q, k, v = qkv()

    def by_global(score, b, h, q_idx, kv_idx):
        return score + OFFSET * kv_idx

    def helper(x):
        return x * 2

    def by_helper(score, b, h, q_idx, kv_idx):
        return helper(score) + torch.tanh(score)

    def by_default(score, b, h, q_idx, kv_idx, by=1.5):
        return score * by

    class Holder:
        def __init__(self):
            self.table = torch.rand(16)
            self.size = 16

        def mod(self, score, b, h, q_idx, kv_idx):
            return score + self.table[kv_idx % self.size]

    holder = Holder()

    def by_attribute(score, b, h, q_idx, kv_idx):
        return score + holder.table[kv_idx % holder.size]

    for mod in (by_global, by_helper, by_default, by_attribute, holder.mod):
        first = learn(q, k, v, mod)
        assert torch.equal(quick(q, k, v, mod), first), mod
    monkeypatch.setitem(globals(), "OFFSET", 4)
    by_default.__defaults__ = (2.5,)
    helper = lambda x: x * 3  # noqa: E731
    for mod in (by_global, by_helper, by_default):
        assert quick(q, k, v, mod) is None
        assert torch.equal(flex_attention(q, k, v, mod), slowly(q, k, v, mod))
    holder.table = torch.rand(16)
    for mod in (by_attribute, holder.mod):
        assert torch.equal(quick(q, k, v, mod), slowly(q, k, v, mod))
    holder.size = 5
    for mod in (by_attribute, holder.mod):
        assert quick(q, k, v, mod) is None
        assert torch.equal(flex_attention(q, k, v, mod), slowly(q, k, v, mod))


def test_two_tensors_in_the_place_of_one():
    q, k, v = qkv()
    a, b = torch.rand(16), torch.rand(16)

    def both(x, y):
        return lambda score, b, h, q_idx, kv_idx: score + x[kv_idx] * y[q_idx]

    learn(q, k, v, both(a, a))
    assert torch.equal(flex_attention(q, k, v, both(a, b)), slowly(q, k, v, both(a, b)))
    learn(q, k, v, both(a, b))
    assert torch.equal(flex_attention(q, k, v, both(b, b)), slowly(q, k, v, both(b, b)))


def test_gradients_go_the_other_way():
    q, k, v = qkv()
    slopes = torch.rand(4)
    learn(q, k, v, alibi(slopes))
    assert quick(q.requires_grad_(), k, v, alibi(slopes)) is None
    q.requires_grad_(False)
    slopes.requires_grad_()
    assert quick(q, k, v, alibi(slopes)) is None
    flex_attention(q, k, v, alibi(slopes)).sum().backward()
    assert slopes.grad is not None
    with torch.no_grad():
        learn(q, k, v, alibi(slopes))
        assert not flex_attention(q, k, v, alibi(slopes)).requires_grad
    with torch.inference_mode():
        assert quick(q, k, v).is_inference()


def test_what_looks_on_is_noticed():
    q, k, v = qkv()
    learn(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert quick(q, k, v) is None
        assert flex_attention(q, k, v).dtype == torch.bfloat16
    assert torch.equal(torch.vmap(flex_attention)(q[None], k[None], v[None])[0], flex_attention(q, k, v))
    with torch.device("meta"):
        assert flex_attention(q, k, v).device.type == "cpu"
    signs = torch.randn(1, 4, 1, 64, dtype=torch.complex64).conj().imag
    assert signs.is_neg() and quick(signs, k, v) is None
    assert torch.equal(flex_attention(signs, k, v), flex_attention(signs.resolve_neg(), k, v))


def test_what_is_not_usual_is_left_alone():
    q, k, v = qkv()
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 64), torch.randn(4, 5, 64)])
    for arguments in ((nested, nested, nested), (q, k, None), (q.double(), k, v), (q[0], k[0], v[0]), (q, k[:, :2], v)):
        assert quick(*arguments) is None
    assert quick(q, k, v, scale=1) is None
    assert quick(q, k, v, enable_gqa=1) is None
    assert quick(q, k[:, :2], v[:, :2]) is None
    assert quick(q, k[:, :2], v[:, :2], enable_gqa=True) is not None
    with pytest.raises(ValueError):
        flex_attention(q, k[:, :2], v[:, :2])


def test_a_mask_is_known_until_it_changes():
    q, k, v = qkv(q_len=40, kv_len=40)
    window = torch.tensor([4])
    mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < window[b]), None, None, 40, 40, BLOCK_SIZE=8)
    learn(q, k, v, None, mask)
    assert torch.equal(quick(q, k, v, None, mask), slowly(q, k, v, None, mask))
    window.fill_(3)  # blocks were proved with 4
    assert quick(q, k, v, None, mask) is None
    learn(q, k, v, None, mask)
    assert torch.equal(quick(q, k, v, None, mask), slowly(q, k, v, None, mask))
    window.fill_(2)  # now the rule is asked everywhere
    assert torch.equal(quick(q, k, v, None, mask), slowly(q, k, v, None, mask))
    mask.kv_num_blocks[..., -1] = 0
    assert quick(q, k, v, None, mask) is None
    assert torch.equal(flex_attention(q, k, v, None, mask), slowly(q, k, v, None, mask))
    mask.mask_mod = lambda b, h, q, kv: q > kv
    assert quick(q, k, v, None, mask) is None
    assert torch.equal(flex_attention(q, k, v, None, mask), slowly(q, k, v, None, mask))
    mask.seq_lengths = (40, 39)
    assert quick(q, k, v, None, mask) is None


def test_a_mask_for_other_lengths_is_refused():
    q, k, v = qkv(q_len=8)
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 8, 16)
    learn(q, k, v, None, mask)
    with pytest.raises(ValueError, match="block"):
        flex_attention(q, k[:, :, :15], v[:, :, :15], None, mask)


def test_errors_of_visible_elements_are_raised():
    q, k, v = qkv()
    place, table = torch.tensor([3]), torch.rand(5)
    mod = lambda score, b, h, q_idx, kv_idx: score + table[place[q_idx]]  # noqa: E731
    learn(q, k, v, mod)
    place.fill_(9)
    with pytest.raises(IndexError, match="table"):
        flex_attention(q, k, v, mod)
    place.fill_(3)
    assert torch.equal(quick(q, k, v, mod), slowly(q, k, v, mod))


def test_sdpa_without_a_mask_is_the_same_call():
    q, k, v = qkv(heads=4, q_len=3, kv_heads=2)
    expected = scaled_dot_product_attention(q, k, v, torch.zeros(3, 16), enable_gqa=True)
    assert torch.allclose(scaled_dot_product_attention(q, k, v, enable_gqa=True), expected, atol=1e-5)
    assert torch.equal(scaled_dot_product_attention(q, k, v, enable_gqa=True), quick(q, k, v, enable_gqa=True))
    strided = k.transpose(2, 3).contiguous().transpose(2, 3)
    assert quick(q, strided, v, enable_gqa=True) is None
    with sdpa_kernel(SDPBackend.MATH):
        exact = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(exact, expected, atol=1e-5)
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(q, k.double(), v)
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(q, k, v)
    wide = torch.randn(1, 1, 2, 1100)
    assert quick(wide, wide, wide) is None
    assert scaled_dot_product_attention(wide, wide, wide).shape == wide.shape


@pytest.mark.parametrize("batch", [1, 3])
def test_pages_that_move_are_followed(batch):
    paged = PagedAttention(16, 8, batch)
    for b in range(batch):
        paged.reserve(torch.tensor(b), torch.tensor(20))
    k, v = (torch.randn(1, 2, 16 * 8, 16) for _ in "kv")
    q = torch.randn(batch, 4, 1, 16)
    lengths = torch.full((batch,), 20)
    logical = create_block_mask(lambda b, h, q, kv: kv <= q + lengths[b] - 1, batch, 1, 1, 20, BLOCK_SIZE=(8, 8))
    mask = paged.convert_logical_block_mask(logical, kv_len=lengths)
    learn(q, k, v, None, mask, enable_gqa=True)
    found = quick(q, k, v, None, mask, enable_gqa=True)
    assert torch.equal(found, slowly(q, k, v, None, mask, enable_gqa=True))
    lengths.fill_(13)
    found = quick(q, k, v, None, mask, enable_gqa=True)
    assert torch.equal(found, slowly(q, k, v, None, mask, enable_gqa=True))
