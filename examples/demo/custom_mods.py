"""Section: your own rule, in C++ and on the command line, in Python, and written with torch operations."""

import inspect
import subprocess
import time

import mod_spellings
import quire
from arrays import bits, random_arrays, short_hash, to_torch
from attention_f64 import attention_f64, max_error
from markup import Raw, code, escape, paragraph, table, tick
from section import HOW_TO_GET_TORCH, ROOT, Section


def shown(command, context):
    """What a program of the build prints; None if it was not built."""
    program = context.program(command[0])
    if program is None:
        return None
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def in_cpp(context):
    """The example program with what it prints, and what the command line says about the formula."""
    source = (ROOT / "examples/attention.cc").read_text()
    main = source[source.index("int main()") :].split("\n  bool ")[0]
    printed = shown(["examples/attention"], context)
    explained = shown(["quire", "explain", mod_spellings.TEXT, "--heads", str(mod_spellings.HEADS)], context)
    parts = ["<h3>C++</h3>"]
    if printed is not None:
        parts.append(f'<div class="pair">{code(main, "examples/attention.cc")}{code(printed, "what it prints")}</div>')
    if explained is not None:
        parts.append("<h3>The command line</h3>")
        parts.append(code(explained, f'quire explain "{mod_spellings.TEXT}" --heads {mod_spellings.HEADS}'))
    if len(parts) == 1:
        parts.append(paragraph("There are no C++ programs in this build."))
    return "".join(parts)


def in_torch(context, q, k, v):
    """(formula that was traced, milliseconds of the first call, result as NumPy array)"""
    import quire.torch
    from quire.torch.trace import clear_cache, trace_score_mod

    mod = mod_spellings.with_torch()
    tensors = [to_torch(context.torch, one) for one in (q, k, v)]
    quire.torch.flex_attention(*tensors, lambda score, b, h, q_idx, kv_idx: score)  # modules are loaded once
    clear_cache()
    begin = time.perf_counter()
    out = quire.torch.flex_attention(*tensors, mod)
    milliseconds = (time.perf_counter() - begin) * 1e3
    return trace_score_mod(mod).text, milliseconds, out.numpy()


def custom_mods(context):
    length = 64 if context.quick else 300
    q, k, v = random_arrays([(1, mod_spellings.HEADS, length, 64)] * 3, "f32")
    exact = attention_f64(q, k, v, mod_spellings.in_numpy)
    mods = {"text": mod_spellings.from_text(), "Python function": mod_spellings.from_function()}
    results = {name: (str(mod), quire.flex_attention(q, k, v, mod)) for name, mod in mods.items()}
    html = in_cpp(context) + "<h3>Python</h3>" + '<div class="pair">'
    html += code(inspect.getsource(mod_spellings.from_text) + f"\nTEXT = {mod_spellings.TEXT!r}", "as text")
    html += (
        code(inspect.getsource(mod_spellings.from_function), "as a function, called once with expressions") + "</div>"
    )
    html += "<h3>quire.torch</h3>"
    if context.torch is None:
        html += paragraph(HOW_TO_GET_TORCH)
    else:
        traced, milliseconds, out = in_torch(context, q, k, v)
        results["torch operations"] = (traced, out)
        html += '<div class="pair">' + code(
            inspect.getsource(mod_spellings.with_torch), "written with torch operations"
        )
        html += code(traced, f"what was traced; first call, tracing and attention: {milliseconds:.1f} ms") + "</div>"
    return _compared(html, results, exact)


def _compared(html, results, exact):
    first = bits(next(iter(results.values()))[1])
    rows, lines, good = [], [], True
    for name, (text, out) in results.items():
        error, is_same = max_error(out, exact), bits(out) == first
        good &= error < 1e-5
        hashed = short_hash(bits(out))
        formula, hash_cell = Raw(f"<code>{escape(text)}</code>"), Raw(f'<span class="hash">{hashed}</span>')
        rows.append((name, formula, f"{error:.1e}", hash_cell, tick(is_same)))
        again = " as above" if is_same and rows[1:] else ""
        lines += [f"{name:<17} {text}", f"{'':<17} error against f64 {error:.1e}, bits {hashed}{again}"]
    head = ("written as", "formula", "error against f64", "hash of the output", "bits equal")
    html += "<h3>The same result</h3>" + table(head, rows, numeric=(2,))
    return Section(html, lines, good)
