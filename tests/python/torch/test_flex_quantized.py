"""quire.torch.quantize and flex_attention over QuantizedTensors of tensors: results, the gradient of the query, refusals."""

import pytest
import quire
import torch
from quire.torch import dequantize, flex_attention, quantize
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(2, 4, 30, 64, dtype=dtype), torch.randn(2, 2, 300, 64), torch.randn(2, 2, 300, 64)


@pytest.mark.parametrize("name", quire.KVFormat.names())
def test_codes_give_what_their_numbers_give(name):
    q, k, v = tensors()
    k_coded, v_coded = quantize(k, name), quantize(v, name)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx + 270 >= kv_idx, None, None, 30, 300, device="cpu")

    def call(k, v):
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s - 0.1 * (i - j), mask, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )

    (got, got_aux), (wanted, wanted_aux) = call(k_coded, v_coded), call(dequantize(k_coded), dequantize(v_coded))
    assert torch.equal(got, wanted) and torch.equal(got_aux.lse, wanted_aux.lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_query_has_a_gradient(dtype):
    q, k, v = tensors(dtype)
    k_coded, v_coded = quantize(k, "int8"), quantize(v, "int4", hadamard=False)
    gradients = []
    for keys in ((k_coded, v_coded), (dequantize(k_coded), dequantize(v_coded))):
        leaf = q.clone().requires_grad_()
        flex_attention(leaf, *keys, enable_gqa=True).float().square().sum().backward()
        gradients.append(leaf.grad)
    if dtype == torch.float32:
        assert torch.equal(*gradients)
    else:  # these codes are multiplied as integers, and outputs differ in the digits that bf16 rounds
        got, wanted = (x.float() for x in gradients)
        assert (got - wanted).abs().max() <= 2**-7 * wanted.abs().max()


def test_what_is_refused():
    q, k, v = tensors()
    coded = quantize(k, "int8")
    with pytest.raises(NotImplementedError, match="the query alone has a gradient"):
        flex_attention(q, coded, v.requires_grad_(), enable_gqa=True)
    with pytest.raises(ValueError, match="the query must be a dense tensor"):
        flex_attention(q[0], coded, coded)
    with pytest.raises(ValueError, match="query and key must have the same number of heads"):
        flex_attention(q, coded, coded)
    with pytest.raises(ValueError, match="groups of 32"):
        quantize(torch.randn(1, 1, 3, 40), "int4")
    with pytest.raises(TypeError, match="x must be a QuantizedTensor"):
        dequantize(k)
