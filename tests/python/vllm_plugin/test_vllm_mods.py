"""set_mods without vLLM: which layers get which mods, how they reach other processes, and what is refused."""

import os
import subprocess
import sys

import pytest
import quire
import quire.vllm
from quire.vllm import layer_mods
from quire.vllm.layer_mods import LayerMods, mods_of, shifted_heads


@pytest.fixture(autouse=True)
def no_mods():
    quire.vllm.clear_mods()
    yield
    quire.vllm.clear_mods()


def name(layer):
    return f"model.layers.{layer}.self_attn.attn"


def test_layers_by_number_and_name():
    quire.vllm.set_mods([0, 2], mask_mod="kv_idx % 2 == 0")
    quire.vllm.set_mods("*.layers.1.*", score_mod="score * 2.0")
    assert str(mods_of(name(0)).mask_mod) == str(mods_of(name(2)).mask_mod) == "kv_idx % 2 == 0"
    assert mods_of(name(1)).mask_mod is None and str(mods_of(name(1)).score_mod) == "score * 2.0"
    assert mods_of(name(3)) == mods_of("model.layers.20.self_attn.attn") == LayerMods()
    quire.vllm.set_mods(mask_mod=lambda b, h, q, kv: q - kv < 5)  # later ones win
    assert str(mods_of(name(0)).mask_mod) == str(mods_of(name(3)).mask_mod) == "q_idx - kv_idx < 5"
    quire.vllm.clear_mods()
    assert mods_of(name(0)) == LayerMods() and layer_mods.VARIABLE not in os.environ


def test_other_processes_get_them(python_env):
    import torch

    slopes = torch.tensor([1.0, 2.0])
    quire.vllm.set_mods(1, score_mod=lambda score, b, h, q, kv: score + slopes[h])
    code = f"from quire.vllm.layer_mods import mods_of; print(mods_of({name(1)!r}).score_mod, mods_of({name(2)!r}).score_mod)"
    environment = {**python_env, layer_mods.VARIABLE: os.environ[layer_mods.VARIABLE]}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split()[0] == "score" and found.stdout.split()[-1] == "None"


def test_heads_are_those_of_the_model():
    mods = LayerMods(quire.MaskMod("kv_idx % 4 == h"), quire.ScoreMod("score * h"))
    assert shifted_heads(mods, 0) is mods
    shifted = shifted_heads(mods, 8)
    assert "h + 8" in str(shifted.mask_mod) and "h + 8" in str(shifted.score_mod)


def test_refused():
    with pytest.raises(ValueError, match="give mask_mod, score_mod or both"):
        quire.vllm.set_mods(0)
    with pytest.raises(ValueError, match="reads b, the number of a request"):
        quire.vllm.set_mods(0, mask_mod="kv_idx > b")
    with pytest.raises(TypeError, match="a layer is a number or a name; got float 1.5"):
        quire.vllm.set_mods([1.5], mask_mod="kv_idx > 3")
    with pytest.raises(ValueError, match="counted from 0; got -1"):
        quire.vllm.set_mods(-1, mask_mod="kv_idx > 3")
    import torch

    table = torch.randn(100, 1000)
    with pytest.raises(ValueError, match="the tables of the mods take"):
        quire.vllm.set_mods(0, score_mod=lambda score, b, h, q, kv: score + table[h, kv])
    assert mods_of(name(0)) == LayerMods()


def test_switch(monkeypatch):
    from quire.vllm.registration import is_wanted

    for value, expected in (("0", False), ("1", True), ("", True)):
        monkeypatch.setenv("QUIRE_VLLM", value)
        assert is_wanted() is expected
    monkeypatch.setenv("QUIRE_VLLM", "no")
    with pytest.raises(ValueError, match="QUIRE_VLLM must be 0"):
        is_wanted()
