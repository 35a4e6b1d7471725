"""What the Python tests share: where the project is and where its programs were built."""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _hides_tile_sizes():
    """Some virtual machines show AMX, but not CPUID leaf 0x1D with the sizes of its tiles."""
    try:
        cpu = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    level = re.search(r"^cpuid level\s*: (\d+)", cpu, re.MULTILINE)
    return " amx_tile" in cpu and level is not None and int(level[1]) < 0x1D


if _hides_tile_sizes():  # torch's own bf16 products end in SIGILL there; read when torch is imported
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): in one process with the others of that name (scripts/test)")


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def build_dir():
    """build/release, or what QUIRE_BUILD_DIR says."""
    path = pathlib.Path(os.environ.get("QUIRE_BUILD_DIR") or ROOT / "build/release").resolve()
    assert (path / "quire").exists(), f"{path} holds no program `quire`: run `make build`, or set QUIRE_BUILD_DIR"
    return path


@pytest.fixture(scope="session")
def clean_env():
    """The environment without what would change Quire's answers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
