"""Random masks, block sizes and parts against torch's own BlockMask, entry by entry."""

import hypothesis.strategies as st
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from hypothesis import HealthCheck, given, settings
from test_torch_block_mask import assert_same

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def masks(draw):
    """A mask of random rectangles, and its block size: empty, full and partial blocks in any order."""
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 60)), draw(st.integers(1, 60))]
    visible = torch.zeros(shape, dtype=torch.bool)
    for _ in range(draw(st.integers(0, 6))):
        index = []
        for size in shape:
            begin = draw(st.integers(0, size))
            index.append(slice(begin, draw(st.integers(begin, size))))
        visible[tuple(index)] ^= True
    return visible, (draw(st.integers(1, 40)), draw(st.integers(1, 40)))


def both(visible, block_size, **options):
    def mod(b, h, q_idx, kv_idx):
        return visible[b, h, q_idx, kv_idx]

    return (
        quire_torch.create_block_mask(mod, *visible.shape, BLOCK_SIZE=block_size, **options),
        torch_flex.create_block_mask(mod, *visible.shape, device="cpu", BLOCK_SIZE=block_size, **options),
    )


@FEW
@given(masks(), st.booleans(), st.data())
def test_index_tensors_texts_and_parts(case, separate, data):
    visible, block_size = case
    ours, theirs = both(visible, block_size, separate_full_blocks=separate)
    assert_same(ours, theirs)
    assert str(ours) == str(theirs)
    batch, heads, rows = theirs.kv_num_blocks.shape
    b = data.draw(st.integers(-batch, batch - 1))
    h = data.draw(st.one_of(st.integers(-heads, heads - 1), st.just(slice(None))))
    at = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4))
    index = (b, h, torch.tensor(at))
    assert_same(ours[index], theirs[index])
    again = quire_torch.BlockMask.from_kv_blocks(
        theirs.kv_num_blocks,
        theirs.kv_indices,
        theirs.full_kv_num_blocks,
        theirs.full_kv_indices,
        BLOCK_SIZE=block_size,
        seq_lengths=theirs.seq_lengths,
    )
    assert_same(again, theirs)


@FEW
@given(masks())
def test_attention(case):
    visible, block_size = case
    batch, heads, q_len, kv_len = visible.shape
    query, key = torch.randn(batch, heads, q_len, 8), torch.randn(batch, heads, kv_len, 8)
    scores = (query.double() @ key.double().mT / 8**0.5).masked_fill(~visible, -torch.inf)
    expected = torch.nan_to_num(scores.softmax(-1)) @ key.double()
    for mask in both(visible, block_size):
        out, aux = quire_torch.flex_attention(
            query, key, key, block_mask=mask, return_aux=quire_torch.AuxRequest(lse=True)
        )
        assert torch.allclose(out.double(), expected, atol=1e-5)
        assert torch.allclose(aux.lse.double(), scores.logsumexp(-1), atol=1e-5)
