"""The example engine checks itself against one request at a time; here what it prints is read."""

import re
import subprocess

import pytest

pytestmark = pytest.mark.xdist_group("engine")  # they share what was made once


@pytest.fixture(scope="module")
def engine(build_dir, clean_env):
    return subprocess.run([build_dir / "examples/engine"], env=clean_env, text=True, timeout=120, capture_output=True)


def number(engine, pattern):
    return float(re.search(r"([\d.]+) " + pattern, engine.stdout)[1])


def test_tokens_and_bits_of_logits_are_those_of_each_request_alone(engine):
    assert engine.returncode == 0, engine.stdout + engine.stderr
    assert re.search(r"against one at a time: 0 of \d+ samples differ", engine.stdout)


def test_everything_it_is_to_show_happened(engine):
    assert number(engine, "samples,") > number(engine, "requests,") > 0
    for what in ("found in the cache", "forks", "pages copied", "preemptions", "evictions"):
        assert number(engine, what) > 0, what


def test_waste_is_small(engine):
    assert 0 < number(engine, "% of slots wasted at page 16") < 4
