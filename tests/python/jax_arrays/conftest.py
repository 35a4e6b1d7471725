"""What the tests of quire.jax share. They are skipped where JAX is not installed; scripts/check-all installs it."""

import importlib.util
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def has_jax():
    """The folder of these tests has the name of the package, and counts as one without files where that is not installed."""
    try:
        return importlib.util.find_spec("jax.numpy") is not None
    except ModuleNotFoundError:
        return False


if not has_jax():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def x64():
    """JAX's mode with 64 bits, for one test."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
