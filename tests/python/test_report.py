"""The report of `make demo`: every section is there, it loads nothing, drawings are XML, and signs are what was computed."""

import html.parser
import importlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("report")  # they share what was made once

SECTIONS = ["machine", "masks", "mods", "layouts", "accuracy", "bits", "gradients", "speed", "next"]
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Collects what is asked about; `open` is the path of elements and must be empty at the end."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.section = [], [], None
        self.texts = {}  # id of a section -> its text
        self.rows = {}  # id of a section -> [[text of a cell]]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag == "section":
            self.section = attributes["id"]
            self.texts[self.section], self.rows[self.section] = "", []
        if tag == "tr" and self.section:
            self.rows[self.section].append([])
        if tag in ("td", "th") and self.section:
            self.rows[self.section][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"
        if tag == "section":
            self.section = None

    def handle_data(self, data):
        if self.section:
            self.texts[self.section] += data
            if "td" in self.open or "th" in self.open:
                self.rows[self.section][-1][-1] += data


@pytest.fixture(scope="module")
def demo_modules(root):
    """The modules of examples/demo, imported one at a time by name."""
    sys.path.insert(0, str(root / "examples/demo"))
    before = set(sys.modules)
    yield importlib.import_module
    sys.path.remove(str(root / "examples/demo"))
    for name in set(sys.modules) - before:
        if str(root / "examples/demo") in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def make_report(root, build_dir, env, path):
    command = [sys.executable, root / "examples/demo", "--quick", "--build", build_dir, "--out", path]
    return subprocess.run(command, env={**env, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def report(root, build_dir, python_env, tmp_path_factory):
    """(the process, the text of the file) as on a machine without torch, which takes a few seconds."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "torch.py").write_text("raise ImportError('not here')\n")
    env = {**python_env, "PYTHONPATH": f"{folder}:{python_env['PYTHONPATH']}"}
    done = make_report(root, build_dir, env, folder / "report.html")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done, (folder / "report.html").read_text(encoding="utf-8")


def check_file(text):
    """What holds for every report. Returns the page."""
    assert len(text.encode()) < 2_000_000
    page = Page(text)
    assert page.open == []
    assert list(page.texts) == SECTIONS
    assert all(len(page.texts[name]) > 100 for name in SECTIONS)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "img")
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
            assert attributes.get(name, "#") == "#" or attributes[name][1:] in ids
    assert not re.search(r"@import|url\(", text)
    assert "@media (prefers-color-scheme:dark)" in text and 'name="viewport"' in text
    return page


def test_the_file(report):
    _, text = report
    page = check_file(text)
    drawings = re.findall(r"<svg\b.*?</svg>", text, re.DOTALL)
    assert len(drawings) == sum(tag == "svg" for tag, _ in page.tags) >= 10
    for drawing in drawings:
        root = xml.etree.ElementTree.fromstring(drawing)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and len(root) > 3


def test_drawings_do_not_share_style(report):
    """A style sheet of an inline SVG counts for the whole page: no class may be styled twice outside of the dark variant."""
    styled = []
    for sheet in re.findall(r"<style>(.*?)</style>", report[1], re.DOTALL)[1:]:
        styled += re.findall(r"\.(\w+)\{", sheet.split("@media")[0])
    assert len(styled) > 30 and len(styled) == len(set(styled))


def test_formulas_stand_beside_drawings(report, demo_modules):
    import quire

    page = Page(report[1])
    for name in demo_modules("mask_gallery").MASKS:
        assert quire.mods.gallery_entry(name).text.strip() in page.texts["masks"]


def test_ticks_are_what_was_computed(report):
    """A tick stands where all hashes of the row are equal, and there are rows for everything that must not matter."""
    rows = Page(report[1]).rows["bits"][1:]
    names = {name for name, *_ in rows}
    assert {"batch sizes", "threads", "prefill and decode", "blocks of the mask", "order in memory", "ISAs"} <= names
    for _, _, ways, sign in rows:
        hashes = re.findall(r"\b[0-9a-f]{12}\b", ways)
        assert len(hashes) > 1
        assert sign == ("✓" if len(set(hashes)) == 1 else "✗")


def test_hashes_are_those_of_the_results(report, demo_modules):
    arrays, problem = demo_modules("arrays"), demo_modules("bits_problem").Problem("f32", quick=True)
    whole = arrays.short_hash(arrays.bits(problem.whole()))
    last_rows = arrays.short_hash(arrays.bits(problem.rows(problem.length - 16, problem.length)))
    shown = {name: ways for name, dtype, ways, _ in Page(report[1]).rows["bits"][1:] if dtype == "f32"}
    assert whole in shown["threads"] and last_rows in shown["prefill and decode"] and whole != last_rows


def test_a_difference_is_a_cross(demo_modules):
    same_bits = demo_modules("same_bits")
    equal, different = (same_bits.Check("threads", [("1", b"abc"), ("2", other)]) for other in (b"abc", b"abd"))
    assert (equal.is_equal(), different.is_equal()) == (True, False)
    assert "✓" in same_bits.rendered([("f32", equal)]) and "✗" not in same_bits.rendered([("f32", equal)])
    assert "✗" in same_bits.rendered([("f32", different)]) and "✓" not in same_bits.rendered([("f32", different)])


def test_checks_notice_another_result(demo_modules):
    """A computation whose bits depend on how it is called gets a cross."""
    same_bits, problem = demo_modules("same_bits"), demo_modules("bits_problem").Problem("f32", quick=True)
    whole = problem.whole()
    assert all(check(problem, whole).is_equal() for check in same_bits.CHECKS)
    run = problem.run
    calls = []

    def disturbed(*arguments):
        calls.append(1)
        return run(*arguments) * (1 + 2**-20 * (len(calls) % 2))

    problem.run = disturbed
    assert not any(check(problem, whole).is_equal() for check in same_bits.CHECKS)


def test_layouts_notice_another_result(demo_modules, monkeypatch):
    """A layout with other bits, and one with a wrong result, are said to be wrong."""
    section, batches = demo_modules("section"), demo_modules("layout_batches")
    context = section.Context(None, quick=True)
    assert batches.batches(context).good
    for factor in (1 + 2**-20, 1.01):
        wrong = lambda batch: [out * np.float32(factor) for out in batches.jagged(batch)]  # noqa: E731
        monkeypatch.setitem(batches.WAYS, "jagged", ("", wrong))
        shown = batches.batches(context)
        assert (
            not shown.good and shown.lines[1].endswith("bits equal: NO") and shown.lines[2].endswith("bits equal: yes")
        )


def test_gradients_notice_another_result(demo_modules, monkeypatch):
    section, gradients = demo_modules("section"), demo_modules("gradients")
    context = section.Context(None, quick=True)
    assert gradients.gradients(context).good
    right = gradients.with_quire
    for factors in ({1: 1.001, 2: 1.001, 3: 1.001}, {1: 1.0, 2: 1.0, 3: 1 + 2**-20}):
        monkeypatch.setattr(gradients, "with_quire", lambda *a: [one * np.float32(factors[a[-1]]) for one in right(*a)])
        assert not gradients.gradients(context).good


def test_the_chain_rule_is_that_of_the_forward(demo_modules):
    """In f64 both ways to the gradients agree far beyond f32."""
    gradients = demo_modules("gradients")
    random = np.random.default_rng(0)
    q, k, v, d_out = random.standard_normal((4, 1, gradients.HEADS, 7, gradients.DIM))
    inputs = q, k, v, random.standard_normal(gradients.HEADS)
    directions = [random.standard_normal(one.shape) for one in inputs]
    exact = gradients.by_chain_rule(*inputs, d_out)
    slopes = [(one * direction).sum() for one, direction in zip(exact, directions)]
    assert slopes == pytest.approx(gradients.by_differences(inputs, d_out, directions), rel=1e-5, abs=1e-5)


def test_on_a_slow_machine_quick_runs_stand_in(demo_modules, monkeypatch):
    """The roof needs both kinds of rows, however little time there is."""
    section, peak_share = demo_modules("section"), demo_modules("peak_share")
    asked = []

    def run(program, groups, only, repetitions, timeout):
        asked.append((groups, repetitions))
        return (
            [{"of": "stream"}]
            if repetitions == 1 and groups == peak_share.QUICK_RUNS[1][0]
            else None
            if repetitions > 1
            else []
        )

    monkeypatch.setattr(peak_share, "_run", run)
    context = section.Context(None)
    monkeypatch.setattr(section.Context, "program", lambda self, name: name)
    assert peak_share.measure(context) == [{"of": "stream"}]
    assert asked == [
        step for usual, quick in zip(peak_share.RUNS, peak_share.QUICK_RUNS) for step in ((usual[0], 3), (quick[0], 1))
    ]


def test_points_lie_under_the_roof(demo_modules):
    points = [("a & b", 2.0, 20.0, True), ("c", 100.0, 50.0, False)]
    drawn = demo_modules("roofline").roofline("t", [("f32", 100.0, 10.0)], points)
    svg = xml.etree.ElementTree.fromstring(drawn)
    a, c = ([float(one.get(name)) for name in ("cx", "cy")] for one in svg.iter("{http://www.w3.org/2000/svg}circle"))
    (path,) = svg.iter("{http://www.w3.org/2000/svg}path")
    x0, y0, x1, y1, x2 = (float(number) for number in re.findall(r"[\d.]+", path.get("d")))
    assert x0 < a[0] < x1 < c[0] < x2
    assert a[1] == pytest.approx(y0 + (y1 - y0) * (a[0] - x0) / (x1 - x0), abs=0.2)  # 20 of 20: on the slope
    assert c[1] > y1  # 50 of 100: below the flat part; y grows downwards


def test_the_steps_to_try(report, root):
    page, text = Page(report[1]), (root / "examples/demo/next_steps.txt").read_text()
    assert len(page.rows["next"]) == len(text.splitlines()) + 1 > 5
    assert all(cell and "{" not in cell for row in page.rows["next"][1:] for cell in row)
    names = re.findall(r"[\w/]+\.(?:md|py)\b", text)
    assert len(names) > 3 and all((root / name).exists() for name in names)


def test_where_pytorch_is_faster_is_said(demo_modules):
    losses = demo_modules("speed").losses
    rows = [{"group": "a", "name": "b", "ratio": 2.0}, {"group": "c", "name": "d", "ratio": 0.5}]
    assert losses(rows) == "PyTorch is faster in 1 of these 2 rows: c d (0.50×)."
    assert losses(rows[:1]) == "PyTorch is faster in none of these 1 rows."


def test_bars_begin_at_the_mark(demo_modules):
    chart = demo_modules("bar_chart")
    bars = [chart.Bar("slower", 0.1, "0.1", loss=True), chart.Bar("faster & more", 10.0, "10")]
    svg = xml.etree.ElementTree.fromstring(
        chart.bar_chart("t", bars, [(0.1, "0.1"), (10.0, "10")], logarithmic=True, mark=1.0)
    )
    slower, faster = (
        {k: float(v) for k, v in r.attrib.items() if k != "class"} for r in svg.iter("{http://www.w3.org/2000/svg}rect")
    )
    assert slower["x"] + slower["width"] == pytest.approx(faster["x"]) and slower["width"] == pytest.approx(
        faster["width"]
    )


def test_without_torch_it_says_how_to_get_it(report):
    done, text = report
    page = Page(text)
    for section in ("mods", "accuracy", "speed"):
        assert "pip install torch" in page.texts[section]
    assert "pip install torch" in done.stdout


def test_the_terminal(report):
    done, _ = report
    headings = ["This machine", "Masks are formulas", "A rule of one's own", "Layouts"]
    headings += ["Error against f64", "The same bits", "Gradients", "Speed", "What to try next"]
    places = [done.stdout.find(f"\n== {heading}\n") for heading in headings]
    assert -1 not in places and places == sorted(places)
    assert "\x1b" not in done.stdout
    assert re.search(r"^yes  f32 .* threads: 1, 2", done.stdout, re.MULTILINE) and "\nNO " not in done.stdout
    for layout in ("dense [B, H, D, S]", "jagged", "paged, 16 tokens", "KVCache and attend"):
        assert re.search(
            rf"^{re.escape(layout)}: error against f64 \d\.\de-0[67], bits equal: yes$", done.stdout, re.MULTILINE
        )
    assert len(re.findall(r"by differences \S+; bits equal: yes$", done.stdout, re.MULTILINE)) == 4
    assert re.search(r"^causal +[\d.]+ ms +33,550,336 blocks full", done.stdout, re.MULTILINE)
    assert re.search(r"\nreport: \S+report\.html \(0\.\d+ MB", done.stdout)


@pytest.mark.slow
def test_with_torch(root, build_dir, python_env, tmp_path):
    pytest.importorskip("torch")
    done = make_report(root, build_dir, python_env, tmp_path / "report.html")
    assert done.returncode == 0, done.stdout + done.stderr
    page = check_file((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "pip install torch" not in done.stdout
    traced = [row for row in page.rows["mods"] if row and row[0] == "torch operations"]
    assert len(traced) == 1 and "log1p(abs(q_idx - kv_idx))" in traced[0][1]
    assert any("tiny" in row[0] and row[4].endswith("×") for row in page.rows["speed"])
    assert len(page.rows["accuracy"][0]) == 6


@pytest.fixture
def demo(root, build_dir, clean_env, tmp_path):
    """Runs scripts/demo over a build that has programs and no Python package."""
    (tmp_path / "examples").mkdir()
    for name in ("quire", "examples/attention"):
        (tmp_path / name).symlink_to(build_dir / name)

    def run(*options):
        env = {**clean_env, "QUIRE_BUILD_DIR": str(tmp_path)}
        return subprocess.run([root / "scripts/demo", *options], env=env, capture_output=True, text=True, timeout=60)

    return run


def test_a_build_without_python(demo, tmp_path):
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"There is no Python package in {tmp_path}/python" in done.stdout
    assert "== Masks are formulas, and can be drawn" in done.stdout and "report.html" not in done.stdout
    assert "== What to try next" in done.stdout and f"{tmp_path}/quire bench " in done.stdout
    assert not (tmp_path / "report.html").exists()


def test_options_of_the_script(demo):
    tour = demo("--tour")
    assert (tour.returncode, tour.stderr) == (0, "") and "No report" not in tour.stdout
    unknown = demo("--fast")
    assert (unknown.returncode, unknown.stdout) == (2, "") and "unknown option --fast" in unknown.stderr
