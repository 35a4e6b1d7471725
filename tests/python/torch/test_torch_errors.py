"""Errors: torch's exception types, texts that say what is wrong."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal


def t(*shape, **options):
    return torch.randn(*shape, **options)


Q = t(2, 4, 16, 8)


def mask(module, *sizes, mod=causal, **options):
    return module.create_block_mask(mod, *sizes, device="cpu", **options)


def sliced(module):
    return mask(module, 1, 1, 16, 16)[0]


OUTSIDE = torch.arange(4)

# name, call(module), text of Quire's error
CASES = [
    ("head dim", lambda m: m.flex_attention(Q, t(2, 4, 16, 9), Q), "same head dim; got 8 and 9"),
    ("rank 3", lambda m: m.flex_attention(Q[0], Q[0], Q[0]), r"must be \[batch, heads, length, dim\]"),
    ("rank 1", lambda m: m.flex_attention(Q[0, 0, 0], Q[0, 0, 0], Q[0, 0, 0]), "at least 2 axes; got 1, 1 and 1"),
    ("heads", lambda m: m.flex_attention(Q, Q[:, :2], Q[:, :2]), "enable_gqa must be set; got 4 and 2"),
    ("groups", lambda m: m.flex_attention(Q, Q[:, :3], Q[:, :3], enable_gqa=True), "multiple of kv_heads; got 4 and 3"),
    ("batch", lambda m: m.flex_attention(Q, Q[:1], Q[:1]), "or there must be a block mask; got 2 and 1"),
    (
        "batch of the mask",
        lambda m: m.flex_attention(Q, Q[:1], Q[:1], block_mask=mask(m, 1, 1, 16, 16)),
        "must have the same batch size; got 2, 1 and 1",
    ),
    ("value length", lambda m: m.flex_attention(Q, Q, Q[:, :, :15]), "same batch, heads and length"),
    ("value heads", lambda m: m.flex_attention(Q, Q, Q[:, :2]), "same batch, heads and length"),
    (
        "mask too short",
        lambda m: m.flex_attention(t(2, 4, 17, 8), Q, Q, block_mask=mask(m, 1, 1, 16, 16)),
        "block_mask was created for 16 queries and 16 keys; got 17 and 16",
    ),
    (
        "mask too long",
        lambda m: m.flex_attention(Q[:, :, :15], Q, Q, block_mask=mask(m, 1, 1, 16, 16)),
        "block_mask was created for 16 queries and 16 keys; got 15 and 16",
    ),
    (
        "sliced",
        lambda m: m.flex_attention(Q, Q, Q, block_mask=sliced(m)),
        "Cannot use mask_mod from a sliced BlockMask",
    ),
    (
        "mask on another device",
        lambda m: m.flex_attention(Q, Q, Q, block_mask=mask(m, 1, 1, 16, 16).to("meta")),
        "block mask .* on meta",
    ),
    (
        "lse twice",
        lambda m: m.flex_attention(Q, Q, Q, return_lse=True, return_aux=m.AuxRequest()),
        "give return_lse or return_aux, not both",
    ),
    ("backend", lambda m: m.flex_attention(Q, Q, Q, kernel_options={"BACKEND": "X"}), "one of AUTO, .*; got 'X'"),
    (
        "backend twice",
        lambda m: m.flex_attention(Q, Q, Q, kernel_options={"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}),
        "not both",
    ),
    ("internal option", lambda m: m.flex_attention(Q, Q, Q, kernel_options={"OUTPUT_MAX": True}), "is not an option"),
    ("too few arguments", lambda m: m.flex_attention(Q, Q, Q, lambda s, b, h, q: s), "argument"),
    ("too many arguments", lambda m: m.flex_attention(Q, Q, Q, lambda s, b, h, q, kv, x: s), "argument"),
    ("branch", lambda m: m.flex_attention(Q, Q, Q, lambda s, b, h, q, kv: s if q > 3 else s * 2), "truth of a traced"),
    (
        "index outside",
        lambda m: m.flex_attention(Q, Q, Q, lambda s, b, h, q, kv: s + OUTSIDE[q]),
        "index 4 .*OUTSIDE.* 4",
    ),
    ("other device", lambda m: m.flex_attention(Q, Q.to("meta"), Q.to("meta")), "same device; got cpu, meta and meta"),
    ("meta", lambda m: m.flex_attention(Q.to("meta"), Q.to("meta"), Q.to("meta")), "on the CPU; got tensors on meta"),
    ("mask of a score mod", lambda m: mask(m, 1, 1, 8, 8, mod=lambda s, b, h, q, kv: s), "takes 4 arguments"),
    ("mask of 3 arguments", lambda m: mask(m, 1, 1, 8, 8, mod=lambda b, h, q: q), "takes 4 arguments .*; got 3"),
    ("create_mask of 3", lambda m: m.create_mask(lambda b, h, q: q, 1, 1, 8, 8, device="cpu"), "takes 4 .*; got 3"),
    ("mask branch", lambda m: mask(m, 1, 1, 8, 8, mod=lambda b, h, q, kv: q if q > 3 else kv), "truth of a traced"),
    ("mask outside", lambda m: mask(m, 1, 1, 8, 8, mod=lambda b, h, q, kv: OUTSIDE[q] >= kv), "index 4 .*OUTSIDE.* 4"),
    ("dq_kv_order", lambda m: mask(m, 1, 1, 8, 8, dq_kv_order=3), "must be a bool; got int"),
    ("and_masks", lambda m: m.and_masks(causal, 3), "callable mask_mods"),
    ("or_masks", lambda m: m.or_masks("x"), "callable mask_mods"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_same_exception_type_as_torch(case):
    _, call, text = case
    with pytest.raises(Exception) as theirs:
        call(torch_flex)
    kind = next(c for c in type(theirs.value).__mro__ if c.__module__ == "builtins")
    with pytest.raises(kind, match=text):
        call(quire_torch)


def test_gradients_are_recorded_where_torch_refuses():
    leaf = Q.clone().requires_grad_()
    bias = torch.zeros(16, requires_grad=True)

    def biased(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx]

    for arguments in [(leaf, Q, Q), (Q, leaf, Q), (Q, Q, leaf), (Q, Q, Q, biased)]:
        if len(arguments) == 3:
            with pytest.raises(NotImplementedError):
                torch_flex.flex_attention(*arguments)
        recorded = quire_torch.flex_attention(*arguments)
        with torch.no_grad():
            out = quire_torch.flex_attention(*arguments)
        with torch.inference_mode():
            assert torch.equal(quire_torch.flex_attention(*arguments), out)
        assert recorded.requires_grad and not out.requires_grad
        assert torch.equal(recorded, out)


def test_dtypes_that_quire_does_not_have():
    with pytest.raises(TypeError, match="query must be f32, f64, bf16 or f16; got i32"):
        quire_torch.flex_attention(Q.int(), Q, Q)
    with pytest.raises(TypeError, match="no tensors of torch.complex64"):
        quire_torch.flex_attention(Q, Q.to(torch.complex64), Q)
    table = torch.zeros(16, dtype=torch.complex64)
    with pytest.raises((TypeError, RuntimeError)):
        quire_torch.flex_attention(Q, Q, Q, lambda s, b, h, q, kv: s + table[q].real)


def test_what_is_no_tensor_or_mask():
    with pytest.raises(TypeError, match="query must be a tensor; got list"):
        quire_torch.flex_attention([1], Q, Q)
    with pytest.raises(TypeError, match="block_mask must be a BlockMask; got Tensor"):
        quire_torch.flex_attention(Q, Q, Q, block_mask=torch.ones(16, 16))
    with pytest.raises(NotImplementedError, match="all be nested tensors, or none of them"):
        quire_torch.flex_attention(Q, torch.nested.nested_tensor([Q[0], Q[1]]), Q)
    with pytest.raises(ValueError, match="ragged on axis 2; query has 4 axes and is ragged on axis 1"):
        nested = torch.nested.nested_tensor([Q[0], Q[1]], layout=torch.jagged)
        quire_torch.flex_attention(nested, nested, nested)


def test_masks_that_do_not_fit_in_batch_or_heads():
    many = Q[:1, :1].expand(4, 4, -1, -1)
    for sizes in [(3, 1), (1, 3)]:
        with pytest.raises(
            ValueError, match="the block mask must have .* or 4 or more, as the query; got 3|of 4 or more"
        ):
            quire_torch.flex_attention(many, many, many, block_mask=mask(quire_torch, *sizes, 16, 16))


def test_gpu_options_are_ignored():
    options = {"BLOCK_M": 64, "num_warps": 4, "PRESCALE_QK": True, "BACKEND": "TRITON", "unheard of": 1}
    expected = quire_torch.flex_attention(Q, Q, Q)
    assert torch.equal(quire_torch.flex_attention(Q, Q, Q, kernel_options=options), expected)
    assert "OUTPUT_MAX" not in options


def test_sizes_of_masks():
    with pytest.raises(ValueError, match="create_block_mask"):
        mask(quire_torch, 1, 1, -16, 16)
    with pytest.raises(ValueError, match="create_block_mask"):
        mask(quire_torch, 1, 1, 16, 16, BLOCK_SIZE=0)
