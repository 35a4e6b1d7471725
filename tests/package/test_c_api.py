"""The C interface from outside: the header under C compilers, the symbols it adds, and the example."""

import re
import shutil
import subprocess

import pytest

OUTPUT = """\
sparsity of the block mask: 41.67 %
first row is the first value: yes
lse of the last row: 4.403
jagged has the same bits: yes
[parse] unknown name 'slope'; did you mean 'slopes'?
  score + slope[h]
          ^
"""


def declared(root):
    text = re.sub(r"/\*.*?\*/", "", (root / "include/quire/quire_c.h").read_text(), flags=re.DOTALL)
    return re.findall(r"^QUIRE_C_API\s[^;(]*?(\w+)\(", text, re.MULTILINE)


def symbols(build_dir):
    """[(letter, name)] of what the library defines and offers to a linker, C++ names as they are."""
    done = subprocess.run(
        ["nm", "--defined-only", "--extern-only", build_dir / "libquire.a"], text=True, capture_output=True
    )
    return re.findall(r"^[0-9a-f]+ (\w) (\S+)$", done.stdout, re.MULTILINE)


def test_every_function_is_there_and_no_other(root, build_dir):
    names = declared(root)
    assert len(names) > 20 and len(names) == len(set(names))
    # What is not C++ (no _Z) is the C interface, and all of it begins with quire_.
    in_c = {
        name
        for _, name in symbols(build_dir)
        if not name.startswith(("_Z", "DW.ref.", "__gcov", "__odr_asan", "__asan"))
    }
    assert in_c == set(names)
    assert all(name.startswith("quire_") for name in names)


@pytest.mark.parametrize("compiler", [name for name in ("gcc", "clang-19") if shutil.which(name)])
@pytest.mark.parametrize("standard", ["c99", "c11"])
def test_the_header_is_plain_c(root, tmp_path, compiler, standard):
    source = tmp_path / "twice.c"
    source.write_text("#include <quire/quire_c.h>\n#include <quire/quire_c.h>\nint main(void) { return QUIRE_OK; }\n")
    for path in (source, root / "include/quire/quire_c.h", root / "examples/c_api.c", root / "examples/c_engine.c"):
        done = subprocess.run(
            [
                compiler,
                f"-std={standard}",
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-x",
                "c",
                "-fsyntax-only",
                f"-I{root}/include",
                path,
            ],
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr


def test_the_header_is_c89_but_for_stdint(root, tmp_path):
    source = tmp_path / "old.c"
    source.write_text("#include <quire/quire_c.h>\nint main(void) { return QUIRE_OK; }\n")
    done = subprocess.run(
        ["gcc", "-std=c89", "-pedantic", "-Wall", "-Werror", "-fsyntax-only", f"-I{root}/include", source],
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_example(build_dir, clean_env):
    done = subprocess.run([build_dir / "examples/c_api"], text=True, capture_output=True, env=clean_env, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, OUTPUT, "")


ENGINE = """\
26 steps, 64 tokens found, 80 guesses accepted
3 requests went to a file, 3 came back; 0 sequences and 0 pages are left
every token is that of one request at a time: yes
"""


def test_the_engine(build_dir, clean_env, tmp_path):
    """A batch of requests over a cache, every token compared with one request at a time over dense tensors."""
    done = subprocess.run(
        [build_dir / "examples/c_engine"], text=True, capture_output=True, env=clean_env, timeout=60, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, ENGINE, "")
