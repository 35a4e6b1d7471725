"""The documentation builds as a site (mkdocs.yml): every page is in the navigation, every link leads somewhere, and the
reference holds the public names.
"""

import html
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("site")  # they share what was made once

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build(config, folder):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site):
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.with_suffix(".html").name).exists()


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.glob("*.html"):
        assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()) == []


def test_an_or_in_a_table_is_no_backslash(site):
    assert "<code>||</code>" in (site / "formula.html").read_text()
    for page in site.glob("*.html"):
        assert [cell for cell in re.findall(r"<td.*?</td>", page.read_text(), re.DOTALL) if "\\|" in cell] == []


def test_the_pictures_are_those_of_their_script(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts/draw_concepts.py", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (ROOT / "docs/pictures").iterdir()}
    shown = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [name for name in drawn if f"(pictures/{name})" not in shown] == []


def words_of(page):
    return set(re.findall(r"\w+", html.unescape(re.sub(r"<[^>]*>", " ", page.read_text()))))


def test_the_reference_has_every_public_name_of_cpp(site):
    hidden = re.compile(
        r"namespace (detail|plan) \{.*?^\}  // namespace \1|^namespace plan \{\n.*?^\}", re.DOTALL | re.MULTILINE
    )
    names = set()
    for header in (ROOT / "include/quire").glob("*.h"):
        if header.name in ("quire_c.h", "export.h"):
            continue
        text = hidden.sub("", header.read_text())
        names |= set(re.findall(r"^(?:class|struct|enum class)(?: QUIRE_API)? (\w+)", text, re.MULTILINE))
        names |= set(re.findall(r"^QUIRE_API [^;{=]*?(\w+)\(", text, re.MULTILINE))
    assert len(names) > 150 and {"KVCache", "Isa", "Executor", "create_block_mask", "merge_states"} <= names
    assert names - words_of(site / "api_cpp.html") == set()


def test_the_reference_has_every_function_of_c(site):
    names = set(re.findall(r"\b(quire_\w+)\(", (ROOT / "include/quire/quire_c.h").read_text()))
    assert len(names) > 20 and names - words_of(site / "api_c.html") == set()


def test_the_reference_has_every_public_name_of_python(site):
    page = (site / "api_python.html").read_text()
    for package in (
        "quire/__init__.py",
        "quire/mods.py",
        "quire/torch/__init__.py",
        "quire/transformers/__init__.py",
        "quire/flash_attn/__init__.py",
        "quire/jax/__init__.py",
    ):
        listed = re.search(r"^__all__ = \[(.*?)\]", (ROOT / "python" / package).read_text(), re.DOTALL | re.MULTILINE)[
            1
        ]
        names = [name for name in re.findall(r'"(\w+)"', listed) if not name.startswith("_")]
        assert names and [name for name in names if f">{name}<" not in page] == []
    assert "sparsity" in page and "&gt;&gt;&gt; import quire" in page  # members and examples are there, too


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text((ROOT / "mkdocs.yml").read_text().split("hooks:")[0])
    assert "nowhere.md" in build(config, tmp_path / "site").stderr
