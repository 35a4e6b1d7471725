"""The package quire.jax: XLA's structures are those of the jaxlib that is installed, names have examples that run, the page prints
what it shows, programs that run in several threads and in a process with torch's, and what is said where JAX is missing."""

import contextlib
import doctest
import io
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quire
import quire.jax as qj
from jax_reference import qkv

# Of each structure of python/src/xla_ffi.h: the header's name, and (field there, field here).
STRUCTURES = {
    "Extension": ("XLA_FFI_Extension_Base", "type:type next:next"),
    "Version": ("XLA_FFI_Api_Version", "major_version:major_version minor_version:minor_version"),
    "Metadata": ("XLA_FFI_Metadata", "api_version:api_version traits:traits"),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "extension_base:base metadata:metadata"),
    "ErrorArguments": ("XLA_FFI_Error_Create_Args", "message:message errc:code"),
    "Api": ("XLA_FFI_Api", "api_version:version XLA_FFI_Error_Create:create_error"),
    "Buffer": ("XLA_FFI_Buffer", "dtype:dtype data:data rank:rank dims:dims"),
    "ByteSpan": ("XLA_FFI_ByteSpan", "ptr:data len:size"),
    "Scalar": ("XLA_FFI_Scalar", "dtype:dtype value:value"),
    "Array": ("XLA_FFI_Array", "dtype:dtype size:size data:data"),
    "Values": ("XLA_FFI_Args", "size:size types:types args:values"),
    "Attributes": ("XLA_FFI_Attrs", "size:size types:types names:names attrs:values"),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        "extension_start:extensions api:api stage:stage args:arguments rets:results attrs:attributes",
    ),
}
NUMBERS = {
    "DataType": "PRED:kBool S8:kI8 S16:kI16 S32:kI32 S64:kI64 U8:kU8 U32:kU32 F16:kF16 F32:kF32 F64:kF64 BF16:kBf16",
    "AttributeType": "ARRAY:kArray DICTIONARY:kDictionary SCALAR:kScalar STRING:kString",
    "Stage": "INSTANTIATE:kInstantiate PREPARE:kPrepare INITIALIZE:kInitialize EXECUTE:kExecute",
    "ErrorCode": "INVALID_ARGUMENT:kInvalidArgument INTERNAL:kInternal",
}
PREFIXES = {
    "DataType": "XLA_FFI_DataType",
    "AttributeType": "XLA_FFI_AttrType",
    "Stage": "XLA_FFI_ExecutionStage",
    "ErrorCode": "XLA_FFI_Error_Code",
}


def test_structures_are_those_of_the_header(root, tmp_path):
    lines = ["#include <cstddef>", '#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"']
    lines += ["namespace x = quire::python::xla;"]
    for own, (theirs, fields) in STRUCTURES.items():
        for pair in fields.split():
            a, b = pair.split(":")
            lines.append(f"static_assert(offsetof({theirs}, {a}) == offsetof(x::{own}, {b}));")
            lines.append(f"static_assert(sizeof({theirs}::{a}) == sizeof(x::{own}::{b}));")
    for own, pairs in NUMBERS.items():
        for pair in pairs.split():
            a, b = pair.split(":")
            lines.append(f"static_assert({PREFIXES[own]}_{a} == static_cast<int>(x::{own}::{b}));")
    lines.append("static_assert(XLA_FFI_API_MAJOR == x::kMajorVersion && XLA_FFI_API_MINOR >= x::kMinorVersion);")
    (tmp_path / "layout.cc").write_text("\n".join(lines) + "\n")
    includes = [f"-I{jax.ffi.include_dir()}", f"-I{root / 'python/src'}"]
    run = subprocess.run(
        ["c++", "-std=c++20", "-Wno-invalid-offsetof", "-fsyntax-only", *includes, str(tmp_path / "layout.cc")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", qj.__all__)
def test_the_example_prints_what_it_shows(name):
    if name == "TraceError":
        pytest.skip("its example is for torch")
    test = doctest.DocTestParser().get_doctest(getattr(qj, name).__doc__, {}, name, None, 0)
    output = []
    assert test.examples and doctest.DocTestRunner().run(test, out=output.append).failed == 0, "".join(output)


def test_the_page_prints_what_it_shows(root):
    text = (root / "docs/jax.md").read_text()
    program, expected = (re.search(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S)[1] for kind in ("python", "text"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    first, picture = expected.split("...\n")
    assert out.getvalue().startswith(first) and "██" in out.getvalue() and picture == ""


def test_calls_from_several_threads_at_once():
    """XLA's threads and Python's, with fewer and with more threads of Quire's: the same bits, and an end."""
    q, k, v = qkv(q_len=300, kv_len=300)
    call = jax.jit(lambda q, k, v: qj.scaled_dot_product_attention(q, k, v, is_causal=True))
    wanted, results = np.asarray(call(q, k, v)), []
    # Several calls in one program, which XLA may run at once.
    many = jax.jit(lambda q, k, v: [qj.flex_attention(q * i, k, v) for i in range(4)])
    apart = [np.asarray(qj.flex_attention(q * i, k, v)) for i in range(4)]

    def work():
        for _ in range(5):
            results.append(np.array_equal(call(q, k, v), wanted))
            results.append(all(map(np.array_equal, many(q, k, v), apart)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len(results) == 40 and all(results)


def test_no_array_of_queries_by_keys_is_made(python_env):
    """A forward and backward pass at 16,384 tokens grows the process by less than a tenth of one such array of 4 heads."""
    code = (
        "import resource, jax, jax.numpy as jnp, quire.jax as qj\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "def run(n):\n"
        "    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 4, n, 16))\n"
        "    loss = lambda *x: qj.scaled_dot_product_attention(*x, lambda b, h, i, j: abs(i - j) < 64).sum()\n"
        "    jax.block_until_ready(jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v))\n"
        "run(128); before = peak(); run(16384); print(peak() - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], env=python_env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 400  # MiB; the array has 4,096


def test_mods_and_numbers_of_programs_that_are_kept():
    """Another text, name or number is another program; the same one is parsed once and gives the same."""
    q, k, v = qkv()
    texts = ["score", "score * 2.0", "score + a[h]", "score + b1[h]"]
    arrays = [{}, {}, {"a": jnp.arange(4.0)}, {"b1": jnp.ones(4)}]
    for _ in range(2):
        for text, given in zip(texts, arrays):
            own = quire.ScoreMod(text, {name: np.asarray(one) for name, one in given.items()})
            wanted = quire.flex_attention(*map(np.asarray, (q, k, v)), own)
            assert np.array_equal(qj.flex_attention(q, k, v, (text, given)), wanted)


def test_without_jax_the_import_says_what_to_install(python_env):
    code = "import sys; sys.modules['jax'] = None\nimport quire.jax"
    run = subprocess.run([sys.executable, "-c", code], env=python_env, capture_output=True, text=True)
    assert "quire.jax needs jax 0.10 or later" in run.stderr and "ModuleNotFoundError" in run.stderr
