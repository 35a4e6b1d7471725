"""quire.quantize, dequantize and flex_attention over QuantizedTensors; q8_0 and q4_0 against the gguf package."""

import pickle

import numpy as np
import pytest
import quire

FORMATS = quire.KVFormat.names()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("q_len", [1, 40])
def test_attention_over_codes_is_attention_over_their_numbers(name, q_len):
    q, k, v = numbers(2, 4, q_len, 64), numbers(2, 2, 300, 64, seed=1), numbers(2, 2, 300, 32, seed=2)
    k_coded, v_coded = quire.quantize(k, name), quire.quantize(v, name)
    assert k_coded.shape == k.shape and k_coded.format == quire.KVFormat(name)
    options = dict(score_mod="score + 0.1 * (kv_idx - q_idx)", enable_gqa=True, return_lse=True)
    got = quire.flex_attention(q, k_coded, v_coded, **options)
    wanted = quire.flex_attention(q, quire.dequantize(k_coded), quire.dequantize(v_coded), **options)
    assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
    plan = quire.AttentionPlan(q, k_coded, v_coded, options["score_mod"], enable_gqa=True)
    out = np.empty_like(got[0])
    assert np.array_equal(plan.run(q, k_coded, v_coded, out=out), got[0])


@pytest.mark.parametrize("name", FORMATS)
def test_a_rotation_changes_little(name):
    q, k, v = numbers(1, 2, 5, 64), numbers(1, 2, 200, 64, seed=1), numbers(1, 2, 200, 64, seed=2)
    k_coded, v_coded = quire.quantize(k, name, hadamard=True), quire.quantize(v, name, hadamard=True)
    got = quire.flex_attention(q, k_coded, v_coded)
    wanted = quire.flex_attention(q, quire.dequantize(k_coded), quire.dequantize(v_coded))
    np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_jagged_batches_of_codes():
    lengths = (5, 1, 70)
    q, k = (quire.Jagged.pack([numbers(n, 2, 32, seed=n + i) for n in lengths]) for i in (0, 9))
    coded = quire.quantize(k.values, "u8")
    got = quire.flex_attention(q, *(quire.Jagged(coded, k.offsets),) * 2, mask_mod="q_idx >= kv_idx")
    plain = quire.Jagged(quire.dequantize(coded), k.offsets)
    wanted = quire.flex_attention(q, plain, plain, mask_mod="q_idx >= kv_idx")
    assert np.array_equal(got.values, wanted.values)


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_blocks_of_ggml_byte_for_byte(name):
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    kind = gguf.GGMLQuantizationType[name.upper()]
    tails = np.concatenate([numbers(400, 64), 30 * numbers(100, 64, seed=1), 1e-3 * numbers(100, 64, seed=2)])
    tails[3] = 0
    tails[4, 5] = 2000
    tails[5] = np.repeat([0.5, -1.5], 32)
    coded = quire.quantize(tails, name)
    expected = gguf.quants.quantize(tails, kind)
    assert np.array_equal(coded.codes, expected)
    assert np.array_equal(quire.dequantize(coded), gguf.quants.dequantize(expected, kind))


def test_what_codes_look_like():
    x = numbers(1, 2, 10, 96)
    shapes = {name: (quire.quantize(x, name).codes.shape[-1], quire.quantize(x, name).scales) for name in FORMATS}
    assert {name: size for name, (size, _) in shapes.items()} == {
        "int8": 96,
        "int8_channel": 96,
        "u8": 96,
        "int4": 48,
        "fp8_e4m3": 96,
        "fp8_e5m2": 96,
        "q8_0": 102,
        "q4_0": 54,
    }
    assert shapes["int8"][1].shape == (1, 2, 10) and shapes["int4"][1].shape == (1, 2, 10, 3, 2)
    assert shapes["q8_0"][1] is None and shapes["int8_channel"][1].shape == (2, 96)


def test_formats():
    rotated = quire.KVFormat("int4", hadamard=True)
    assert rotated != quire.KVFormat("int4") and rotated == quire.KVFormat("int4+hadamard")
    assert pickle.loads(pickle.dumps(rotated)) == rotated and hash(rotated) == hash(quire.KVFormat("int4", True))
    assert quire.KVFormat("int8").scale_count(128) == 1
    with pytest.raises(ValueError, match="there is no format int3; there are int8,"):
        quire.KVFormat("int3")


def test_the_query_has_a_gradient():
    q, k, v = numbers(1, 2, 9, 32), numbers(1, 2, 40, 32, seed=1), numbers(1, 2, 40, 32, seed=2)
    coded = quire.quantize(k, "u8"), quire.quantize(v, "int4")
    gradients = []
    for keys in (coded, tuple(map(quire.dequantize, coded))):
        out, vjp = quire.flex_attention_vjp(q, *keys, wanted=["query"])
        gradients.append(vjp(np.ones_like(out)).query)
    assert np.array_equal(*gradients)
    _, vjp = quire.flex_attention_vjp(q, *coded)
    with pytest.raises(NotImplementedError, match=r"key is quantised \(u8\) and has no gradient"):
        vjp(np.ones_like(q))


def test_what_is_refused():
    x = numbers(1, 2, 10, 80)
    with pytest.raises(ValueError, match="groups of 32 channels, and a head dim of 80.*64 or 96 would fit"):
        quire.quantize(x, "q4_0")
    x[0, 1, 4, 3] = np.nan
    with pytest.raises(ValueError, match=r"row \[0, 1, 4\] holds NaN"):
        quire.quantize(x, "int8")
    x[0, 1, 4, 3] = 0
    coded = quire.quantize(x, "int8")
    wrong = quire.QuantizedTensor(coded.codes, coded.scales[:, :1], "int8")
    with pytest.raises(ValueError, match=r"the scales of key \(int8 \[1, 2, 10, 80\]\) must be \[1, 2, 10\]"):
        quire.flex_attention(x, wrong, x)
    with pytest.raises(TypeError, match="the scales of value.*must be f32; got f64"):
        quire.flex_attention(x, x, quire.QuantizedTensor(coded.codes, coded.scales.astype(np.float64), "int8"))
    with pytest.raises(TypeError, match="format must be a KVFormat"):
        quire.quantize(x, 8)
    with pytest.raises(TypeError, match="x must be a QuantizedTensor"):
        quire.dequantize(x)
