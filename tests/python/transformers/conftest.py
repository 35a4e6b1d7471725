"""What the tests of quire.transformers share. Nothing is fetched from a hub; `slow` is explained in ../conftest.py."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import quire.transformers
import torch
from transformers.utils import logging

logging.set_verbosity_error()
quire.transformers.register()


@pytest.fixture(autouse=True)
def seed_and_threads():
    """One thread: for models this small more are only in each other's way."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
