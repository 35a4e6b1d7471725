"""Right in any process: programs built against the library run with other floating-point environments, where threads
cannot be made, and in children forked while other threads were inside calls."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import tempfile

import pytest

pytestmark = pytest.mark.xdist_group("process")  # the limits of one test would be those of another

HERE = pathlib.Path(__file__).parent / "process"
X86 = os.uname().machine == "x86_64"
NOBODY = 200000 + os.getpid() % 100000  # a user that has no other process, of another run of these tests either


def compile_program(root, build_dir, folder, name, *flags):
    source = HERE / f"{name}.cc"
    program = folder / (name + "".join(flags).replace("-", "_"))
    if program.exists():
        return program
    png = ["-lpng16"] if "PNG_LIBRARY" in (build_dir / "CMakeCache.txt").read_text() else []
    done = subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-O1",
            *flags,
            source,
            f"-I{root}/include",
            build_dir / "libquire.a",
            "-lfmt",
            *png,
            "-o",
            program,
        ],
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="session")
def programs():
    """A folder that other users see, too."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


# ---- floating-point environments

MODES = ["plain", "ftz", "up", "down", "zero", "traps"]


@pytest.fixture(scope="session", params=[(), ("-ffast-math",)], ids=["plain", "fast_math"])
def float_env(request, root, build_dir, programs):
    return compile_program(root, build_dir, programs, "float_env", *request.param), bool(request.param)


@pytest.mark.skipif(not X86, reason="sets MXCSR")
@pytest.mark.parametrize("mode", MODES)
def test_every_environment_gives_the_same(float_env, mode, clean_env):
    program, is_fast = float_env
    done = subprocess.run([program, mode], text=True, capture_output=True, env=clean_env, timeout=120)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert lines[0] == ("start 9fc0" if is_fast else "start 1f80")  # -ffast-math: FTZ and DAZ
    assert lines[1] == "keys 185"
    assert lines[3:] == ["0 wrong"], done.stdout


@pytest.mark.skipif(not X86, reason="sets MXCSR")
def test_a_program_built_with_fast_math_gets_the_same_bits(root, build_dir, programs, clean_env):
    made = [compile_program(root, build_dir, programs, "float_env", *flags) for flags in ((), ("-ffast-math",))]
    texts = [
        subprocess.run([one, "plain"], text=True, capture_output=True, env=clean_env, timeout=120).stdout
        for one in made
    ]
    assert texts[0].splitlines()[2] == texts[1].splitlines()[2] != ""


# Public functions without a FloatEnv of their own, and why: nothing in them computes with floats.
EXEMPT = {
    r"(\w+::)+~\w+|\w+::operator=": "end or move an object",
    r"\w+Plan::\w+Plan\(quire::\w+Plan&&\)|KVCache::KVCache\(quire::KVCache&&\)": "move an object",
    r"\w+Plan::(shape|is_paged|scratch_bytes|tokens|buffers)": "say what was planned",
    r"Attention(Backward)?Plan::Attention(Backward)?Plan\((?!quire::AttentionProblem)": "hand a problem to the one that has one",
    r"AttentionProblem::(dense|rule|b_end|queries_of|keys_of|(out|stats|states|key_weights)_shape)|gradient_buffers": "sizes, options and names",
    r"KVFormat::|(KVView|QuantizedTensor)::shape": "names and sizes of formats",
    r"AttentionShape::of|AttentionGradients::of": "read sizes; find by name",
    r"BlockMask::(batch|heads|shape|seq_lengths|block_size|block_rows|q_blocks|kv_blocks|q_begin|separate_full_blocks|numel|nbytes"
    r"|has_mask_mod|mask_mod|runs|kind|plane|transposed|same_blocks|to_dense|encode|dense_words|made_from"
    r"|(full_)?(kv|q)_(num_blocks|indices))": "integers",
    r"operator==": "compares integers and bits",
    r"Buffer::": "keeps or describes memory",
    r"(Error|Executor|SerialExecutor|Shape|ScopedIsa|JaggedBlockMask|BlockMasks)::": "no floats; bodies of executors have one (run_parallel)",
    r"ExprBase::literal": "moves bits",
    r"Formula::(buffers|named_buffers|size|type)": "describe a graph",
    r"KVCache::(KVCache|State|cached_prefix|can_reserve|commit|committed|contains|create|create_with_prefix|fork|group_of|ids"
    r"|k_pages|v_pages|keep|load|load_all|load_from|save|save_all|save_to|mark_written|options|release|release_before"
    r"|release_between|reserve|truncate|version|view|keys|values|k_scales|v_scales)": "pages, ids and bytes",
    r"PageTables::(PageTables|add_pages|page_count|checked_batch|pages_wanted|remove_pages|row)": "pages",
    r"PagedAttention::(PagedAttention|erase|reserve|tables)|pages_of": "pages",
    r"Tensor::(Tensor|clone|copy_of|empty|from|reshape)|contiguous|contiguous_strides|element_count|to_string": "copy bytes, count",
    r"BasicTensorView<.*>::(?!load_float)": "addresses and integers",
    r"available_isas|cpu_info|current_isa|default_executor|force_isa|get_num_threads|set_num_threads|has_png|isa_choice|isa_name"
    r"|make_openmp_executor|make_thread_pool|parse_dtype|version": "the machine",
    r"quire_(last_error|version|isa|get_num_threads|\w+_free)": "say or free",
}


def public_objects(build_dir):
    """The object files of the library but for the kernels, which define nothing public and are most of the code."""
    commands = json.loads((build_dir / "compile_commands.json").read_text())
    made = {command["file"]: pathlib.Path(command["directory"], command["output"]) for command in commands}
    sources = {file: made[file] for file in made if "/src/" in file and "CMakeFiles/quire.dir/" in str(made[file])}
    assert len(sources) > 100
    return [output for file, output in sources.items() if "/src/kernels/" not in file]


def public_functions(build_dir, root):
    """{demangled name of each public function the library defines: its instructions}"""
    library = build_dir / "libquire.a"
    headers = re.sub(r"//.*|/\*.*?\*/", "", "\n".join(p.read_text() for p in (root / "include/quire").glob("*.h")))
    words = set(re.findall(r"\w+", headers))
    names = subprocess.run(
        ["nm", "-C", "--defined-only", "--extern-only", library], text=True, capture_output=True
    ).stdout
    code = subprocess.run(
        ["objdump", "-drC", "--no-show-raw-insn", *public_objects(build_dir)], text=True, capture_output=True
    ).stdout
    body = {}
    for part in re.split(r"^(?=[0-9a-f]+ <.*>:$)", code, flags=re.MULTILINE):
        if found := re.match(r"[0-9a-f]+ <(.*)>:$", part, re.MULTILINE):
            body[found[1]] = body.get(found[1], "") + part
    public = {}
    # Of weak symbols, templates that are instantiated in headers, those of the views count: the library itself defines them.
    for name in re.findall(r"^[0-9a-f]+ (?:T|W(?= (?:\w+ )*quire::BasicTensorView)) (.*)$", names, re.MULTILINE):
        plain = re.sub(r"\[abi:\w+\]|<[^<>]*>", "", re.sub(r"\(.*", "", name.split("::operator")[0]))
        parts = plain.split()[-1].split("::")
        inside = (
            parts[0] == "quire"
            and all(p.lstrip("~") in words for p in parts[1:])
            and len(parts) > 1
            and not (
                set(parts[:-1])
                & {"formula", "mask", "kernels", "plan", "layout", "cache", "reference", "c_api", "attention", "paged"}
            )
        )
        if name.startswith("quire_") or inside or name.startswith("quire::operator"):
            public[name] = body.get(name, "")
    return public


def test_every_public_function_has_the_environment(root, build_dir):
    """A guard reads MXCSR (or FPCR) first thing, in the function itself; C functions have the one of `guarded`, initialisers
    of members that of `in_float_env`."""
    if "QUIRE_UNITY:BOOL=ON" in (build_dir / "CMakeCache.txt").read_text() or not shutil.which("objdump"):
        pytest.skip("functions are inlined into one another")
    public = public_functions(build_dir, root)
    assert len(public) > 280
    exempt = re.compile("|".join(rf"(?:{one})" for one in EXEMPT))
    missing = []
    for name, code in public.items():
        has_one = re.search(r"stmxcsr|fpcr|in_float_env|c_api::guarded", code) is not None
        # Of a template, what it returns stands before its name.
        short = re.sub(r"^(?:\w+ )*quire::(?:mods::|detail::)?|\[abi:\w+\]", "", name)
        if not has_one and not exempt.match(short):
            missing.append(name)
    assert not missing, "\n".join(missing)


# ---- threads that cannot be made


@pytest.fixture(scope="session")
def few_threads(root, build_dir, programs):
    return compile_program(root, build_dir, programs, "few_threads")


def run_limited(program, env, limits, threads="8", user=None):
    def limit():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
        if user is not None:
            os.setgid(user)
            os.setuid(user)

    return subprocess.run([program, threads], text=True, capture_output=True, env=env, preexec_fn=limit, timeout=120)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user without processes")
@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_limit_of_threads(few_threads, clean_env, most):
    for _ in range(8):
        done = run_limited(few_threads, clean_env, [(resource.RLIMIT_NPROC, most)], user=NOBODY)
        assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.mark.parametrize("megabytes", [30, 60, 120, 250])
def test_a_limit_of_memory(few_threads, clean_env, megabytes):
    """Where there is no room for stacks; with less still, an error."""
    for threads in ("8", "64"):
        done = run_limited(few_threads, clean_env, [(resource.RLIMIT_AS, megabytes << 20)], threads=threads)
        assert done.returncode == 0 and done.stdout in ("fine\n", "no memory\n"), (
            done.returncode,
            done.stdout,
            done.stderr,
        )


@pytest.mark.parametrize("made", [0, 1, 3])
def test_threads_that_fail(few_threads, programs, clean_env, made):
    library = programs / "no_threads.so"
    if not library.exists():
        subprocess.run(["gcc", "-shared", "-fPIC", HERE / "no_threads.c", "-o", library, "-ldl"], check=True)
    env = {**clean_env, "LD_PRELOAD": str(library), "THREADS": str(made)}
    for _ in range(5):
        done = run_limited(few_threads, env, [])
        assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


# ---- fork


def test_children_work(root, build_dir, programs, clean_env):
    program = compile_program(root, build_dir, programs, "fork")
    done = subprocess.run(
        [program, "40"], text=True, capture_output=True, env={**clean_env, "QUIRE_NUM_THREADS": "3"}, timeout=180
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 of 40 children failed\n", "")
