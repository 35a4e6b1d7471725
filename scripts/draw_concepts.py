"""Draws the pictures of the concepts in docs/pictures/: what a mask and a score mod do, block masks and their proof, layouts,
states, the fixed order of arithmetic, and pieces on ranks. Plain SVG, light or dark as the reader's system is; tests/repo/test_site.py checks
that the files are those of this script.

    python scripts/draw_concepts.py [folder]
"""

import html
import math
import pathlib
import sys

STYLE = """
text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#20242a}.s{font-size:11.5px;fill:#5c6570}.b{font-weight:600}
.m{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:12px}.page{fill:#fff}.cell{stroke:#fff}
.hidden{fill:#e9ecf0}.full{fill:#0072b2}.part{fill:#e69f00}.open{fill:#b8c0ca}.on{fill:#fff}.on1{fill:#20242a}.box{fill:#f4f6f8;stroke:#78808a}
.line{stroke:#78808a;fill:none}.q0{fill:#0072b2}.q1{fill:#e69f00}.q2{fill:#009e73}.free{fill:#e9ecf0}
@media (prefers-color-scheme:dark){text{fill:#e6e9ed}.s{fill:#a3acb7}.page{fill:#161a20}.cell{stroke:#161a20}
.hidden,.free{fill:#2a3039}.full,.q0{fill:#2b8fd0}.open{fill:#59626e}.box{fill:#1f252d}.on,.on1{fill:#161a20}}
"""


class Picture:
    """Shapes on a page, in the order in which they were added."""

    def __init__(self, title, width, height):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{html.escape(title)}</title><style>{STYLE.strip()}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#78808a"/></marker></defs>',
            f'<rect class="page" width="{width}" height="{height}"/>',
        ]

    def text(self, x, y, words, kind="", anchor="start"):
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>'
        )

    def rect(self, x, y, width, height, kind, fill="", radius=0):
        colour = f' style="fill:{fill}"' if fill else ""
        rounded = f' rx="{radius}"' if radius else ""
        self.parts.append(
            f'<rect class="{kind}"{colour} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{rounded}/>'
        )

    def arrow(self, *points):
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="line" d="M{path}" marker-end="url(#tip)"/>')

    def grid(self, x, y, size, rows):
        """`rows`: for each cell a class, or a colour that begins with #."""
        for i, row in enumerate(rows):
            for j, what in enumerate(row):
                is_colour = what.startswith("#")
                self.rect(
                    x + j * size,
                    y + i * size,
                    size,
                    size,
                    "cell" if is_colour else f"cell {what}",
                    what if is_colour else "",
                )

    def legend(self, x, y, entries):
        for kind, words in entries:
            self.rect(x, y - 10, 12, 12, kind)
            self.text(x + 18, y, words, "s")
            x += 30 + 7 * len(words)

    def __str__(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def shade(value, low, high):
    """Blue for low, white in the middle, orange for high."""
    share = 2 * (value - low) / (high - low) - 1
    end = (0xA6, 0x4A, 0x00) if share > 0 else (0x18, 0x58, 0xA0)
    return "#" + "".join(f"{round(0xF7 + (to - 0xF7) * abs(share)):02x}" for to in end)


def mask_and_score():
    """Four stages of one head of 8 queries and 8 keys, computed."""
    n, size = 8, 17
    scores = [[2 * math.sin(1.7 * q + 0.9 * k * k + 0.3) for k in range(n)] for q in range(n)]
    modified = [[scores[q][k] + 0.5 * (k - q) for k in range(n)] for q in range(n)]
    visible = [[q >= k for k in range(n)] for q in range(n)]
    picture = Picture("A score mod changes scores, a mask mod decides which pairs exist", 760, 236)
    stages = [
        ("q · k / √E", "scores"),
        ("score + (kv_idx-q_idx)/2", "score mod"),
        ("q_idx >= kv_idx", "mask mod"),
        ("softmax over what is left", "weights"),
    ]
    for i, (formula, name) in enumerate(stages):
        x = 16 + i * 190
        picture.text(x, 24, name, "b")
        picture.text(x, 42, formula, "s" if i in (0, 3) else "m s")
        rows = []
        for q in range(n):
            total = sum(math.exp(modified[q][k]) for k in range(n) if visible[q][k])
            row = []
            for k in range(n):
                if i >= 2 and not visible[q][k]:
                    row.append("hidden")
                elif i == 3:
                    row.append(shade(math.exp(modified[q][k]) / total, -1, 1))
                else:
                    row.append(shade((scores if i == 0 else modified)[q][k], -5, 5))
            rows.append(row)
        picture.grid(x, 56, size, rows)
        if i < 3:
            picture.arrow((x + n * size + 8, 124), (x + 182, 124))
    picture.text(
        16,
        214,
        "A row is a query, a column a key. Grey pairs do not exist: they are not computed, and a key that no "
        "query sees is not read.",
        "s",
    )
    return picture


def kinds_of(size, cells, visible):
    """Each block of `size` x `size` elements: full, hidden or part."""
    rows = []
    for i in range(cells // size):
        row = []
        for j in range(cells // size):
            seen = [visible(q, k) for q in range(i * size, (i + 1) * size) for k in range(j * size, (j + 1) * size)]
            row.append("full" if all(seen) else "part" if any(seen) else "hidden")
        rows.append(row)
    return rows


def block_mask():
    def visible(q, k):
        return q >= k and (q - k < 11 or k < 2)

    picture = Picture("A mask of 32 x 32 pairs, and its block mask in blocks of 4 x 4", 620, 366)
    picture.text(20, 24, "the rule, pair by pair", "b")
    picture.grid(20, 40, 7.5, [["full" if visible(q, k) else "hidden" for k in range(32)] for q in range(32)])
    picture.arrow((272, 160), (338, 160))
    picture.text(350, 24, "its block mask, blocks of 4 × 4", "b")
    blocks = kinds_of(4, 32, visible)
    picture.grid(350, 40, 30, blocks)
    counts = {kind: sum(row.count(kind) for row in blocks) for kind in ("full", "part", "hidden")}
    picture.legend(
        350,
        304,
        [
            ("full", f"{counts['full']} full"),
            ("part", f"{counts['part']} partial"),
            ("hidden", f"{counts['hidden']} empty"),
        ],
    )
    picture.text(20, 304, "a row is a query, a column a key", "s")
    picture.text(20, 330, "(q_idx >= kv_idx) & ((q_idx - kv_idx < 11) | (kv_idx < 2))", "m s")
    picture.text(20, 350, "In full blocks the rule need not run; of empty blocks nothing is read or computed.", "s")
    return picture


def proof():
    """q_idx >= kv_idx in 8 x 8 blocks: what is known when rectangles of so many blocks have been classified."""
    picture = Picture("How a causal block mask is proved: rectangles are halved until nothing is undecided", 760, 250)
    for i, side in enumerate((8, 4, 2, 1)):
        x = 16 + i * 186
        rows = []
        for row in range(8):
            above, left = row // side * side, [col // side * side for col in range(8)]
            rows.append(
                [
                    "full"
                    if begin + side <= above
                    else "hidden"
                    if begin >= above + side
                    else "part"
                    if side == 1
                    else "open"
                    for begin in left
                ]
            )
        picture.grid(x, 40, 20, rows)
        picture.text(x, 26, ("one rectangle", "halved twice", "halved twice again", "single blocks")[i], "b")
        if i < 3:
            picture.arrow((x + 164, 120), (x + 182, 120))
    picture.legend(
        16,
        226,
        [
            ("open", "undecided"),
            ("full", "proved full"),
            ("hidden", "proved empty"),
            ("part", "partial: corners differ"),
        ],
    )
    return picture


SEQUENCES = [6, 3, 5]  # tokens of the sequences in the picture of layouts


def layouts():
    size = 26
    picture = Picture("Three sequences of 6, 3 and 5 keys in a dense, a jagged and a paged layout", 760, 400)
    picture.text(16, 24, "dense", "b")
    picture.text(110, 24, "[B, H, S, D]: every sequence as long as the longest", "s")
    for i, length in enumerate(SEQUENCES):
        for j in range(max(SEQUENCES)):
            token(picture, 110 + j * size, 36 + i * size, size, i, j if j < length else None)
    picture.text(16, 154, "jagged", "b")
    picture.text(110, 154, "[total, H, D] and offsets 0, 6, 9, 14", "s")
    x = 110
    for i, length in enumerate(SEQUENCES):
        for j in range(length):
            token(picture, x, 166, size, i, j)
            x += size
    picture.text(16, 240, "paged", "b")
    picture.text(
        110, 240, "a pool of pages of 2 slots, and a table of pages for each sequence; sequences may share pages", "s"
    )
    pages = {(0, 0): 4, (0, 1): 1, (0, 2): 6, (1, 0): 2, (1, 1): 7, (2, 0): 0, (2, 1): 5, (2, 2): 8}
    owner = {page: who for who, page in pages.items()}
    for page in range(9):
        left = 110 + page * (2 * size + 12)
        i, part = owner.get(page, (None, 0))
        for slot in range(2):
            j = 2 * part + slot
            token(picture, left + slot * size, 252, size, i, j if i is not None and j < SEQUENCES[i] else None)
        picture.text(left + size, 294, f"page {page}", "s", "middle")
    for i in range(3):
        listed = ", ".join(str(pages[i, part]) for part in range(-(-SEQUENCES[i] // 2)))
        picture.rect(110 + i * 150, 308, 12, 12, f"q{i}")
        picture.text(128 + i * 150, 318, f"pages {listed}", "s")
    picture.text(
        16,
        352,
        "A cell is a key, with its number in its sequence: all that mods and masks know of it. Grey slots are never "
        "read.",
        "s",
    )
    picture.text(
        16,
        372,
        "A span is a run of keys that lie one behind the other; kernels walk over spans, so a row has the same bits "
        "in all three.",
        "s",
    )
    return picture


def token(picture, x, y, size, sequence, number):
    is_free = sequence is None or number is None
    picture.rect(x, y, size, size, "cell free" if is_free else f"cell q{sequence}")
    if not is_free:
        picture.parts.append(
            f'<text class="on{1 if sequence == 1 else ""}" style="font-size:12px" x="{x + size / 2:g}" y="{y + size / 2 + 4:g}" '
            f'text-anchor="middle">{number}</text>'
        )


def states():
    picture = Picture("Two states over different keys merge to the state over all of them", 760, 250)
    for i, (keys, name) in enumerate((("keys 0 … 499", "₁"), ("keys 500 … 999", "₂"))):
        y = 30 + i * 110
        picture.rect(16, y, 150, 60, f"cell q{i}", radius=6)
        picture.parts.append(f'<text class="on{i or ""}" x="91" y="{y + 35}" text-anchor="middle">{keys}</text>')
        picture.arrow((170, y + 30), (226, y + 30))
        picture.text(198, y + 20, "attend", "s", "middle")
        picture.rect(232, y, 120, 60, "box", radius=6)
        picture.text(292, y + 26, f"out{name}", "", "middle")
        picture.text(292, y + 46, f"lse{name}", "", "middle")
        picture.arrow((356, y + 30), (420, 115 + (i * 2 - 1) * 12))
    picture.rect(426, 70, 318, 90, "box", radius=6)
    picture.text(440, 98, "lse = log(exp(lse₁) + exp(lse₂))", "m")
    picture.text(440, 122, "out = exp(lse₁ - lse) · out₁", "m")
    picture.text(440, 142, "    + exp(lse₂ - lse) · out₂".replace("    ", "\u00a0" * 4), "m")
    picture.text(426, 60, "the state over keys 0 … 999", "b")
    picture.text(16, 232, "No key is looked at again. A state that saw nothing has lse = -inf and changes no bit.", "s")
    return picture


def bits():
    """Tiles and splits lie at fixed keys; who computes them does not matter."""
    left, unit = 150, 46
    picture = Picture("Tiles of 256 keys and splits of 1,024 begin at fixed keys, whoever computes them", 760, 300)
    picture.text(16, 24, "keys", "b")
    for tile in range(12):
        x = left + tile * unit
        picture.rect(x, 34, unit, 26, "cell hidden")
        picture.text(x + unit / 2, 51, f"tile {tile}" if tile < 10 else f"{tile}", "s", "middle")
    for split in range(4):
        picture.text(left + split * 4 * unit, 24, f"{split * 1024:,}", "s", "middle")
    picture.text(16, 86, "splits", "b")
    for split in range(3):
        x = left + split * 4 * unit
        picture.rect(x + 2, 68, 4 * unit - 4, 26, f"q{split}", radius=4)
        picture.parts.append(
            f'<text class="on{1 if split == 1 else ""}" x="{x + 2 * unit}" y="85" text-anchor="middle">split {split}: m, l, O</text>'
        )
    for row, (name, cuts) in enumerate(
        (
            ("prefill, 1 thread", []),
            ("decode, 3 threads", [4, 8]),
            ("pages of 384 keys", [1.5, 3, 4.5, 6, 7.5, 9, 10.5]),
        )
    ):
        y = 126 + row * 36
        picture.text(16, y + 15, name, "")
        edges = [0, *cuts, 12]
        for begin, end in zip(edges, edges[1:]):
            picture.rect(left + begin * unit + 1, y, (end - begin) * unit - 2, 22, "box", radius=4)
    for split in range(1, 3):
        x = left + split * 4 * unit
        picture.parts.append(f'<path class="line" stroke-dasharray="4 4" d="M{x} 96V230"/>')
    picture.text(
        16,
        256,
        "Inside a tile every sum is one chain in a fixed order; states of splits are folded from the left. Threads, pages,",
        "s",
    )
    picture.text(
        16,
        274,
        "batches and chunks change who computes a tile, never where it begins: the result of a row has one value, to the bit.",
        "s",
    )
    return picture


def context_parallel():
    """Who holds what, what travels and who computes, for a causal mask and a window on two ranks."""
    n, size = 8, 22
    picture = Picture("Pieces of a sequence on two ranks: what each computes and which keys travel", 760, 300)
    for i, (name, owners, sees) in enumerate(
        (
            ("causal", (0, 0, 1, 1, 1, 1, 0, 0), lambda q, k: k <= q),
            ("causal, window of 2 pieces", (0, 0, 0, 0, 1, 1, 1, 1), lambda q, k: q - 2 <= k <= q),
        )
    ):
        x, y = 70 + i * 380, 64
        picture.text(x - 54, 24, name, "b")
        picture.text(x, 42, "keys, 1,024 or more a piece, ascending", "s")
        picture.grid(x, y, size, [[f"q{owners[q]}" if sees(q, k) else "hidden" for k in range(n)] for q in range(n)])
        for piece, owner in enumerate(owners):
            picture.rect(x + piece * size + 1, y - 14, size - 2, 9, f"q{owner}")
            picture.rect(x - 16, y + piece * size + 1, 9, size - 2, f"q{owner}")
        picture.text(x - 54, y + 20, "rank of", "s")
        picture.text(x - 54, y + 36, "queries", "s")
        for rank in (0, 1):
            needed = [
                k for k in range(n) if owners[k] != rank and any(owners[q] == rank and sees(q, k) for q in range(n))
            ]
            words = ", ".join(map(str, needed)) or "nothing"
            picture.text(x - 54, 262 + 18 * rank, f"travels to rank {rank}: pieces {words}", "s")
    picture.legend(500, 24, [("q0", "rank 0"), ("q1", "rank 1"), ("hidden", "nobody looks")])
    return picture


PICTURES = {
    "mask_and_score": mask_and_score,
    "block_mask": block_mask,
    "proof": proof,
    "layouts": layouts,
    "states": states,
    "bits": bits,
    "context_parallel": context_parallel,
}


def main():
    folder = pathlib.Path(
        sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1] / "docs/pictures"
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
