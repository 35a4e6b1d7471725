"""Every mod of quire.mods and of the gallery: its text, read as Python over torch tensors, gives the same attention in
torch, in quire.torch as a function, and in quire.torch as quire's own object."""

import numpy
import pytest
import quire
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import check, tensors

BATCH, HEADS, Q_LEN, KV_LEN = 2, 4, 64, 64
IDS = numpy.repeat(numpy.arange(4, dtype=numpy.int32), 16)


def library():
    mods = quire.mods
    rng = numpy.random.default_rng(0)
    return {
        "causal": mods.causal(),
        "causal_bottom_right": mods.causal_bottom_right(Q_LEN, KV_LEN),
        "sliding_window": mods.sliding_window(9),
        "sliding_window both": mods.sliding_window(9, 3),
        "document": mods.document(IDS),
        "document_from_offsets": mods.document_from_offsets(numpy.array([0, 10, 40, 64], dtype=numpy.int32)),
        "prefix_lm": mods.prefix_lm(10),
        "prefix_lm per batch": mods.prefix_lm(numpy.array([5, 20], dtype=numpy.int32)),
        "padding": mods.padding(numpy.array([50, 30], dtype=numpy.int32)),
        "shared_prefix": mods.shared_prefix(8, IDS),
        "tree": mods.tree(numpy.array([-1] + [i // 2 for i in range(59)], dtype=numpy.int32), 4),
        "attention_sink": mods.attention_sink(4),
        "streaming": mods.streaming(4, 16),
        "chunked": mods.chunked(16),
        "chunked both ways": mods.chunked(16, False),
        "alibi": mods.alibi(HEADS),
        "softcap": mods.softcap(20.0),
        "relative_bias": mods.relative_bias(rng.standard_normal((HEADS, 2 * KV_LEN - 1), dtype=numpy.float32)),
        "bias_2d": mods.bias_2d(rng.standard_normal((Q_LEN, KV_LEN), dtype=numpy.float32)),
    }


def gallery():
    sizes = dict(q_len=Q_LEN, kv_len=KV_LEN, heads=HEADS, batch=BATCH)
    return {entry.name: entry.mod(**sizes) for entry in quire.mods.gallery()}


MODS = {**library(), **{f"gallery {name}": mod for name, mod in gallery().items()}}


def tensor(value, like=None):
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def promoted(function):
    return lambda a, b: function(*torch.broadcast_tensors(tensor(a), tensor(b)))


LANGUAGE = {
    "where": lambda c, a, b: torch.where(c, a, b),
    "abs": torch.abs,
    "minimum": promoted(torch.minimum),
    "maximum": promoted(torch.maximum),
    "clamp": lambda x, low, high: torch.clamp(x, low, high),
    "int": lambda x: tensor(x).to(torch.int64),
    "float": lambda x: tensor(x).to(torch.float32),
    "bool": lambda x: tensor(x).to(torch.bool),
    "inf": float("inf"),
    "dot": torch.dot,
    "sum": torch.sum,
    "sigmoid": torch.sigmoid,
    **{name: getattr(torch, name) for name in "exp exp2 log log2 log1p sqrt tanh floor ceil sign cos sin".split()},
}


def as_function(mod):
    """The text as the body of a Python function."""
    arguments = "b, h, q_idx, kv_idx" if isinstance(mod, quire.MaskMod) else "score, b, h, q_idx, kv_idx"
    *bindings, result = [part.strip() for part in mod.text.split(";")]
    lines = [f"def mod({arguments}):", *(f"  {line}" for line in bindings), f"  return {result}"]
    names = {**LANGUAGE, **{name: torch.as_tensor(numpy.asarray(buffer)) for name, buffer in mod.buffers.items()}}
    exec("\n".join(lines), names)
    return names["mod"]


@pytest.mark.parametrize("name", MODS)
def test_as_text_function_and_object(name):
    mod, function = MODS[name], as_function(MODS[name])
    query, key, value = tensors(BATCH, HEADS, HEADS, Q_LEN, KV_LEN, 16, 16)
    if isinstance(mod, quire.ScoreMod):
        result = quire_torch.flex_attention(query, key, value, function, return_lse=True)
        check(result, query, key, value, function)
        own = quire_torch.flex_attention(query, key, value, mod)
    else:
        theirs = torch_flex.create_block_mask(function, BATCH, HEADS, Q_LEN, KV_LEN, device="cpu", BLOCK_SIZE=16)
        for given in (mod, function):
            mask = quire_torch.create_block_mask(given, BATCH, HEADS, Q_LEN, KV_LEN, BLOCK_SIZE=16)
            assert torch.equal(mask.kv_indices, theirs.kv_indices) and torch.equal(
                mask.full_q_indices, theirs.full_q_indices
            )
            assert torch.equal(
                quire_torch.create_mask(given, BATCH, HEADS, Q_LEN, KV_LEN),
                torch_flex.create_mask(function, BATCH, HEADS, Q_LEN, KV_LEN, device="cpu"),
            )
            result = quire_torch.flex_attention(query, key, value, block_mask=mask, return_lse=True)
            check(result, query, key, value, None, theirs)
        own = quire_torch.flex_attention(query, key, value, block_mask=theirs)
    assert torch.allclose(own, result[0], atol=1e-6)
