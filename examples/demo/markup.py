"""Pieces of HTML: text made safe, tables, code, ticks."""

import html


def escape(text):
    return html.escape(str(text), quote=True)


def paragraph(text):
    return f"<p>{escape(text)}</p>"


def code(text, caption=""):
    """A block of code or of program output, with a line above it."""
    above = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="code">{above}<pre><code>{escape(text.strip(chr(10)))}</code></pre></figure>'


def table(head, rows, numeric=()):
    """Cells are text, or markup if they are a Raw. `numeric`: right-aligned columns."""

    def cells(tag, row):
        return "".join(
            f"<{tag}{' class=n' if i in numeric else ''}>{_markup(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead>\n<tbody>{body}</tbody></table></div>'


class Raw(str):
    """Markup that is put into a table unchanged."""


def tick(is_true):
    """A result as a tick or a cross."""
    return Raw('<span class="yes" title="yes">✓</span>' if is_true else '<span class="no" title="no">✗</span>')


def _markup(cell):
    return cell if isinstance(cell, Raw) else escape(cell)
