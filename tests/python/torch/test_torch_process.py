"""quire.torch in other processes: children forked after torch's threads were started and while others compute, workers of
a DataLoader, a process that gets no threads, and torch's flushing of subnormals."""

import pathlib
import subprocess
import sys

import pytest
import torch
from quire.torch import create_block_mask, flex_attention

FORK = """
import os, signal, sys, threading, time
import torch
import quire
from quire.torch import create_block_mask, flex_attention

torch.set_num_threads(2)
quire.set_num_threads(2)
q = torch.randn(1, 4, 300, 16, generator=torch.Generator().manual_seed(0))
def compute():
    mask = create_block_mask(lambda b, h, i, j: (i * 7919 + j * 104729) % 5 != 0, None, None, 300, 300, device="cpu")
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + 0.1 * (j - i), block_mask=mask)

expected, stop = compute(), threading.Event()
def load():
    while not stop.is_set():
        compute()
busy = [threading.Thread(target=load) for _ in range(2)]
for one in busy: one.start()
children = []
for i in range(12):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        fine = bytes(compute().numpy()) == bytes(expected.numpy())
        quire.set_num_threads(2)
        fine = fine and bytes(compute().numpy()) == bytes(expected.numpy())
        os._exit(0 if fine else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
for one in busy: one.join()
print(codes.count(0))
"""

FEW = """
import torch
from quire.torch import flex_attention
torch.set_num_threads(8)
import quire
quire.set_num_threads(8)
q = torch.ones(1, 8, 200, 16)  # too few for torch to start threads
for _ in range(3):
    out = flex_attention(q, q, q)
print(bool((out == 1).numpy().all()))
"""


def run_program(program, env):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=env, capture_output=True, text=True, timeout=180
    )


def test_children_of_a_process_whose_threads_compute(python_env):
    run = run_program(FORK, python_env)
    assert (run.returncode, run.stdout, run.stderr) == (0, "12\n", "")


def test_threads_of_openmp_that_cannot_be_made(python_env, tmp_path, root):
    """libgomp ends the process when pthread_create fails; calls of Quire do not ask it to."""
    library = tmp_path / "no_threads.so"
    source = pathlib.Path(root) / "tests/package/process/no_threads.c"
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    run = run_program(FEW, {**python_env, "LD_PRELOAD": str(library), "THREADS": "0", "OPENBLAS_NUM_THREADS": "1"})
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr


class Rows(torch.utils.data.Dataset):
    def __init__(self, q):
        self.q = q

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return flex_attention(self.q, self.q, self.q, score_mod=lambda s, b, h, q_idx, kv_idx: s + 0.1 * q_idx)


def test_workers_of_a_data_loader():
    q = torch.randn(1, 2, 100, 16)
    rows = Rows(q)
    expected = rows[0]
    loader = torch.utils.data.DataLoader(
        rows, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    for got in loader:
        assert torch.equal(got, expected)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU does not flush")
def test_flushing_of_subnormals_changes_nothing():
    def compute():
        mask = create_block_mask(
            lambda b, h, q, k: torch.exp(-0.5 * (q - k)) > 1e-40, None, None, 512, 512, device="cpu", BLOCK_SIZE=16
        )
        q = torch.ones(1, 1, 512, 8)
        return mask.to_dense(), flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + 1e-39 * j, block_mask=mask)

    expected = compute()
    assert torch.set_flush_denormal(True)
    try:
        got = compute()
    finally:
        torch.set_flush_denormal(False)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
