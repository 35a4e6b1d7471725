"""Every name of quire.torch that is Quire's own, and of quire.flash_attn, has an example in its docstring, and prints what the example shows."""

import doctest

import pytest
import quire.flash_attn
import quire.flash_attn.bert_padding
import quire.torch

FLASH = [(quire.flash_attn, name) for name in quire.flash_attn.__all__] + [
    (quire.flash_attn.bert_padding, name)
    for name, one in vars(quire.flash_attn.bert_padding).items()
    if callable(one) and one.__module__ == "quire.flash_attn.bert_padding" and not name.startswith("_")
]
OWN = [name for name in quire.torch.__all__ if getattr(quire.torch, name).__module__.startswith("quire.")]


def test_there_are_names():
    assert {"flex_attention", "create_block_mask", "BlockMask", "enable"} <= set(OWN)


@pytest.mark.parametrize("module, name", [(quire.torch, name) for name in OWN] + FLASH)
def test_the_example_prints_what_it_shows(module, name):
    test = doctest.DocTestParser().get_doctest(getattr(module, name).__doc__, {}, name, None, 0)
    assert test.examples
    output = []
    assert doctest.DocTestRunner().run(test, out=output.append).failed == 0, "".join(output)


def test_what_a_notebook_shows_of_a_mask():
    mask = quire.torch.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 512, 512)
    picture = mask._repr_svg_()
    assert picture.startswith("<svg") and "512 queries" in picture
    mask.full_kv_num_blocks.zero_()  # what is edited is drawn
    assert mask._repr_svg_() != picture
    assert (
        quire.torch.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 0, 5)._repr_svg_()
        is None
    )
