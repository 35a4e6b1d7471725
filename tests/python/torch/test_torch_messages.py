"""Mistakes in calls of quire.torch get an error or a warning that names them and says what to write instead."""

import functools
import random

import numpy as np
import pytest
import quire
import quire.torch as qt
import torch

X = torch.ones(1, 2, 8, 16)


def masked(mod):
    return qt.create_block_mask(mod, None, None, 8, 8)


@pytest.mark.parametrize(
    "mod",
    [
        lambda b, h, q, k: (q > k) and (k > 3),
        lambda b, h, q, k: (q > k) or (k > 3),
        lambda b, h, q, k: 0 <= q - k < 3,
        lambda b, h, q, k: not q < k,
    ],
)
def test_logic_of_python(mod):
    with pytest.raises(
        qt.TraceError, match=r"write & for and, \| for or, ~ for not, \(a <= x\) & \(x < b\) for a <= x < b"
    ):
        masked(mod)


def test_a_mod_of_the_other_kind():
    with pytest.raises(TypeError, match="takes 4 arguments, which makes it a mask mod.*give it to create_block_mask"):
        qt.flex_attention(X, X, X, lambda b, h, q, k: q >= k)
    with pytest.raises(
        AssertionError, match="takes 4 arguments.*got a score mod, which takes 5.*flex_attention as score_mod"
    ):
        masked(lambda s, b, h, q, k: s)
    with pytest.raises(TypeError, match="got MaskMod: give it to create_block_mask"):
        qt.flex_attention(X, X, X, quire.mods.causal())
    with pytest.raises(TypeError, match=r"\[score_mod\] a function over tensors.*got int"):
        qt.flex_attention(X, X, X, 3)


@pytest.mark.parametrize("mod", ["kv_idx > 3", lambda s, b, h, q, k: q >= k, lambda s, b, h, q, k: True])
def test_a_score_mod_that_is_a_condition(mod):
    with pytest.warns(UserWarning, match=r"returns a condition.*where\(condition, score, -inf\)"):
        qt.flex_attention(X, X, X, mod)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_in_a_mod(draw):
    with pytest.warns(UserWarning, match="draws random numbers"):
        masked(lambda b, h, q, k: q * draw() > k)
    with pytest.raises(qt.TraceError, match="random operation"):
        masked(lambda b, h, q, k: q * torch.rand(()) > k)


RNG = np.random.default_rng(3)
DRAW = np.random.RandomState(3).rand


class Drawing:
    def __init__(self):
        self.generators = {"mine": random.Random(3)}

    def rule(self, b, h, q, k):
        return q * self.generators["mine"].random() > k


@pytest.mark.parametrize(
    "mod",
    [
        lambda b, h, q, k: q * RNG.random() > k,
        lambda b, h, q, k, draw=DRAW: q * draw() > k,
        functools.partial(lambda draw, b, h, q, k: q * draw() > k, np.random.default_rng(3).random),
        Drawing().rule,
        (lambda held: lambda b, h, q, k: q * held[0].random() > k)([np.random.default_rng(3)]),
    ],
    ids=["global", "default", "partial", "method", "list"],
)
def test_generators_that_a_mod_holds(mod):
    for _ in range(2):
        with pytest.raises(qt.TraceError, match="the mod draws random numbers from a .*Draw an array before it"):
            masked(mod)
    with pytest.raises(qt.TraceError, match="the mod draws random numbers from a "):
        qt.flex_attention(X, X, X, lambda s, b, h, q, k: torch.where(mod(b, h, q, k), s, 0.0))


def test_a_generator_that_is_not_used():
    assert torch.equal(
        masked(lambda b, h, q, k, rng=RNG: q >= k).to_dense(), masked(lambda b, h, q, k: q >= k).to_dense()
    )


@pytest.mark.parametrize("make", [lambda: np.random.default_rng(3), lambda: random.Random(3)], ids=["numpy", "random"])
def test_generators_of_a_compiled_mod(make):
    torch.compiler.reset()
    held = make()

    def call(q):
        return qt.flex_attention(q, q, q, lambda s, b, h, i, k: s * held.random())

    with pytest.raises(Exception, match="(?i)random|generator"):
        torch.compile(call, backend="eager", fullgraph=True)(X)


def test_torchs_random_numbers_in_a_mod_of_quire():
    generator = torch.Generator()
    for draw in (lambda: torch.rand(()).item(), lambda: torch.rand((), generator=generator).item()):
        with pytest.raises(TypeError, match="draws random numbers from a torch Generator"):
            quire.create_block_mask(lambda b, h, q, k, draw=draw: q * draw() > k, None, None, 8, 8)


def test_no_warning_without_a_mistake(recwarn):
    masked(lambda b, h, q, k: q >= k)
    options = {"BLOCK_M": 64, "bwd_BLOCK_N1": 32, "PRESCALE_QK": True, "num_warps": 4}
    qt.flex_attention(X, X, X, lambda s, b, h, q, k: s + 1, kernel_options=options)
    assert not recwarn.list


def test_sizes_scales_and_options_of_a_wrong_type():
    with pytest.raises(TypeError, match=r"\[create_block_mask\] Q_LEN must be an int; got float 256.0"):
        qt.create_block_mask("q_idx >= kv_idx", None, None, 256.0, 256)
    with pytest.raises(TypeError, match=r"\[create_mask\] H must be an int; got str '2'"):
        qt.create_mask(lambda b, h, q, k: q >= k, None, "2", 256, 256)
    with pytest.raises(TypeError, match="BLOCK_SIZE must be an int or a pair of ints; got float"):
        qt.create_block_mask("q_idx >= kv_idx", None, None, 8, 8, BLOCK_SIZE=16.0)
    for attend in (qt.flex_attention, qt.scaled_dot_product_attention):
        with pytest.raises(TypeError, match=rf"\[{attend.__name__}\] scale must be a number; got str '0.1'"):
            attend(X, X, X, scale="0.1")
        assert torch.equal(attend(X, X, X, scale=torch.tensor(0.5)), attend(X, X, X, scale=0.5))
    with pytest.raises(TypeError, match="kernel_options must be a dict; got int 3"):
        qt.flex_attention(X, X, X, kernel_options=3)
    with pytest.warns(UserWarning, match="no option 'BLOKC_M'; BLOCK_M may be meant"):
        qt.flex_attention(X, X, X, kernel_options={"BLOKC_M": 3})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there():
    with pytest.raises(AssertionError, match='leave device out, or give device="cpu"'):
        qt.create_block_mask("q_idx >= kv_idx", None, None, 8, 8, device="cuda")
    with pytest.raises(AssertionError, match='leave device out, or give device="cpu"'):
        qt.PagedAttention(8, 16, 2, device="cuda")
    with pytest.raises(ValueError, match=r"got tensors on meta. Bring them here with .cpu\(\)"):
        qt.flex_attention(*[X.to("meta")] * 3)
