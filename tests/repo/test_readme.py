"""What README.md, ARCHITECTURE.md and docs/*.md show is what happens.

- A ```cpp or ```c block with a main() is compiled against include/ and libquire.a and run; the fenced ```text or ```console
  block behind it must be what it prints. C is C11, without a warning.
- In a ```console block a line `$ command` is followed by what it prints. Commands of `quire` and of build/release/ are run
  (options of the environment may stand in front: `QUIRE_ISA=avx2 quire info`) and compared. Others are not run, so they
  may not show output; `make` must name a target that exists.
- In expected output `...` stands for any text within a line, and alone on a line for any number of lines. Blanks at the
  ends of lines do not count. Standard output and standard error are one text.
- Files and tests that are named must exist.

The functions are tested on wrong examples as well.
"""

import atexit
import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMING_FILES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]


class Block:
    """One fenced block: where, the word behind the fence, the text between."""

    def __init__(self, place, kind, text):
        self.place, self.kind, self.text = place, kind, text


def blocks_of(text, name):
    """All fenced blocks, in order."""
    blocks, opened, lines = [], None, []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("```"):
            if opened is not None:
                lines.append(line)
        elif opened is None:
            opened, lines = (f"{name}:{number}", line[3:].strip()), []
        else:
            blocks.append(Block(*opened, "\n".join(lines)))
            opened = None
    assert opened is None, f"{opened} is not closed"
    return blocks


def programs_of(blocks):
    """[(block, expected output)] of the complete programs."""
    programs = []
    for i, block in enumerate(blocks):
        if block.kind not in ("cpp", "c") or "int main(" not in block.text:
            continue
        follows = blocks[i + 1] if i + 1 < len(blocks) else None
        assert follows is not None and follows.kind in ("text", "console"), (
            f"{block.place}: no output behind the program"
        )
        programs.append((block, follows.text))
    return programs


def commands_of(blocks):
    """[(place, command, expected output)] of the console blocks."""
    commands = []
    for block in blocks:
        if block.kind != "console" or not block.text.startswith("$ "):
            continue
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            commands.append((block.place, command, expected))
    return commands


def program_name(command):
    """The word that is run, without variables in front of it."""
    return re.sub(r"^(?:[A-Z_][A-Z0-9_]*=\S* +)*", "", command).split(" ")[0]


def is_run(command):
    return program_name(command) == "quire" or program_name(command).startswith("build/release/")


def trimmed(text):
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def matches(expected, printed):
    """Whether the lines are those expected, with `...` for anything."""
    pattern = ""
    for line in trimmed(expected):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(piece) for piece in line.split("...")) + "\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in trimmed(printed))) is not None


def complain(place, what, expected, printed):
    return f"{place}: {what} printed\n{printed}\n---- and not what is shown:\n{expected}"


def run_command(command, build_dir, env):
    """Standard output and error of a command for the shell, with quire in the PATH."""
    env = {**env, "PATH": f"{build_dir}{os.pathsep}{env.get('PATH', '')}"}
    command = re.sub(r"(?<!\S)build/release/", f"{build_dir}/", command)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=env,
        text=True,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout


def check_command(place, command, expected, build_dir, env):
    """A complaint, or None."""
    if is_run(command):
        printed = run_command(command, build_dir, env)
        return None if matches(expected, printed) else complain(place, command, expected, printed)
    if expected.strip():
        return f"{place}: '{command}' is not run by this test and may not show output"
    words = command.split()
    if words[0] == "make" and not re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        return f"{place}: make has no target {words[1]}"
    return None


COMPILERS = {
    "cpp": [os.environ.get("CXX", "g++"), "-std=c++20"],
    "c": [os.environ.get("CC", "gcc"), "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"],
}


def png_library(build_dir):
    """What pictures of a library that was built in batches need."""
    found = re.search(r"^PNG_LIBRARY_RELEASE:FILEPATH=(/.*)$", (build_dir / "CMakeCache.txt").read_text(), re.MULTILINE)
    return [found[1]] if found else []


@functools.cache
def compiled_header():
    """A folder in which the compiler finds <quire/quire.h> read already: most programs begin with it, and reading it is
    most of the time that they take. A compiler that knows no such files passes over it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-header-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "quire").mkdir()
    header = ["-x", "c++-header", f"-I{ROOT}/include", f"{ROOT}/include/quire/quire.h"]
    subprocess.run([*COMPILERS["cpp"], *header, "-o", folder / "quire/quire.h.gch"], check=True)
    return folder


def compile_and_run(block, build_dir, folder, env):
    """(whether it compiled and returned 0, what was printed)."""
    source = folder / f"program.{block.kind}"
    source.write_text(block.text)
    compiler = [
        *COMPILERS[block.kind],
        *([f"-I{compiled_header()}"] if block.kind == "cpp" else []),
        f"-I{ROOT}/include",
        str(source),
        f"{build_dir}/libquire.a",
        "-lfmt",
        *png_library(build_dir),
        "-lstdc++",
        "-lm",
        "-o",
        str(folder / "program"),
    ]
    for command in (compiler, [str(folder / "program")]):
        done = subprocess.run(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
        )
        if done.returncode != 0:
            return False, done.stdout
    return True, done.stdout


def check_program(block, expected, build_dir, folder, env):
    """A complaint, or None."""
    good, printed = compile_and_run(block, build_dir, folder, env)
    if not good:
        return f"{block.place}: the program does not compile or fails:\n{printed}"
    return None if matches(expected, printed) else complain(block.place, "the program", expected, printed)


FOLDERS = ("", "src/", "include/", "include/quire/", "src/formula/", "src/kernels/")
FILE_NAME = re.compile(r"[\w./-]+\.(?:h|cc|py|cmake|md|txt|json|ini)")


def missing_files(text):
    """Files named in backticks (outside of fenced blocks) that are nowhere; placeholders like <isa>.cc are no names."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    names = [name for name in re.findall(r"`([^`\n]+)`", prose) if FILE_NAME.fullmatch(name)]
    return [name for name in names if not any((ROOT / folder / name).exists() for folder in FOLDERS)]


def missing_suites(text):
    """Suites in --gtest_filter=Suite.* that no test file has: such a command would run nothing and pass."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.cc"))
    named = re.findall(r"--gtest_filter='?\*?(\w+)\.", text)
    return [suite for suite in named if not re.search(rf"(?:TEST\w*|RC_GTEST_PROP)\({suite},", tests)]


# ---- The documents.

BLOCKS = {path.name: blocks_of(path.read_text(encoding="utf-8"), path.name) for path in DOCUMENTS if path.exists()}
PROGRAMS = [case for blocks in BLOCKS.values() for case in programs_of(blocks)]
COMMANDS = [case for blocks in BLOCKS.values() for case in commands_of(blocks)]


@pytest.mark.parametrize("block, expected", PROGRAMS, ids=[block.place for block, _ in PROGRAMS])
def test_program(block, expected, build_dir, tmp_path, clean_env):
    complaint = check_program(block, expected, build_dir, tmp_path, clean_env)
    assert complaint is None, complaint


@pytest.mark.parametrize(
    "place, command, expected", COMMANDS, ids=[f"{place} {command}" for place, command, _ in COMMANDS]
)
def test_command(place, command, expected, build_dir, clean_env):
    complaint = check_command(place, command, expected, build_dir, clean_env)
    assert complaint is None, complaint


@pytest.mark.parametrize("path", NAMING_FILES, ids=lambda path: path.name)
def test_what_is_named_exists(path):
    text = path.read_text(encoding="utf-8")
    assert missing_files(text) == []
    assert missing_suites(text) == []


def test_every_example_is_listed():
    page = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    programs = [*(ROOT / "examples").glob("*.*"), ROOT / "examples/engine/main.cc", ROOT / "examples/demo/__main__.py"]
    assert [path.name for path in programs if f"`{path.relative_to(ROOT)}`" not in page] == []


def test_the_documents_are_looked_at():
    assert {"README.md", "ARCHITECTURE.md", "formula.md"} <= set(BLOCKS)
    assert any(block.place.startswith("README.md") for block, _ in PROGRAMS)
    assert sum(is_run(command) for _, command, _ in COMMANDS) >= 10


def test_readme_says_how_to_test_and_ci_does_that():
    assert "make test" in [command for place, command, _ in COMMANDS if place.startswith("README.md")]
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec make test")


# ---- The test itself: it reads blocks, and it notices what is wrong.

EXAMPLE = """Text.
```cpp
int main() {}
```
```text
printed
```
```console
$ quire --version
0.2.0
$ make test
```
```cpp
no_program();
```
"""


def test_reads_blocks():
    blocks = blocks_of(EXAMPLE, "x.md")
    assert [block.place for block in blocks] == ["x.md:2", "x.md:5", "x.md:8", "x.md:13"]
    assert [(block.text, expected) for block, expected in programs_of(blocks)] == [("int main() {}", "printed")]
    assert commands_of(blocks) == [("x.md:8", "quire --version", "0.2.0\n"), ("x.md:8", "make test", "")]


def test_a_program_without_output_is_noticed():
    with pytest.raises(AssertionError, match="no output behind the program"):
        programs_of(blocks_of("```cpp\nint main() {}\n```\n", "x.md"))
    with pytest.raises(AssertionError, match="is not closed"):
        blocks_of("```cpp\n", "x.md")


@pytest.mark.parametrize(
    "expected, printed, same",
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb ", "a \nb\n", True),
        ("", "", True),
        ("a ... c", "a b b c\n", True),
        ("a...", "abc\n", True),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a\n...\nd", "a\nd\n", True),
        ("a\n...", "a\n", True),
        ("a", "", False),
        ("", "a\n", False),
        ("a\nb", "a\nc\n", False),
        ("a\nb", "a\nb\nc\n", False),
        ("a\n...\nd", "a\nb\nc\n", False),
        ("a ... c", "a\nc\n", False),
        ("  a", "a\n", False),
        ("a.c", "abc\n", False),
    ],
)
def test_matching(expected, printed, same):
    assert matches(expected, printed) == same


@pytest.mark.parametrize(
    "command, run",
    [
        ("quire info", True),
        ("QUIRE_ISA=avx2 quire info", True),
        ("build/release/examples/first_mods", True),
        ("make test", False),
        ("quirex info", False),
        ("cat build/release/x", False),
    ],
)
def test_what_is_run(command, run):
    assert is_run(command) == run


@pytest.mark.parametrize(
    "command, expected, complaint",
    [
        ("quire explain 'q_idx >= kv_idx'", "mask mod\n  q_idx >= kv_idx\n...", None),
        ("quire explain 'q_idx >= kv_idx'", "mask mod\n  q_idx > kv_idx\n...", "and not what is shown"),
        ("quire explain 'q_idx >='", "", "and not what is shown"),
        ("build/release/no_such_program", "", "and not what is shown"),
        ("make test", "", None),
        ("make no-such-target", "", "has no target"),
        ("git status", "clean", "may not show output"),
    ],
)
def test_commands_are_checked(command, expected, complaint, build_dir, clean_env):
    found = check_command("x.md:1", command, expected, build_dir, clean_env)
    assert (found is None) if complaint is None else (complaint in found)


@pytest.mark.parametrize(
    "kind, source, expected, complaint",
    [
        ("cpp", '#include <cstdio>\nint main() { std::puts("yes"); }', "no", "and not what is shown"),
        ("cpp", "int main() { return x; }", "", "does not compile or fails"),
        ("cpp", "int main() { return 1; }", "", "does not compile or fails"),
        ("cpp", '#include <cstdio>\nint main() { std::puts("yes"); }', "yes", None),
        ("c", '#include <stdio.h>\nint main(void) { puts("yes"); return 0; }', "yes", None),
        (
            "c",
            '#include <stdio.h>\nint main(void) { int x; puts("yes"); return 0; }',
            "yes",
            "does not compile or fails",
        ),
    ],
)
def test_programs_are_checked(kind, source, expected, complaint, build_dir, tmp_path, clean_env):
    found = check_program(Block("x.md:1", kind, source), expected, build_dir, tmp_path, clean_env)
    assert (found is None) if complaint is None else (complaint in found)


def test_names_are_checked():
    assert missing_files("`src/formula/graph.h` `graph.h` `op.h` `isa/<isa>.cc` `a.b` text.h") == []
    assert missing_files("see `src/formula/no_such.h`") == ["src/formula/no_such.h"]
    assert missing_suites("--gtest_filter='Evaluate.*'") == []
    assert missing_suites("--gtest_filter='No" + "SuchSuite.*'") == ["NoSuchSuite"]
