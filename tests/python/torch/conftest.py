"""What the tests of quire.torch share."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
