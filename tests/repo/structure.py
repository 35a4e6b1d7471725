"""The rules about who may include whom and what the library may not do, as functions over {path: text}.

Each function returns a list of complaints, empty when all is well. test_structure.py applies them to the repository and
also to bad examples, which shows that each rule can fail. Paths are relative to the root of the project.
"""

import re

# The arrows between the folders of src/: sdpa -> attention -> paged -> plan -> {mask, layout, cache} -> {mods, formula} ->
# kernels -> {tensor, runtime}, and draw -> mask. Each folder may include itself, what is listed here, and what those may
# include.
ARROWS = {
    "runtime": [],
    "tensor": ["runtime"],
    "kernels": ["tensor"],
    "quant": ["kernels"],
    "formula": ["kernels"],
    "mods": ["formula"],
    "mask": ["mods"],
    "layout": ["mods"],
    "cache": ["mods", "quant"],
    "plan": ["mask", "layout", "cache", "quant"],
    "paged": ["plan"],
    "attention": ["paged"],
    # scaled_dot_product_attention: its masks, broadcasting and backends, of which one is the reference.
    "sdpa": ["attention", "reference"],
    # Drawings of masks and mods; nothing in the library depends on them.
    "draw": ["mask"],
    # quire/quire.h alone: all public headers of C++.
    "umbrella": ["context_parallel", "draw", "sdpa"],
    # Sequences that are spread over processes, over whatever moves bytes (communicator.h).
    "context_parallel": ["attention"],
    # A Communicator over MPI, in a library of its own.
    "mpi": ["context_parallel"],
    # fp64 loops that share nothing with the kernels; beside this it sees REFERENCE_MAY_SEE.
    "reference": ["tensor"],
    # A stable C interface over the public headers, in the floating-point environment of runtime/.
    "c_api": ["runtime"],
}

# Of formula/, reference/ sees the graph and its type rules, never what compiles, simplifies or bounds.
REFERENCE_MAY_SEE = {"formula/graph.h", "formula/op_table.h", "formula/type_rules.h"}

# The folder that each public header belongs to; a folder may include public headers of its own and of lower layers.
PUBLIC_LAYER = {
    "quire/export.h": "runtime",
    "quire/error.h": "runtime",
    "quire/function_ref.h": "runtime",
    "quire/executor.h": "runtime",
    "quire/isa.h": "runtime",
    "quire/cpu_info.h": "runtime",
    "quire/version.h": "runtime",
    "quire/float16.h": "tensor",
    "quire/dtype.h": "tensor",
    "quire/shape.h": "tensor",
    "quire/tensor_view.h": "tensor",
    "quire/tensor.h": "tensor",
    "quire/kv_format.h": "quant",
    "quire/quantize.h": "quant",
    "quire/op_table.inc": "runtime",  # names alone; kernels/ and formula/ both generate tables from it
    "quire/op.h": "formula",
    "quire/buffer.h": "formula",
    "quire/expr.h": "formula",
    "quire/operations.h": "formula",
    "quire/formula.h": "formula",
    "quire/mod.h": "formula",
    "quire/rope.h": "formula",
    "quire/evaluate.h": "formula",
    "quire/explain.h": "formula",
    "quire/mods.h": "mods",
    "quire/block_mask.h": "mask",
    "quire/block_masks.h": "mask",
    "quire/draw.h": "draw",
    "quire/kv_cache.h": "cache",
    "quire/page_tables.h": "cache",
    "quire/write_pages.h": "cache",
    "quire/attention_problem.h": "plan",
    "quire/attention.h": "attention",
    "quire/paged_attention.h": "paged",
    "quire/flex_attention.h": "attention",
    "quire/jagged.h": "attention",
    "quire/attend.h": "attention",
    "quire/merge_states.h": "attention",
    "quire/top_k_keys.h": "attention",
    "quire/paged.h": "attention",
    "quire/paged_step.h": "attention",
    "quire/flex_attention_backward.h": "attention",
    "quire/scaled_dot_product_attention.h": "sdpa",
    "quire/communicator.h": "context_parallel",
    "quire/context_parallel.h": "context_parallel",
    "quire/mpi_communicator.h": "mpi",
    "quire/quire.h": "umbrella",
    "quire/quire_c.h": "c_api",
}

# Public headers in C: include guards in the place of #pragma once, which a C compiler refuses in a main file, and C's names
# of the standard headers.
C_HEADERS = {"include/quire/quire_c.h"}

# Public headers of formula/ that reference/ may include: what a formula is.
REFERENCE_MAY_SEE_PUBLIC = {
    "quire/op.h",
    "quire/buffer.h",
    "quire/expr.h",
    "quire/operations.h",
    "quire/formula.h",
    "quire/mod.h",
    "quire/rope.h",
}

# Files outside kernels/ that may use a compiler builtin of one architecture, and why.
BUILTIN_EXCEPTIONS = {
    "src/runtime/float_env.h": "reads and writes MXCSR, which is no SIMD and must surround every task",
    "src/runtime/pool_threads.cc": "tells the CPU that it spins",
}

CPP_FOLDERS = ("include", "src", "tests", "cli", "bench", "examples", "fuzz", "python", "play")

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>R"(?P<delim>[^()\\\s]{0,16})\(.*?\)(?P=delim)")
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<char>'(?:\\[^'\n]+|[^'\\\n])')""",
    re.DOTALL | re.VERBOSE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def without_comments(text):
    """Comments become one space; line breaks inside them stay."""
    return _TOKEN.sub(lambda m: " " + "\n" * m[0].count("\n") if m["comment"] else m[0], text)


def code_only(text):
    """Neither comments nor the insides of strings."""
    return _TOKEN.sub(lambda m: ' "" ' + "\n" * m[0].count("\n"), text)


def includes(text):
    """[(is_quoted, name)] in order."""
    return [(m[1] == '"', m[2]) for m in _INCLUDE.finditer(without_comments(text))]


def reachable(folder):
    """A folder and all below it."""
    result, todo = set(), [folder]
    while todo:
        one = todo.pop()
        if one not in result:
            result.add(one)
            todo += ARROWS[one]
    return result


def is_cpp(path):
    return path.endswith((".h", ".cc")) and path.split("/")[0] in CPP_FOLDERS


def check_arrows(files):
    """Includes between the folders of src/ point down only."""
    complaints = []
    for path, text in files.items():
        parts = path.split("/")
        if not is_cpp(path) or parts[0] != "src":
            continue
        if len(parts) < 3 or parts[1] not in ARROWS:
            complaints.append(f"{path}: not in one of the folders that ARROWS names")
            continue
        for is_quoted, name in includes(text):
            if is_quoted:
                complaints += [f"{path}: {why}" for why in _refuse(parts[1], name)]
    return complaints


def _refuse(folder, name):
    """Why a file of src/<folder> may not include `name`; nothing if it may."""
    target = name.split("/")[0]
    if name == "isa_list.h":  # generated by CMake
        return [] if folder in ("runtime", "kernels") else ["only runtime/ and kernels/ know the list of ISAs"]
    if target == "quire":
        if name not in PUBLIC_LAYER:
            return [f"{name} has no layer; enter it in PUBLIC_LAYER of tests/repo/structure.py"]
        if folder == "c_api" or (folder == "reference" and name in REFERENCE_MAY_SEE_PUBLIC):
            return []
        target = PUBLIC_LAYER[name]
    elif target not in ARROWS:
        return [f"{name} is neither public nor named from src/ ({', '.join(ARROWS)})"]
    elif folder == "reference" and name in REFERENCE_MAY_SEE:
        return []
    if target in reachable(folder):
        return []
    return [f"{folder}/ may not include {name} ({target}/ is not below it)"]


def check_public_headers(files):
    """Public headers include public headers and the C++ standard library, nothing else, and point down as well."""
    complaints = []
    for path, text in files.items():
        if not path.startswith("include/"):
            continue
        own = path.removeprefix("include/")
        if own not in PUBLIC_LAYER:
            complaints.append(f"{path}: has no layer; enter it in PUBLIC_LAYER of tests/repo/structure.py")
            continue
        below = reachable(PUBLIC_LAYER[own])
        for is_quoted, name in includes(text):
            if not is_quoted and not re.fullmatch(r"std(def|int)\.h" if path in C_HEADERS else r"[a-z0-9_]+", name):
                complaints.append(f"{path}: <{name}> is not of the standard library")
            elif is_quoted and not name.startswith("quire/"):
                complaints.append(f"{path}: {name} is not a public header")
            elif is_quoted and name in PUBLIC_LAYER and PUBLIC_LAYER[name] not in below:
                complaints.append(f"{path}: {name} belongs to {PUBLIC_LAYER[name]}/, which is above it")
    return complaints


def check_examples(files):
    """Examples see what users see, and the other files of their folder."""
    return [
        f"{path}: {name} is not a public header"
        for path, text in files.items()
        if path.startswith("examples/") and is_cpp(path)
        for is_quoted, name in includes(text)
        if is_quoted and not name.startswith("quire/") and f"{path.rpartition('/')[0]}/{name}" not in files
    ]


_SIMD_HEADER = re.compile(r"hwy/.*|.*mmintrin\.h|x86intrin\.h|immintrin\.h|arm_(neon|sve|sme|acle)\.h")
_SIMD_CODE = re.compile(
    r"\b(?:_mm\d*_\w+|__m(?:64|128|256|512)[di]?\b|(?:float|u?int|bfloat)\d+x\d+_t|sv(?:float|u?int|bool)\d*_t"
    r"|hwy::|HWY_[A-Z_]+)"
)
_BUILTIN = re.compile(r"\b__builtin_(?:ia32|neon|aarch64|arm)_\w+|\basm\b")


def check_simd(files):
    """Only kernels/ holds SIMD, and of kernels/ only *-inl.h and isa/*.cc, so that other layers can include the rest."""
    complaints = []
    for path, text in files.items():
        if not is_cpp(path):
            continue
        if path.startswith("src/kernels/") and (path.endswith("-inl.h") or "/isa/" in path):
            continue
        for _, name in includes(text):
            if _SIMD_HEADER.fullmatch(name):
                complaints.append(f"{path}: includes {name}")
            if name.endswith("-inl.h"):
                complaints.append(f"{path}: includes {name}; only isa/*.cc and other -inl.h may")
        if not path.startswith(("src/", "include/")):
            continue
        code = code_only(text)
        complaints += [f"{path}: uses {m[0]}" for m in _SIMD_CODE.finditer(code)]
        if path not in BUILTIN_EXCEPTIONS:
            complaints += [f"{path}: uses {m[0]}" for m in _BUILTIN.finditer(code)]
    return complaints


_EXECUTOR_RUN = re.compile(r"\b\w*executor\w*(?:\([^()]*\))?(?:->|\.)run\(")


def check_executors(files):
    """Work goes to an Executor through run_parallel, so that every body has the default floating-point environment."""
    return [
        f"{path}: {m[0]}...); use run_parallel (src/runtime/run_parallel.h)"
        for path, text in files.items()
        if is_cpp(path) and path.startswith("src/") and not path.startswith("src/runtime/")
        for m in _EXECUTOR_RUN.finditer(code_only(text))
    ]


_NOISE = re.compile(
    r"\bstd::(?:cout|cerr|clog|wcout|wcerr)\b"
    r"|\b(?:v?f?w?printf|puts|fputs|putchar|putc|fputc|perror)\s*\("
    r"|\bfmt::v?print(?:ln)?\b|\bstd::v?print(?:ln)?\b"
    r"|\b(?:stdout|stderr)\b"
)
_END = re.compile(
    r"(?<![.>\w])(?:std::|::)?(?:exit|_exit|_Exit|quick_exit|abort|terminate)\s*\(|\b__builtin_(?:trap|abort)\b"
)


def check_quiet(files):
    """Nothing under src/ or include/ prints, exits or aborts. assert is allowed."""
    complaints = []
    for path, text in files.items():
        if not is_cpp(path) or not path.startswith(("src/", "include/")):
            continue
        code = code_only(text)
        complaints += [f"{path}: prints ({m[0].strip()})" for m in _NOISE.finditer(code)]
        complaints += [f"{path}: ends the program ({m[0].strip()})" for m in _END.finditer(code)]
        complaints += [f"{path}: includes <{n}>" for _, n in includes(text) if n in ("iostream", "print")]
    return complaints


def check_first_lines(files):
    """Every C++ file begins with a comment; every header has #pragma once, before or right after it."""
    complaints = []
    for path, text in files.items():
        if not is_cpp(path):
            continue
        first = next((line for line in text.splitlines() if line.strip() not in ("", "#pragma once")), "")
        if not first.lstrip().startswith(("//", "/*")):
            complaints.append(f"{path}: does not begin with a comment")
        if path.endswith(".h"):
            code = [line for line in without_comments(text).splitlines() if line.strip()]
            if path not in C_HEADERS and (not code or code[0].strip() != "#pragma once"):
                complaints.append(f"{path}: has no #pragma once at its top")
    return complaints


def layer_tag(path):
    """What the first comment of a file says about its layer; None where there is nothing to say."""
    parts = path.split("/")
    if parts[0] == "src":
        return f"{'C API' if parts[1] == 'c_api' else parts[1].capitalize()} layer."
    if parts[0] == "include":
        return f"Public; {PUBLIC_LAYER.get('/'.join(parts[1:]))} layer"
    if parts[0] == "cli":
        return "Command line layer."
    if parts[0] == "python":
        return "Trace layer" if "trace" in parts[:-1] else "Python layer"
    return None


def check_layer_tags(files):
    """The first comment of every file of the library names its layer, always in the same form."""
    complaints = []
    for path, text in files.items():
        tag = layer_tag(path) if is_cpp(path) or path.endswith(".py") else None
        if tag is None:
            continue
        comment = re.match(r'(?:#pragma once\n)?((?://[^\n]*\n)+|/\*.*?\*/|""".*?""")', text, re.DOTALL)
        words = re.sub(r"\s*\n\s*(?://|\*)?\s*", " ", comment[1]) if comment else ""
        if tag not in words:
            complaints.append(f"{path}: the first comment does not say '{tag}'")
    return complaints


def check_readme(files):
    """README.md is for users and short."""
    if "README.md" not in files:
        return ["README.md is missing"]
    lines = len(files["README.md"].splitlines())
    return [f"README.md has {lines} lines; 200 are the limit"] if lines > 200 else []


ALL_CHECKS = [
    check_arrows,
    check_public_headers,
    check_examples,
    check_simd,
    check_executors,
    check_quiet,
    check_first_lines,
    check_layer_tags,
    check_readme,
]
