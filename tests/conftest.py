"""What the Python tests share: where the project is and where its programs were built."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


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
