"""scripts/demo: runs from anywhere, shows every part, colours only where they are wanted, and fails if a part does."""

import os
import pty
import subprocess
import time

import pytest

HEADINGS = [
    "== Quire: programmable attention for CPUs", "== This machine", "== Attention with a rule of one's own",
    "== Masks are formulas, and can be drawn", "== A block mask of a million tokens", "== Mods in C++",
    "== What becomes of a formula: ALiBi", "== A mask over packed documents", "== A mistake is shown where it is",
    "== What to try next",
]


@pytest.fixture
def demo(root, build_dir, clean_env, tmp_path):
    def run(**environment):
        env = {**clean_env, "QUIRE_BUILD_DIR": str(build_dir), **environment}
        return subprocess.run([root / "scripts/demo"], cwd=tmp_path, env=env, text=True, timeout=60, capture_output=True)

    return run


def on_a_terminal(command, env):
    """What the command writes to a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
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
    assert "$ quire explain \"score + slopes[h] * (kv_idx - q_idx)\"\nscore mod\n" in done.stdout
    assert "bits as on scalar: yes" in done.stdout and "bits as on scalar: NO" not in done.stdout
    assert "did you mean 'q_idx'?" in done.stdout


def test_attention_masks_and_drawings(demo):
    shown = demo().stdout
    for line in ("within 1e-6 of plain loops in f64", "1 and 2 threads, bits equal", "every ISA of this CPU, bits equal",
                 "the last row computed alone, bits equal"):
        assert f"\n{line}: yes\n" in shown
    assert shown.count("$ quire draw @") == shown.count("\nkv_idx  0 ") - 1 == 3  # the example draws one more
    assert "block mask: 1048576 queries x 1048576 keys in blocks of 128 x 128\n" in shown
    assert "evaluated   16384 elements one by one" in shown


def test_no_colours_in_a_file(demo):
    assert "\x1b" not in demo().stdout


def test_colours_on_a_terminal_unless_refused(root, build_dir, clean_env):
    env = {**clean_env, "QUIRE_BUILD_DIR": str(build_dir), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    assert "\x1b[" in on_a_terminal([root / "scripts/demo"], env)
    assert "\x1b" not in on_a_terminal([root / "scripts/demo"], {**env, "NO_COLOR": "1"})


def test_without_a_build_it_says_what_to_do(demo, tmp_path):
    done = demo(QUIRE_BUILD_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "run make demo" in done.stderr


@pytest.mark.parametrize("example", ["first_mods", "attention"])
def test_a_part_that_fails_makes_it_fail(demo, tmp_path, build_dir, example):
    (tmp_path / "examples").mkdir()
    (tmp_path / "quire").symlink_to(build_dir / "quire")
    for name in ("first_mods", "attention"):
        (tmp_path / "examples" / name).symlink_to(build_dir / "examples" / name)
    (tmp_path / "examples" / example).unlink()
    (tmp_path / "examples" / example).write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "examples" / example).chmod(0o755)
    assert demo(QUIRE_BUILD_DIR=str(tmp_path)).returncode == 1
