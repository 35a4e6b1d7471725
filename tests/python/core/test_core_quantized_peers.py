"""int8_channel and u8 against what ONNX Runtime and OpenVINO compute from the same codes and scales. Skipped where these packages
are not installed; scripts/check-all installs them."""

import numpy as np
import pytest
import quire

HEADS, QUERIES, KEYS, DIM = 3, 5, 77, 64


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def coded(form):
    k, v = numbers(1, HEADS, KEYS, DIM, seed=1), numbers(1, HEADS, KEYS, DIM, seed=2)
    return numbers(1, HEADS, QUERIES, DIM), quire.quantize(k, form), quire.quantize(v, form)


def close(out, peer):
    """Both compute in f32: the difference is that of two orders of addition."""
    assert np.abs(out - peer).max() < 2e-6 * np.abs(peer).max() * np.sqrt(DIM)


def test_int8_channel_as_onnxruntime():
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from onnx import TensorProto, helper

    q, k, v = coded("int8_channel")
    shapes = {
        "q": q.shape,
        "k": k.codes.shape,
        "v": v.codes.shape,
        "k_scale": (1, HEADS, 1, DIM),
        "v_scale": (1, HEADS, 1, DIM),
    }
    kinds = {"k": TensorProto.INT8, "v": TensorProto.INT8}
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape) for name, shape in shapes.items()
    ]
    nodes = []
    for name in "kv":
        nodes += [
            helper.make_node("Cast", [name], [f"{name}_wide"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_wide", f"{name}_scale"], [f"{name}_numbers"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["k_numbers"], ["k_turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "k_turned"], ["raw"]),
        helper.make_node("Constant", [], ["factor"], value_float=DIM**-0.5),
        helper.make_node("Mul", ["raw", "factor"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=3),
        helper.make_node("MatMul", ["weights", "v_numbers"], ["out"]),
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, q.shape)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    scales = {f"{name}_scale": one.scales[None, :, None] for name, one in (("k", k), ("v", v))}
    (peer,) = session.run(None, {"q": q, "k": k.codes, "v": v.codes, **scales})
    close(quire.flex_attention(q, k, v), peer)


def test_u8_as_openvino():
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    from openvino import opset13 as ops

    q, k, v = coded("u8")
    query = ops.parameter(q.shape, np.float32)
    codes = [ops.parameter(one.codes.shape, np.uint8) for one in (k, v)]
    scales = [ops.parameter((*one.codes.shape[:3], 2), np.float32) for one in (k, v)]
    decoded = []
    for code, pair in zip(codes, scales, strict=True):
        scale, zero = ops.split(pair, 3, 2).outputs()
        decoded.append(ops.multiply(ops.subtract(ops.convert(code, "f32"), zero), scale))
    out = ops.scaled_dot_product_attention(query, *decoded)
    model = openvino.compile_model(
        openvino.Model([out], [query, *codes, *scales]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    peer = model([q, k.codes, v.codes, k.scales, v.scales])[0]
    close(quire.flex_attention(q, k, v), peer)
