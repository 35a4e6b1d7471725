"""The repository keeps its own rules (structure.py), and each rule notices when it is broken."""

import pathlib

import pytest
import structure

ROOT = pathlib.Path(__file__).resolve().parents[2]


def repository():
    files = {}
    for folder in structure.CPP_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if structure.is_cpp(name) and path.is_file():
                files[name] = path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "python/quire").rglob("*.py")):
        files[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    if (ROOT / "README.md").exists():
        files["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
    return files


@pytest.mark.parametrize("check", structure.ALL_CHECKS, ids=lambda check: check.__name__)
def test_repository(check):
    assert check(repository()) == []


def test_the_repository_is_looked_at():
    files = repository()
    assert "include/quire/tensor.h" in files
    assert "src/kernels/isa/avx2.cc" in files
    assert "src/runtime/thread_pool.cc" in files
    assert "python/quire/torch/flex_attention.py" in files
    assert len(files) > 50


# (check, path, text): each must be complained about.
BAD = [
    # Arrows up, sideways, and unknown places.
    (structure.check_arrows, "src/runtime/x.cc", '#include "tensor/element.h"'),
    (structure.check_arrows, "src/runtime/x.cc", '#include "quire/tensor.h"'),
    (structure.check_arrows, "src/tensor/x.h", '#include "kernels/dispatch.h"'),
    (structure.check_arrows, "src/kernels/x.cc", '#include "formula/graph.h"'),
    (structure.check_arrows, "src/kernels/x-inl.h", '  #  include "quire/formula.h"'),
    (structure.check_arrows, "src/formula/x.cc", '#include "mods/causal.h"'),
    (structure.check_arrows, "src/mask/x.cc", '#include "layout/span.h"'),
    (structure.check_arrows, "src/mask/x.cc", '#include "draw/picture.h"'),
    (structure.check_arrows, "src/attention/x.cc", '#include "quire/draw.h"'),
    (structure.check_arrows, "src/cache/x.cc", '#include "mask/runs.h"'),
    (structure.check_arrows, "src/layout/x.cc", '#include "cache/pages.h"'),
    (structure.check_arrows, "src/plan/x.cc", '#include "attention/validate.h"'),
    (structure.check_arrows, "src/attention/x.cc", '#include "sdpa/sdpa_call.h"'),
    (structure.check_arrows, "src/plan/x.cc", '#include "reference/attention.h"'),
    (structure.check_arrows, "src/formula/x.cc", '#include "reference/evaluate.h"'),
    (structure.check_arrows, "src/reference/x.cc", '#include "kernels/tile/tile_program.h"'),
    (structure.check_arrows, "src/reference/x.cc", '#include "formula/compile/compile.h"'),
    (structure.check_arrows, "src/c_api/x.cc", '#include "tensor/element.h"'),
    (structure.check_arrows, "src/formula/x.cc", '#include "isa_list.h"'),
    (structure.check_arrows, "src/formula/x.cc", '#include "graph.h"'),
    (structure.check_arrows, "src/formula/x.cc", '#include "quire/no_such_header.h"'),
    (structure.check_arrows, "src/utils/x.cc", ""),
    (structure.check_arrows, "src/x.cc", ""),
    # Public headers.
    (structure.check_public_headers, "include/quire/tensor.h", "#include <fmt/format.h>"),
    (structure.check_public_headers, "include/quire/tensor.h", "#include <immintrin.h>"),
    (structure.check_public_headers, "include/quire/tensor.h", "#include <oneapi/tbb/task_arena.h>"),
    (structure.check_public_headers, "include/quire/tensor.h", '#include "tensor/element.h"'),
    (structure.check_public_headers, "include/quire/tensor.h", '#include "quire/formula.h"'),
    (structure.check_public_headers, "include/quire/no_layer.h", ""),
    (structure.check_examples, "examples/hello.cc", '#include "runtime/claim.h"'),
    # SIMD.
    (structure.check_simd, "src/formula/x.cc", "#include <hwy/highway.h>"),
    (structure.check_simd, "src/runtime/x.cc", "#include <immintrin.h>"),
    (structure.check_simd, "src/tensor/x.cc", "#include <arm_neon.h>"),
    (structure.check_simd, "bench/x.cc", "#include <xmmintrin.h>"),
    (structure.check_simd, "src/kernels/kernel_table.h", "#include <hwy/highway.h>"),
    (structure.check_simd, "src/kernels/dispatch.cc", '#include "kernels/simd-inl.h"'),
    (structure.check_simd, "src/plan/x.cc", '#include "kernels/fma-inl.h"'),
    (structure.check_simd, "tests/kernels/x_test.cc", '#include "kernels/fma-inl.h"'),
    (structure.check_simd, "src/tensor/x.cc", "auto x = _mm256_add_ps(a, b);"),
    (structure.check_simd, "src/tensor/x.h", "__m128i lanes;"),
    (structure.check_simd, "src/tensor/x.h", "float32x4_t lanes;"),
    (structure.check_simd, "src/runtime/x.h", "__builtin_ia32_ldmxcsr(0);"),
    (structure.check_simd, "src/runtime/x.h", 'asm volatile("nop");'),
    # Executors.
    (structure.check_executors, "src/plan/x.cc", "request_.executor->run(n, body);"),
    (structure.check_executors, "src/plan/x.cc", "executor_of(options.executor)->run(n, body);"),
    (structure.check_executors, "src/plan/x.cc", "default_executor()->run(n, body);"),
    (structure.check_executors, "src/plan/x.cc", "executor.run(n, body);"),
    # Printing and ending.
    (structure.check_quiet, "src/plan/x.cc", "#include <iostream>"),
    (structure.check_quiet, "src/plan/x.cc", "std::cerr << 1;"),
    (structure.check_quiet, "src/plan/x.cc", 'printf("x");'),
    (structure.check_quiet, "src/plan/x.cc", 'std::fprintf(file, "x");'),
    (structure.check_quiet, "src/plan/x.cc", 'fmt::print("x");'),
    (structure.check_quiet, "src/plan/x.cc", 'puts ("x");'),
    (structure.check_quiet, "src/plan/x.cc", "write_to(stderr);"),
    (structure.check_quiet, "src/plan/x.cc", "std::exit(1);"),
    (structure.check_quiet, "src/plan/x.cc", "::_exit(1);"),
    (structure.check_quiet, "include/quire/x.h", "abort();"),
    (structure.check_quiet, "src/plan/x.cc", "std::terminate();"),
    (structure.check_quiet, "src/plan/x.cc", "__builtin_trap();"),
    # First lines.
    (structure.check_first_lines, "src/plan/x.cc", '#include "plan/x.h"\n// Too late.\n'),
    (structure.check_first_lines, "src/plan/x.h", "// No guard.\nint x;\n"),
    (structure.check_first_lines, "src/plan/x.h", "// Late guard.\nint x;\n#pragma once\n"),
    (structure.check_first_lines, "src/plan/x.h", "#ifndef X\n#define X\n// Old guard.\n#endif\n"),
    (structure.check_first_lines, "tests/plan/x_test.cc", "\n"),
    (structure.check_layer_tags, "src/plan/x.cc", "// What it does. Layer: plan.\n"),
    (structure.check_layer_tags, "src/plan/x.cc", "// What it does. Mask layer.\n"),
    (structure.check_layer_tags, "src/plan/x.cc", "// What it does.\nint x;  // Plan layer.\n"),
    (structure.check_layer_tags, "src/c_api/x.cc", "// What it does. C_api layer.\n"),
    (structure.check_layer_tags, "include/quire/draw.h", "// What it does. Draw layer.\n"),
    (structure.check_layer_tags, "cli/x.cc", "// What it does.\n"),
    (structure.check_layer_tags, "python/quire/x.py", '"""What it does. Layer: Python."""\n'),
    (structure.check_layer_tags, "python/quire/torch/trace/x.py", '"""What it does. Python layer."""\n'),
    (structure.check_readme, "README.md", "line\n" * 201),
    (structure.check_readme, "readme.txt", ""),
]

# (check, path, text): nobody may complain.
GOOD = [
    (
        structure.check_arrows,
        "src/tensor/x.cc",
        '#include "runtime/claim.h"\n#include "quire/error.h"\n#include <vector>',
    ),
    (
        structure.check_arrows,
        "src/sdpa/x.cc",
        '#include "plan/p.h"\n#include "reference/a.h"\n#include "runtime/r.h"',
    ),
    (structure.check_arrows, "src/mods/x.cc", '#include "formula/graph.h"\n#include "kernels/tile/tile_program.h"'),
    (structure.check_arrows, "src/reference/x.cc", '#include "formula/graph.h"\n#include "quire/formula.h"'),
    (structure.check_arrows, "src/runtime/x.cc", '// #include "tensor/element.h"\n/* #include "mask/m.h"\n*/'),
    (structure.check_arrows, "src/runtime/x.cc", '#include "isa_list.h"'),
    (structure.check_public_headers, "include/quire/tensor.h", '#include <vector>\n#include "quire/dtype.h"'),
    (structure.check_simd, "src/kernels/x-inl.h", "#include <hwy/highway.h>\n__m512 x;"),
    (
        structure.check_simd,
        "src/kernels/isa/avx2.cc",
        '#include "kernels/table-inl.h"\nstatic_assert(HWY_TARGET == 1);',
    ),
    (structure.check_simd, "src/runtime/float_env.h", "__builtin_ia32_ldmxcsr(0);"),
    (structure.check_simd, "src/plan/x.cc", "// _mm256_add_ps would be nice, hwy:: too\nint x;"),
    (structure.check_quiet, "src/plan/x.cc", '// never exit(1) or std::cout\nauto s = "abort() printf(";'),
    (
        structure.check_quiet,
        "src/plan/x.cc",
        "assert(x); std::snprintf(a, 3, b); on_exit(1); scope.exit(); p->abort();",
    ),
    (structure.check_quiet, "cli/main.cc", "#include <iostream>\nstd::cout << 1; std::exit(1);"),
    (structure.check_first_lines, "src/plan/x.h", "// What it does.\n#pragma once\nint x;\n"),
    (structure.check_first_lines, "src/plan/x.h", "#pragma once\n// What it does.\nint x;\n"),
    (structure.check_first_lines, "src/plan/x.cc", "/* What it does. */\nint x;\n"),
    (structure.check_layer_tags, "src/plan/x.cc", "// What it does. Plan\n// layer.\n"),
    (structure.check_layer_tags, "src/c_api/x.cc", "// What it does. C API layer.\n//\n// More.\n"),
    (structure.check_layer_tags, "include/quire/draw.h", "// What it does. Public; draw layer.\n"),
    (structure.check_layer_tags, "tests/plan/x.cc", "// What it tests.\n"),
    (structure.check_layer_tags, "python/quire/x.py", '"""What it does.\n\nPython layer, below y.py."""\n'),
    (structure.check_readme, "README.md", "line\n" * 200),
]


def name(case):
    return f"{case[0].__name__}:{case[1]}"


@pytest.mark.parametrize("case", BAD, ids=name)
def test_bad_is_noticed(case):
    check, path, text = case
    assert check({path: text}) != []


@pytest.mark.parametrize("case", GOOD, ids=name)
def test_good_passes(case):
    check, path, text = case
    assert check({path: text}) == []


def test_every_check_has_a_bad_example():
    assert {case[0] for case in BAD} == set(structure.ALL_CHECKS)


def test_scripts_are_executable():
    for script in [
        "scripts/install-deps",
        "scripts/make-venv",
        "scripts/build",
        "scripts/format",
        "scripts/test",
        "scripts/check-all",
        "scripts/bench",
        ".ci/run",
    ]:
        assert (ROOT / script).stat().st_mode & 0o111, script


def test_ci_runs_make_test_and_nothing_else():
    lines = (ROOT / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if line.strip() and not line.startswith("#")]
    assert len(commands) == 1 and commands[0].endswith("exec make test")
