"""Threads: other Python threads go on while Quire computes, many may call at once, and a forked child works."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import quire
from quire import mods


def progress_during(call):
    """How often another Python thread came to run while `call` was under way, and the seconds it took."""
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0005)

    other = threading.Thread(target=tick)
    other.start()
    try:
        time.sleep(0.01)
        before, begin = ticks[0], time.perf_counter()
        call()
        return ticks[0] - before, time.perf_counter() - begin
    finally:
        stop.set()
        other.join()


def slow_mask():
    """Everything is visible, which cannot be proved by ranges: every element is looked at."""
    odd_are_zero = quire.Buffer(np.tile([1, 0], 4096))
    return quire.MaskMod(lambda b, h, q, kv: odd_are_zero[(q * 7919 + kv * 104729 + b) % 4096 * 2 + 1] == 0)


CALLS = {
    "flex_attention": lambda q: quire.flex_attention(q, q, q),
    "create_block_mask": lambda q: quire.create_block_mask(slow_mask(), 4, None, 4096, 4096),
    "create_mask": lambda q: quire.create_mask(slow_mask(), 4, 2, 2048, 4096),
    "evaluate": lambda q: quire.evaluate(
        quire.ScoreMod("exp(tanh(score)) + sin(kv_idx)"), np.zeros((4, 4, 1024, 1024), np.float32)
    ),
    "draw_svg": lambda q: quire.draw_svg(slow_mask(), 8192, 8192),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_gil_is_free_while_quire_computes(name, threads):
    quire.set_num_threads(1)
    q = np.ones((1, 8, 2048, 64), np.float32)
    ticks, seconds = progress_during(lambda: CALLS[name](q))
    assert seconds > 0.02, "too quick to tell"
    assert ticks >= max(3, seconds / 0.02), f"{ticks} in {seconds:.3f} s"


def test_many_threads_call_at_once(threads):
    quire.set_num_threads(2)
    random = np.random.default_rng(0)
    calls = [random.standard_normal((1, 2, length, 16)).astype(np.float32) for length in (1, 30, 100, 257)]
    mod = mods.alibi([0.5, 0.25])
    expected = [quire.flex_attention(q, q, q, mod) for q in calls]
    wrong = []

    def work(seed):
        for i in np.random.default_rng(seed).integers(len(calls), size=50):
            out = quire.flex_attention(calls[i], calls[i], calls[i], mod)
            mask = quire.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64, 16)
            if not np.array_equal(out, expected[i]) or mask.mask_mod != mods.causal():
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for one in workers:
        one.start()
    quire.set_num_threads(1)  # in the middle of it
    for one in workers:
        one.join(60)
        assert not one.is_alive()
    assert not wrong


def test_buffers_may_die_in_any_thread():
    """The last reference to a captured array is dropped where no Python code runs."""
    q = np.ones((1, 1, 300, 8), np.float32)

    def work():
        for _ in range(50):
            quire.flex_attention(q, q, q, quire.ScoreMod("score + t[kv_idx]", {"t": np.zeros(300, np.float32)}))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)
        assert not one.is_alive()


def test_number_of_threads(threads):
    quire.set_num_threads(3)
    assert quire.get_num_threads() == quire.info()["threads"] == 3
    for wrong in (0, -1, 1025):
        with pytest.raises(ValueError, match="1024"):
            quire.set_num_threads(wrong)
    assert quire.get_num_threads() == 3


FORK = """
import os, sys
import numpy as np
import quire
q = np.ones((1, 4, 300, 16), np.float32)
quire.set_num_threads(2)
quire.flex_attention(q, q, q)                     # the parent's threads exist
child = os.fork()
if child == 0:
    fine = quire.get_num_threads() == 1 and (quire.flex_attention(q, q, q) == 1).all()
    quire.create_block_mask(quire.mods.causal(), None, None, 4096, 4096)
    os._exit(0 if fine else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert quire.get_num_threads() == 2 and (quire.flex_attention(q, q, q) == 1).all()
print("done")
"""

EXIT = """
import threading
import numpy as np
import quire
held = quire.ScoreMod("score + t[h]", {"t": np.zeros(4, np.float32)})   # alive when the interpreter ends
mask = quire.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64)
q = np.ones((1, 4, 64, 16), np.float32)
out = quire.flex_attention(q, q, q, held, mask)
threading.Thread(target=lambda: [quire.flex_attention(q, q, q, held) for _ in range(200)], daemon=True).start()
print("done")
"""


@pytest.mark.parametrize("program", [FORK, EXIT], ids=["fork", "exit"])
def test_in_a_process_of_its_own(program, python_env):
    run = subprocess.run([sys.executable, "-c", program], env=python_env, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
