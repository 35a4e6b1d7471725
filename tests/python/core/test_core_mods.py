"""ScoreMod and MaskMod as objects, the library of ready mods, and the gallery."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import quire
from numpy_reference import grids
from quire import mods

SHAPE = (2, 3, 8, 9)
B, H, Q, KV = grids(*SHAPE)
SCORES = np.random.default_rng(1).standard_normal(SHAPE)


def mask_of(mod):
    return quire.evaluate(mod, SHAPE)


def test_text_and_buffers():
    slopes = np.array([0.5, 0.25, 0.125], np.float32)
    mod = quire.ScoreMod("d = kv_idx - q_idx; score + slopes[h] * d", buffers={"slopes": slopes})
    assert mod.text == str(mod) == "score + slopes[h] * (kv_idx - q_idx)"
    assert repr(mod) == "quire.ScoreMod('score + slopes[h] * (kv_idx - q_idx)')"
    assert mod.buffer_names == ["slopes"]
    assert np.shares_memory(mod.buffers["slopes"], slopes) and not mod.buffers["slopes"].flags.writeable
    np.testing.assert_allclose(quire.evaluate(mod, SCORES), SCORES + slopes[H].astype(float) * (KV - Q))
    buffer = quire.Buffer(slopes, "slopes")
    traced = quire.ScoreMod(lambda s, b, h, q, kv: s + buffer[h] * (kv - q))
    assert traced.text == mod.text and traced != mod  # other Buffers, so not equal
    assert quire.ScoreMod(mod) == mod and hash(quire.ScoreMod(mod)) == hash(mod)
    assert quire.MaskMod("q_idx >= kv_idx") == mods.causal() and mods.causal() != quire.MaskMod("q_idx > kv_idx")


def test_a_mod_keeps_its_buffers_alive():
    values = np.ones(3)
    watch = weakref.ref(values)
    mod = quire.MaskMod("keep[h] > 0", {"keep": values})
    block_mask = quire.create_block_mask(~(mod & mods.causal()), None, 3, 8, 9)
    del values, mod
    gc.collect()
    assert watch() is not None and block_mask.mask_mod.buffers["keep"][0] == 1
    del block_mask
    gc.collect()
    assert watch() is None


def test_bind_reads_other_memory():
    text = quire.ScoreMod(
        "score + bias[h] * scale[b]", {"bias": np.zeros(3, np.float32), "scale": np.ones(2, np.float32)}
    )
    assert text.buffer_names == ["bias", "scale"]
    bias, scale = np.array([1, 2, 3, 4], np.float32)[:3], np.array([10, 20], np.float32)
    bound = quire.ScoreMod.bind(text, [quire._core.view(bias), scale])
    assert bound.text == text.text and bound.buffer_names == text.buffer_names
    np.testing.assert_allclose(quire.evaluate(bound, SCORES), SCORES + bias.astype(float)[H] * scale[B])
    np.testing.assert_allclose(quire.evaluate(text, SCORES), SCORES)
    assert np.shares_memory(bound.buffers["bias"], bias)
    with pytest.raises(ValueError, match=r"\[bind\] the mod reads 2 buffers; got 1"):
        quire.ScoreMod.bind(text, [bias])
    with pytest.raises(TypeError, match=r"\[with_buffers\] buffer 'bias' must be f32 of rank 1; got f64 of rank 1"):
        quire.ScoreMod.bind(text, [bias.astype(float), scale])
    with pytest.raises(ValueError, match="must be f32 of rank 1; got f32 of rank 2"):
        quire.ScoreMod.bind(text, [bias[None], scale])
    mask = quire.MaskMod.bind(quire.MaskMod("keep[kv_idx]", {"keep": np.zeros(2, bool)}), [KV[0, 0, 0] % 2 == 0])
    np.testing.assert_array_equal(mask_of(mask), np.broadcast_to(KV % 2 == 0, SHAPE))


def test_masks_combine():
    causal, window = mods.causal(), mods.sliding_window(3)
    np.testing.assert_array_equal(
        mask_of(causal & ~window), np.broadcast_to((Q >= KV) & ~((Q >= KV) & (Q - KV < 3)), SHAPE)
    )
    np.testing.assert_array_equal(
        mask_of(window | (lambda b, h, q, kv: kv < 2)), mask_of(quire.or_masks(window, "kv_idx < 2"))
    )
    np.testing.assert_array_equal(
        mask_of((lambda b, h, q, kv: h == 1) & causal), np.broadcast_to((H == 1) & (Q >= KV), SHAPE)
    )
    np.testing.assert_array_equal(
        mask_of((lambda b, h, q, kv: h == 1) | causal), np.broadcast_to((H == 1) | (Q >= KV), SHAPE)
    )
    np.testing.assert_array_equal(
        mask_of(quire.and_masks(causal, lambda b, h, q, kv: kv > 1, quire.noop_mask)),
        np.broadcast_to((Q >= KV) & (KV > 1), SHAPE),
    )
    assert mask_of(quire.and_masks()).all() and not mask_of(quire.or_masks()).any()
    for wrong in (3, None, quire.ScoreMod("score")):
        with pytest.raises(TypeError):
            causal & wrong


def test_mods_inside_mods():
    causal, cap = mods.causal(), mods.softcap(2.0)
    shifted = quire.MaskMod(lambda b, h, q, kv: causal(b, h, q - 2, kv) | causal(b, h, kv, q))
    np.testing.assert_array_equal(mask_of(shifted), np.broadcast_to((Q - 2 >= KV) | (KV >= Q), SHAPE))
    swapped = quire.MaskMod(lambda b, h, q, kv: causal(b, h, kv, q))
    assert str(swapped) == "kv_idx >= q_idx"
    mod = quire.ScoreMod(lambda s, b, h, q, kv: cap(s * 2, b, h, q, kv) + quire.where(causal(b, h, q, kv), 0, -1))
    np.testing.assert_allclose(quire.evaluate(mod, SCORES), 2 * np.tanh(SCORES * 2 / 2) - (Q < KV))
    with pytest.raises(TypeError, match=r"\[formula\] b, h, q_idx and kv_idx of a mod must be integers"):
        quire.MaskMod(lambda b, h, q, kv: causal(b, h, q * 0.5, kv))
    with pytest.raises(TypeError):
        quire.MaskMod(lambda b, h, q, kv: causal(b, h, q))


def test_wrong_mods():
    with pytest.raises(TypeError, match="takes 4 arguments, which makes it a mask mod"):
        quire.ScoreMod(lambda b, h, q, kv: q >= kv)
    with pytest.raises(TypeError, match="takes 5 arguments, which makes it a score mod"):
        quire.MaskMod(lambda s, b, h, q, kv: s)
    with pytest.raises(TypeError, match=r"\[ScoreMod\] a ScoreMod, a text or a function is needed; got int"):
        quire.ScoreMod(3)
    with pytest.raises(TypeError, match=r"\[MaskMod\] a MaskMod, a text or a function is needed; got ScoreMod"):
        quire.MaskMod(quire.ScoreMod("score"))
    with pytest.raises(TypeError, match=r"\[ScoreMod\] buffers belong to a text"):
        quire.ScoreMod(lambda s, b, h, q, kv: s, {"x": np.zeros(2)})
    with pytest.raises(ValueError, match=r"\[MaskMod\] a mask may not depend on the score"):
        quire.MaskMod("score > 0")
    with pytest.raises(ValueError, match=r"\[parse\]"):
        quire.ScoreMod("score +")
    with pytest.raises(RuntimeError, match="mine"):
        quire.ScoreMod(lambda s, b, h, q, kv: (_ for _ in ()).throw(RuntimeError("mine")))


def test_pickles_and_copies():
    mod = quire.ScoreMod("score + t[h]", {"t": np.array([1, 2, 3], np.float16)})
    for again in (pickle.loads(pickle.dumps(mod)), copy.deepcopy(mod), copy.copy(mod)):
        assert again.text == mod.text and again.buffers["t"].dtype == np.float16
        np.testing.assert_array_equal(quire.evaluate(again, SCORES), quire.evaluate(mod, SCORES))
    assert pickle.loads(pickle.dumps(mods.causal())) == mods.causal()


IDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, -1])
PARENTS = np.array([-1, 0, 0, 1, 2])


def ancestors(i):
    seen = set()
    while i >= 0:
        seen.add(i)
        i = PARENTS[i]
    return seen


TREE = np.array([[(k <= q if q < 4 else k < 4 or k - 4 in ancestors(q - 4)) for k in range(9)] for q in range(9)])
MASKS = {
    "causal": (mods.causal(), Q >= KV),
    "causal_bottom_right": (mods.causal_bottom_right(8, 9), Q + 1 >= KV),
    "sliding_window": (mods.sliding_window(3), (Q >= KV) & (Q - KV < 3)),
    "sliding_window_two_sided": (mods.sliding_window(3, right=1), (Q - KV <= 3) & (KV - Q <= 1)),
    "document": (mods.document(IDS), (IDS[Q] == IDS[KV]) & (IDS[KV] >= 0)),
    "document_kv": (mods.document(IDS[:8], IDS[::-1].copy()), (IDS[Q] == IDS[::-1][KV]) & (IDS[Q] >= 0)),
    "document_from_offsets": (mods.document_from_offsets([0, 3, 9]), (Q < 3) == (KV < 3)),
    "prefix_lm": (mods.prefix_lm(4), (KV < 4) | (Q >= KV)),
    "prefix_lm_table": (mods.prefix_lm(np.array([2, 5])), (KV < np.array([2, 5])[B]) | (Q >= KV)),
    "padding": (mods.padding(np.int64(4)), KV < 4),
    "padding_table": (mods.padding([3, 7]), KV < np.array([3, 7])[B]),
    "shared_prefix": (mods.shared_prefix(3, IDS), (Q >= KV) & ((KV < 3) | ((IDS[Q] == IDS[KV]) & (IDS[KV] >= 0)))),
    "tree": (mods.tree(PARENTS, 4), TREE[Q, KV]),
    "tree_table": (mods.tree(PARENTS, np.array([4, 4])), TREE[Q, KV]),
    "attention_sink": (mods.attention_sink(2), KV < 2),
    "streaming": (mods.streaming(2, 3), (Q >= KV) & ((KV < 2) | (Q - KV < 3))),
    "chunked": (mods.chunked(4), (Q // 4 == KV // 4) & (Q >= KV)),
    "chunked_whole": (mods.chunked(4, is_causal=False), Q // 4 == KV // 4),
}
TABLE = np.random.default_rng(2).standard_normal((3, 5))
BIAS = np.random.default_rng(3).standard_normal((8, 9)).astype(np.float32)
SCORE_MODS = {
    "alibi": (mods.alibi(4), SCORES + mods.alibi_slopes(4).astype(float)[H] * (KV - Q)),
    "alibi_slopes": (mods.alibi(np.array([1, 2, 3.0])), SCORES + np.array([1, 2, 3.0])[H] * (KV - Q)),
    "softcap": (mods.softcap(1.5), 1.5 * np.tanh(SCORES / 1.5)),
    "relative_bias": (mods.relative_bias(TABLE), SCORES + TABLE[H, np.clip(KV - Q + 2, 0, 4)]),
    "bias_2d": (mods.bias_2d(BIAS), SCORES + BIAS[Q, KV]),
}


@pytest.mark.parametrize("name", MASKS)
def test_library_masks(name):
    mod, expected = MASKS[name]
    np.testing.assert_array_equal(mask_of(mod), np.broadcast_to(expected, SHAPE))


@pytest.mark.parametrize("name", SCORE_MODS)
def test_library_score_mods(name):
    mod, expected = SCORE_MODS[name]
    np.testing.assert_allclose(quire.evaluate(mod, SCORES), expected, rtol=1e-14)


def test_every_mod_of_the_library_is_tested():
    tested = {name for name in [*MASKS, *SCORE_MODS] if name in mods.__all__} | {"alibi_slopes"}
    assert tested == set(mods.__all__) - {"GalleryEntry", "gallery", "gallery_entry"}


def test_errors_of_the_library():
    with pytest.raises(ValueError, match=r"\[sliding_window\]"):
        mods.sliding_window(0)
    with pytest.raises(TypeError, match=r"\[document\] ids must be integers; got f64"):
        mods.document(np.zeros(3))
    with pytest.raises(TypeError):
        mods.padding("many")


def test_the_gallery():
    entries = mods.gallery()
    assert len(entries) >= 30 and [e.name for e in entries][0] == "causal"
    for entry in entries:
        mod = entry.mod(q_len=8, kv_len=8)
        assert isinstance(mod, quire.MaskMod if entry.kind == "mask" else quire.ScoreMod)
        assert entry.description and entry.reference and entry.text and entry.sizes["q_len"] >= 1
    causal = mods.gallery_entry("causal")
    assert causal.kind == "mask" and causal.sizes == {"q_len": 64, "kv_len": 64, "heads": 1, "batch": 1}
    assert repr(causal).startswith("quire.mods.GalleryEntry(causal: ")
    with pytest.raises(ValueError, match="causal"):
        mods.gallery_entry("no such")
