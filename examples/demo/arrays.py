"""Random arrays of each precision, and hashes of results."""

import hashlib

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

# bf16 in NumPy is ml_dtypes'.
DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}
if ml_dtypes is not None:
    DTYPES["bf16"] = np.dtype(ml_dtypes.bfloat16)


def random_arrays(shapes, dtype, seed=0):
    """The same numbers for the same seed; rounded to `dtype`."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for shape in shapes]


def in_order(array, order):
    """The same array with its axes in another order in memory, outermost first."""
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def epsilon(dtype):
    """The step from 1 to the next number."""
    return float((ml_dtypes or np).finfo(dtype).eps)


def bits(array):
    """The elements in order, as bytes."""
    return np.ascontiguousarray(array).tobytes()


def short_hash(data):
    return hashlib.sha256(data).hexdigest()[:12]


def to_torch(torch, array):
    """The same bits as a tensor."""
    if array.dtype == DTYPES.get("bf16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
