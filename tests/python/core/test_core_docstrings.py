"""Every public name of quire and quire.mods has an example in its docstring, and prints what the example shows. What a
notebook or a prompt shows of an object says what is in it."""

import doctest

import numpy as np
import pytest
import quire

OPERATORS = ["abs", "pow", "round", "sum"]  # in quire, and left out of __all__ for Python's own
NAMES = [name for name in quire.__all__ if name != "__version__"] + OPERATORS
NAMES += [f"mods.{name}" for name in quire.mods.__all__]


def public(name):
    found = quire
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_there_are_names():
    assert {"flex_attention", "KVCache", "attend", "where", "mods", "mods.causal"} <= set(NAMES)
    assert not set(OPERATORS) & set(quire.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_prints_what_it_shows(name):
    test = doctest.DocTestParser().get_doctest(public(name).__doc__, {}, name, None, 0)
    assert test.examples
    output = []
    assert doctest.DocTestRunner().run(test, out=output.append).failed == 0, "".join(output)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_uses_the_name(name):
    last = name.split(".")[-1]
    sources = "".join(example.source for example in doctest.DocTestParser().get_examples(public(name).__doc__))
    # These are met through what makes them.
    through = {
        "AuxOutput": "AuxRequest",
        "Gradients": "flex_attention_vjp",
        "Expr": "ScoreMod",
        "BufferSlice": "Buffer",
    }
    through |= {
        "BlockMask": "create_block_mask",
        "JaggedBlockMask": "create_jagged_block_mask",
        "KVCacheStats": "stats()",
    }
    through |= {"SequenceId": "cache.create()", "GalleryEntry": "gallery_entry"}
    through |= {"create_nested_block_mask": "create_jagged_block_mask"}
    assert through.get(last, last) in sources


def shown():
    cache = quire.KVCache(layers=1, kv_heads=2, head_dim=8, page_size=4, n_pages=8)
    tokens = quire.Jagged.pack([np.zeros((n, 2, 8), np.float32) for n in (3, 5)])
    yield quire.mods.causal(), "q_idx >= kv_idx"
    yield quire.mods.softcap(30.0), "30.0 * tanh(score / 30.0)"
    yield quire.Buffer(np.zeros((2, 3), np.float32), "table"), "table: f32 [2, 3]"
    yield quire.create_block_mask(quire.mods.causal(), None, None, 64, 64), "shape=(1, 1, 64, 64)"
    yield tokens, "2 sequences, values (8, 2, 8)"
    yield quire.create_jagged_block_mask(quire.mods.causal(), None, tokens), "2"
    yield cache, "0 of 8 pages of 4 tokens"
    yield cache.stats(), "0 of 8 pages used"
    yield cache.create(), "slot=0"
    yield quire.PagedAttention(8, 4, 3), "0 of 8 pages of 4 tokens used, 0 of 3 sequences"
    yield quire.mods.gallery_entry("alibi"), "alibi"


@pytest.mark.parametrize(
    "thing, text", list(shown()), ids=lambda one: type(one).__name__ if not isinstance(one, str) else ""
)
def test_what_a_prompt_shows(thing, text):
    assert text in repr(thing) and " object at 0x" not in repr(thing)
    assert repr(thing).startswith(
        f"quire.{'mods.' if type(thing).__name__ == 'GalleryEntry' else ''}{type(thing).__name__}("
    )


@pytest.mark.parametrize("thing", [quire.mods.causal(), quire.mods.softcap(30.0), quire.mods.alibi(4)], ids=str)
def test_what_a_notebook_shows_of_a_mod(thing):
    assert thing._repr_svg_().startswith("<svg")


@pytest.mark.parametrize("length, drawn", [(100, 64), (63, 32), (20, 16), (8, 8), (7, None)])
def test_a_mod_with_a_short_table_is_drawn_as_far_as_it_goes(length, drawn):
    picture = quire.mods.document(np.zeros(length, np.int32))._repr_svg_()
    assert (picture is None) == (drawn is None)
    assert drawn is None or f"{drawn} queries" in picture


def test_what_a_notebook_shows_of_a_mask():
    assert quire.create_block_mask(quire.mods.causal(), None, None, 64, 64)._repr_svg_().startswith("<svg")
