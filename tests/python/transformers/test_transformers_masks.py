"""quire_mask against the dense mask that transformers makes of the same arguments."""

import pytest
import quire.torch
import quire.transformers
import torch
from quire.transformers.masks import ModelMask, quire_mask
from transformers import masking_utils
from transformers.masking_utils import and_masks, causal_mask_function, or_masks, sdpa_mask

GROUPS = (torch.arange(400).repeat(3, 1) // 37) - 2

FUNCTIONS = {
    "causal": causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(9),
    "two_sided_window": masking_utils.sliding_window_bidirectional_mask_function(9),
    "chunks": masking_utils.chunked_causal_mask_function(16, torch.tensor([0, 5, 11])),
    "packed": and_masks(causal_mask_function, masking_utils.packed_sequence_mask_function(GROUPS)),
    "images": or_masks(causal_mask_function, masking_utils.blockwise_overlay(GROUPS)),
    "users": and_masks(causal_mask_function, lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 3 != 1),
}

SIZES = ((1, 1, 0, 0), (23, 23, 0, 0), (1, 57, 56, 0), (5, 150, 180, 30), (140, 300, 99, 0))


def dense(mask, sizes):
    return quire.torch.create_mask(mask.mask_mod, sizes[0], None, *sizes[1:])


def test_a_step_with_a_window():
    """A rule over a cache that grows, which may skip masks; bools where the cache may be static and the pass compiled."""
    window = masking_utils.sliding_window_causal_mask_function(9)
    step = dict(batch_size=2, q_length=1, kv_length=9, q_offset=40, kv_offset=32, mask_function=window, local_size=9)
    mask = quire_mask(**step)
    assert isinstance(mask, ModelMask) and dense(mask, (2, 1, 9)).all()
    wider = quire_mask(**{**step, "kv_length": 30, "kv_offset": 11})
    assert torch.equal(dense(wider, (2, 1, 30))[0, 0, 0], torch.arange(11, 41) > 31)
    assert quire_mask(**step, allow_is_causal_skip=False).dtype is torch.bool
    assert quire_mask(**{**step, "q_offset": torch.tensor(40)}).dtype is torch.bool


@pytest.mark.parametrize("pad", ["left", "right", "short", "none"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_rule_is_that_of_transformers(name, pad):
    for q_len, kv_len, q_offset, kv_offset in SIZES:
        padding = torch.ones(3, kv_len + kv_offset, dtype=torch.bool)
        if pad == "left":
            padding[1, : kv_len // 2] = False
        elif pad == "right":
            padding[1, -kv_len // 2 :] = False
        elif pad == "short":  # as of a static cache: the rest is not written yet
            padding = padding[:, : (kv_len + kv_offset + 1) // 2]
        arguments = dict(
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=FUNCTIONS[name],
            attention_mask=None if pad == "none" else padding,
            allow_is_causal_skip=False,
        )
        mask = quire_mask(3, q_len, kv_len, **arguments)
        expected = sdpa_mask(3, q_len, kv_len, **arguments).expand(3, 1, q_len, kv_len)
        assert isinstance(mask, ModelMask) and mask.shape == (3, 1, q_len, kv_len)
        assert torch.equal(dense(mask, (3, q_len, kv_len)), expected)
        q, k = torch.randn(3, 1, q_len, 8), torch.randn(3, 1, kv_len, 8)
        out = quire.torch.flex_attention(q, k, torch.eye(kv_len).expand(3, 1, -1, -1), block_mask=mask)
        assert torch.equal(out != 0, expected)


def test_no_mask_where_everything_is_seen():
    full = torch.ones(2, 30, dtype=torch.bool)
    step = dict(batch_size=2, q_length=1, kv_length=30, q_offset=29)
    assert quire_mask(**step) is None and quire_mask(**step, attention_mask=full) is None
    assert quire_mask(**step, allow_is_causal_skip=False) is not None
    assert quire_mask(**step, attention_mask=full.clone().index_fill_(1, torch.tensor(0), False)) is not None
    assert quire_mask(**step, local_size=8) is not None
    assert quire_mask(**{**step, "kv_length": 40}) is not None  # keys behind the query
    encoder = dict(batch_size=2, q_length=30, kv_length=30, allow_is_bidirectional_skip=True)
    assert quire_mask(**encoder, attention_mask=full) is None
    assert quire_mask(**encoder, local_size=8) is not None


def test_an_offset_that_a_static_cache_counts_up_later():
    offset = torch.tensor(7)
    mask = quire_mask(1, 3, 20, q_offset=offset)
    offset += 3
    assert torch.equal(dense(mask, (1, 3, 20)), sdpa_mask(1, 3, 20, q_offset=7, allow_is_causal_skip=False))
    assert mask.contiguous() is mask


def test_steps_of_decoding_have_one_formula(monkeypatch):
    """A new formula costs a millisecond to trace."""
    formulas, bind = set(), quire.transformers.masks.bind_mask_mod

    def listening(rule):
        bound = bind(rule)
        formulas.add(bound.key)
        return bound

    monkeypatch.setattr(quire.transformers.masks, "bind_mask_mod", listening)
    padding = torch.ones(2, 256, dtype=torch.bool)
    padding[0, :5] = False
    for n in range(20, 256):
        window = masking_utils.sliding_window_causal_mask_function(9)
        mask = quire_mask(2, 1, 9, n - 1, n - 9, window, padding[:, :n], allow_is_causal_skip=False)
        assert dense(mask, (2, 1, 9)).all() == (n >= 14)
    assert len(formulas) == 1


def test_a_function_that_is_no_formula_gives_a_dense_mask():
    def odd(b, h, q_idx, kv_idx):
        return torch.special.bessel_j0((q_idx + kv_idx).float()) > 0

    arguments = dict(mask_function=odd, q_offset=2)
    with pytest.raises(quire.torch.TraceError):
        quire.torch.create_block_mask(odd, 2, None, 5, 9)
    assert torch.equal(quire_mask(2, 5, 9, **arguments), sdpa_mask(2, 5, 9, **arguments, allow_is_causal_skip=False))
