"""Arrays of any kind in, the same kind out, and no copies on the way."""

import array
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
import quire
from quire import _core

DTYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
}


class OnlyDlpack:
    """An array that can do nothing but hand its memory out, by old or new DLPack."""

    def __init__(self, values, versioned=True):
        self.values, self.versioned = values, versioned

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword")
        return self.values.__dlpack__(**options)


def test_codes_cover_all_dtypes():
    assert set(_core.DTYPES) == set(DTYPES)
    assert sorted(_core.DTYPES.values()) == list(range(10))


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_is_seen_in_place(name):
    values = np.arange(24).reshape(2, 3, 4).astype(DTYPES[name])
    for one in (values, values[:, ::-1, ::2], values.transpose(2, 0, 1), values[1:, :0], values[0, 0, 0:1].reshape(())):
        view = _core.view(one)
        assert view.dtype_name == name and view.shape == one.shape
        assert view.dtype == _core.DTYPES[name]
        if one.size:
            assert view.data_ptr == one.__array_interface__["data"][0]
            assert [s * one.itemsize for s in view.strides] == list(one.strides)
        back = view.numpy()
        assert back.dtype == one.dtype
        np.testing.assert_array_equal(back, one)
        assert not back.size or np.shares_memory(back, one)


def test_a_view_keeps_its_array_alive():
    values = np.zeros(5)
    watch = weakref.ref(values)
    view = _core.view(values)
    back = view.numpy()
    del values, view
    gc.collect()
    assert watch() is not None
    del back
    gc.collect()
    assert watch() is None


def test_read_only_memory_is_read_and_not_written():
    values = np.ones((1, 1, 2, 4), np.float32)
    values.flags.writeable = False
    view = _core.view(values)
    assert view.is_read_only and not view.numpy().flags.writeable
    assert quire.flex_attention(values, values, values).shape == (1, 1, 2, 4)
    with pytest.raises(ValueError, match=r"\[flex_attention\] out is read-only and cannot be written"):
        _core.attention(_core.Options(), view, view, view, view)
    with pytest.raises(BufferError, match="needs a reader of DLPack 1.0"):
        view.__dlpack__()


def test_buffer_protocol():
    assert _core.view(b"abc").shape == (3,) and _core.view(b"abc").dtype_name == "u8"
    numbers = array.array("d", [1, 2, 3])
    np.testing.assert_array_equal(_core.view(numbers).numpy(), [1, 2, 3])
    assert _core.view(memoryview(numbers)[1:]).data_ptr == numbers.buffer_info()[0] + 8


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_in(versioned):
    values = np.arange(6, dtype=np.int32).reshape(2, 3).T
    view = _core.view(OnlyDlpack(values, versioned))
    assert view.data_ptr == values.ctypes.data and view.shape == (3, 2) and view.strides == (1, 3)
    watch = weakref.ref(values)
    del values
    gc.collect()
    assert watch() is not None and view.numpy()[2, 1] == 5
    del view
    gc.collect()
    assert watch() is None


def test_dlpack_out():
    view = _core.empty((2, 3), _core.DTYPES["f32"])
    view.numpy()[:] = [[1, 2, 3], [4, 5, 6]]
    assert view.__dlpack_device__() == (1, 0)
    other = np.from_dlpack(view)
    assert other.ctypes.data == view.data_ptr
    del view
    gc.collect()
    np.testing.assert_array_equal(other, [[1, 2, 3], [4, 5, 6]])
    capsule = _core.view(np.zeros(3)).__dlpack__()  # never used: freed with the capsule
    assert "dltensor" in repr(capsule)
    with pytest.raises(BufferError, match="never a copy"):
        _core.view(np.zeros(3)).__dlpack__(copy=True)


def test_device_memory_is_refused():
    class OnDevice(OnlyDlpack):
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(BufferError, match="must be in the memory of the CPU"):
        _core.view(OnDevice(np.zeros(3)))


@pytest.mark.parametrize(
    "values", [np.zeros(2, np.uint32), np.zeros(2, np.complex64), np.zeros(2, ">f4"), np.array(["a"])]
)
def test_dtypes_that_quire_has_not(values):
    with pytest.raises(TypeError, match=r"\[quire\] an array has a dtype that Quire has not"):
        _core.view(values)


def test_fields_of_records_have_strides_of_their_own():
    records = np.zeros(3, [("a", "i1"), ("b", "<f4")])
    with pytest.raises(TypeError, match="strides that are no multiples"):
        _core.view(records["b"])


def test_memory_that_is_not_aligned():
    values = np.frombuffer(bytearray(41), np.uint8)[1:].view(np.float32)
    assert values.ctypes.data % 4 != 0
    with pytest.raises(ValueError, match="must be aligned to the size of its elements"):
        _core.view(values)


def test_no_array_at_all():
    with pytest.raises(TypeError, match=r"\[quire\] an array is needed \(NumPy, DLPack, ...\); got dict"):
        _core.view({})
    with pytest.raises(ValueError, match="at most 8"):
        _core.view(np.zeros((1,) * 9))


def test_lists_and_numbers_are_copied():
    assert _core.view([1, 2]).dtype_name == "i64"
    assert _core.view((1.5, 2)).dtype_name == "f64"
    assert _core.view(3).shape == ()


def test_view_by_address():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = _core.View(values.ctypes.data, _core.DTYPES["f32"], (2, 2), (4, 2), values)
    np.testing.assert_array_equal(view.numpy(), [[0, 2], [4, 6]])
    assert view.owner is values
    with pytest.raises(ValueError, match="unknown dtype code"):
        _core.View(values.ctypes.data, 10, (2,), (1,))
    with pytest.raises(ValueError):
        _core.View(0, 0, (2,), (1,))


def test_output_owns_new_memory():
    q = np.ones((1, 2, 3, 8), np.float32)
    out, lse = quire.flex_attention(q, q, q, return_lse=True)
    for one in (out, lse):
        assert isinstance(one, np.ndarray) and one.flags.writeable
        assert isinstance(one.base, quire.View) and one.base.data_ptr == one.ctypes.data
        assert one.ctypes.data % 64 == 0
    assert not np.shares_memory(out, q)


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 2, 5, 8)
    out, aux = quire.flex_attention(q, q, q, return_aux=quire.AuxRequest(lse=True))
    assert isinstance(out, torch.Tensor) and isinstance(aux.lse, torch.Tensor) and aux.max_scores is None
    np.testing.assert_array_equal(out.numpy(), quire.flex_attention(q.numpy(), q.numpy(), q.numpy()))
    half = q.bfloat16()
    assert quire.flex_attention(half, half, half).dtype == torch.bfloat16
    assert _core.view(half).data_ptr == half.data_ptr()
    strided = torch.randn(1, 5, 2, 8).transpose(1, 2)
    assert _core.view(strided).strides == strided.stride()


def test_array_api_namespace():
    class Namespace:
        @staticmethod
        def from_dlpack(view):
            return ("made by the namespace", np.from_dlpack(view))

    class Array(OnlyDlpack):
        def __array_namespace__(self):
            return Namespace

    q = np.ones((1, 1, 2, 4), np.float32)
    said, values = quire.flex_attention(*(Array(q) for _ in range(3)))
    assert said == "made by the namespace"
    np.testing.assert_array_equal(values, q)


def test_an_array_of_no_library_gives_numpy():
    q = OnlyDlpack(np.ones((1, 1, 2, 4), np.float32))
    assert isinstance(quire.flex_attention(q, q, q), np.ndarray)
    assert isinstance(quire.flex_attention(*(_core.view(np.ones((1, 1, 2, 4))) for _ in range(3))), quire.View)
