"""The installed package as a user meets it: `cmake --install` of what was built, then a project of its own against it by
find_package and by pkg-config, with g++ and with clang where there is one. No public header needs another library."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
ROWS = "0.0 0.5 1.0 1.5 2.0 2.5 3.0 3.5"
COMPILERS = [pair for pair in (("gcc", "g++"), ("clang-19", "clang++-19")) if all(map(shutil.which, pair))]

needs_pkg_config = pytest.mark.skipif(not shutil.which("pkg-config"), reason="there is no pkg-config")


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=300, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def cmake(root):
    """The CMake of .venv, or of the system."""
    path = root / ".venv/bin/cmake"
    return path if path.exists() else "cmake"


@pytest.fixture(scope="session")
def prefix(build_dir, cmake, tmp_path_factory):
    path = tmp_path_factory.mktemp("installed")
    run(cmake, "--install", build_dir, "--prefix", path, "--component", "quire")
    return path


def single(prefix, pattern):
    found = sorted(prefix.rglob(pattern))
    assert len(found) == 1, found
    return found[0]


def test_what_is_installed(prefix, root):
    names = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    headers = {f"include/quire/{path.name}" for path in (root / "include/quire").glob("*.h")}
    assert "include/quire/quire_c.h" in headers and headers <= names
    rest = {re.sub(r"^lib(64|/[^/]*-linux-gnu)?/", "lib/", name) for name in names - headers}
    assert rest - {"bin/quire"} == {
        "lib/libquire.a", "lib/pkgconfig/quire.pc", "lib/cmake/quire/quireConfig.cmake",
        "lib/cmake/quire/quireConfigVersion.cmake", "lib/cmake/quire/quireTargets.cmake",
        "lib/cmake/quire/quireTargets-release.cmake"}
    for name in sorted(names - headers):
        if name.endswith((".pc", ".cmake")):
            assert str(root) not in (prefix / name).read_text(), f"{name} names the source tree"


@pytest.mark.parametrize("compilers", COMPILERS, ids=lambda pair: pair[1])
def test_find_package(prefix, cmake, root, tmp_path, compilers):
    ninja = root / ".venv/bin/ninja"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja.exists() else []
    run(cmake, "-S", HERE / "consumer", "-B", tmp_path, *generator, f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_C_COMPILER={compilers[0]}", f"-DCMAKE_CXX_COMPILER={compilers[1]}")
    run(cmake, "--build", tmp_path)
    assert run(tmp_path / "consumer").splitlines() == [
        ROWS, "[parse] expected a value; got the end of the text", "  score +", "         ^"]
    assert run(tmp_path / "consumer_c") == ROWS + "\n"


@needs_pkg_config
def test_pkg_config(prefix, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(single(prefix, "quire.pc").parent)}
    flags = run("pkg-config", "--static", "--cflags", "--libs", "quire", env=env).split()
    assert run("pkg-config", "--modversion", "quire", env=env).strip() == run(prefix / "bin/quire", "--version").strip()
    run("g++", "-std=c++20", HERE / "consumer/main.cc", *flags, "-o", tmp_path / "consumer")
    assert run(tmp_path / "consumer").startswith(ROWS)
    # A C program needs nothing but a C compiler.
    run("gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", HERE / "consumer/main.c", *flags, "-o",
        tmp_path / "consumer_c")
    assert run(tmp_path / "consumer_c") == ROWS + "\n"


def test_a_moved_tree_still_works(prefix, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(prefix, moved)
    text = single(moved, "quire.pc").read_text()
    assert str(prefix) not in text and "${pcfiledir}" in text


def test_no_public_header_needs_another_library(prefix, tmp_path):
    """Each header alone, and all that it reads: the compiler's own folders and Quire's, no other."""
    for header in sorted((prefix / "include/quire").glob("*.h")):
        source = tmp_path / "one.cc"
        source.write_text(f"#include <quire/{header.name}>\n")
        read = run("g++", "-std=c++20", "-M", f"-I{prefix}/include", source).replace("\\\n", " ").split()[2:]
        foreign = [path for path in read if re.search(r"/(hwy|tbb|oneapi|fmt|png\w*|CLI|gtest)(/|\.h)", path)]
        assert not foreign, f"{header.name}: {foreign}"
        assert any("/quire/" in path for path in read)
