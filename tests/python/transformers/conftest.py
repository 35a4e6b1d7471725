"""What the tests of quire.transformers share. Nothing is fetched from a hub; `slow` is explained in ../torch/conftest.py."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import quire.transformers
import torch
from transformers.utils import logging

logging.set_verbosity_error()
quire.transformers.register()


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes many seconds; run with -m slow or QUIRE_SLOW_TESTS=1")


def pytest_collection_modifyitems(config, items):
    if config.getoption("-m") or os.environ.get("QUIRE_SLOW_TESTS"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run with -m slow or QUIRE_SLOW_TESTS=1"))


@pytest.fixture(autouse=True)
def seed_and_threads():
    """One thread: for models this small more are only in each other's way."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
