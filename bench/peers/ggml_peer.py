"""ggml: the shared libraries that come with llama-cpp-python, or those in the folder QUIRE_GGML_LIB, by their public C interface:
ggml_flash_attn_ext, as llama.cpp calls it, over keys in f16, bf16 or block codes. Queries are f32 there."""

import ctypes
import importlib.util
import itertools
import os
from pathlib import Path

import numpy as np

from peers.unsupported import Unsupported

_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # enum ggml_type
_MEMORY = 256 << 20  # of a graph with what it computes


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def _libraries():
    folder = os.environ.get("QUIRE_GGML_LIB")
    if folder is None:
        found = importlib.util.find_spec("llama_cpp")
        if found is None or not found.submodule_search_locations:
            raise ImportError("No module named 'llama_cpp'")
        folder = Path(found.submodule_search_locations[0]) / "lib"
    folder = Path(folder)
    return [ctypes.CDLL(str(folder / f"libggml{name}.so"), ctypes.RTLD_GLOBAL) for name in ("-base", "-cpu")]


_base, _cpu = _libraries()
_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
for _name, _result, _arguments in (
    ("ggml_init", _pointer, [_InitParams]),
    ("ggml_free", None, [_pointer]),
    ("ggml_new_tensor_4d", _pointer, [_pointer, ctypes.c_int, *[_int64] * 4]),
    ("ggml_get_data", _pointer, [_pointer]),
    ("ggml_nbytes", ctypes.c_size_t, [_pointer]),
    ("ggml_new_graph", _pointer, [_pointer]),
    ("ggml_build_forward_expand", None, [_pointer, _pointer]),
    ("ggml_flash_attn_ext", _pointer, [*[_pointer] * 5, *[ctypes.c_float] * 3]),
    (
        "ggml_quantize_chunk",
        ctypes.c_size_t,
        [ctypes.c_int, _pointer, _pointer, _int64, _int64, _int64, _pointer],
    ),
    ("ggml_version", ctypes.c_char_p, []),
):
    _function = getattr(_base, _name)
    _function.restype, _function.argtypes = _result, _arguments
_cpu.ggml_graph_compute_with_ctx.restype = ctypes.c_int
_cpu.ggml_graph_compute_with_ctx.argtypes = [_pointer, _pointer, ctypes.c_int]


def version():
    return _base.ggml_version().decode()


class Graph:
    """One call: its tensors and its result, in one piece of memory."""

    def __init__(self, q, k, v, keys_type, mask):
        size = _MEMORY + 2 * q.nbytes + 2 * k.nbytes + (0 if mask is None else mask.nbytes)
        self._context = _base.ggml_init(_InitParams(size, None, False))
        tensors = [self._tensor(q, "f32"), self._tensor(k, keys_type), self._tensor(v, keys_type)]
        tensors.append(None if mask is None else self._tensor(mask, "f16"))
        self._out = _base.ggml_flash_attn_ext(self._context, *tensors, q.shape[-1] ** -0.5, 0.0, 0.0)
        self._graph = _base.ggml_new_graph(self._context)
        _base.ggml_build_forward_expand(self._graph, self._out)
        self._shape = q.shape

    def _tensor(self, array, kind):
        """[heads, length, dim], or a mask [queries, keys], of which ggml counts the last axis first."""
        sizes = [1] * (4 - array.ndim) + list(array.shape)
        tensor = _base.ggml_new_tensor_4d(self._context, _TYPES[kind], *reversed(sizes))
        data = _base.ggml_get_data(tensor)
        if kind in ("q8_0", "q4_0"):
            plain = np.ascontiguousarray(array, np.float32)
            rows = plain.size // plain.shape[-1]
            _base.ggml_quantize_chunk(_TYPES[kind], plain.ctypes.data, data, 0, rows, plain.shape[-1], None)
            return tensor
        plain = {
            "f32": lambda: array.astype(np.float32),
            "f16": lambda: array.astype(np.float16),
            "bf16": lambda: (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        }[kind]()
        plain = np.ascontiguousarray(plain)
        ctypes.memmove(data, plain.ctypes.data, plain.nbytes)
        return tensor

    def run(self, threads):
        if _cpu.ggml_graph_compute_with_ctx(self._context, self._graph, threads) != 0:
            raise RuntimeError("ggml_graph_compute failed")

    def output(self):
        """[length, heads, dim]"""
        heads, length, dim = self._shape
        data = ctypes.cast(_base.ggml_get_data(self._out), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(data, (length, heads, dim)).copy()

    def __del__(self):
        _base.ggml_free(self._context)


def prepare(case, threads):
    if case.page_size:
        raise Unsupported("no pages")
    keys_type = case.format or case.dtype
    if keys_type not in _TYPES:
        raise Unsupported(f"no {keys_type} codes")
    turns = [_graphs(case, turn, keys_type) for turn in range(case.turns)]
    cycle = itertools.cycle(turns)

    def run(graphs):
        for one in graphs:
            one.run(threads)

    def output():
        run(turns[0])
        return np.concatenate([one.output() for one in turns[0]])

    return lambda: run(next(cycle)), output


def _graphs(case, turn, keys_type):
    """A call for each sequence, one after the other."""
    q, k, v = case.arrays(turn)
    bounds = zip(*(itertools.pairwise(case.offsets(n)) for n in (case.q_lengths, case.kv_lengths)))
    graphs = []
    for (q_begin, q_end), (begin, end) in bounds:
        mask = None
        if case.is_causal and not case.is_decode:
            rows = np.arange(q_end - q_begin)[:, None] + (end - begin) - (q_end - q_begin)
            mask = np.where(rows >= np.arange(end - begin), 0.0, -np.inf).astype(np.float16)
        parts = (q[q_begin:q_end], k[begin:end], v[begin:end])
        graphs.append(Graph(*(one.transpose(1, 0, 2) for one in parts), keys_type, mask))
    return graphs
