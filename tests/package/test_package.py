"""The installed package as a user meets it: `cmake --install` of what was built, then a project of its own against it by
find_package and by pkg-config, with g++ and with clang where there is one. No public header needs another library."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.xdist_group("package")  # they share what was installed

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
    """An installed tree, moved after it was installed: everything below must not care."""
    path = tmp_path_factory.mktemp("installed")
    run(cmake, "--install", build_dir, "--prefix", path / "first", "--component", "quire")
    return (path / "first").rename(path / "moved")


def single(prefix, pattern):
    found = sorted(prefix.rglob(pattern))
    assert len(found) == 1, found
    return found[0]


def test_what_is_installed(prefix, root):
    names = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    headers = {f"include/quire/{path.name}" for path in (root / "include/quire").glob("*.*")}
    assert "include/quire/quire_c.h" in headers and headers <= names
    rest = {re.sub(r"^lib(64|/[^/]*-linux-gnu)?/", "lib/", name) for name in names - headers}
    mpi = {
        "lib/libquire_mpi.a",
        "lib/cmake/quire/quireMpiTargets.cmake",
        "lib/cmake/quire/quireMpiTargets-release.cmake",
    }
    assert mpi <= rest or not mpi & rest  # built where MPI is
    assert rest - mpi - {"bin/quire"} == {
        "lib/libquire.a",
        "lib/pkgconfig/quire.pc",
        "lib/cmake/quire/quireConfig.cmake",
        "lib/cmake/quire/quireConfigVersion.cmake",
        "lib/cmake/quire/quireTargets.cmake",
        "lib/cmake/quire/quireTargets-release.cmake",
    }
    for name in sorted(names - headers):
        if name.endswith((".pc", ".cmake")):
            assert str(root) not in (prefix / name).read_text(), f"{name} names the source tree"


@pytest.fixture(scope="session")
def generator(root):
    """The Ninja of .venv, or what CMake chooses."""
    ninja = root / ".venv/bin/ninja"
    return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja.exists() else []


@pytest.mark.parametrize("compilers", COMPILERS, ids=lambda pair: pair[1])
def test_find_package(prefix, cmake, generator, tmp_path, compilers):
    run(
        cmake,
        "-S",
        HERE / "consumer",
        "-B",
        tmp_path,
        *generator,
        f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Debug",
        f"-DCMAKE_C_COMPILER={compilers[0]}",
        f"-DCMAKE_CXX_COMPILER={compilers[1]}",
    )
    run(cmake, "--build", tmp_path)
    assert run(tmp_path / "consumer").splitlines() == [
        ROWS,
        "[parse] expected a value; got the end of the text",
        "  score +",
        "         ^",
    ]
    assert run(tmp_path / "consumer_c") == ROWS + "\n"


def has_mpi(prefix):
    return bool(list(prefix.rglob("quireMpiTargets.cmake")))


def test_the_component_mpi(prefix, cmake, generator, tmp_path):
    if not has_mpi(prefix):
        pytest.skip("built without MPI")
    run(cmake, "-S", HERE / "consumer_mpi", "-B", tmp_path, *generator, f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", tmp_path)
    as_root = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    launcher = re.search(r"MPIEXEC_EXECUTABLE:\w+=(.+)", (tmp_path / "CMakeCache.txt").read_text())[1]
    made = run(launcher, "-n", "2", tmp_path / "consumer_mpi", env={**os.environ, **as_root})
    assert made == "2 ranks: 0.0 1499.5\n"


def test_the_component_mpi_where_there_is_none(prefix, cmake, generator, tmp_path):
    """Of a package that was built without MPI, and of a source tree where CMake finds none."""
    without = tmp_path / "without"
    shutil.copytree(prefix, without, ignore=shutil.ignore_patterns("quireMpi*", "libquire_mpi*"))
    done = subprocess.run(
        [cmake, "-S", HERE / "consumer_mpi", "-B", tmp_path / "build", *generator, f"-DCMAKE_PREFIX_PATH={without}"],
        text=True,
        capture_output=True,
    )
    said = " ".join(done.stderr.split())
    assert done.returncode != 0 and "this quire was built without MPI: there is no component mpi" in said, done.stderr


def test_quire_mpi_is_not_built_without_mpi(root, cmake, generator, tmp_path):
    options = ["-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", "-DQUIRE_TESTS=OFF", "-DQUIRE_TOOLS=OFF", "-DQUIRE_PYTHON=OFF"]
    text = run(cmake, "-S", root, "-B", tmp_path, *generator, *options)
    assert "MPI was not found: quire_mpi is not built" in text
    assert "libquire_mpi" not in run(cmake, "--build", tmp_path, "--target", "help")


def test_a_project_in_c_alone(prefix, cmake, generator, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(c_alone LANGUAGES C)\nfind_package(quire 0.2 REQUIRED)\n"
        f"add_executable(c_alone {HERE}/consumer/main.c)\ntarget_link_libraries(c_alone PRIVATE quire::quire)\n"
    )
    run(cmake, "-S", tmp_path, "-B", tmp_path / "build", *generator, f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", tmp_path / "build")
    assert run(tmp_path / "build/c_alone") == ROWS + "\n"


def test_another_minor_version_is_refused(prefix, cmake, generator, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(later LANGUAGES CXX)\nfind_package(quire 0.3 REQUIRED)\n"
    )
    done = subprocess.run(
        [cmake, "-S", tmp_path, "-B", tmp_path / "build", *generator, f"-DCMAKE_PREFIX_PATH={prefix}"],
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0 and 'compatible with requested version "0.3"' in " ".join(done.stderr.split()), (
        done.stderr
    )


def test_as_a_subdirectory(root, cmake, generator, tmp_path):
    """The target, and neither tests nor tools. Only configured: building it takes minutes."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(engine LANGUAGES CXX)\n"
        f"add_subdirectory({root} quire)\nadd_executable(engine {HERE}/consumer/main.cc)\n"
        "target_link_libraries(engine PRIVATE quire::quire)\n"
        f'get_property(targets DIRECTORY {root} PROPERTY BUILDSYSTEM_TARGETS)\nmessage(STATUS "targets: ${{targets}}")\n'
    )
    text = run(cmake, "-S", tmp_path, "-B", tmp_path / "build", *generator)
    assert re.search(r"targets: hwy_headers;quire_kernels;quire$", text, re.MULTILINE), text
    assert "CMAKE_BUILD_TYPE:STRING=\n" in (tmp_path / "build/CMakeCache.txt").read_text()


@needs_pkg_config
def test_pkg_config(prefix, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(single(prefix, "quire.pc").parent)}
    flags = run("pkg-config", "--static", "--cflags", "--libs", "quire", env=env).split()
    assert run("pkg-config", "--modversion", "quire", env=env).strip() == run(prefix / "bin/quire", "--version").strip()
    run("g++", "-std=c++20", HERE / "consumer/main.cc", *flags, "-o", tmp_path / "consumer")
    assert run(tmp_path / "consumer").startswith(ROWS)
    # A C program needs nothing but a C compiler.
    run(
        "gcc",
        "-std=c99",
        "-pedantic",
        "-Wall",
        "-Wextra",
        "-Werror",
        HERE / "consumer/main.c",
        *flags,
        "-o",
        tmp_path / "consumer_c",
    )
    assert run(tmp_path / "consumer_c") == ROWS + "\n"


def test_no_file_says_where_it_was_installed(prefix):
    for path in prefix.rglob("*"):
        if path.suffix in (".pc", ".cmake"):
            assert str(prefix.parent) not in path.read_text(), path
    assert "${pcfiledir}" in single(prefix, "quire.pc").read_text()


STRICT = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wshadow",
    "-Wold-style-cast",
    "-Werror",
]


@pytest.mark.parametrize("compiler", [pair[1] for pair in COMPILERS])
@pytest.mark.parametrize("standard", ["c++20", "c++23"])
def test_headers_are_free_of_warnings(prefix, compiler, standard):
    """Of templates those that a program instantiates."""
    run(compiler, f"-std={standard}", *STRICT, "-fsyntax-only", f"-I{prefix}/include", HERE / "consumer/main.cc")


def test_the_version_is_one(prefix, tmp_path, root):
    source = tmp_path / "version.cc"
    source.write_text(
        '#include <quire/version.h>\n#include <cstdio>\nint main() { std::printf("%d.%d.%d %s\\n", '
        "quire::kVersionMajor, quire::kVersionMinor, quire::kVersionPatch, quire::version()); }\n"
    )
    library = single(prefix, "libquire.a")
    run("g++", "-std=c++20", source, f"-I{prefix}/include", library, "-lfmt", "-o", tmp_path / "version")
    of_headers, of_library = run(tmp_path / "version").split()
    assert of_headers == of_library == run(prefix / "bin/quire", "--version").strip()


def test_no_public_header_needs_another_library(prefix, tmp_path):
    """Each header alone, and all that it reads: the compiler's own folders and Quire's, no other."""
    for header in sorted((prefix / "include/quire").glob("*.h")):
        source = tmp_path / "one.cc"
        source.write_text(f"#include <quire/{header.name}>\n")
        read = run("g++", "-std=c++20", "-M", f"-I{prefix}/include", source).replace("\\\n", " ").split()[2:]
        foreign = [path for path in read if re.search(r"/(hwy|tbb|oneapi|fmt|png\w*|CLI|gtest)(/|\.h)", path)]
        assert not foreign, f"{header.name}: {foreign}"
        assert any("/quire/" in path for path in read)
