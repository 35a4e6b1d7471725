"""`quire attend`: .npy files in and out, compared with NumPy in f64; what NumPy writes is read, and what is written NumPy
reads; errors and exit codes; the progress bar on a terminal."""

import os
import pty
import signal
import subprocess
import time

import numpy as np
import pytest


@pytest.fixture
def quire(build_dir, clean_env, tmp_path):
    """quire(*arguments) -> the finished process, run where the files are."""

    def run(*arguments, **environment):
        return subprocess.run(
            [build_dir / "quire", *map(str, arguments)],
            env={**clean_env, **environment},
            text=True,
            timeout=60,
            capture_output=True,
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def save(tmp_path):
    def write(**arrays):
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)

    return write


@pytest.fixture
def attend(quire, save, tmp_path):
    """attend(q, k, v, *options) -> (out, what was printed)"""

    def run(q, k, v, *options):
        save(q=q, k=k, v=v)
        done = quire("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", *options)
        assert (done.returncode, done.stderr) == (0, "")
        return np.load(tmp_path / "out.npy"), done.stdout

    return run


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expected(q, k, v, visible=True, change=lambda score: score, scale=None):
    """(out, lse) in f64; heads of k and v are repeated."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if q.ndim > 2:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    score = change(q @ np.swapaxes(k, -1, -2) * (scale or q.shape[-1] ** -0.5))
    weights = np.where(visible, np.exp(score), 0)
    total = weights.sum(-1)
    with np.errstate(divide="ignore"):
        return weights / np.where(total == 0, 1, total)[..., None] @ v, np.log(total)


def test_plain_attention(attend):
    q, k, v = numbers(2, 4, 37, 16), numbers(2, 4, 53, 16, seed=1), numbers(2, 4, 53, 8, seed=2)
    out, printed = attend(q, k, v)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected(q, k, v)[0], atol=2e-6)
    assert printed.startswith("out.npy: f32 [2, 4, 37, 8] in ") and printed.endswith(" ms\n")


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_fewer_axes_stay_fewer(attend, tmp_path, lead):
    q, k, v = numbers(*lead, 20, 8), numbers(*lead, 30, 8, seed=1), numbers(*lead, 30, 8, seed=2)
    out, _ = attend(q, k, v, "--lse", "lse.npy", "--max-scores", "max.npy")
    wanted, lse = expected(q, k, v)
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), lse, atol=2e-6)
    assert np.load(tmp_path / "max.npy").shape == (*lead, 20)


def test_masks_score_mods_and_buffers(attend, save):
    q, k, v = numbers(1, 4, 40, 8), numbers(1, 2, 40, 8, seed=1), numbers(1, 2, 40, 8, seed=2)
    slopes, doc = np.array([1, 0.5, 0.25, 0.125], np.float32), np.arange(40, dtype=np.int64) // 7
    save(slopes=slopes, doc=doc)
    rows, columns = np.arange(40)[:, None], np.arange(40)
    out, printed = attend(
        q,
        k,
        v,
        "--causal",
        "--mask",
        "doc[q_idx] == doc[kv_idx]",
        "--score",
        "score + slopes[h] * (kv_idx - q_idx)",
        "--buffer",
        "doc=doc.npy",
        "--buffer",
        "slopes=slopes.npy",
        "--scale",
        "0.5",
        "--block",
        "8",
    )
    wanted, _ = expected(
        q,
        k,
        v,
        (rows >= columns) & (doc[:, None] == doc),
        scale=0.5,
        change=lambda score: score + slopes[:, None, None] * (columns - rows),
    )
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    assert "% of the scores never computed" in printed


def test_formulas_that_begin_with_a_minus(attend):
    q, k, v = numbers(9, 4), numbers(9, 4, seed=1), numbers(9, 4, seed=2)
    np.testing.assert_allclose(
        attend(q, k, v, "--score", "-score")[0], expected(q, k, v, change=np.negative)[0], atol=2e-6
    )
    np.testing.assert_allclose(
        attend(q, k, v, "--mask", "-kv_idx + 4 > 0")[0], expected(q, k, v, np.arange(9) < 4)[0], atol=2e-6
    )


def test_the_gallery(attend):
    q, k, v = numbers(2, 32, 8), numbers(2, 32, 8, seed=1), numbers(2, 32, 8, seed=2)
    out, _ = attend(q, k, v, "--mask", "@causal", "--score", "@softcap")
    again, _ = attend(q, k, v, "--causal", "--score", "@softcap")
    np.testing.assert_array_equal(out, again)


def test_a_decode_step_has_the_bits_of_the_last_row(attend):
    q, k, v = numbers(2, 65, 16), numbers(2, 65, 16, seed=1), numbers(2, 65, 16, seed=2)
    whole, _ = attend(q, k, v, "--causal")
    last, _ = attend(q[:, -1:], k, v, "--causal", "--q-begin", 64)
    np.testing.assert_array_equal(last, whole[:, -1:])


def test_f64_f16_and_fortran_order(attend, tmp_path):
    q, k, v = (numbers(3, 20, 8, seed=i, dtype=np.float64) for i in range(3))
    out, _ = attend(q, np.asfortranarray(k), v.astype(">f8"))
    assert out.dtype == np.float64
    np.testing.assert_allclose(out, expected(q, k, v)[0], atol=1e-14)
    assert not np.isfortran(out)
    half, _ = attend(q.astype(np.float16), k.astype(np.float32), v.astype(np.float32))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, out, atol=5e-3)


def test_bf16_as_ml_dtypes_writes_it(attend):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (numbers(3, 20, 8, seed=i).astype(ml_dtypes.bfloat16) for i in range(3))
    out, printed = attend(q, k, v)
    assert printed.startswith("out.npy: bf16 [3, 20, 8]") and out.dtype == np.dtype("V2")
    wanted = expected(*(x.astype(np.float64) for x in (q, k, v)))[0]
    np.testing.assert_allclose(out.view(ml_dtypes.bfloat16).astype(np.float64), wanted, atol=2e-2)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
def test_every_version_of_the_format(quire, tmp_path, version):
    for name in "qkv":
        with open(tmp_path / f"{name}.npy", "wb") as file:
            np.lib.format.write_array(file, numbers(5, 4), version=version)
    assert quire("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy").returncode == 0


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", "f2", "f4", "f8", ">f8"])
def test_buffers_of_every_type(attend, save, dtype):
    save(keep=np.array([1, 0, 1, 1, 0, 1, 0], dtype=dtype))
    q, k, v = numbers(6, 4), numbers(7, 4, seed=1), numbers(7, 4, seed=2)
    out, _ = attend(
        q, k, v, "--mask", "keep[kv_idx] > 0" if dtype != "?" else "keep[kv_idx]", "--buffer", "keep=keep.npy"
    )
    np.testing.assert_allclose(out, expected(q, k, v, np.array([1, 0, 1, 1, 0, 1, 0]) > 0)[0], atol=2e-6)


# ---- what is wrong


def error_of(done):
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("quire: ")
    return done.stderr.removeprefix("quire: ").splitlines()


def test_errors_are_exit_code_1(quire, save, tmp_path):
    save(q=numbers(1, 2, 5, 4), k=numbers(1, 2, 6, 4), v=numbers(1, 2, 6, 4), flat=numbers(5), c=np.zeros(3, complex))
    files = ["q.npy", "k.npy", "v.npy", "-o", "out.npy"]
    assert error_of(quire("attend", "none.npy", *files[1:])) == [
        "[read_npy] cannot read 'none.npy': No such file or directory"
    ]
    assert error_of(quire("attend", "flat.npy", *files[1:])) == [
        "[attend] 'flat.npy' must be [length, dim], [heads, length, dim] or [batch, heads, length, dim]; got [5]"
    ]
    assert "has elements of type '<c16'" in error_of(quire("attend", "c.npy", *files[1:]))[0]
    assert (
        error_of(quire("attend", *files, "--score", "scor"))[0] == "[parse] unknown name 'scor'; did you mean 'score'?"
    )
    assert error_of(quire("attend", *files, "--mask", "score > 0")) == ["[MaskMod] a mask may not depend on the score"]
    assert error_of(quire("attend", *files[:4], "no/out.npy")) == [
        "[attend] cannot write 'no/out.npy': No such file or directory"
    ]
    assert error_of(quire("attend", *files[:4], ".")) == ["[attend] cannot write '.': Is a directory"]
    assert error_of(quire("attend", "q.npy", "k.npy", "q.npy", "-o", "out.npy"))[0].startswith("[flex_attention]")
    assert not (tmp_path / "out.npy").exists()
    (tmp_path / "cut.npy").write_bytes((tmp_path / "q.npy").read_bytes()[:-1])
    assert error_of(quire("attend", "cut.npy", *files[1:])) == [
        "[read_npy] 'cut.npy' has shape [1, 2, 5, 4], 4 bytes an element, and 159 bytes of elements"
    ]


def test_what_never_ends_is_not_read_for_ever(quire, save, tmp_path):
    save(k=numbers(6, 4), v=numbers(6, 4))
    assert error_of(quire("attend", "/dev/zero", "k.npy", "v.npy", "-o", "out.npy")) == [
        "[read_npy] '/dev/zero' is no .npy file: it does not begin with \\x93NUMPY"
    ]
    endless = "(cat k.npy; cat /dev/zero) | $QUIRE attend - k.npy v.npy -o out.npy"
    done = subprocess.run(
        endless,
        shell=True,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "QUIRE": quire("--version").args[0]},
    )
    assert done.returncode == 1 and "goes on after the 96 bytes of elements" in done.stderr


def test_sizes_are_compared_before_a_mask_is_made(quire, save, tmp_path):
    """A length of 2^40 costs nothing in a file, if the dim is 0."""
    save(q=numbers(5, 4), v=numbers(6, 4))
    np.save(tmp_path / "k.npy", np.zeros((2**40, 0), np.float32))
    assert error_of(quire("attend", "q.npy", "k.npy", "v.npy", "--causal", "-o", "out.npy")) == [
        "[flex_attention] query and key must have the same head dim; got 4 and 0"
    ]


def test_two_results_in_one_file_are_refused(quire, save, tmp_path):
    save(q=numbers(5, 4))
    (tmp_path / "link.npy").symlink_to("out.npy")
    for name in ("out.npy", "./out.npy", str(tmp_path / "out.npy"), "link.npy"):
        done = quire("attend", "q.npy", "q.npy", "q.npy", "-o", "out.npy", "--lse", name)
        assert done.returncode == 2 and f"two results cannot both be '{name}'" in done.stderr


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_the_old_file_is_there(build_dir, clean_env, save, tmp_path, sign):
    save(q=numbers(2, 8, 2048, 64), k=numbers(2, 8, 16384, 64), v=numbers(2, 8, 16384, 64))
    (tmp_path / "out.npy").write_bytes(b"the old one")
    before = sorted(os.listdir(tmp_path))
    child = subprocess.Popen(
        [build_dir / "quire", "attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy"],
        cwd=tmp_path,
        env={**clean_env, "QUIRE_ISA": "scalar"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(sign, signal.SIG_DFL),  # a shell's background jobs ignore SIGINT
    )
    deadline = time.monotonic() + 30
    while sorted(os.listdir(tmp_path)) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(sign)
    try:
        child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == -sign
    assert (tmp_path / "out.npy").read_bytes() == b"the old one"
    assert sorted(os.listdir(tmp_path)) == before


def test_a_file_that_is_replaced(quire, save, tmp_path):
    """It keeps its permissions, and a link to it stays one; pipes and devices are written to as they are."""
    save(q=numbers(5, 4))
    (tmp_path / "real.npy").write_bytes(b"old")
    (tmp_path / "real.npy").chmod(0o640)
    (tmp_path / "link.npy").symlink_to("real.npy")
    for out in ("link.npy", "new.npy", "/dev/null"):
        assert quire("attend", "q.npy", "q.npy", "q.npy", "-o", out).returncode == 0
    assert (tmp_path / "link.npy").is_symlink() and np.load(tmp_path / "real.npy").shape == (5, 4)
    assert (tmp_path / "real.npy").stat().st_mode & 0o777 == 0o640
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "new.npy").stat().st_mode & 0o777 == 0o666 & ~mask
    assert sorted(os.listdir(tmp_path)) == ["link.npy", "new.npy", "q.npy", "real.npy"]


def test_a_buffer_that_was_not_given_is_explained(quire, save):
    save(q=numbers(5, 4), k=numbers(6, 4), v=numbers(6, 4))
    error = error_of(quire("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--mask", "doc[q_idx] == doc[kv_idx]"))
    assert error[0].startswith("[parse] unknown name 'doc'") and "--buffer doc=file.npy" in error[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-", "-", "v.npy", "-o", "out.npy"], "-: only one array can come from stdin"),
        (
            ["q.npy", "k.npy", "v.npy", "-o", "out.npy", "--lse", "out.npy"],
            "--out: two results cannot both be 'out.npy'",
        ),
        (["q.npy", "k.npy", "v.npy", "-o", "out.npy", "--scale", "nan"], "--scale: must be finite; got nan"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_right(quire, save, arguments, message):
    save(q=numbers(5, 4), k=numbers(6, 4), v=numbers(6, 4))
    done = quire("attend", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"quire attend: {message}; try quire attend --help\n"


def test_the_share_that_was_never_computed(attend):
    q = numbers(1, 1, 150, 8)
    assert attend(q, q, q, "--causal")[1].endswith(", 12.52 % of the scores never computed\n")  # 128 x 22 of 150 x 150
    assert attend(q, q, q, "--causal", "--block", 1024)[1].endswith(", 0.00 % of the scores never computed\n")


def test_stdin_and_stdout(attend, build_dir, clean_env, tmp_path):
    q, k, v = numbers(2, 5, 4), numbers(2, 6, 4, seed=1), numbers(2, 6, 4, seed=2)
    out, _ = attend(q, k, v)
    done = subprocess.run(
        [build_dir / "quire", "attend", "-", "k.npy", "v.npy", "-o", "-"],
        env=clean_env,
        cwd=tmp_path,
        input=(tmp_path / "q.npy").read_bytes(),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr.startswith(b"stdout: f32 [2, 5, 4] in ")
    assert done.stdout == (tmp_path / "out.npy").read_bytes()
    np.testing.assert_array_equal(out, np.load(tmp_path / "out.npy"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["q.npy"],
        ["q.npy", "k.npy", "v.npy"],
        ["q.npy", "k.npy", "v.npy", "w.npy", "-o", "out.npy"],
        ["q.npy", "k.npy", "v.npy", "-o", "out.npy", "--block", "0"],
        ["q.npy", "k.npy", "v.npy", "-o", "out.npy", "--nothing"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(quire, arguments):
    done = quire("attend", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


# ---- on a terminal


def test_the_progress_bar_is_for_terminals_and_changes_no_bit(attend, build_dir, clean_env, tmp_path):
    q, k, v = (numbers(2, 3000, 8, seed=i) for i in range(3))
    options = ["--causal", "--score", "score * 0.5", "--lse", "lse.npy"]
    quiet, _ = attend(q, k, v, *options)
    lse = np.load(tmp_path / "lse.npy")
    leader, follower = pty.openpty()
    command = [build_dir / "quire", "attend", "q.npy", "k.npy", "v.npy", "-o", "shown.npy", *options]
    done = subprocess.run(
        command, env={**clean_env, "TERM": "xterm"}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=follower, timeout=60
    )
    os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert done.returncode == 0
    assert "query 512 of 3000" in shown and "[#" in shown and shown.endswith("\r\x1b[K")
    np.testing.assert_array_equal(np.load(tmp_path / "shown.npy"), quiet)
    np.testing.assert_array_equal(np.load(tmp_path / "lse.npy"), lse)
