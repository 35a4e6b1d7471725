"""Reference pages of the C++ and C headers: comments as text, declarations as code, every public name. Knows just enough of C++
for headers that are written as those of include/quire: one blank line between declarations, comments in front of them.
"""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
HIDDEN_NAMESPACES = {"detail", "plan"}  # machinery that templates need, and forward declarations
ENTITY = re.compile(r"^\s*(?:typedef )?(?:class|struct|enum(?: class)?|namespace|extern)\b")


def indented_as_code(text: str) -> str:
    """Lines of a comment that are indented, and are no list, stand as code."""
    shown = []
    for line in text.splitlines():
        is_code = line.startswith("  ") and not (shown and shown[-1].lstrip().startswith("- "))
        if is_code and shown and shown[-1] and not shown[-1].startswith("    "):
            shown.append("")
        if line.startswith("- ") and shown and shown[-1] and not shown[-1].startswith(("- ", "  ")):
            shown.append("")
        shown.append(f"  {line}" if is_code else line)
    return "\n".join(shown)


def first_comment(text: str) -> str:
    """What a header says about itself."""
    if text.startswith("/*"):
        inside = text[2 : text.index("*/")].splitlines()
        return "\n".join(re.sub(r"^ ?\*? ?", "", line) for line in inside).strip()
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    return indented_as_code("\n".join(lines))


def closing_line(lines: list[str], begin: int) -> int:
    """The line that closes the bracket opened in line `begin`."""
    depth = 0
    for at in range(begin, len(lines)):
        code = lines[at].split("//")[0]
        depth += code.count("{") - code.count("}")
        if depth == 0:
            return at
    raise ValueError(f"no closing bracket for: {lines[begin]}")


def without_private(lines: list[str]) -> list[str]:
    """A class as its users see it: up to `private:`, and what follows the next `public:`."""
    kept, hidden = [], False
    for line in lines[:-1]:
        if re.match(r"^ ? ?(private|protected):$", line):
            hidden = True
        elif re.match(r"^ ?public:$", line):
            hidden = False
            continue
        if not hidden:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return [*kept, lines[-1]]


def without_export(lines: list[str]) -> list[str]:
    """The export macro is no part of what a reader looks for; what was aligned behind it moves with it."""
    bare = [line.replace("QUIRE_API ", "", 1) for line in lines]
    if lines[0].startswith("QUIRE_API "):
        bare[1:] = [
            line.removeprefix(" " * len("QUIRE_API ")) if line.startswith(" " * 12) else line for line in bare[1:]
        ]
    return bare


def shown_entity(lines: list[str]) -> list[str]:
    """The lines of one declaration: bodies of functions left out, private parts too."""
    if len(lines) == 1 and "{" not in lines[0]:
        return lines
    head = next((i for i, line in enumerate(lines) if "{" in line), len(lines) - 1)
    is_type = any(ENTITY.match(line) for line in lines[: head + 1])
    if is_type:
        return without_private(lines)
    text = "\n".join(lines)
    if lines[-1].rstrip().endswith("}"):  # a function with its body
        text = text[: text.index("{")].rstrip() + ";"
        text = re.sub(r"\n\s*: \w+\(.*;$", ";", text, flags=re.DOTALL)
    return text.splitlines()


def operations() -> list[tuple[str, list[str]]]:
    """The rows of op_table.inc: the macro and its arguments."""
    table = (ROOT / "include/quire/op_table.inc").read_text()
    rows = re.findall(r"^(QUIRE_\w+)\((.*?)\)(?:  //.*)?$", table, re.MULTILINE)
    return [(macro, re.findall(r'"[^"]*"|[^,"\s]+', arguments)) for macro, arguments in rows]


def generated(defines: str) -> str:
    """What an inclusion of op_table.inc after these macros becomes: declarations with their documentation, or names."""
    macros = {
        name: (parameters.split(", "), body.replace("\\\n", "\n").strip("\n"))
        for name, parameters, body in re.findall(r"#define (QUIRE_\w+)\(([^)]*)\)((?:[^\n]*\\\n)*[^\n]*\n)", defines)
    }
    shown = []
    for macro, arguments in operations():
        if macro not in macros and "QUIRE_OP" not in macros:
            continue
        parameters, body = macros.get(macro) or macros["QUIRE_OP"]
        for parameter, argument in zip(parameters, arguments):
            body = re.sub(rf"(?:##)?\b{parameter}\b", argument, body.replace(f"##{parameter}", f"## {parameter}"))
        body = re.sub(r"\s*##\s*", "", "\n".join(line.rstrip().removeprefix("  ") for line in body.splitlines()))
        is_name = re.fullmatch(r"\s*\w+,", body)
        shown.append(f"  {body.strip()}" if is_name else f"/// {arguments[-1][1:-1]}{body}\n")
    return "\n".join(shown) + "\n"


def with_operations(text: str) -> str:
    """A header with its inclusions of op_table.inc replaced by what they generate."""
    block = r'((?:^#define QUIRE_\w+\((?:[^\n]*\\\n)*[^\n]*\n)+)#include "quire/op_table.inc"\n'
    return re.sub(block, lambda found: generated(found[1]), text, flags=re.MULTILINE)


def paragraphs(text: str) -> list[tuple[str, list[str], list[str]]]:
    """[(namespace, lines of comment, lines of code)] of what stands between blank lines, outside of declarations."""
    lines = re.sub(r"^(//.*\n)+", "", text).splitlines()
    found, spaces, comment, code, at = [], [], [], [], 0

    def flush():
        if code:
            found.append(("::".join(spaces[1:]), comment.copy(), code.copy()))
        comment.clear()
        code.clear()

    while at < len(lines):
        line = lines[at]
        opened = re.match(r"^(?:inline )?namespace ([\w:]+) \{$", line)
        if opened and opened[1] in HIDDEN_NAMESPACES:
            flush()
            at = closing_line(lines, at)
        elif opened:
            flush()
            spaces += opened[1].split("::")
        elif re.match(r"^\}  // namespace", line):
            flush()
            del spaces[len(spaces) - len(line.split()[-1].split("::")) :]
        elif not line.strip() or line.startswith("#"):
            flush()
        elif line.startswith("//"):
            if code:
                flush()
            comment.append(re.sub(r"^///? ?", "", line))
        else:
            end = closing_line(lines, at) if "{" in line.split("//")[0] else at
            first = at
            while not re.search(r"[;}]\s*(//.*)?$", lines[end]):  # a declaration over several lines
                end += 1
                if "{" in lines[end].split("//")[0]:
                    end = closing_line(lines, end)
            code += shown_entity(without_export(lines[first : end + 1]))
            at = end
        at += 1
    flush()
    return [one for one in found if not all(re.match(r"^(class|struct) \w+;$", line) for line in one[2])]


def cpp_page() -> str:
    """All public headers."""
    page = [
        "# C++ names",
        "",
        "Made from `include/quire/`: what the headers declare, with their comments. "
        "`#include <quire/quire.h>` has all of them; everything is in namespace `quire`.",
        "",
    ]
    for header in sorted((ROOT / "include/quire").glob("*.h")):
        text = with_operations(header.read_text())
        shown = paragraphs(text) if header.name not in ("quire_c.h", "quire.h", "export.h") else []
        if not shown:
            continue
        page += [f"## quire/{header.name}", "", first_comment(text), ""]
        for space, comment, code in shown:
            where = [f"// in {space}::"] if space else []
            page += [indented_as_code("\n".join(comment)), "", "```cpp", *where, *code, "```", ""]
    return "\n".join(page)


def c_page() -> str:
    """quire_c.h, part by part: its comments are written to be read beside the declarations."""
    text = (ROOT / "include/quire/quire_c.h").read_text()
    page = ["# C names", "", first_comment(text), ""]
    parts = re.split(r"/\* ---- (.*?) ---- \*/\n", text)[1:]
    for title, body in zip(parts[::2], parts[1::2]):
        body = body.split("#ifdef __cplusplus")[0].replace("QUIRE_C_API ", "").strip()
        page += [f"## {title[0].upper()}{title[1:]}", "", "```c", body, "```", ""]
    return "\n".join(page)
