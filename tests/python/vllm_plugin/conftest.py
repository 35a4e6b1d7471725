"""What the tests of quire.vllm share. Those that need vLLM skip where it is not installed; `make check-all` runs them in the environment of
scripts/vllm-venv. Nothing is fetched from a hub."""

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
)

import pytest
import torch

torch.cpu._init_amx()  # vLLM's own attention uses AMX, and leaves it to oneDNN to ask the system for it


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
