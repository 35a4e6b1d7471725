"""What the tests of quire.torch share. Tests marked `slow` run with QUIRE_SLOW_TESTS=1 or `-m slow`."""

import os

import pytest

torch = pytest.importorskip("torch")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes many seconds; run with -m slow or QUIRE_SLOW_TESTS=1")


def pytest_collection_modifyitems(config, items):
    if config.getoption("-m") or os.environ.get("QUIRE_SLOW_TESTS"):
        return
    skip = pytest.mark.skip(reason="slow; run with -m slow or QUIRE_SLOW_TESTS=1")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
