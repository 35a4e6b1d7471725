"""Pages api_cpp.md and api_python.md of the documentation site, made from what the code says about itself: the comments of
include/quire/*.h, and the docstrings of the Python package (read from its sources, nothing is imported). A hook of MkDocs.
"""

from __future__ import annotations

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]


def first_comment(text: str) -> str:
    """What a header says about itself: the comment it begins with, its indented lines as code."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    shown = []
    for line in lines:
        shown.append(f"    {line.strip()}" if line.startswith("  ") else line)
        if line.startswith("  ") and len(shown) > 1 and shown[-2] and not shown[-2].startswith("    "):
            shown.insert(-1, "")
    return "\n".join(shown)


def declarations(text: str) -> list[tuple[str, str]]:
    """[(declaration, its comment)] of everything that has a /// comment in front of it, in order."""
    found, lines, i = [], text.splitlines(), 0
    while i < len(lines):
        if not lines[i].lstrip().startswith("///"):
            i += 1
            continue
        comment = []
        while i < len(lines) and lines[i].lstrip().startswith("///"):
            comment.append(lines[i].strip()[3:].strip())
            i += 1
        declaration = []
        while i < len(lines) and lines[i].strip() and not lines[i].lstrip().startswith(("///", "private:")):
            declaration.append(re.sub(r"\bQUIRE_API ", "", lines[i].rstrip()))
            i += 1
            if re.search(r"[;{}](\s*//.*)?$", declaration[-1]):
                break
        if declaration:
            indent = len(declaration[0]) - len(declaration[0].lstrip())
            found.append(("\n".join(line[indent:] for line in declaration), " ".join(comment)))
    return found


def cpp_page() -> str:
    """All public headers."""
    page = ["# C++ names", "", "Made from the comments of `include/quire/`. `#include <quire/quire.h>` has all of them.", ""]
    for header in sorted((ROOT / "include/quire").glob("*.h")):
        text = header.read_text()
        shown = declarations(text)
        if not shown:
            continue
        page += [f"## quire/{header.name}", "", first_comment(text), ""]
        for declaration, comment in shown:
            page += ["```cpp", declaration, "```", "", comment, ""]
    return "\n".join(page)


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){result}"


def python_names(module: pathlib.Path) -> list[tuple[str, str]]:
    """[(signature, docstring)] of the public functions and classes of a file."""
    tree = ast.parse(module.read_text())
    return [(signature(node), ast.get_docstring(node) or "") for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") and ast.get_docstring(node)]


def python_page() -> str:
    """The modules a user imports from; a name is listed where it is defined."""
    page = ["# Python names", "", "Made from the docstrings of `python/quire/`.", ""]
    packages = [("quire", "python/quire"), ("quire.torch", "python/quire/torch")]
    for package, folder in packages:
        init = ast.parse((ROOT / folder / "__init__.py").read_text())
        exported = {alias.asname or alias.name for node in ast.walk(init) if isinstance(node, ast.ImportFrom) for alias in node.names}
        page += [f"## {package}", ""]
        for module in sorted((ROOT / folder).glob("*.py")):
            for shown, text in python_names(module):
                if re.match(r"(?:class )?(\w+)", shown).group(1) in exported:
                    page += ["```python", shown, "```", "", "```text", text, "```", ""]
    return "\n".join(page)


def on_files(files, config):
    """MkDocs asks for further files here."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api_cpp.md", content=cpp_page()))
    files.append(File.generated(config, "api_python.md", content=python_page()))
    return files
