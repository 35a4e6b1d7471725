"""`quire draw` and `quire explain --mask`: what they print, the files they write, and their exit codes."""

import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import pytest
from test_cli import error_of, quire  # noqa: F401 (a fixture)
from test_demo import on_a_terminal

WINDOW = "(q_idx >= kv_idx) & (q_idx - kv_idx < 256)"
SVG = "{http://www.w3.org/2000/svg}"
# Classes of the SVG's cells, and their colours in the PNG.
HIDDEN, PARTIAL, VISIBLE, NAN, MASKED = "i0", "i1", "i2", "i3", "i5"
COLOURS = {HIDDEN: (233, 236, 240), PARTIAL: (230, 159, 0), VISIBLE: (0, 114, 178)}


@pytest.fixture
def draw(quire):
    """What `quire draw` prints; it must succeed and be silent on stderr."""

    def run(*arguments):
        done = quire("draw", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def svg(draw, tmp_path):
    """The root of the SVG that `quire draw` writes."""

    def run(*arguments):
        assert draw(*arguments, "--svg", str(tmp_path / "a.svg")) == ""
        return ElementTree.parse(tmp_path / "a.svg").getroot()

    return run


@pytest.fixture
def png(quire, tmp_path):
    """(rows of pixels) of the PNG that `quire draw` writes; skips the test where there is no libpng."""

    def run(*arguments):
        done = quire("draw", *arguments, "--png", str(tmp_path / "a.png"))
        if "libpng was not found" in done.stderr:
            assert done.returncode == 1
            pytest.skip("built without libpng")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return decode_png((tmp_path / "a.png").read_bytes())

    return run


def picture_lines(text):
    """The cells of a drawing, line by line."""
    return re.findall(r"^ *\d* [┤│|+](.*)[│|]$", text, re.MULTILINE)


def cells_of(root):
    """The grid of the SVG's cells, as classes."""
    group = root.find(f"{SVG}g[@id='cells']")
    ground = group.find(f"{SVG}rect")
    cols, rows = int(ground.get("width")), int(ground.get("height"))
    grid = [[ground.get("class")] * cols for _ in range(rows)]
    for path in group.findall(f"{SVG}path"):
        rectangles = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z", path.get("d"))
        assert "".join("M{} {}h{}v{}h-{}z".format(*r) for r in rectangles) == path.get("d")
        for x, y, width, height, back in (map(int, r) for r in rectangles):
            assert width == back
            for row in range(y, y + height):
                for col in range(x, x + width):
                    assert grid[row][col] == ground.get("class")  # each cell once
                    grid[row][col] = path.get("class")
    return grid


def decode_png(data):
    """Rows of (r, g, b); RGB of 8 bits, not interlaced, any filter."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, compressed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, colour, interlaced) == (8, 2, 0)
        if kind == b"IDAT":
            compressed += body
        at += 12 + length
    raw, rows, above = zlib.decompress(compressed), [], bytes(3 * width)
    for y in range(height):
        begin = y * (3 * width + 1)
        above = unfilter(raw[begin], raw[begin + 1 : begin + 1 + 3 * width], above)
        rows.append([tuple(above[3 * x : 3 * x + 3]) for x in range(width)])
    return rows


def unfilter(kind, line, above):
    """A line of a PNG of 3 bytes a pixel."""
    out = bytearray(line)
    for i in range(len(out) if kind else 0):
        left, up, corner = (out[i - 3] if i >= 3 else 0), above[i], (above[i - 3] if i >= 3 else 0)
        if kind == 4:
            to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            nearest = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        else:
            nearest = (0, left, up, (left + up) // 2)[kind]
        out[i] = (out[i] + nearest) & 255
    return bytes(out)


# ---- the terminal


def test_a_window(draw):
    text = draw(WINDOW, "--q", "4096", "--kv", "4096")
    lines = picture_lines(text)
    assert text.startswith(
        WINDOW + "\nbatch 0 of 1, head 0 of 1; 4096 queries x 4096 keys; a cell: 128 x 64 elements\n"
    )
    assert text.endswith("█ full   ▒ partial   · empty\n")
    assert len(lines) == 32
    for row, line in enumerate(lines):
        expected = ""
        for col in range(64):
            visible = [
                (q >= kv) and (q - kv < 256) for q in (128 * row, 128 * row + 127) for kv in (64 * col, 64 * col + 63)
            ]
            nearest = max(128 * row - 64 * col - 63, 0)  # the smallest distance that is not negative
            some = 128 * row + 127 >= 64 * col and nearest < 256
            expected += "█" if all(visible) else "▒" if some else "·"
        assert line == expected


def test_elements(draw):
    text = draw("q_idx >= kv_idx", "--q", "4", "--kv", "4")
    assert picture_lines(text) == ["██······", "████····", "██████··", "████████"]
    assert "█ visible   · hidden" in text


def test_64_elements_if_no_size_is_given(draw):
    assert "64 queries x 64 keys; a cell: an element" in draw("q_idx >= kv_idx")


def test_blocks(draw):
    text = draw("q_idx >= kv_idx", "--q", "512", "--kv", "512", "--block", "128")
    assert "a cell: a block of 128 x 128" in text
    assert picture_lines(text) == ["▒▒······", "██▒▒····", "████▒▒··", "██████▒▒"]
    text = draw("q_idx >= kv_idx", "--q", "512", "--kv", "512", "--block", "256", "--kv-block", "128")
    assert picture_lines(text) == ["▒▒▒▒····", "████▒▒▒▒"]
    text = draw("q_idx >= kv_idx", "--q", "16", "--kv", "64", "--block", "8", "--q-begin", "48")
    assert picture_lines(text) == ["████████████▒▒··", "██████████████▒▒"]


def test_batch_and_head(draw):
    text = draw(
        "kv_idx <= h + 2 * b", "--q", "1", "--kv", "8", "--b", "1", "--head", "3", "--heads", "4", "--batch", "2"
    )
    assert "batch 1 of 2, head 3 of 4" in text
    assert picture_lines(text) == ["█" * 12 + "·" * 4]
    assert "batch 2 of 3, head 5 of 6" in draw("kv_idx <= h", "--b", "2", "--h", "5")


def test_ascii_and_width(draw):
    text = draw("q_idx >= kv_idx", "--q", "64", "--kv", "64", "--ascii", "--width", "16")
    assert text.isascii()
    assert picture_lines(text)[:3] == ["++..............", "##++............", "####++.........."]


def test_a_score_mod_is_a_heat_map(draw):
    text = draw("score - kv_idx", "--q", "1", "--kv", "8")
    assert picture_lines(text) == ["██▇▇▆▆▅▅▄▄▃▃▂▂▁▁"]
    assert text.endswith("▁ = -7 to █ = 0\n")
    assert "added to a score of 30; " in draw("20 * tanh(score / 20)", "--score", "30")


def test_colours_on_a_terminal_unless_refused(build_dir, clean_env):
    env = {**clean_env, "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    command = [build_dir / "quire", "draw", WINDOW, "--q", "4096", "--kv", "4096"]
    assert "\x1b[0;38;5;" in on_a_terminal(command, env)
    assert "\x1b" not in on_a_terminal(command, {**env, "NO_COLOR": "1"})
    assert "\x1b" not in on_a_terminal(command, {**env, "TERM": "dumb"})
    assert "\x1b" not in on_a_terminal([*command, "--ascii"], env)


def test_no_colours_in_a_file_unless_asked_for(quire, draw):
    assert "\x1b" not in draw(WINDOW)
    assert "\x1b" in draw(WINDOW, "--color", "always")
    assert "\x1b" in quire("draw", WINDOW, CLICOLOR_FORCE="1").stdout
    assert "\x1b" in quire("draw", WINDOW, "--color", "always", NO_COLOR="1").stdout
    assert "\x1b" not in quire("draw", WINDOW, CLICOLOR_FORCE="1", NO_COLOR="1").stdout
    assert "\x1b" not in quire("draw", WINDOW, "--color", "never", CLICOLOR_FORCE="1").stdout


def test_a_terminal_that_cannot_show_it_gets_ascii(quire):
    assert quire("draw", WINDOW, LC_ALL="de_DE.ISO-8859-1").stdout.isascii()
    for locale in ("C", "C.UTF-8", "de_DE.utf8@euro", "en_US"):
        assert not quire("draw", WINDOW, LC_ALL=locale).stdout.isascii()


def test_the_drawing_fits_a_narrow_terminal(build_dir, clean_env):
    shown = on_a_terminal(
        ["sh", "-c", f"stty cols 40; exec {build_dir}/quire draw '{WINDOW}'"],
        {**clean_env, "NO_COLOR": "1"},
        stdin=True,
    )
    picture = [line for line in shown.splitlines() if "│" in line]
    assert picture and max(map(len, picture)) <= 40


def test_an_svg_on_stdout(draw, tmp_path):
    draw(WINDOW, "--svg", str(tmp_path / "a.svg"))
    assert draw(WINDOW, "--svg", "-") == (tmp_path / "a.svg").read_text()


# ---- buffers


def test_a_buffer_of_numbers(draw):
    text = draw("doc[q_idx] == doc[kv_idx]", "--q", "4", "--kv", "4", "--buffer", "doc=1,1,1, 2")
    assert picture_lines(text) == ["██████··"] * 3 + ["······██"]
    text = draw("score + t[kv_idx]", "--q", "1", "--kv", "3", "--buffer", "t=0.5,-1,1e1")
    assert "▁ = -1 to █ = 10" in text


def test_a_buffer_filled_by_a_formula(draw):
    text = draw("doc[q_idx] == doc[kv_idx]", "--q", "4", "--kv", "4", "--buffer", "doc=i32[kv_len]: kv_idx // 2")
    assert picture_lines(text) == ["████····"] * 2 + ["····████"] * 2
    # Two axes: the last is kv_idx, the one before it q_idx.
    text = draw("t[q_idx, kv_idx] > 0", "--q", "2", "--kv", "3", "--buffer", "t=f32[2, 3]: q_idx * kv_idx")
    assert picture_lines(text) == ["······", "··████"]


def test_a_buffer_without_data_cannot_be_drawn(quire):
    error = error_of(quire("draw", "doc[q_idx] == doc[kv_idx]", "--buffer", "doc=i32[64]"))
    assert len(error) == 1 and "'doc'" in error[0] and "no data" in error[0]
    assert error_of(quire("draw", "doc[q_idx] == doc[kv_idx]"))[0].startswith("[parse] unknown name 'doc'")


def test_a_fault_names_where_it_is(quire):
    assert error_of(quire("draw", "t[kv_idx] > 0", "--buffer", "t=1,2,3", "--kv", "4", "--h", "2")) == [
        "[formula] index 3 is outside buffer 't' of size 3 (axis 0) at b=0, h=2, q_idx=0, kv_idx=3"
    ]


@pytest.mark.parametrize("buffer", ["doc", "=1,2", "doc=", "doc=1,x", "doc=i32[4", "doc=i32[4] kv_idx", "doc=i32[4,]"])
def test_a_wrong_buffer_is_exit_code_2(quire, buffer):
    done = quire("draw", "doc[q_idx] > 0", "--buffer", buffer)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--buffer: must look like doc=doc.npy, doc=1,1,2, doc=i64[2048] or " in done.stderr
    assert f"; got '{buffer}'" in done.stderr


# ---- the gallery


def test_every_entry_of_the_gallery_has_a_drawing_in_the_docs(draw, tmp_path):
    docs = Path(__file__).resolve().parents[2] / "docs"
    page = (docs / "mods.md").read_text()
    for name in re.findall(r"^@(\w+) ", draw("--list"), re.MULTILINE):
        assert f"(mods/{name}.svg)" in page
        draw(f"@{name}", "--svg", str(tmp_path / "now.svg"), "--cells", "64")  # as the page says
        assert (docs / "mods" / f"{name}.svg").read_text() == (tmp_path / "now.svg").read_text()


def test_every_entry_of_the_gallery_is_drawn(draw):
    entries = re.findall(r"^(@\w+) +(mask|score) +\S.*$", draw("--list"), re.MULTILINE)
    assert len(entries) > 20 and ("@causal", "mask") in entries and ("@alibi", "score") in entries
    for name, kind in entries:
        text = draw(name)
        assert text.startswith(name[1:] + ": ")
        assert ("added to a score of 0" in text) == (kind == "score")
        assert len(set("".join(picture_lines(text)))) > 1 or kind == "score"


def test_an_entry_at_another_size(draw):
    assert "100 queries x 200 keys" in draw("@causal", "--q", "100", "--kv", "200")
    assert draw("@causal", "--title", "mine").startswith("mine\nbatch 0 of 1")
    assert picture_lines(draw("@padding", "--q", "1", "--kv", "4", "--buffer", "kv_lengths=3,1")) == ["██████··"]


def test_an_unknown_entry_is_an_error(quire):
    assert error_of(quire("draw", "@nothing"))[0].startswith("[gallery] no entry 'nothing'; there are causal, ")


# ---- SVG


def test_the_svg_has_the_elements_of_the_mask(svg):
    for formula, visible in [
        ("q_idx >= kv_idx", lambda q, kv: q >= kv),
        ("(q_idx * 7 + kv_idx * 3) % 5 < 2", lambda q, kv: (q * 7 + kv * 3) % 5 < 2),
        ("q_idx // 8 == kv_idx // 8", lambda q, kv: q // 8 == kv // 8),
        ("kv_idx < 0", lambda q, kv: False),
    ]:
        grid = cells_of(svg(formula, "--q", "37", "--kv", "53"))
        assert grid == [[VISIBLE if visible(q, kv) else HIDDEN for kv in range(53)] for q in range(37)]


def test_the_svg_has_the_blocks_of_a_large_mask(svg):
    grid = cells_of(svg("q_idx >= kv_idx", "--q", "4096", "--kv", "4096", "--cells", "64"))
    assert grid == [
        [VISIBLE if row > col else PARTIAL if row == col else HIDDEN for col in range(64)] for row in range(64)
    ]


def test_the_svg_is_small(draw, tmp_path):
    draw("q_idx >= kv_idx", "--q", "512", "--kv", "512", "--svg", str(tmp_path / "a.svg"))
    draw("@document", "--q", "16384", "--kv", "16384", "--svg", str(tmp_path / "b.svg"))
    assert (tmp_path / "a.svg").stat().st_size < 16_000
    assert (tmp_path / "b.svg").stat().st_size < 16_000


def test_words_of_the_svg(svg):
    root = svg("(q_idx < 8) & (kv_idx > 3)", "--q", "4096", "--kv", "512")
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert root.find(f"{SVG}title").text == words[0] == "(q_idx < 8) & (kv_idx > 3)"
    assert {"q_idx", "kv_idx", "0", "4096", "512", "full", "partial", "empty"} <= set(words)
    named = svg("q_idx >= kv_idx", "--title", 'a < b & "c" \t é')
    assert named.find(f"{SVG}title").text == 'a < b & "c"   é'
    style = root.find(f"{SVG}style").text
    assert style.count("{") == style.count("}") and "prefers-color-scheme:dark" in style


def test_a_heat_map_as_svg(svg):
    root = svg("where(q_idx >= kv_idx, score + kv_idx - q_idx, -inf)", "--q", "4", "--kv", "4")
    grid, words = cells_of(root), [text.text for text in root.iter(f"{SVG}text")]
    colours = {
        name: colour
        for name, colour in re.findall(r"\.(i\d+){fill:(#\w+)}", root.find(f"{SVG}style").text.split("@")[0])
    }
    for q in range(4):
        assert [cell == MASKED for cell in grid[q]] == [q < kv for kv in range(4)]
        assert grid[q][q] == grid[0][0] and colours[grid[q][q]] == "#f7f7f7"
    assert len({cell for row in grid for cell in row}) == 5
    assert {"hidden (-inf)", "0", "-3"} <= set(words) and "NaN" not in words
    root = svg("log(score - 1)", "--q", "2", "--kv", "2")
    assert cells_of(root) == [[NAN] * 2] * 2
    assert "NaN" in [text.text for text in root.iter(f"{SVG}text")]


# ---- PNG


def test_the_png_has_the_cells_of_the_svg(png, svg):
    arguments = ["@document", "--q", "1024", "--kv", "1024", "--block", "64"]
    root = svg(*arguments)
    x, y, width, height = map(int, re.findall(r"\d+", root.find(f"{SVG}g[@id='cells']").get("transform")))
    pixels, grid = png(*arguments), cells_of(root)
    assert {cell for row in grid for cell in row} == {HIDDEN, PARTIAL, VISIBLE}
    assert (len(pixels[0]), len(pixels)) == (2 * int(root.get("width")), 2 * int(root.get("height")))
    for row in range(16):
        for col in range(16):
            middle = pixels[2 * y + (2 * row + 1) * height][2 * x + (2 * col + 1) * width]
            assert middle == COLOURS[grid[row][col]]


def test_the_png_has_words(png):
    pixels = png("q_idx >= kv_idx", "--q", "16", "--kv", "16")
    assert pixels[0][0] == (255, 255, 255)
    dark = sum(pixel == (32, 36, 42) for row in pixels for pixel in row)
    assert 3000 < dark < 30_000


def test_a_heat_map_as_png(png):
    colours = {pixel for row in png("@alibi", "--q", "64", "--kv", "64") for pixel in row}
    assert {(24, 88, 160), (247, 247, 247), (166, 74, 0)} <= colours


# ---- the command line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["score", "--q", "0"],
        ["score", "--width", "7"],
        ["score", "--cells", "4096"],
        ["score", "--head", "-1"],
        ["--list", "score"],
        ["score", "--block", "0"],
        ["score", "--no-such-option"],
        ["score", "more"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(quire, arguments):
    done = quire("draw", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_errors_are_exit_code_1(quire, tmp_path):
    assert error_of(quire("draw", "q_idx >= kv_idy"))[0] == "[parse] unknown name 'kv_idy'; did you mean 'kv_idx'?"
    assert error_of(quire("draw", "score > 0")) == ["[MaskMod] a mask may not depend on the score"]
    assert error_of(quire("draw", "kv_idx > h", "--h", "4", "--heads", "4")) == ["[draw] h 4 is outside 0..3"]
    assert error_of(quire("draw", "score", "--block", "8")) == [
        "[draw] --block is for masks; the formula is a score mod"
    ]
    assert error_of(quire("draw", "kv_idx > h", "--score", "8")) == [
        "[draw] --score is for score mods; the formula is a mask"
    ]
    path = tmp_path / "no" / "such.svg"
    assert error_of(quire("draw", "kv_idx > h", "--svg", str(path))) == [
        f"[draw] cannot write '{path}': No such file or directory"
    ]


@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("-", "-")])
def test_two_pictures_in_one_file_are_refused(quire, tmp_path, names):
    names = [name if name == "-" else f"{tmp_path}/{name}" for name in names]
    done = quire("draw", "q_idx >= kv_idx", "--svg", names[0], "--png", names[1])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"two results cannot both be '{names[1]}'" in done.stderr
    assert not (tmp_path / "a").exists()


def test_help(quire):
    done = quire("draw", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for option in (
        "--buffer",
        "--q",
        "--kv",
        "--head",
        "--block",
        "--svg",
        "--png",
        "--width",
        "--ascii",
        "--score",
        "--list",
    ):
        assert option in done.stdout
    assert 'quire draw "(q_idx >= kv_idx) & (q_idx - kv_idx < 256)" --q 4096 --kv 4096' in done.stdout


# ---- explain --mask


def proof(quire, *arguments):
    """The lines of `quire explain --mask` that follow the title of the block mask, as {first word: rest}."""
    done = quire("explain", *arguments, "--mask")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("block mask: "))
    return lines[begin], dict(line.split(maxsplit=1) for line in lines[begin + 1 :])


def test_how_a_causal_mask_is_proved(quire):
    title, lines = proof(quire, "q_idx >= kv_idx", "--q", "4096", "--kv", "4000")
    assert title == "block mask: 4096 queries x 4000 keys in blocks of 128 x 128"
    assert list(lines) == ["planes", "rectangles", "evaluated", "blocks", "stored", "skipped"]
    assert lines["planes"] == "1 built, 1 different, for 1 x 8 (batch, head) pairs"
    assert 0 < int(lines["rectangles"].split()[0]) < 32 * 32
    assert re.fullmatch(r"\d+ elements one by one, \S+ % of the area", lines["evaluated"])
    assert float(lines["evaluated"].split()[-5]) < 2
    assert lines["blocks"] == "496 full, 0 full to the edge, 32 partial, 496 empty"
    assert int(lines["stored"].split()[0]) > 0
    assert re.fullmatch(r"47\.2[78] % of the pairs are in empty blocks", lines["skipped"])  # 47.275


def test_heads_that_differ_and_another_block_size(quire):
    _, lines = proof(quire, "kv_idx < 64 * (h // 2 + 1)", "--q", "64", "--kv", "500", "--heads", "4", "--block", "32")
    assert lines["planes"] == "4 built, 2 different, for 1 x 4 (batch, head) pairs"
    assert lines["blocks"] == "12 full, 0 full to the edge, 0 partial, 52 empty"


def test_the_proof_needs_the_contents_of_buffers(quire):
    mask = "doc[q_idx] == doc[kv_idx]"
    done = quire("explain", mask, "--mask")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  not proved: that takes the contents of doc; give them as in\n" in done.stdout
    _, lines = proof(quire, mask, "--buffer", "doc=i32[kv_len]: kv_idx // 512")
    assert lines["blocks"] == "64 full, 0 full to the edge, 0 partial, 192 empty"


def test_an_entry_of_the_gallery_is_proved(quire):
    title, _ = proof(quire, "@document", "--q", "1024", "--kv", "1024", "--block", "64")
    assert title == "block mask: 1024 queries x 1024 keys in blocks of 64 x 64"


def test_a_score_mod_has_no_block_mask(quire):
    assert error_of(quire("explain", "score", "--mask")) == [
        "[explain] --mask is for masks; the formula is a score mod"
    ]
