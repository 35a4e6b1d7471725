"""Mistakes in calls of quire get an error or a warning that names them and says what to write instead."""

import functools
import random

import numpy as np
import pytest
import quire

X = np.ones((1, 2, 8, 16), np.float32)


def masked(mod, *sizes):
    return quire.create_block_mask(mod, None, None, *(sizes or (8, 8)))


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
    with pytest.raises(TypeError, match=r"`and`, `or`, `not`, chained comparisons .* `&`, `\|`, `~`"):
        masked(mod)


def test_logic_in_a_text():
    assert masked("q_idx >= kv_idx and kv_idx > 3") == masked("(q_idx >= kv_idx) & (kv_idx > 3)")
    with pytest.raises(ValueError, match=r"comparisons cannot be chained; write \(a <= b\) & \(b < c\)"):
        masked("0 <= q_idx - kv_idx < 3")


def test_a_mod_of_the_other_kind():
    with pytest.raises(TypeError, match="takes 4 arguments, which makes it a mask mod.*give it to create_block_mask"):
        quire.flex_attention(X, X, X, lambda b, h, q, k: q >= k)
    with pytest.raises(TypeError, match="takes 5 arguments, which makes it a score mod.*flex_attention as score_mod"):
        masked(lambda s, b, h, q, k: s)
    with pytest.raises(TypeError, match="got MaskMod: give it to create_block_mask"):
        quire.flex_attention(X, X, X, quire.mods.causal())
    with pytest.raises(TypeError, match="got ScoreMod: give it to flex_attention"):
        masked(quire.mods.softcap(3.0))
    with pytest.raises(TypeError, match="unsupported"):  # the mod's own, not explained away
        masked(lambda b, h, q, k: q + "1")


@pytest.mark.parametrize("mod", ["q_idx >= kv_idx", lambda s, b, h, q, k: q >= k])
def test_a_score_mod_that_is_a_condition(mod):
    with pytest.warns(UserWarning, match=r"returns a condition.*where\(condition, score, -inf\)"):
        quire.flex_attention(X, X, X, mod)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_in_a_mod(draw):
    with pytest.warns(UserWarning, match="draws random numbers"):
        masked(lambda b, h, q, k: q * draw() > k)


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
    with pytest.raises(TypeError, match=r"\[MaskMod\] the mod draws random numbers from a .*Draw an array before it"):
        masked(mod)


def test_a_generator_that_is_not_used():
    assert masked(lambda b, h, q, k, rng=RNG: q >= k) == masked("q_idx >= kv_idx")


def test_no_warning_without_a_mistake(recwarn):
    random.random(), np.random.rand()
    masked(lambda b, h, q, k: q >= k)
    quire.flex_attention(X, X, X, lambda s, b, h, q, k: s + 1, kernel_options={"BLOCK_M": 64, "fwd_num_stages": 2})
    assert not recwarn.list


@pytest.mark.parametrize("make", [quire.create_block_mask, quire.create_mask])
def test_sizes_that_are_no_ints(make):
    with pytest.raises(TypeError, match=rf"\[{make.__name__}\] Q_LEN must be an int; got float 256.0"):
        make("q_idx >= kv_idx", None, None, 256.0, 256)
    with pytest.raises(TypeError, match=rf"\[{make.__name__}\] B must be an int; got str '1'"):
        make("q_idx >= kv_idx", "1", None, 256, 256)
    with pytest.raises(TypeError, match="KV_LEN must be an int of 64 bits"):
        make("q_idx >= kv_idx", None, None, 256, 1 << 70)
    assert make("q_idx >= kv_idx", np.int32(1), None, np.int64(8), 8).shape == (1, 1, 8, 8)
    with pytest.raises(TypeError, match="BLOCK_SIZE.* an int or a pair of ints"):
        quire.create_block_mask("q_idx >= kv_idx", None, None, 8, 8, BLOCK_SIZE=16.0)


@pytest.mark.parametrize("attend", [quire.flex_attention, quire.scaled_dot_product_attention])
def test_a_scale_that_is_no_number(attend):
    with pytest.raises(TypeError, match=rf"\[{attend.__name__}\] scale must be a number; got str '0.1'"):
        attend(X, X, X, scale="0.1")
    for scale in (1, np.float32(1), True):
        np.testing.assert_array_equal(attend(X, X, X, scale=scale), attend(X, X, X, scale=1.0))


def test_kernel_options():
    with pytest.raises(TypeError, match="kernel_options must be a dict; got int 3"):
        quire.flex_attention(X, X, X, kernel_options=3)
    with pytest.warns(UserWarning, match="no option 'BLOKC_M'; BLOCK_M may be meant"):
        quire.flex_attention(X, X, X, kernel_options={"BLOKC_M": 3})
