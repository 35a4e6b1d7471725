"""examples/train_gpt.py in small: it learns, draws its curve, and ends with the same weights on 1 and on 2 threads."""

import pathlib
import re
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples/train_gpt.py"
SMALL = ["--rows", "2", "--length", "128", "--width", "64", "--layers", "2"]


def run(env, *arguments):
    command = [sys.executable, EXAMPLE, *SMALL, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "\r" not in done.stdout + done.stderr  # no bar where there is no terminal
    return done.stdout


def test_it_learns(python_env, tmp_path):
    printed = run(python_env, "--steps", "40", "--threads", "1", "--svg", str(tmp_path / "loss.svg"))
    first, last = map(float, re.search(r"loss: ([\d.]+) at first, ([\d.]+) now", printed).groups())
    assert first > 4.5 and last < 3.9
    assert "•" in printed and "A block mask " in printed
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")


def test_weights_do_not_depend_on_threads(python_env):
    printed = run(python_env, "--steps", "6", "--check")
    one, two = re.findall(r"threads?: .* weights (\w+)", printed)
    assert one == two and "the weights are bitwise equal" in printed
