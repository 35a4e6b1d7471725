"""What the tests of quire.jax share. They are skipped where JAX is not installed; scripts/check-all installs it."""

import importlib.util
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# The folder of these tests has the name of the package, which counts as one without files where that is not installed.
if importlib.util.find_spec("jax.numpy") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def x64():
    """JAX's mode with 64 bits, for one test."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
