"""Every name of quire.torch that is Quire's own has an example in its docstring, and prints what the example shows."""

import doctest

import pytest

import quire.torch

OWN = [name for name in quire.torch.__all__ if getattr(quire.torch, name).__module__.startswith("quire.")]


def test_there_are_names():
    assert {"flex_attention", "create_block_mask", "BlockMask", "enable"} <= set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_the_example_prints_what_it_shows(name):
    test = doctest.DocTestParser().get_doctest(getattr(quire.torch, name).__doc__, {}, name, None, 0)
    assert test.examples
    output = []
    assert doctest.DocTestRunner().run(test, out=output.append).failed == 0, "".join(output)
