"""Right in any process: the caller's floating-point environment changes nothing and is left alone, children forked while
other threads compute work, and so does a process that gets no threads."""

import ctypes
import ctypes.util
import platform
import resource
import subprocess
import sys

import numpy as np
import pytest
import quire
from quire import mods

DECAY = "exp(-0.5 * (q_idx - kv_idx)) > 1e-40"


def odd_numbers(*shape):
    """Sums of them are inexact, and some are subnormal."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values.reshape(-1)[5::37] *= np.float32(1e-39)
    return values


Q = odd_numbers(1, 2, 70, 16)
K = odd_numbers(1, 2, 300, 16)
HALF, LSE = Q * np.float32(0.5), np.ascontiguousarray(Q[..., 0])
SPOILED = np.where(np.arange(70) % 3 == 0, np.float32("nan"), LSE)
OFFSETS = np.array([0, 7, 70])
JAGGED = np.ascontiguousarray(Q[0].transpose(1, 0, 2))


def jagged():
    batch = quire.Jagged(JAGGED, OFFSETS)
    return quire.flex_attention(batch, batch, batch)


def cached():
    cache = quire.KVCache(layers=1, kv_heads=2, head_dim=16, n_pages=8)
    sequence = cache.create()
    cache.append(sequence, 70, k=JAGGED[None], v=JAGGED[None])
    return quire.attend(cache, 0, [sequence], JAGGED, counts=[70])


CALLS = {
    "evaluate": lambda: quire.evaluate(quire.MaskMod(DECAY), (1, 1, 256, 256)),
    "log": lambda: quire.evaluate(quire.ScoreMod("log(score) / (score - score) + 0.1 * 0.7"), Q),
    "lambda": lambda: quire.evaluate(lambda s, b, h, q, kv: s * 1e-40 + 0.1 / 3.0, Q),
    "text": lambda: np.array(str(quire.ScoreMod("score * 0.1 * 0.7 + 1e-40"))),
    "block_mask": lambda: quire.create_block_mask(quire.MaskMod(DECAY), None, None, 512, 512, 16).to_dense(),
    "sparsity": lambda: np.array(quire.create_block_mask(quire.MaskMod(DECAY), None, None, 500, 512, 16).sparsity()),
    "alibi": lambda: quire.flex_attention(Q, K, K, mods.alibi(2)),
    "softcap": lambda: quire.flex_attention(Q, K, K, mods.softcap(0.3)),
    "sdpa": lambda: quire.scaled_dot_product_attention(Q, K, K),
    "vjp": lambda: quire.flex_attention_vjp(Q, K, K)[1](Q).query,
    "jagged": lambda: jagged().values,
    "attend": cached,
    "merge_states": lambda: quire.merge_states([(Q, LSE), (HALF, SPOILED)])[0],
    "draw": lambda: np.array(quire.draw(quire.ScoreMod("score + 0.1 * kv_idx"), 40, 40)),
}
EXPECTED = {}


@pytest.fixture
def libm():
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of the rounding modes are those of x86")
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    environment = (ctypes.c_char * 64)()
    library.fegetenv(environment)
    yield library
    library.fesetenv(environment)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00], ids=["down", "up", "zero"])
def test_rounding_modes(libm, name, mode):
    expected = EXPECTED.setdefault(name, CALLS[name]())
    assert libm.fesetround(mode) == 0
    got = CALLS[name]()
    still = libm.fegetround()
    libm.fesetround(0)
    assert still == mode
    np.testing.assert_array_equal(got, expected)


def test_traps(libm):
    for name in CALLS:
        EXPECTED.setdefault(name, CALLS[name]())
    invalid, by_zero, overflow = 1, 4, 8
    for name in ("evaluate", "log", "block_mask", "alibi", "vjp", "attend"):
        libm.feclearexcept(invalid | by_zero | overflow)
        libm.feenableexcept(invalid | by_zero | overflow)
        try:
            got = CALLS[name]()
        finally:
            libm.fedisableexcept(invalid | by_zero | overflow)
        np.testing.assert_array_equal(got, EXPECTED[name])


def test_the_number_of_visible_keys():
    assert CALLS["evaluate"]()[0, 0, 255].sum() == 185


FORK = """
import os, signal, sys, threading, time
import multiprocessing
import numpy as np
import quire

q = np.random.default_rng(0).standard_normal((1, 4, 300, 16)).astype(np.float32)
rule = quire.MaskMod("(q_idx * 7919 + kv_idx * 104729) % 5 != 0")
def compute():
    return quire.flex_attention(q, q, q, block_mask=quire.create_block_mask(rule, None, None, 300, 300, 32))

quire.set_num_threads(3)
expected, stop = compute(), threading.Event()
def load():
    while not stop.is_set():
        compute()
busy = [threading.Thread(target=load) for _ in range(2)]
for one in busy: one.start()
children = []
for i in range(30):
    time.sleep(0.003)
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        fine = quire.get_num_threads() == 1 and (compute() == expected).all()
        quire.set_num_threads(3)
        fine = fine and (compute() == expected).all()
        os._exit(0 if fine else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
with multiprocessing.get_context("fork").Pool(2) as pool:
    same = [pool.apply(compute) for _ in range(2)]
stop.set()
for one in busy: one.join()
assert all((one == expected).all() for one in same)
assert (compute() == expected).all()
print(codes.count(0))
"""


def test_children_of_a_process_whose_threads_compute(python_env):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], env=python_env, capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "30\n", "")


FEW = """
import numpy as np
import quire
q = np.ones((1, 8, 300, 16), np.float32)
quire.set_num_threads(64)
for _ in range(3):
    assert (quire.flex_attention(q, q, q) == 1).all()
    quire.create_block_mask(quire.mods.causal(), None, None, 4096, 4096)
print("done")
"""


def test_a_process_without_room_for_threads(python_env):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

    env = {**python_env, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", FEW], env=env, capture_output=True, text=True, timeout=60, preexec_fn=limit
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
