"""Names, signatures and classes are torch's."""

import inspect
import os
import pathlib
import pickle
import subprocess
import sys

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from torch.utils import _pytree as pytree


@pytest.mark.parametrize("name", torch_flex.__all__)
def test_every_public_name_of_torch_is_there(name):
    assert hasattr(quire_torch, name)
    assert name in quire_torch.__all__


@pytest.mark.parametrize(
    "name", ["flex_attention", "create_block_mask", "create_mask", "and_masks", "or_masks", "noop_mask", "AuxRequest"]
)
def test_signatures_are_equal(name):
    ours = inspect.signature(getattr(quire_torch, name))
    own = {
        "flex_attention": "dropout_p seed sinks lse_with_sinks weight_mod normalize rope key_indices".split(),
        "AuxRequest": ["key_weights", "entropy", "key_weights_queries"],
    }.get(name, [])  # keywords that torch does not have
    assert all(ours.parameters[one].kind is inspect.Parameter.KEYWORD_ONLY for one in own)
    shared = [one for one in ours.parameters.values() if one.name not in own]
    theirs = inspect.signature(getattr(torch_flex, name))
    if name == "AuxRequest":  # a class of its own: names, kinds and defaults count
        shared = [one.replace(annotation=inspect.Parameter.empty) for one in shared]
        ours = ours.replace(return_annotation=inspect.Signature.empty)
        bare = [one.replace(annotation=inspect.Parameter.empty) for one in theirs.parameters.values()]
        theirs = theirs.replace(parameters=bare)
    assert ours.replace(parameters=shared) == theirs


@pytest.mark.parametrize(
    "name",
    "__init__ from_kv_blocks as_tuple numel sparsity to_dense to_string __str__ __repr__ __getitem__ _adjust to".split(),
)
def test_methods_of_block_mask_take_the_same_arguments(name):
    ours = inspect.signature(getattr(quire_torch.BlockMask, name)).parameters
    theirs = inspect.signature(getattr(torch_flex.BlockMask, name)).parameters
    assert ours == theirs


def test_block_mask_is_a_subclass():
    assert issubclass(quire_torch.BlockMask, torch_flex.BlockMask)
    assert quire_torch.BlockMask is not torch_flex.BlockMask


def test_block_mask_is_a_pytree():
    doc = torch.arange(256) // 100
    mask = quire_torch.create_block_mask(lambda b, h, q, kv: doc[q] == doc[kv], None, None, 256, 256)
    leaves, spec = pytree.tree_flatten({"mask": mask})
    assert any(leaf is doc for leaf in leaves)
    again = pytree.tree_unflatten(leaves, spec)["mask"]
    assert type(again) is quire_torch.BlockMask
    query = torch.randn(1, 1, 256, 16)
    expected = quire_torch.flex_attention(query, query, query, block_mask=mask)
    assert torch.equal(quire_torch.flex_attention(query, query, query, block_mask=again), expected)


def test_copies_and_pickles():
    import copy

    mask = quire_torch.create_block_mask(quire_torch.noop_mask, 2, None, 300, 200, BLOCK_SIZE=(64, 32))
    for again in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert type(again) is quire_torch.BlockMask
        assert again.shape == mask.shape
        assert str(again) == str(mask)
        assert torch.equal(again.q_indices, mask.q_indices)
    copied = copy.deepcopy(mask)
    copied.kv_num_blocks.zero_()
    assert mask.kv_num_blocks.sum() > 0


def test_import_does_not_import_the_compiler():
    code = "import sys, quire.torch; print([m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules])"
    path = str(pathlib.Path(quire_torch.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    out = run.stdout
    assert out.strip() == "[]"
