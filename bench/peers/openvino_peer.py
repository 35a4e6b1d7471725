"""OpenVINO on a CPU: ScaledDotProductAttention for dense batches; its PagedAttention extension, which its own server uses, for
pages, ragged batches, heads that share keys, which the former would copy, and keys in u8. Pages have 32 tokens there."""

import itertools

import numpy as np
import openvino
from openvino import PartialShape, Type
from openvino import opset13 as operations
from openvino.op import _PagedAttentionExtension

from peers.unsupported import Unsupported

PAGE = 32
PRECISIONS = {"f32": Type.f32, "bf16": Type.bf16, "f16": Type.f16}


def version():
    return openvino.__version__.partition("-")[0]


def prepare(case, threads):
    if case.format and (case.format != "u8" or not case.page_size):
        raise Unsupported(f"no attention over {case.format} codes")
    if case.page_size not in (0, PAGE):
        raise Unsupported(f"pages have {PAGE} tokens on a CPU")
    if case.dtype == "f16":
        raise Unsupported("f16 is not tried")
    if case.page_size or len(set(case.q_lengths)) > 1 or case.q_heads != case.kv_heads:
        return _paged(case, threads)
    return _dense(case, threads)


def _compiled(model, case, threads, **more):
    options = {"INFERENCE_PRECISION_HINT": PRECISIONS[case.dtype], "INFERENCE_NUM_THREADS": threads, **more}
    return openvino.Core().compile_model(model, "CPU", options)


def _parameter(name, shape, dtype):
    made = operations.parameter(PartialShape(shape), dtype, name)
    made.output(0).get_tensor().set_names({name})
    return made


def _dense(case, threads):
    kind = PRECISIONS[case.dtype]
    shapes = [one.shape for one in case.dense()]
    inputs = [_parameter(name, shape, kind) for name, shape in zip("qkv", shapes)]
    attention = operations.scaled_dot_product_attention(*inputs, causal=case.is_causal and not case.is_decode)
    compiled = _compiled(openvino.Model([attention], inputs), case, threads)
    requests = []
    for turn in range(case.turns):
        request = compiled.create_infer_request()
        for place, array in enumerate(case.dense(turn)):
            request.set_input_tensor(place, _tensor(array, kind))
        requests.append(request)
    turns = itertools.cycle(requests)

    def output():
        requests[0].infer()
        out = _numbers(requests[0].get_output_tensor())
        return out.transpose(0, 2, 1, 3).reshape(-1, case.q_heads, case.dim)

    return lambda: next(turns).infer(), output


def _tensor(array, kind):
    """An OpenVINO tensor of a dtype that NumPy may not have."""
    array = np.ascontiguousarray(array, np.float32)
    if kind == Type.f32:
        return openvino.Tensor(array)
    made = openvino.Tensor(kind, list(array.shape))
    made.data.view(np.uint16)[...] = (array.view(np.uint32) >> 16).astype(np.uint16)  # rounded before
    return made


def _numbers(tensor):
    if tensor.element_type == Type.bf16:
        return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.array(tensor.data, np.float32)


def _paged_model(case):
    kind, ints = PRECISIONS[case.dtype], np.int32
    width, kv_width = case.q_heads * case.dim, case.kv_heads * case.dim
    inputs = [_parameter("q", [-1, width], kind)]
    inputs += [_parameter(name, [-1, kv_width], kind) for name in "kv"]
    inputs += [_parameter(name, [-1] * 4, Type.dynamic) for name in ("key_cache.0", "value_cache.0")]
    books = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
    inputs += [_parameter(name, [-1], ints) for name in books]
    longest = _parameter("max_context_len", [], ints)

    def number(value, dtype):
        return operations.constant(np.array(value, dtype))

    def none(dtype):
        return operations.constant(np.zeros((0,), dtype))

    real = np.float32
    others = [number(case.dim**-0.5, real), number(0, ints), none(real), longest, none(ints)]
    others += [none(ints), none(ints), none(real)]  # rotation
    others += [none(real), number(0, ints), number(0, ints)]  # sparse attention
    others += [none(real), number(0, ints), none(ints), none(ints), none(ints)]  # sinks, eviction
    others += [none(ints), none(np.uint8), none(ints)]  # kinds of tokens, bias between queries
    attention = _PagedAttentionExtension([one.output(0) for one in (*inputs, *others)])
    sizes = {
        "num_k_heads": case.kv_heads,
        "k_head_size": case.dim,
        "num_v_heads": case.kv_heads,
        "v_head_size": case.dim,
    }
    for name, size in sizes.items():
        attention.get_rt_info()[name] = size
    return openvino.Model([attention.output(0)], [*inputs, longest])


def _paged(case, threads):
    """Decoding brings the last key of each sequence; the others are written before, codes by a call over whole sequences."""
    if case.page_size:
        table, count = case.pages()
    else:
        counts = [-(-length // PAGE) for length in case.kv_lengths]
        ends = np.cumsum(counts)
        table, count = [np.arange(end - n, end) for n, end in zip(counts, ends)], int(ends[-1])
    precision = {"KV_CACHE_PRECISION": Type.u8 if case.format else PRECISIONS[case.dtype]}
    compiled = _compiled(_paged_model(case), case, threads, **precision)
    rows = [np.asarray(row)[: -(-length // PAGE)] for row, length in zip(table, case.kv_lengths)]
    books = {
        "block_indices": np.concatenate(rows).astype(np.int32),
        "block_indices_begins": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "max_context_len": np.array(max(case.kv_lengths), np.int32),
    }
    requests = []
    for turn in range(case.turns):
        q, k, v = case.arrays(turn)
        request = compiled.create_infer_request()
        for name in ("key_cache.0", "value_cache.0"):
            port = compiled.input(name)
            shape = [count, *(port.get_partial_shape()[axis].get_length() for axis in (1, 2, 3))]
            request.set_tensor(name, openvino.Tensor(port.get_element_type(), shape))
        if case.is_decode and not case.format:
            for name, array in (("key_cache.0", k), ("value_cache.0", v)):
                _write(request.get_tensor(name), array, rows, case)
        elif case.is_decode:
            every = np.zeros((len(k), case.q_heads, case.dim), np.float32)
            _set(request, case, books, every, k, v, case.kv_lengths, [0] * len(rows))
            request.infer()
        if case.is_decode:
            last = np.cumsum(case.kv_lengths) - 1
            k, v = k[last], v[last]
        past = [kv - new for kv, new in zip(case.kv_lengths, case.q_lengths)]
        _set(request, case, books, q, k, v, case.q_lengths, past)
        requests.append(request)
    turns = itertools.cycle(requests)

    def output():
        requests[0].infer()
        return _numbers(requests[0].get_output_tensor()).reshape(-1, case.q_heads, case.dim)

    return lambda: next(turns).infer(), output


def _write(pool, array, rows, case):
    """Keys or values into their pages, [pages, heads, tokens, dim]."""
    for row, (begin, end) in zip(rows, itertools.pairwise(case.offsets(case.kv_lengths))):
        whole = np.zeros((len(row) * PAGE, *array.shape[1:]), np.float32)
        whole[: end - begin] = array[begin:end]
        paged = whole.reshape(len(row), PAGE, *array.shape[1:]).transpose(0, 2, 1, 3)
        if pool.element_type == Type.f32:
            pool.data[row] = paged
        else:
            pool.data.view(np.uint16)[row] = (np.ascontiguousarray(paged).view(np.uint32) >> 16).astype(np.uint16)


def _set(request, case, books, q, k, v, new, past):
    for name, array in zip("qkv", (q, k, v)):
        request.set_tensor(name, _tensor(array.reshape(len(array), -1), PRECISIONS[case.dtype]))
    numbers = {
        **books,
        "past_lens": np.array(past, np.int32),
        "subsequence_begins": np.cumsum([0, *new]).astype(np.int32),
    }
    for name, array in numbers.items():
        request.set_tensor(name, openvino.Tensor(array))
