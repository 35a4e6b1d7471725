"""Calls that share a mask share its plan: each has the bits of a call with a mask of its own, whatever came between."""

import gc
import threading
import weakref

import pytest
import quire
import torch
from quire.torch import create_block_mask, flex_attention

LENGTHS = (300, 17, 1)


def tensors(seed, q_len=2, kv_len=300, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 4, q_len, 32), (3, 2, kv_len, 32), (3, 2, kv_len, 32))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def make_mask(lengths, q_len=2, kv_len=300):
    def rule(b, h, q_idx, kv_idx):
        return kv_idx < lengths[b] + q_idx

    return create_block_mask(rule, 3, None, q_len, kv_len, device="cpu")


def call(q, k, v, mask, **options):
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True, **options)


def fresh(q, k, v, lengths, **options):
    return call(q, k, v, make_mask(lengths, q.shape[2], k.shape[2]), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_tensors_of_the_same_sizes(dtype):
    lengths = torch.tensor(LENGTHS)
    mask = make_mask(lengths)
    for seed in range(4):
        q, k, v = tensors(seed, dtype=dtype)
        assert torch.equal(call(q, k, v, mask), fresh(q, k, v, lengths))
        strided = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v)]
        assert torch.equal(call(*strided, mask), fresh(q, k, v, lengths))


def test_what_differs_between_two_calls_is_noticed():
    lengths = torch.tensor(LENGTHS)
    mask = make_mask(lengths)
    q, k, v = tensors(0)
    calls = [
        (tensors(1), {}),
        (tensors(1), {"scale": 0.5}),
        (tensors(1, dtype=torch.float64), {}),
        (tensors(1), {"score_mod": lambda score, b, h, q_idx, kv_idx: score * 2}),
        (tensors(1), {"score_mod": lambda score, b, h, q_idx, kv_idx: score * 3}),
        (tensors(1), {"score_mod": lambda score, b, h, q_idx, kv_idx: score + lengths[b] * kv_idx}),
        ([q[:, :2], k, v], {}),
        ([q, k, v[..., :16]], {}),
        (tensors(1), {"dropout_p": 0.5, "seed": 3}),
        (tensors(1), {"dropout_p": 0.5, "seed": 4}),
    ]
    for inputs, options in calls + calls[::-1]:
        call(q, k, v, mask)
        assert torch.equal(call(*inputs, mask, **options), fresh(*inputs, lengths, **options))
        assert torch.equal(call(*inputs, mask, **options), fresh(*inputs, lengths, **options))


def test_tensors_of_the_rule_are_read_anew():
    lengths = torch.tensor(LENGTHS)
    mask = make_mask(lengths)
    q, k, v = tensors(0)
    call(q, k, v, mask)
    outputs = []
    for length in (10, 5, 1):
        lengths.fill_(length)
        others = torch.tensor(LENGTHS)  # the blocks are those of the lengths it was made with
        other = make_mask(others)
        others.fill_(length)
        outputs.append(call(q, k, v, mask))
        assert torch.equal(outputs[-1], call(q, k, v, other))
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])


def test_the_isa_and_the_threads_may_change():
    lengths = torch.tensor(LENGTHS)
    mask = make_mask(lengths)
    q, k, v = tensors(0)
    want = call(q, k, v, mask)
    threads = torch.get_num_threads()
    try:
        for isa in (quire.info()["available_isas"][0], None):
            for count in (1, threads):
                quire.force_isa(isa)
                torch.set_num_threads(count)
                assert torch.equal(call(q, k, v, mask), want)
    finally:
        quire.force_isa(None)
        torch.set_num_threads(threads)


def test_threads_share_a_mask():
    lengths = torch.tensor(LENGTHS)
    mask = make_mask(lengths)
    inputs = [tensors(seed) for seed in range(4)]
    want = [fresh(*one, lengths) for one in inputs]
    wrong = []

    def work(i):
        for _ in range(50):
            if not torch.equal(call(*inputs[i], mask), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_leaves_nothing_behind():
    table = torch.zeros(3, dtype=torch.int64)
    index = torch.zeros(3, dtype=torch.int64)

    def rule(b, h, q_idx, kv_idx):
        return kv_idx > table[index[b]]

    mask = create_block_mask(rule, 3, None, 2, 300, device="cpu")
    q, k, v = tensors(0)
    want = call(q, k, v, mask)
    index.fill_(5)
    with pytest.raises(IndexError):
        call(q, k, v, mask)
    index.fill_(0)
    assert torch.equal(call(q, k, v, mask), want)


def test_a_plan_goes_with_its_mask():
    lengths = torch.tensor(LENGTHS)
    mask = make_mask(lengths)
    call(*tensors(0), mask)
    blocks = weakref.ref(mask)
    del mask
    gc.collect()
    assert blocks() is None
