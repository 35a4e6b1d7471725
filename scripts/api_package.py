"""Reference page of the Python package: signatures and docstrings of every name that a user imports. Read from the sources and,
for what is written in C++, from the stub that the build makes (_core.pyi); nothing is imported.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = {
    "quire": "python/quire",
    "quire.mods": "python/quire",
    "quire.torch": "python/quire/torch",
    "quire.transformers": "python/quire/transformers",
    "quire.flash_attn": "python/quire/flash_attn",
    "quire.jax": "python/quire/jax",
}


@dataclasses.dataclass
class Name:
    """Overloads of a function, or a class and its members."""

    signatures: list[str]
    text: str
    members: list[Name]


def stub() -> pathlib.Path:
    """The stub of the extension, in QUIRE_PYTHON_DIR, or in the build that QUIRE_BUILD_DIR names."""
    build = pathlib.Path(os.environ.get("QUIRE_BUILD_DIR") or ROOT / "build/release")
    path = pathlib.Path(os.environ.get("QUIRE_PYTHON_DIR") or build / "python") / "quire/_core.pyi"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: `make build` makes it, and `make docs` after it")
    return path


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    if any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list):
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){result}"


def names_in(body: list[ast.stmt]) -> dict[str, Name]:
    """The public functions and classes of a module or class, in order; overloads together."""
    found: dict[str, Name] = {}
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        name = found.setdefault(node.name, Name([], "", []))
        if not any(isinstance(one, ast.Attribute) for one in getattr(node, "decorator_list", [])):  # no setter
            name.signatures.append(signature(node))
        name.text = name.text or ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            name.members = list(names_in(node.body).values())
    return found


def module_of(package: str) -> ast.Module:
    path = ROOT / "python" / pathlib.Path(*package.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def exported(tree: ast.Module) -> list[str]:
    """__all__: the public names."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [name for name in map(ast.literal_eval, node.value.elts) if not name.startswith("_")]
    raise ValueError("a package without __all__")


def elsewhere(tree: ast.Module) -> dict[str, str]:
    """What a package has from other packages, or under a second name: {name: where it is explained}."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and not node.level and not node.module.startswith("quire"):
            found |= {alias.asname or alias.name: f"`{node.module}.{alias.name}` itself." for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "quire.hooks":  # of quire.torch
            found |= {alias.name: f"`quire.{alias.name}` itself." for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "quire.torch.quantized":
            found |= {one: f"`quire.{one}` itself." for one in ("KVFormat", "QuantizedTensor")}
        elif isinstance(node, ast.ImportFrom) and node.level and not node.module:
            found |= {alias.name: f"A module: [quire.{alias.name}](#quire{alias.name})." for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            found[node.targets[0].id] = f"The same as [{node.value.id}](#{node.value.id})."
    return found


def docstring(text: str) -> list[str]:
    """A docstring as Markdown: what begins with >>> is code, up to the next blank line, and so is what is indented."""
    lines, in_code = [], False
    for line in text.splitlines():
        if not in_code and line.startswith(">>>"):
            lines += ["", "```python"]
            in_code = True
        elif in_code and not line.strip():
            lines.append("```")
            in_code = False
        lines.append(line if in_code or line.startswith("    ") else line.replace("*", "\\*").replace("<", "&lt;"))
    return [*lines, "```"] if in_code else lines


def shown(name: Name) -> list[str]:
    page = ["```python", *name.signatures, "```", "", *docstring(name.text), ""]
    for member in name.members:
        if member.text:
            page += ["```python", *(f"    {one}" for one in member.signatures), "```", "", *docstring(member.text), ""]
    return page


def python_page() -> str:
    page = ["# Python names", "", "Made from the docstrings of the package; the examples are run by the tests.", ""]
    compiled = names_in(ast.parse(stub().read_text()).body)
    for package, folder in PACKAGES.items():
        tree = module_of(package)
        known = {} if package == "quire.torch" else dict(compiled)
        modules = (ROOT / folder).rglob("*.py") if package == "quire.torch" else (ROOT / folder).glob("*.py")
        for module in (ROOT / "python/quire/trace/error.py", *sorted(modules)):
            known |= names_in(ast.parse(module.read_text()).body)
        others = elsewhere(tree)
        page += [f"## {package}", "", *docstring(ast.get_docstring(tree) or ""), ""]
        for name in exported(tree):
            page += [f"### {name}", "", *([others[name], ""] if name in others else shown(known[name]))]
    return "\n".join(page)
