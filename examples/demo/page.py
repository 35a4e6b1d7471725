"""The page around the sections: one self-contained file, light or dark like the reader's system."""

import time

from markup import escape

STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#20242a;--soft:#5c6570;--line:#d9dee4;--panel:#f4f6f8;--good:#0b7a4b;
--bad:#b3261e;--bar:#0072b2;--loss:#d55e00;--link:#0a5c99}
@media (prefers-color-scheme:dark){:root{--page:#161a20;--ink:#e6e9ed;--soft:#a3acb7;--line:#343b45;--panel:#1f252d;
--good:#4cc38a;--bad:#ff8a80;--bar:#2b8fd0;--loss:#e8873a;--link:#7cb8ea}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1rem;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.8rem;margin:.5rem 0}
h2{font-size:1.35rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--line);padding-top:1rem}
h3{font-size:1.05rem;margin:1.5rem 0 .25rem}a{color:var(--link)}nav a{margin-right:1rem;white-space:nowrap}
.soft,figcaption{color:var(--soft);font-size:.9rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;margin:.75rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--line)}
th.n,td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
pre{background:var(--panel);padding:.75rem;overflow-x:auto;font-size:.82rem;line-height:1.4;margin:.25rem 0}
code,.hash{font-family:ui-monospace,monospace}.hash{font-size:.8rem;margin-right:.8rem;white-space:nowrap;display:inline-block}
figure{margin:.75rem 0}.pair{display:grid;gap:0 1rem;grid-template-columns:repeat(auto-fit,minmax(min(36rem,100%),1fr))}
.gallery{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr))}
.gallery figure{margin:0}.gallery pre{font-size:.75rem;white-space:pre-wrap}
svg{max-width:100%;height:auto;display:block}.chart{width:100%;max-width:40rem;margin:.75rem 0}
.yes{color:var(--good);font-weight:700}.no{color:var(--bad);font-weight:700}
.bar{fill:var(--bar)}.loss{fill:var(--loss)}.label,.value{fill:var(--ink)}
.value{font-weight:600}.axis{stroke:var(--line)}.mark{stroke:var(--ink);stroke-dasharray:3 3}
.tick{fill:var(--soft);font-size:11px}
.roomy{fill:var(--page);stroke:var(--bar);stroke-width:2}
.spread{stroke:var(--ink);stroke-width:1.5}.roof{fill:none;stroke:var(--ink);stroke-width:1.5}
"""

TITLE = "Quire: programmable attention for CPUs"


def page(sections, version):
    """`sections`: [(id, title, Section)]. The whole file, as text."""
    links = " ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    bodies = "\n".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>\n{one.html}</section>' for name, title, one in sections
    )
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title><style>{STYLE}</style></head>
<body><header><h1>{TITLE}</h1>
<p>The rule that changes an attention score or hides a key is a one-line formula. Quire proves its block mask and runs it inside
a fused kernel, without a compiler at run time. Everything below was computed on this machine, just now.</p>
<p class="soft">Quire {escape(version)}, {escape(made)}; made by <code>make demo</code>.</p><nav>{links}</nav></header>
<main>{bodies}</main></body></html>
"""
