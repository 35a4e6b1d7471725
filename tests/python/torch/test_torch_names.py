"""Names, signatures and classes are torch's."""

import ast
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
from quire.torch import torch_names
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


# ---- private names of torch


def _is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def _chain(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None


def private_names(source):
    """Dotted names of torch with a private part that a source imports or reads, the longest of each chain."""
    tree, names, found = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "torch":
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
                found.add(f"{node.module}.{one.name}")
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "torch":
                    names[one.asname or "torch"] = one.name if one.asname else "torch"
                    found.add(one.name)
    chains = {_chain(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)} - {None}
    longest = {one for one in chains if not any(other != one and other[: len(one)] == one for other in chains)}
    found |= {".".join((names.get(one[0], one[0]), *one[1:])) for one in longest}
    return {name for name in found if name.startswith("torch.") and _is_private(name)}


def test_every_private_name_is_listed():
    package = pathlib.Path(quire_torch.__file__).parents[1]
    found = set()
    for folder in ("torch", "flash_attn", "transformers"):
        for path in (package / folder).rglob("*.py"):
            if path.name != "torch_names.py":
                found |= private_names(path.read_text())
    listed = torch_names.NEEDED | torch_names.FOR_COMPILE | torch_names.FOR_TRANSFORMS | torch_names.FOR_TYPES
    listed |= torch_names.FOR_DISTRIBUTED
    assert found - listed == set() and listed - found == set()
    for name in (listed | torch_names.OPTIONAL) - torch_names.FOR_TYPES:
        torch_names.find(name)


def test_a_missing_name_and_an_untested_version_are_said(monkeypatch):
    with pytest.warns(UserWarning, match=r"not tested with torch 2\.99"):
        monkeypatch.setattr(torch, "__version__", "2.99.0")
        torch_names.check()
    monkeypatch.setattr(torch_names, "NEEDED", frozenset(["torch._C._no_such_name"]))
    with pytest.raises(ImportError, match="uses torch._C._no_such_name, which torch 2.99.0 has not"):
        torch_names.check()
