"""The tour of scripts/demo: runs from anywhere, shows every part, colours only where they are wanted, and fails if a part
does. tests/python/test_report.py is about the report."""

import os
import pty
import subprocess
import time

import pytest

HEADINGS = [
    "== Quire: programmable attention for CPUs",
    "== Attention with a rule of one's own",
    "== Masks are formulas, and can be drawn",
    "== A mistake is shown where it is",
    "== What to try next",
]


@pytest.fixture
def demo(root, build_dir, clean_env, tmp_path):
    def run(**environment):
        env = {**clean_env, "QUIRE_BUILD_DIR": str(build_dir), **environment}
        return subprocess.run(
            [root / "scripts/demo", "--tour"], cwd=tmp_path, env=env, text=True, timeout=60, capture_output=True
        )

    return run


def on_a_terminal(command, env, stdin=False):
    """What the command writes to a terminal; with `stdin` it is that, too (stty asks there)."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command, env=env, stdin=follower if stdin else subprocess.DEVNULL, stdout=follower, stderr=follower
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        written += part
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return written.decode()


def test_every_part_is_there_and_quick(demo):
    begin = time.monotonic()
    done = demo()
    assert time.monotonic() - begin < 30
    assert (done.returncode, done.stderr) == (0, "")
    places = [done.stdout.find(heading) for heading in HEADINGS]
    assert -1 not in places and places == sorted(places)
    assert "$ quire info\nquire " in done.stdout
    assert "did you mean 'q_idx'?" in done.stdout


def test_attention_masks_and_drawings(demo):
    shown = demo().stdout
    for line in (
        "within 1e-6 of plain loops in f64",
        "1 and 2 threads, bits equal",
        "every ISA of this CPU, bits equal",
        "the last row computed alone, bits equal",
    ):
        assert f"\n{line}: yes\n" in shown
    assert shown.count("$ quire draw @") == shown.count("\nkv_idx  0 ") - 1 == 2  # the example draws one more


def test_no_colours_in_a_file(demo):
    assert "\x1b" not in demo().stdout


def test_colours_on_a_terminal_unless_refused(root, build_dir, clean_env):
    env = {**clean_env, "QUIRE_BUILD_DIR": str(build_dir), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    assert "\x1b[" in on_a_terminal([root / "scripts/demo", "--tour"], env)
    assert "\x1b" not in on_a_terminal([root / "scripts/demo", "--tour"], {**env, "NO_COLOR": "1"})


def test_without_a_build_it_says_what_to_do(demo, tmp_path):
    done = demo(QUIRE_BUILD_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "run make demo" in done.stderr


def test_a_part_that_fails_makes_it_fail(demo, tmp_path, build_dir):
    (tmp_path / "examples").mkdir()
    (tmp_path / "quire").symlink_to(build_dir / "quire")
    (tmp_path / "examples/attention").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "examples/attention").chmod(0o755)
    assert demo(QUIRE_BUILD_DIR=str(tmp_path)).returncode == 1
