"""The program of docs/tracing.md prints what the page shows, and the page counts right."""

import pathlib
import re
import subprocess
import sys

from user_mods import USER_MODS

PAGE = (pathlib.Path(__file__).parents[4] / "docs/tracing.md").read_text()


def test_the_program_prints_what_is_shown(python_env, tmp_path):
    programs = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(programs) == PAGE.count("```python") == 1
    program, expected = programs[0]
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, env=python_env, cwd=tmp_path, capture_output=True, text=True, check=True)
    pattern = re.escape(expected).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, done.stdout), done.stdout


def test_the_page_names_the_number_of_mods():
    assert f"The {len(USER_MODS)} mods" in PAGE
