"""Arguments that do not fit get a TypeError or a ValueError that names the function and the argument, never the binding's text."""

import inspect
import pickle

import numpy as np
import pytest
import quire

X = np.ones((1, 2, 8, 16), np.float32)
RULE = "q_idx >= kv_idx"
MASK = quire.create_block_mask(RULE, None, None, 64, 64, BLOCK_SIZE=16)
TOKENS = quire.Jagged.pack([np.ones((n, 2, 8), np.float32) for n in (3, 5)])
CACHE = quire.KVCache(layers=1, kv_heads=2, head_dim=16, n_pages=8)
SEQUENCE = CACHE.create()
CACHE.append(SEQUENCE, k=np.ones((1, 1, 2, 16), np.float32), v=np.ones((1, 1, 2, 16), np.float32))
ROW = np.ones((1, 2, 16), np.float32)

LEAKS = ("incompatible function arguments", "std::", "bad_cast", "Invoked with", "nanobind")


def functions():
    """Every public function with arguments that fit, and methods of the classes."""
    sdpa = (X, X, X)
    yield quire.flex_attention, sdpa
    yield quire.flex_attention_vjp, sdpa
    yield quire.scaled_dot_product_attention, sdpa
    yield quire.choose_backend, sdpa
    yield quire.why_not, (quire.SDPBackend.MATH, *sdpa)
    yield quire.create_block_mask, (RULE, None, None, 8, 8)
    yield quire.create_mask, (RULE, None, None, 8, 8)
    yield quire.create_jagged_block_mask, (RULE, None, TOKENS)
    yield quire.evaluate, (quire.mods.causal(), (1, 1, 4, 4))
    yield quire.explain, (quire.mods.causal(),)
    yield quire.draw, (RULE, 8)
    yield quire.draw_svg, (RULE, 8)
    yield quire.attend, (CACHE, 0, SEQUENCE, ROW)
    yield quire.set_num_threads, (quire.get_num_threads(),)
    yield quire.KVCache, (1, 2, 16, None, "float32", 16, 8)
    yield quire.PagedAttention, (8, 16, 2)
    yield quire.Jagged, (np.ones((3, 2, 8), np.float32), np.array([0, 3]))
    yield quire.Buffer, (np.ones(3, np.float32), "x")
    yield quire.ScoreMod, ("score + 1",)
    yield quire.MaskMod, (RULE,)
    yield MASK.to_string, (4, 4)
    yield MASK.rows, (0, 8)
    yield MASK._adjust, (32, 32)
    yield MASK.to, ("cpu",)
    yield quire.BlockMask.from_kv_blocks, (MASK.kv_num_blocks, MASK.kv_indices)
    yield CACHE.create, (0,)
    yield CACHE.append, (SEQUENCE, 1)
    yield CACHE.reserve, (SEQUENCE, 1)
    yield CACHE.can_reserve, (SEQUENCE, 1)
    yield CACHE.length, (SEQUENCE,)
    yield CACHE.truncate, (SEQUENCE, 1)
    yield CACHE.fork, (SEQUENCE,)
    yield CACHE.k_pages, (0,)
    for name in ("alibi_slopes", "attention_sink"):
        yield getattr(quire.mods, name), (4,)
    yield quire.mods.chunked, (4,)
    yield quire.mods.sliding_window, (4, 2)
    yield quire.mods.softcap, (4.0,)
    yield quire.mods.causal_bottom_right, (3, 4)
    yield quire.mods.gallery_entry, ("alibi",)
    yield quire.mods.gallery_entry("alibi").mod, ()


FUNCTIONS = list(functions())
IDS = [getattr(one, "__qualname__", str(one)) for one, _ in FUNCTIONS]


def message_of(function, *args, **kwargs):
    """The text of the error that names what is wrong; None if the call is taken after all."""
    try:
        function(*args, **kwargs)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        text = str(error)
        assert not any(leak in text for leak in LEAKS), text
        return text
    return None


@pytest.mark.parametrize("function, args", FUNCTIONS, ids=IDS)
def test_unknown_names(function, args):
    function(*args)
    text = message_of(function, *args, devise=3)
    assert "devise" in text and function.__name__.removesuffix("_svg") in text


# For every argument that has a name: something that is of no use there.
@pytest.mark.parametrize("function, args", FUNCTIONS, ids=IDS)
@pytest.mark.parametrize(
    "wrong", [object(), "no", 1 << 70, [3.5], {"a": 1}], ids=["object", "str", "int", "list", "dict"]
)
def test_every_argument_of_a_wrong_type(function, args, wrong):
    try:
        parameters = inspect.signature(function).parameters.values()
        names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    except (TypeError, ValueError):
        names = []
    for place in range(len(args)):
        message_of(function, *args[:place], wrong, *args[place + 1 :])
    for name in names[len(args) :]:
        message_of(function, *args, **{name: wrong})


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: quire.create_block_mask(RULE, None, None, 8), r"\[create_block_mask\] KV_LEN is missing"),
        (lambda: quire.create_block_mask(RULE, 1, 1, 8, 8, B=1), r"\[create_block_mask\] B is given twice"),
        (lambda: quire.create_block_mask(RULE, None, None, 8, 8, q_begin="1"), r"q_begin must be an int; got str '1'"),
        (
            lambda: quire.create_block_mask(RULE, None, None, 8, 8, separate_full_block=True),
            r"no argument 'separate_full_block'; separate_full_blocks may be meant",
        ),
        (lambda: quire.create_block_mask(RULE, None, None, 8, 8, q_begin=1 << 70), "q_begin must be an int.*64 bits"),
        (lambda: quire.create_block_mask(RULE, None, None, 8, 8, 16, True, 0, 7), "takes 8 arguments.* got 9"),
        (
            lambda: quire.flex_attention(X, X, X, enable_gqa="yes"),
            r"\[flex_attention\] enable_gqa must be a bool; got str",
        ),
        (lambda: quire.flex_attention(X, X, X, return_aux=3), r"return_aux must be an AuxRequest; got int 3"),
        (lambda: quire.flex_attention(X, X, X, q_begin="1"), r"\[flex_attention\] q_begin must be an int; got str"),
        (
            lambda: quire.flex_attention(X, X, X, q_begin=[1.5]),
            r"\[flex_attention\] q_begin must be an int; got float 1.5",
        ),
        (lambda: quire.scaled_dot_product_attention(X, X, X, dropout_p="x"), "dropout_p must be a number; got str 'x'"),
        (lambda: quire.scaled_dot_product_attention(X, X, X, is_causal=None), "is_causal must be a bool; got NoneType"),
        (lambda: quire.scaled_dot_product_attention(X, X, X, alignment=1), "alignment must be a str; got int 1"),
        (lambda: quire.scaled_dot_product_attention(X, X, X, seed=1.5), "seed must be an int; got float 1.5"),
        (lambda: quire.attend(CACHE, "0", SEQUENCE, ROW), r"\[attend\] layer must be an int; got str '0'"),
        (lambda: quire.attend(CACHE, 0, [3], ROW), r"\[attend\] each of sequences must be a SequenceId; got int 3"),
        (lambda: quire.attend(CACHE, 0, SEQUENCE, ROW, counts=1.5), r"each of counts must be an int; got float 1.5"),
        (lambda: quire.attend(X, 0, SEQUENCE, ROW), r"\[attend\] cache must be a KVCache; got ndarray"),
        (lambda: quire.merge_states(X, X), r"\[merge_states\] a state must be a pair \(out, lse\).*got ndarray"),
        (lambda: quire.create_jagged_block_mask(RULE, None, X), r"q must be Jagged; got ndarray"),
        (
            lambda: CACHE.append([(SEQUENCE, 70)]),
            r"\[KVCache::append\] each of sequences must be a SequenceId; got tuple",
        ),
        (lambda: CACHE.append(3), r"sequences must be a SequenceId or a list of them; got int 3"),
        (lambda: CACHE.append(SEQUENCE, 1.5), r"\[KVCache::append\] counts must be an int; got float 1.5"),
        (lambda: CACHE.append([SEQUENCE], ["1"]), r"each of counts must be an int; got str '1'"),
        (lambda: CACHE.append([SEQUENCE], ids=3), r"ids must be a list with ids for each of sequences; got int 3"),
        (lambda: CACHE.truncate(SEQUENCE, "3"), r"\[KVCache.truncate\] length must be an int; got str '3'"),
        (lambda: CACHE.truncate(3, 3), r"\[KVCache.truncate\] sequence must be a SequenceId; got int 3"),
        (
            lambda: quire.KVCache(layers="1", kv_heads=1, head_dim=8),
            r"\[KVCache\] layers must be an int or None; got str '1'",
        ),
        (lambda: quire.KVCache(layer=1), r"\[KVCache\] there is no argument 'layer'; layers may be meant"),
        (lambda: quire.ScoreMod(), r"\[ScoreMod\] mod is missing"),
        (
            lambda: quire.ScoreMod("score + x[h]", [1]),
            "the buffers of a mod must be a dict of arrays by name; got list",
        ),
        (lambda: quire.ScoreMod("score + x[h]", {1: X}), "the name of a buffer must be a str; got int 1"),
        (lambda: quire.Buffer(X, 3), r"\[Buffer\] name must be a str; got int 3"),
        (lambda: quire.mods.softcap("x"), r"\[softcap\] cap must be a number; got str 'x'"),
        (lambda: quire.mods.sliding_window(3, "2"), r"\[sliding_window\] right must be an int; got str '2'"),
        (lambda: quire.mods.alibi(1 << 70), "must be an int of 64 bits"),
        (lambda: quire.draw(RULE, "8"), r"\[draw\] q_len must be an int; got str '8'"),
        (lambda: quire.draw(RULE, 8, title=3), r"\[draw\] title must be a str; got int 3"),
        (lambda: quire.draw(RULE, 8, width="x"), r"\[draw\] width must be an int; got str 'x'"),
        (lambda: quire.tanh(), r"\[tanh\] x is missing"),
        (lambda: quire.PagedAttention("8", 16, 2), r"\[PagedAttention\] n_pages must be an int; got str '8'"),
        (lambda: MASK[:"2"], r"stop must be an int; got str '2'"),
    ],
)
def test_texts(call, text):
    with pytest.raises((TypeError, ValueError), match=text):
        call()


@pytest.mark.parametrize("make", [quire.create_block_mask, quire.create_mask])
def test_devices(make):
    for device in ("cpu", None, "cpu:0"):
        assert make(RULE, None, None, 8, 8, device=device).shape == (1, 1, 8, 8)
    with pytest.raises(ValueError, match=rf"\[{make.__name__}\] there is no device but 'cpu'; got 'cuda'"):
        make(RULE, None, None, 8, 8, device="cuda")


def test_what_is_wrapped_stays_what_it_was():
    assert str(inspect.signature(quire.mods.chunked)) == "(size: 'int', is_causal: 'bool' = True)"
    assert pickle.loads(pickle.dumps(quire.create_block_mask)) is quire.create_block_mask
    assert quire.create_block_mask.__doc__.splitlines()[0].startswith("create_block_mask(mask_mod: object")
    assert np.array_equal(quire.flex_attention(X, X, X, enable_gqa=np.True_), quire.flex_attention(X, X, X))
    counts = CACHE.length(SEQUENCE)
    CACHE.append([SEQUENCE], np.array([2]))
    CACHE.append([SEQUENCE], np.int64(1))
    assert CACHE.length(SEQUENCE) == counts + 3
