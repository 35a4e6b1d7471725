"""scaled_dot_product_attention of dense tensors against torch's own: values, layouts, exception types, modes."""

import itertools

import pytest
import quire
import quire.torch as quire_torch
import torch
import torch.nn.functional as F
from peer import assert_as_exact_as_torch, tensors
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

SDPA = quire_torch.scaled_dot_product_attention


def check(q, k, v, mask=None, **options):
    """Against torch in f64, with twice the error of torch in the tensors' own precision."""
    out = SDPA(q, k, v, mask, **options)
    wide = mask.double() if isinstance(mask, torch.Tensor) and mask.is_floating_point() else mask
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, **options)
    peer = F.scaled_dot_product_attention(q, k, v, mask, **options)
    assert_as_exact_as_torch(out, exact, peer, v)
    return out, peer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_dtypes(dtype, is_causal):
    q, k, v = tensors(dtype=dtype)
    check(q, k, v, is_causal=is_causal)
    check(q, k, v, is_causal=is_causal, scale=0.3)


@pytest.mark.parametrize("shape", [(113, 203), (1, 203), (4, 1, 203), (2, 1, 1, 203), (2, 4, 113, 203)])
def test_masks(shape):
    q, k, v = tensors()
    visible = torch.rand(shape) < 0.7
    visible[..., 0] = True  # torch gives NaN for some rows without keys
    check(q, k, v, visible)
    check(q, k, v, torch.randn(shape).masked_fill(~visible, -torch.inf))


def test_float32_masks_of_half_precision():
    q, k, v = tensors(dtype=torch.bfloat16)
    check(q, k, v, torch.randn(113, 203))
    check(q, k, v, torch.randn(113, 203).bfloat16())


def test_grouped_heads_and_broadcast():
    q, k, v = tensors(q_heads=8, kv_heads=2)
    check(q, k, v, enable_gqa=True)
    q, k, v = tensors()
    for parts in ((q, k[:1, :1], v[:1, :1]), (q, k, v[:1, :1]), (q[:1], k, v), (q[:, :1], k, v)):
        out = SDPA(*parts)
        assert torch.equal(out, SDPA(*(t.expand(2, 4, -1, -1).contiguous() for t in parts)))
        torch.testing.assert_close(out, F.scaled_dot_product_attention(*parts))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_ranks(lead):
    q, k, v = torch.randn(*lead, 7, 8), torch.randn(*lead, 9, 8), torch.randn(*lead, 9, 8)
    check(q, k, v, is_causal=True)


def test_ranks_that_differ():
    check(torch.randn(3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8))


def test_causal_biases():
    q, k, v = tensors(q_len=20, kv_len=33, v_dim=32)
    out = SDPA(q, k, v, causal_upper_left(20, 33))
    assert torch.equal(out, SDPA(q, k, v, is_causal=True))
    visible = torch.ones(20, 33).tril(13).bool()
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), visible)
    out = SDPA(q, k, v, causal_lower_right(20, 33))
    assert_as_exact_as_torch(out, exact, F.scaled_dot_product_attention(q, k, v, visible), v)
    with pytest.raises(ValueError, match="causal"):
        SDPA(q, k, v, causal_lower_right(20, 33), is_causal=True)
    with pytest.raises(RuntimeError, match="33 keys"):
        SDPA(q, k[:, :, :30], v[:, :, :30], causal_lower_right(20, 33))


def test_mask_mods():
    q, k, v = tensors()
    window = torch.tensor(30)

    def near(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() <= window

    visible = (torch.arange(113)[:, None] - torch.arange(203)).abs() <= window
    assert torch.equal(SDPA(q, k, v, near), SDPA(q, k, v, "(q_idx - kv_idx <= 30) & (kv_idx - q_idx <= 30)"))
    torch.testing.assert_close(
        SDPA(q, k, v, near)[:, :, :100], F.scaled_dot_product_attention(q, k, v, visible)[:, :, :100]
    )
    assert torch.equal(SDPA(q, k, v, quire.mods.causal()), SDPA(q, k, v, is_causal=True))


def layouts(v_dim):
    plain = torch.randn(2, 3, 20, 16), torch.randn(2, 3, 30, 16), torch.randn(2, 3, 30, v_dim)
    turned = tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in plain)
    return {"plain": plain, "turned": turned, "query turned": (turned[0], *plain[1:])}


@pytest.mark.parametrize("name", ["plain", "turned", "query turned"])
@pytest.mark.parametrize("v_dim", [16, 24])
def test_memory_layout_is_torchs(name, v_dim):
    q, k, v = layouts(v_dim)[name]
    out, peer = check(q, k, v)
    assert out.stride() == peer.stride()
    assert torch.equal(out, SDPA(q.contiguous(), k.contiguous(), v.contiguous()))


SIZES_AND_ORDERS = list(
    itertools.product(itertools.product((1, 2), (1, 3), (1, 5), (1, 8)), itertools.permutations(range(4)))
)


def test_strides_are_torchs_where_axes_have_size_1():
    for sizes, order in SIZES_AND_ORDERS:
        turned = torch.randn([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(4)])
        for x in (turned, torch.randn(1, 1, *sizes[2:]).expand(sizes)):
            out = SDPA(x, x, x)
            assert out.stride() == F.scaled_dot_product_attention(x, x, x).stride(), (sizes, x.stride())
            assert not out._is_view()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [(4, 5), (1, 900), (300, 900)])
def test_without_channels_a_row_is_the_mean_of_the_values_it_sees(dtype, lengths):
    q, k = (torch.randn(2, 3, length, 0, dtype=dtype, requires_grad=True) for length in lengths)
    v = torch.randn(2, 3, lengths[1], 16, dtype=dtype, requires_grad=True)
    bias = torch.randn(lengths[0], lengths[1], dtype=dtype, requires_grad=True)
    check(q, k, v, is_causal=True)
    check(q, k, v, scale=3.0)
    out, peer = check(q, k, v, bias)
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v, bias), d_out)
    wanted = torch.autograd.grad(peer, (q, k, v, bias), d_out)
    for one, other in zip(found, wanted):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=0.02 if dtype.itemsize == 2 else 1e-5, rtol=0)
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(SDPA(q, k, v)[..., 0, :], v.mean(-2))


def test_what_has_no_elements():
    q, k, v = tensors()
    assert SDPA(q[:, :, :0], k, v).shape == (2, 4, 0, 48)
    assert not SDPA(q, k[:, :, :0], v[:, :, :0]).any()


# ---- dropout


def test_one_draw_of_the_generator_per_call():
    q, k, v = tensors()
    torch.manual_seed(5)
    first, second = SDPA(q, k, v, dropout_p=0.5), SDPA(q, k, v, dropout_p=0.5)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(SDPA(q, k, v, dropout_p=0.5), first)
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(SDPA(q, k, v, dropout_p=0.5), second)


def test_without_dropout_the_generator_stays():
    q, k, v = tensors()
    before = torch.get_rng_state()
    assert torch.equal(SDPA(q, k, v, dropout_p=0.0), SDPA(q, k, v))
    assert torch.equal(torch.get_rng_state(), before)
    assert not SDPA(q, k, v, dropout_p=1.0).any()


# ---- backends


def test_torchs_switches_and_quires_are_honoured():
    q, k, v = tensors()
    want = SDPA(q, k, v)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(backend):
            assert torch.equal(SDPA(q, k, v), want)
    assert quire_torch.sdpa_kernel is sdpa_kernel and quire_torch.SDPBackend is SDPBackend
    with quire_torch.sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(SDPA(q, k, v), want)
        assert not torch.equal(SDPA(q, k, v), want)
        with quire.sdpa_kernel(quire.SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError):
            SDPA(q, k, v)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        SDPA(q, k, v)
    wide = torch.randn(1, 1, 3, 1025)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="head dims of 0 to 1024; got 1025"):
        SDPA(wide, wide, wide)
    assert torch.equal(SDPA(q, k, v), want)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
def test_flash_takes_masks_and_f64(backend):
    """As torch's does on a CPU."""
    q, k, v = tensors(v_dim=32)
    doubles = q.double(), k.double(), v.double()
    mask, bias = torch.rand(113, 203) < 0.7, torch.randn(113, 203, requires_grad=True)
    calls = [
        (doubles, {}),
        ((q, k, v), {"attn_mask": mask}),
        (doubles, {"attn_mask": mask}),
        ((q, k, v), {"attn_mask": bias}),
    ]
    for inputs, options in calls:
        want = SDPA(*inputs, **options)
        with sdpa_kernel(backend):
            assert torch.equal(SDPA(*inputs, **options), want)
            assert quire_torch.why_not(backend, *inputs, **options) == []
        if options.get("attn_mask") is not bias:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                torch.testing.assert_close(want, F.scaled_dot_product_attention(*inputs, **options))


def test_why_not():
    q, k, v = tensors()
    assert quire_torch.why_not(SDPBackend.FLASH_ATTENTION, q, k, v) == []
    assert quire_torch.why_not(SDPBackend.EFFICIENT_ATTENTION, q.double(), k.double(), v.double()) == []
    wide = torch.randn(1, 1, 3, 1025)
    (reason,) = quire_torch.why_not(SDPBackend.FLASH_ATTENTION, wide, wide, wide)
    assert "got 1025 for query and key" in reason
    assert quire_torch.why_not(SDPBackend.CUDNN_ATTENTION, q, k, v) == ["CUDNN_ATTENTION is not a backend of a CPU."]
    assert quire_torch.why_not(quire.SDPBackend.MATH, q, k, v) == []


# ---- modes


def test_autocast():
    q, k, v = tensors(v_dim=32)
    mask = torch.randn(113, 203)
    with torch.autocast("cpu", torch.bfloat16):
        out = SDPA(q, k, v, mask)
        assert SDPA(q.double(), k.double(), v.double()).dtype == torch.float64
    assert torch.equal(out, SDPA(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask.bfloat16()))


def test_gradients_are_recorded_where_they_are_asked_for():
    q, k, v = tensors()
    q.requires_grad_()
    assert SDPA(q, k, v).requires_grad
    with torch.no_grad():
        want = SDPA(q, k, v)
    with torch.inference_mode():
        assert torch.equal(SDPA(q, k, v), want)
    mask = torch.zeros(113, 203, requires_grad=True)
    assert SDPA(q.detach(), k, v, mask).requires_grad


def test_compiled():
    q, k, v = tensors(v_dim=32)
    mask = torch.randn(113, 203)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(q, k, v, mask):
        return SDPA(q, k, v, mask) + SDPA(q, k, v, is_causal=True)

    want = SDPA(q, k, v, mask) + SDPA(q, k, v, is_causal=True)
    assert torch.equal(layer(q, k, v, mask), want)
    assert torch.equal(layer(turned, k, v, mask), want)


def test_symbolic_trace():
    q, k, v = tensors(v_dim=32)
    mask = torch.randn(113, 203)

    class Layer(torch.nn.Module):
        def forward(self, q, k, v, mask=None):
            return SDPA(q, k, v, mask, scale=q.size(-1) ** -0.5) + SDPA(q, k, v, is_causal=True)

    traced = torch.fx.symbolic_trace(Layer())
    assert [node.target for node in traced.graph.nodes].count(SDPA) == 2
    for arguments in ((q, k, v), (q, k, v, mask)):
        assert torch.equal(traced(*arguments), Layer()(*arguments))
    traced = torch.fx.symbolic_trace(Layer(), concrete_args={"q": q, "k": k, "v": v})
    assert torch.equal(traced(q, k, v, mask), Layer()(q, k, v, mask))


# ---- errors, of torch's types

D = torch.randn(2, 3, 4, 8)
WRONG = {
    "dtype": (D, D.double(), D),
    "dim": (D, torch.randn(2, 3, 4, 7), D),
    "batch": (D, torch.randn(3, 3, 5, 8), torch.randn(3, 3, 5, 8)),
    "heads": (D, torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)),
    "mask dtype": (D, D, D, torch.ones(4, 4).long()),
    "mask of doubles": (D, D, D, torch.ones(4, 4).double()),
    "mask shape": (D, D, D, torch.ones(5, 4)),
    "mask rank": (D, D, D, torch.ones(1, 1, 1, 4, 4)),
    "dropout": (D, D, D, None, 1.5),
    "rank": (torch.randn(4), torch.randn(4), torch.randn(4)),
    "integers": (D.long(), D.long(), D.long()),
    "no tensor": (3, D, D),
    "no mask": (D, D, D, 7),
    "device": (D, D.to("meta"), D),
}


@pytest.mark.parametrize("name", WRONG)
def test_exception_types(name):
    with pytest.raises(Exception) as theirs:
        F.scaled_dot_product_attention(*WRONG[name])
    with pytest.raises(theirs.type):
        SDPA(*WRONG[name])


def test_grouped_heads_that_do_not_divide():
    with pytest.raises(RuntimeError):
        SDPA(D, torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8), enable_gqa=True)


def test_what_torch_does_not_notice():
    with pytest.raises(RuntimeError):
        SDPA(D, torch.randn(2, 3, 5, 8), D)  # keys and values of different lengths
    with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"):
        SDPA(D, D, D, torch.ones(4, 4).bool(), is_causal=True)


def test_a_causal_bias_and_is_causal():
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="CausalBias should not be used with causal=True.*give one of them"):
        SDPA(x, x, x, causal_upper_left(5, 5), is_causal=True)
