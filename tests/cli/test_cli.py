"""The program `quire` and the first example, from outside: what they print, where, and their exit codes."""

import re
import subprocess

import pytest

ALIBI = "score + slopes[h] * (kv_idx - q_idx)"


@pytest.fixture
def quire(build_dir, clean_env):
    """quire(*arguments, **environment) -> the finished process."""

    def run(*arguments, **environment):
        return subprocess.run(
            [build_dir / "quire", *arguments],
            env={**clean_env, **environment},
            text=True,
            timeout=60,
            capture_output=True,
        )

    return run


@pytest.fixture
def explain(quire):
    """The lines that `quire explain` prints; it must succeed and be silent on stderr."""

    def run(*arguments):
        done = quire("explain", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def fields(info):
    """`quire info` as a dictionary."""
    return dict(re.split(r" +", line, maxsplit=1) for line in info.splitlines())


def isas(quire):
    return fields(quire("info").stdout)["available"].split(" (")[0].split()


def section(lines, title):
    """The lines below a title, without their indent."""
    begin = next(i for i, line in enumerate(lines) if line.startswith(title))
    end = next((i for i in range(begin + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    return [line[2:] for line in lines[begin + 1 : end]]


def error_of(done):
    """The text of an error: exit code 1, nothing on stdout."""
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("quire: ")
    return done.stderr.removeprefix("quire: ").splitlines()


# ---- info


def test_info_has_all_fields(quire):
    done = quire("info")
    assert (done.returncode, done.stderr) == (0, "")
    info = fields(done.stdout)
    assert list(info) == ["quire", "cpu", "features", "isa", "available", "threads", "caches", "peaks"]
    assert all(value for value in info.values())
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["quire"])
    assert re.fullmatch(r"\d+ of \d+ CPUs \(QUIRE_NUM_THREADS\)", info["threads"])
    assert re.fullmatch(r"L1d .*, L2 .*, L3 .*", info["caches"])
    assert re.fullmatch(r"f32 [\d.]+ GFLOP/s, (bf16 \d+ GFLOP/s, )?memory [\d.]+ GB/s \(measured now\)", info["peaks"])


def test_info_chooses_the_fastest(quire):
    available = isas(quire)
    assert available[0] == "scalar"
    assert fields(quire("info").stdout)["isa"] == f"{available[-1]} (fastest this CPU has)"


def test_info_shows_a_forced_isa_and_why(quire):
    for isa in isas(quire):
        assert fields(quire("info", QUIRE_ISA=isa).stdout)["isa"] == f"{isa} (QUIRE_ISA={isa})"


def test_an_isa_that_does_not_exist_is_an_error(quire):
    assert error_of(quire("info", QUIRE_ISA="avx3")) == [
        "[QUIRE_ISA] no ISA has this name; got 'avx3', available: " + ", ".join(isas(quire))
    ]


def test_an_isa_that_this_machine_lacks_is_an_error(quire):
    available = isas(quire)
    lacking = next(isa for isa in ("neon", "avx2", "avx512") if isa not in available)
    assert error_of(quire("info", QUIRE_ISA=lacking)) == [
        f"[QUIRE_ISA] this CPU or this build lacks the ISA; got '{lacking}', available: " + ", ".join(available)
    ]


def test_the_number_of_threads(quire):
    assert fields(quire("info", QUIRE_NUM_THREADS="3").stdout)["threads"].startswith("3 of ")
    done = quire("info", QUIRE_NUM_THREADS="many")
    assert done.returncode == 1
    assert done.stderr == "quire: [QUIRE_NUM_THREADS] must be a whole number in 1..1024; got 'many'\n"


# ---- explain


def test_explain_of_alibi(explain):
    lines = explain(ALIBI)
    assert section(lines, "score mod") == [ALIBI]
    assert section(lines, "simplified") == [ALIBI]
    assert section(lines, "buffers") == ["slopes f32[8]  (declared, no data)"]
    assert [re.split(r" += ", line) for line in section(lines, "derivatives")] == [
        ["d score", "1.0"],
        ["d slopes[h]", "float(kv_idx - q_idx)"],
    ]
    assert [line.split(maxsplit=2) for line in section(lines, "values")] == [
        ["element", "float", "score"],
        ["uniform", "int", "h"],
        ["uniform", "float", "slopes[h]"],
        ["key", "int", "kv_idx"],
        ["query", "int", "q_idx"],
        ["diagonal", "int", "kv_idx - q_idx"],
        ["diagonal", "float", "float(kv_idx - q_idx)"],
        ["diagonal", "float", "slopes[h] * (kv_idx - q_idx)"],
        ["element", "float", ALIBI],
    ]


def test_the_tile_program_of_alibi(explain):
    lines = section(explain(ALIBI), "tile program: 64 queries across the lanes, 256 keys as rows")
    phases, phase = {}, ""
    for line in lines[:-1]:
        phase = line[:10].strip() or phase
        phases.setdefault(phase, []).append(re.sub(r" +", " ", line[10:]))
    assert list(phases) == ["uniform", "diagonal", "element"]
    assert "u1.f32 = strided slopes at u0, +0 a lane, +0 a row" in phases["uniform"]
    assert phases["diagonal"] == [
        "d0.i32 = iota u4, -1 a lane, +1 a row",
        "d1.f32 = to_float d0",
        "d2.f32 = mul u1, d1",
    ]
    # Per element nothing is left but one addition, fused with the store and the running maximum.
    assert phases["element"] == ["score = add score, d2 (store; max)"]
    assert re.fullmatch(
        r"\d+ bytes of scratch a thread; \d+ rows at a time per element; checks of reads and divisions: 0", lines[-1]
    )


def test_decode_puts_the_keys_across_the_lanes(explain):
    lines = section(explain(ALIBI, "--decode"), "tile program: 256 keys across the lanes, (head, query) pairs as rows")
    text = "\n".join(lines)
    assert "diagonal" not in text
    assert re.search(r"lane +l0\.i32 += iota u0, \+1 a lane, \+0 a row", text)
    assert re.search(r"row +r0\.i64 += list of h", text)


def test_a_mask_has_no_derivatives_and_ends_in_bits(explain):
    lines = explain("q_idx >= kv_idx")
    assert section(lines, "mask mod") == ["q_idx >= kv_idx"]
    assert not any(line.startswith("derivatives") for line in lines)
    program = "\n".join(section(lines, "tile program"))
    assert re.search(r"d1\.bits += le d0, u3", program)
    assert re.search(r"result +mask +=", program)


def test_simplified_is_shown_beside_what_was_read(explain):
    lines = explain("where(True, score * 1.0, score) + slopes[h] * (0 * q_idx)")
    assert section(lines, "score mod") == ["where(True, score * 1.0, score) + slopes[h] * (0 * q_idx)"]
    assert section(lines, "simplified")[0].startswith("score + slopes[h] * ")


def test_bindings_and_lines(explain):
    written = section(explain("d = kv_idx - q_idx; where(d > 0, -inf, score + d)"), "score mod")
    assert written == ["where(kv_idx - q_idx > 0, -inf, score + (kv_idx - q_idx))"]
    assert section(explain("d = kv_idx - q_idx\nwhere(d > 0, -inf, score + d)"), "score mod") == written


def test_buffer_gives_dtype_and_shape(explain):
    mask = "(doc[q_idx] == doc[kv_idx]) & (q_idx >= kv_idx)"
    lines = explain(mask, "--buffer", "doc=i64[2048]")
    assert section(lines, "buffers") == ["doc i64[2048]  (declared, no data)"]
    assert ["query", "int", "doc[q_idx]"] in [line.split(maxsplit=2) for line in section(lines, "values")]
    two = explain("score + bias[h, q_idx]", "--buffer", "bias=bf16[8, 100]", "--q", "100")
    assert section(two, "buffers") == ["bias bf16[8, 100]  (declared, no data)"]
    assert two[-1].endswith("checks of reads and divisions: 0")


def test_an_index_that_may_be_outside_is_checked(explain):
    lines = explain("score + bias[q_idx]", "--buffer", "bias=f32[100]")
    assert any("check index" in line and "of 100" in line for line in lines)
    assert lines[-1].endswith("checks of reads and divisions: 1")


def test_sizes_decide_what_is_proved(explain):
    assert "divisions: 0" in explain("score + bias[q_idx]", "--buffer", "bias=f32[100]", "--q", "100")[-1]
    assert section(explain("score + bias[q_idx]", "--q", "300"), "buffers") == ["bias f32[300]  (declared, no data)"]
    assert section(explain("score + bias[kv_idx, h, b]", "--kv", "7", "--heads", "5", "--batch", "3"), "buffers") == [
        "bias f32[7, 5, 3]  (declared, no data)"
    ]


def test_f64(explain):
    assert any("u1.f64" in line for line in explain(ALIBI, "--f64"))
    assert not any("f64" in line for line in explain(ALIBI))


# ---- errors of formulas

BAD = [
    # (formula, first line, column of the caret)
    ("score +", "[parse] expected a value; got the end of the text", 7),
    ("tanh(score", "[parse] missing ')' for the '(' at column 5; got the end of the text", 10),
    ("score ? 1", "[parse] unexpected character '?'", 6),
    ("score + kv_idy", "[parse] unknown name 'kv_idy'; did you mean 'kv_idx'?", 8),
    ("score + tanhh(score)", "[parse] unknown name 'tanhh'; did you mean 'tanh'?", 8),
    ("where(score > 0, score)", "[parse] 'where' needs 3 arguments; got 2", 0),
    ("tanh(score, 2)", "[parse] 'tanh' needs 1 argument; got 2", 0),
    ("score << 2", "[parse] '<<' needs integers; got float and int", 6),
    ("score & 1", "[parse] '&' needs integers or bools; got float and int", 6),
    ("score + bias[score]", "[parse] an index of buffer 'bias' must be an integer; got float", 13),
    ("0 < q_idx < 9", "[parse] comparisons cannot be chained; write (a < b) & (b < c)", 10),
    ("score if h else 0", "[parse] there is no 'if'; write where(condition, a, b)", 6),
]


@pytest.mark.parametrize("formula, message, column", BAD, ids=[formula for formula, _, _ in BAD])
def test_bad_text_is_an_error_with_a_caret(quire, formula, message, column):
    assert error_of(quire("explain", formula)) == [message, "  " + formula, "  " + " " * column + "^"]


def test_wrong_rank_is_an_error(quire):
    assert error_of(quire("explain", "score + bias[q_idx, kv_idx]", "--buffer", "bias=f32[64]")) == [
        "[parse] buffer 'bias' has rank 1 (shape [64]) and needs 1 indices; got 2",
        "  score + bias[q_idx, kv_idx]",
        "          ^",
    ]


def test_a_mask_of_the_score_is_an_error(quire):
    assert error_of(quire("explain", "score > 0")) == ["[MaskMod] a mask may not depend on the score"]


def test_an_empty_formula_is_an_error(quire):
    assert error_of(quire("explain", "")) == ["[parse] the text is empty"]


def test_a_wrong_buffer_is_an_error(quire):
    done = quire("explain", "score", "--buffer", "doc=f32[x]")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--buffer: must look like doc=doc.npy, doc=1,1,2, doc=i64[2048] or " in done.stderr
    assert "got 'doc=f32[x]'" in done.stderr
    done = quire("explain", "score", "--buffer", "doc=x32[8]")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "must be one of f32, f64, bf16, f16, i8, u8, i16, i32, i64, bool; got 'x32'" in done.stderr


@pytest.mark.parametrize("opening, closing", [("(", ")"), ("tanh(", ")"), ("- ", ""), ("x[", "]"), ("2 ** ", "")])
def test_deep_nesting_is_an_error(quire, opening, closing):
    error = error_of(quire("explain", "score + " + opening * 10_000 + "h" + closing * 10_000, "--buffer", "x=i64[8]"))
    assert error[0] == "[parse] nested deeper than 1000 levels"
    assert len(error) == 3 and all(len(line) < 100 for line in error)  # the line is cut around the caret


def test_as_deep_as_is_allowed(quire):
    assert quire("explain", "(" * 1000 + "score" + ")" * 1000).returncode == 0
    assert quire("explain", "(" * 1001 + "score" + ")" * 1001).returncode == 1


def test_a_long_formula(explain):
    lines = explain("score" + " + tanh(score)" * 9000)  # as long as an argument may be on Linux
    assert section(lines, "score mod")[0].startswith("t0 = tanh(score); score + t0 + t0")
    assert any(line.endswith(" more") for line in section(lines, "values"))


# ---- the command line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["explain"],
        ["explain", "score", "--no-such-option"],
        ["explain", "score", "--heads", "0"],
        ["explain", "score", "--heads", "many"],
        ["explain", "score", "more"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(quire, arguments):
    done = quire(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_a_formula_that_begins_with_a_minus(explain):
    assert section(explain("-score"), "score mod") == ["-score"]
    assert section(explain("--", "-score"), "score mod") == ["-score"]


def test_help(quire):
    for arguments in (["--help"], ["-h"], ["explain", "--help"], ["info", "--help"]):
        done = quire(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"^Usage: \S*quire", done.stdout, re.MULTILINE)
    top, explain_help = quire("--help").stdout, quire("explain", "--help").stdout
    assert "info" in top and "explain" in top and "Exit codes: 0 done, 1 " in top
    for option in ("--buffer", "--batch", "--heads", "--q", "--kv", "--f64", "--decode"):
        assert option in explain_help


def test_without_a_command_the_help_is_shown_as_an_error(quire):
    assert quire().stderr == quire("--help").stdout


def test_help_as_a_word(quire):
    for arguments, same in ((["help"], ["--help"]), (["help", "draw"], ["draw", "--help"])):
        done = quire(*arguments)
        assert (done.returncode, done.stdout) == (0, quire(*same).stdout)
    assert quire("help", "nothing").returncode == 2


def test_the_help_fits_a_terminal(quire):
    for command in ("info", "draw", "explain", "bench", "attend", "demo"):
        assert max(map(len, quire(command, "--help").stdout.splitlines())) <= 100


def test_a_wrong_command_line_says_where_help_is(quire):
    assert quire("explain").stderr == "quire explain: formula is required; try quire explain --help\n"
    assert quire("--nothing").stderr.startswith("quire: ")


@pytest.mark.parametrize("arguments", [["--help"], ["draw", "--list"], ["draw", "kv_idx > h"]], ids=" ".join)
def test_a_full_disk_is_an_error(build_dir, clean_env, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [build_dir / "quire", *arguments], env=clean_env, text=True, timeout=60, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1
    assert done.stderr.startswith("quire: cannot write to ")


def test_a_pipe_that_closes_early_is_no_noise(build_dir, clean_env):
    done = subprocess.run(
        f"{build_dir}/quire draw --list | head -n 1",
        env=clean_env,
        text=True,
        timeout=60,
        shell=True,
        capture_output=True,
    )
    assert done.stderr == "" and done.stdout.startswith("@causal ")


def test_a_small_mask_is_not_skipped_by_a_negative_share(explain):
    assert explain("q_idx >= kv_idx", "--mask", "--q", "64", "--kv", "64")[-1] == (
        "  skipped     0.00 % of the pairs are in empty blocks"
    )
    # Blocks (0, 0), (1, 0) and (1, 1) of 150 x 150 pairs in blocks of 100: 100 x 50 pairs are in an empty one.
    assert explain("q_idx >= kv_idx", "--mask", "--q", "150", "--kv", "150", "--block", "100")[-1] == (
        "  skipped     22.22 % of the pairs are in empty blocks"
    )


def test_version(quire):
    done = quire("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)
    assert done.stdout.strip() == fields(quire("info").stdout)["quire"]


# ---- the first example


def test_first_mods_has_the_same_bits_on_every_isa(quire, build_dir, clean_env):
    done = subprocess.run(
        [build_dir / "examples/first_mods"], env=clean_env, text=True, timeout=60, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"alibi:    {ALIBI}\n" in done.stdout
    same = re.findall(r"^capped at .* on (\w+): .*, bits as on scalar: (\w+)$", done.stdout, re.MULTILINE)
    assert same == [(isa, "yes") for isa in isas(quire)]
    assert "[parse] unknown name 'kv_idy'; did you mean 'kv_idx'?\n  q_idx >= kv_idy\n           ^\n" in done.stdout


def test_an_unknown_command_is_named(quire):
    done = quire("frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "quire: there is no command 'frobnicate'; try quire --help\n"
    assert quire("drow").stderr == "quire: there is no command 'drow'; did you mean 'draw'?\n"
