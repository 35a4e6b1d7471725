"""What the package offers: names, pictures, explanations, type stubs, and an import that brings nothing it does not need."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys
import types
import xml.etree.ElementTree

import numpy as np
import pytest
import quire
from quire import mods
from quire.requirements import require

NAMES = """flex_attention create_mask create_block_mask and_masks or_masks noop_mask BlockMask AuxRequest AuxOutput
FlexKernelOptions Jagged JaggedBlockMask create_jagged_block_mask create_nested_block_mask scaled_dot_product_attention
SDPBackend sdpa_kernel choose_backend why_not set_num_threads get_num_threads info""".split()


def test_every_name_of_the_interface_is_there():
    for name in NAMES:
        assert name in quire.__all__ and getattr(quire, name).__doc__, name
    for name in quire.__all__:
        assert hasattr(quire, name), name
    assert list(inspect.signature(quire.flex_attention).parameters) == (
        "query key value score_mod block_mask scale enable_gqa return_lse kernel_options return_aux q_begin "
        "mask_mod dropout_p seed sinks lse_with_sinks weight_mod normalize rope key_indices".split()
    )
    assert list(inspect.signature(quire.scaled_dot_product_attention).parameters) == (
        "query key value attn_mask dropout_p is_causal scale enable_gqa seed alignment "
        "sinks key_indices weight_mod normalize rope".split()
    )


def test_version_is_that_of_the_project(root):
    assert f"project(quire VERSION {quire.__version__} " in (root / "CMakeLists.txt").read_text()


def test_info():
    info = quire.info()
    assert info["version"] == quire.__version__ and info["isa"] in info["available_isas"]
    assert info["threads"] >= 1 and info["logical_cpus"] >= 1 and info["isa_why"]


def test_import_is_light(python_env):
    program = "import sys, quire; print(sorted({'torch', 'ml_dtypes', 'matplotlib'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], env=python_env, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_bf16_without_ml_dtypes(python_env):
    """The memory comes back as 2-byte voids: nothing is lost, and nothing is pretended."""
    program = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, quire
view = quire._core.empty((1, 1, 2, 4), quire._core.DTYPES["bf16"])
view.numpy().view(np.uint16)[:] = 0x3f80
print(view.numpy().dtype, quire.flex_attention(view, view, view).numpy().view(np.uint16).tolist())
"""
    run = subprocess.run([sys.executable, "-c", program], env=python_env, capture_output=True, text=True, check=True)
    assert run.stdout == f"|V2 {[[[[0x3F80] * 4] * 2]]}\n"


def test_what_is_missing_or_too_old_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r'quire.torch needs torch 2.13 or later: pip install "\.\[torch\]"'):
        require("torch", "2.13")
    for version, is_old in (
        ("2.9.1+cpu", True),
        ("2.13.0a0+git12", False),
        ("2.14", False),
        ("3.0", False),
        ("1.99", True),
    ):
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
        if is_old:
            with pytest.raises(ImportError, match=rf"needs torch 2.13 or later: .*; got {re.escape(version)}"):
                require("torch", "2.13")
        else:
            require("torch", "2.13")


def test_stubs_name_everything(tmp_path):
    package = pathlib.Path(quire.__file__).parent
    assert (package / "py.typed").exists()
    stub = ast.parse((package / "_core.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    public = {name for name, value in vars(quire._core).items() if not name.startswith("_") and callable(value)}
    assert public <= named
    mask = next(node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "BlockMask")
    assert {"kv_indices", "from_kv_blocks", "__getitem__", "to_string"} <= {
        n.name for n in mask.body if isinstance(n, ast.FunctionDef)
    }


def test_every_function_of_the_extension_is_documented():
    undocumented = [
        name
        for name, value in vars(quire._core).items()
        if type(inspect.unwrap(value)).__name__ == "nb_func" and len((value.__doc__ or "").strip().splitlines()) < 2
    ]
    functions_of_mods = set(quire.__all__)  # their names say what they do
    assert set(undocumented) <= functions_of_mods | {"abs", "pow", "round"}


def pictures():
    mask = quire.create_block_mask(mods.causal(), 2, None, 300, 300)
    return [
        (mask, ()),
        (mods.causal(), (40, 50)),
        (mods.alibi(4), (40,)),
        ("q_idx >= kv_idx", (30,)),
        (lambda b, h, q, kv: q > kv, (8, 8)),
    ]


def test_draw():
    for what, lengths in pictures():
        for style in ("unicode", "ascii", "colour"):
            text = quire.draw(what, *lengths, width=32, style=style, title="a title", b=0)
            assert text.startswith("a title") and len(text.splitlines()) > 5
            assert (style == "colour") == ("\x1b[" in text)
    assert "batch 1 of 2" in quire.draw(pictures()[0][0], b=1)


def test_draw_svg_and_png():
    for what, lengths in pictures():
        root = xml.etree.ElementTree.fromstring(quire.draw_svg(what, *lengths, title="a < b"))
        assert root.tag.endswith("svg")
        if quire.info()["has_png"]:
            assert quire.draw_png(what, *lengths, cells=64).startswith(b"\x89PNG\r\n")


def test_draw_refuses():
    for call, text in (
        (lambda: quire.draw(mods.causal()), r"\[draw\] a mod is drawn for a q_len and a kv_len"),
        (lambda: quire.draw(pictures()[0][0], 5), r"\[draw\] a block mask brings its own lengths"),
        (lambda: quire.draw(mods.causal(), 5, colour="red"), r"\[draw\] unknown option 'colour'"),
    ):
        with pytest.raises(TypeError, match=text):
            call()
    with pytest.raises(ValueError, match=r"\[draw\] style must be"):
        quire.draw(mods.causal(), 5, style="oil")
    with pytest.raises(IndexError, match=r"\[draw\] batch 2 is outside a mask of 2"):
        quire.draw(pictures()[0][0], b=2)


def test_notebooks_show_pictures():
    for what, _ in pictures()[:3]:
        assert what._repr_svg_().startswith("<svg")
    assert quire.MaskMod("t[kv_idx] > 0", {"t": np.ones(3)})._repr_svg_() is None  # too small for the picture: its text
    assert quire.create_block_mask(mods.causal(), 1, 1, 0, 5)._repr_svg_() is None


def test_explain():
    text = quire.explain("score + bias[h, kv_idx - q_idx + 9]", {"bias": np.zeros((8, 4095), np.float16)})
    assert "score mod" in text and "bias f16[8, 4095]" in text
    assert "mask mod" in quire.explain(mods.causal()) and "score mod" in quire.explain(
        mods.softcap(2.0), f64=True, decode=True
    )
    assert "declared, no data" in quire.explain("score + unknown[h]", heads=4)
    with pytest.raises(TypeError, match=r"\[explain\] a ScoreMod, a MaskMod or a text is needed"):
        quire.explain(3)
