"""What the tests of the Python package share: the package comes from <build>/python, or from QUIRE_PYTHON_DIR. Tests marked
`slow` run with QUIRE_SLOW_TESTS=1 or `-m slow`."""

import os
import pathlib
import sys

import pytest
from hypothesis import configuration, settings

ROOT = pathlib.Path(__file__).resolve().parents[2]


def package_dir():
    """The folder that holds the package `quire`, extension included."""
    given = os.environ.get("QUIRE_PYTHON_DIR")
    return pathlib.Path(
        given or pathlib.Path(os.environ.get("QUIRE_BUILD_DIR") or ROOT / "build/release") / "python"
    ).resolve()


if not list(package_dir().glob("quire/_core*.so")):
    raise pytest.UsageError(
        f"{package_dir()} holds no package quire: build with -DQUIRE_PYTHON=ON, or set QUIRE_BUILD_DIR or QUIRE_PYTHON_DIR"
    )
sys.path.insert(0, str(package_dir()))

# Nothing is kept between runs; a failure prints what reproduces it.
settings.register_profile("quire", database=None, deadline=None, print_blob=True)
settings.load_profile("quire")
configuration.set_hypothesis_home_dir(ROOT / "build/hypothesis")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes many seconds; run with -m slow or QUIRE_SLOW_TESTS=1")


def pytest_collection_modifyitems(config, items):
    if config.getoption("-m") or os.environ.get("QUIRE_SLOW_TESTS"):
        return
    skip = pytest.mark.skip(reason="slow; run with -m slow or QUIRE_SLOW_TESTS=1")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def python_env():
    """The environment of a Python process that imports the package under test."""
    return {**os.environ, "PYTHONPATH": str(package_dir())}


@pytest.fixture
def threads():
    """Puts the number of threads back after a test that changes it."""
    import quire

    before = quire.get_num_threads()
    yield
    quire.set_num_threads(before)
