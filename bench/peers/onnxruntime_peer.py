"""ONNX Runtime: GroupQueryAttention, with keys in a buffer that the operator appends to in place; MultiHeadAttention where
nothing is masked. Ragged batches are padded, as its models have them."""

import itertools

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from peers.unsupported import Unsupported

TYPES = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16)}


def version():
    return onnxruntime.__version__


def prepare(case, threads):
    if case.format:
        raise Unsupported("no operator over these codes on a CPU")
    if case.page_size:
        raise Unsupported("PagedAttention has no CPU kernel")
    if case.dtype not in TYPES:
        raise Unsupported("no bf16 kernel of GroupQueryAttention on a CPU")
    return _decode(case, threads) if case.is_decode else _prompt(case, threads)


def _session(node, inputs, outputs, case, threads):
    kind = TYPES[case.dtype][0]
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT32 if name in ("lengths", "total") else kind, shape)
        for name, shape in (*inputs.items(), *outputs.items())
    ]
    graph = helper.make_graph([node], "attention", values[: len(inputs)], values[len(inputs) :])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads otherwise spin in the time of the peer that is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def _grouped(case, threads):
    """A session of GroupQueryAttention."""
    width, kv_width = case.q_heads * case.dim, case.kv_heads * case.dim
    past = ["B", case.kv_heads, "P", case.dim]
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "lengths", "total"],
        ["out", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=case.q_heads,
        kv_num_heads=case.kv_heads,
    )
    inputs = {
        "q": ["B", "L", width],
        "k": ["B", "L", kv_width],
        "v": ["B", "L", kv_width],
        "past_k": past,
        "past_v": past,
        "lengths": ["B"],
        "total": [],
    }
    outputs = {"out": ["B", "L", width], "present_k": past, "present_v": past}
    return _session(node, inputs, outputs, case, threads)


def _bound(session, inputs, present, out):
    """A call over memory that stays where it is."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, value in present.items():
        binding.bind_ortvalue_input(f"past_{name}", value)
        binding.bind_ortvalue_output(f"present_{name}", value)
    binding.bind_ortvalue_output("out", out)
    return binding


def _decode(case, threads):
    session, kind = _grouped(case, threads), TYPES[case.dtype][1]
    length = case.kv_lengths[0]
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, case.q_heads * case.dim), kind))
    bindings = []
    for turn in range(case.turns):
        q, k, v = (one.astype(kind) for one in case.dense(turn))
        inputs = {
            "q": q.reshape(1, 1, -1),
            "k": np.ascontiguousarray(k[:, :, -1]).reshape(1, 1, -1),
            "v": np.ascontiguousarray(v[:, :, -1]).reshape(1, 1, -1),
            "lengths": np.array([length - 1], np.int32),
            "total": np.array(length, np.int32),
        }
        present = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(one))
            for name, one in (("k", k), ("v", v))
        }
        bindings.append(_bound(session, inputs, present, out))
    turns = itertools.cycle(bindings)

    def output():
        session.run_with_iobinding(bindings[0])
        return out.numpy().astype(np.float32).reshape(-1, case.q_heads, case.dim)

    return lambda: session.run_with_iobinding(next(turns)), output


def _prompt(case, threads):
    kind = TYPES[case.dtype][1]
    longest = max(case.q_lengths)
    offsets, padded = case.offsets(case.q_lengths), []
    for one in case.arrays():
        whole = np.zeros((len(case.q_lengths), longest, one.shape[1] * case.dim), kind)
        for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
            whole[row, : end - begin] = one[begin:end].reshape(end - begin, -1)
        padded.append(whole)
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(padded[0]))
    inputs = dict(zip("qkv", padded))
    if case.is_causal:
        session = _grouped(case, threads)
        inputs["lengths"] = np.array(case.kv_lengths, np.int32) - 1
        inputs["total"] = np.array(longest, np.int32)
        shape = (len(case.q_lengths), case.kv_heads, longest, case.dim)
        present = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, kind)) for name in "kv"}
    else:
        if case.q_heads != case.kv_heads:
            raise Unsupported("MultiHeadAttention has no groups of heads")
        node = helper.make_node(
            "MultiHeadAttention", ["q", "k", "v"], ["out"], domain="com.microsoft", num_heads=case.q_heads
        )
        shape = ["B", "L", case.q_heads * case.dim]
        session = _session(node, {name: shape for name in "qkv"}, {"out": shape}, case, threads)
        present = {}
    binding = _bound(session, inputs, present, out)

    def output():
        session.run_with_iobinding(binding)
        whole = out.numpy().astype(np.float32).reshape(*padded[0].shape[:2], case.q_heads, case.dim)
        return np.concatenate([whole[row, :n] for row, n in enumerate(case.q_lengths)])

    return lambda: session.run_with_iobinding(binding), output
