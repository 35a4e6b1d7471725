"""The documentation builds as a site (mkdocs.yml): every page is in the navigation, every link leads somewhere, and the
reference holds the public names.
"""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build(config, folder):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(folder)],
        capture_output=True, text=True, cwd=ROOT,
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


@pytest.mark.parametrize("page, names", [
    ("api_cpp.html", ["create_block_mask", "flex_attention", "flex_attention_backward", "KVCache", "merge_states"]),
    ("api_python.html", ["create_block_mask", "flex_attention", "scaled_dot_product_attention", "PagedAttention"]),
])
def test_the_reference_has_the_public_names(site, page, names):
    text = (site / page).read_text()
    assert [name for name in names if name not in text] == []


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text((ROOT / "mkdocs.yml").read_text().split("hooks:")[0])
    assert "nowhere.md" in build(config, tmp_path / "site").stderr
