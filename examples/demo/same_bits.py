"""Section: the same bits however a result is computed. Each check computes it in several ways and compares all bytes."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import numpy as np
import quire
from arrays import bits, in_order, short_hash
from bits_problem import BATCH, DTYPE_NAMES, HEADS, KV_HEADS, Problem
from markup import Raw, escape, paragraph, table, tick
from section import Section


@dataclasses.dataclass
class Check:
    """`ways`: [(how it was computed, its bytes)]"""

    name: str
    ways: list[tuple[str, bytes]]

    def is_equal(self):
        return all(data == self.ways[0][1] for _, data in self.ways)


def batch_sizes(problem, whole):
    mask = problem.mask()
    alone = [problem.run(problem.q[i : i + 1], problem.k[i : i + 1], problem.v[i : i + 1], mask) for i in range(BATCH)]
    twice = problem.run(*(np.concatenate([one, one]) for one in (problem.q, problem.k, problem.v)), mask)
    ways = [("3", whole), ("1 + 1 + 1", np.concatenate(alone)), ("the first 3 of 6", twice[:BATCH])]
    return Check("batch sizes", [(way, bits(out)) for way, out in ways])


def thread_counts(problem, whole):
    before = quire.get_num_threads()
    ways = []
    try:
        for count in sorted({1, 2, 3, before}):
            quire.set_num_threads(count)
            ways.append((str(count), bits(problem.whole())))
    finally:
        quire.set_num_threads(before)
    return Check("threads", ways)


def prefill_and_decode(problem, whole):
    """The last rows: of one call over everything, one by one, and in chunks."""
    first, length = problem.length - 16, problem.length
    one_by_one = [problem.rows(i, i + 1) for i in range(first, length)]
    chunks = [problem.rows(i, min(i + 7, length)) for i in range(first, length, 7)]
    return Check(
        "prefill and decode",
        [
            ("one prefill", bits(whole[:, :, first:])),
            ("16 steps", bits(np.concatenate(one_by_one, axis=2))),
            ("chunks of 7", bits(np.concatenate(chunks, axis=2))),
        ],
    )


def block_sizes(problem, whole):
    ways = [("128", bits(whole))]
    ways += [(str(size), bits(problem.whole(size))) for size in (64, 16, (32, 8))]
    return Check("blocks of the mask", ways)


def strides(problem, whole):
    ways = [("[B, H, S, D]", bits(whole))]
    for name, order in (("[B, S, H, D]", (0, 2, 1, 3)), ("[B, H, D, S]", (0, 1, 3, 2))):
        stored = [in_order(one, order) for one in (problem.q, problem.k, problem.v)]
        ways.append((name, bits(problem.run(*stored, problem.mask()))))
    return Check("order in memory", ways)


def on_every_isa(context, sizes):
    """{dtype: [(isa, bytes)]}, each from a process of its own. `sizes`: {dtype: bytes of a result}."""
    found = {dtype: [] for dtype in sizes}
    command = [sys.executable, str(pathlib.Path(__file__).with_name("bits_on_isa.py"))] + ["--quick"] * context.quick
    for isa in quire.info()["available_isas"]:
        done = subprocess.run(
            command, env={**os.environ, "QUIRE_ISA": isa}, capture_output=True, check=True, timeout=120
        )
        ran = done.stderr.decode().strip()
        if ran != isa:
            raise RuntimeError(f"QUIRE_ISA={isa} ran {ran}")
        place = 0
        for dtype, size in sizes.items():
            found[dtype].append((isa, done.stdout[place : place + size]))
            place += size
    return found


def isa_checks(dtype, ways, here):
    """One check for the ISAs that should agree: all of them; for bf16, ISAs that multiply pairs of bf16 have their own
    bits.
    """
    own = quire.info()["isa"]
    groups = {}
    for way, isa, data in [(f"here ({own})", own, here), *((isa, isa, data) for isa, data in ways)]:
        is_paired = dtype == "bf16" and (isa.endswith("_bf16") or isa == "amx")
        groups.setdefault(f"bf16 products of {isa}" if is_paired else "ISAs", []).append((way, data))
    return [Check(name, group) for name, group in groups.items() if len(group) > 1]


CHECKS = [batch_sizes, thread_counts, prefill_and_decode, block_sizes, strides]


def same_bits(context):
    problems = {dtype: Problem(dtype, context.quick) for dtype in DTYPE_NAMES}
    wholes = {dtype: problem.whole() for dtype, problem in problems.items()}
    isas = on_every_isa(context, {dtype: whole.nbytes for dtype, whole in wholes.items()})
    checks = []
    for dtype, problem in problems.items():
        checks += [(dtype, check(problem, wholes[dtype])) for check in CHECKS]
        checks += [(dtype, check) for check in isa_checks(dtype, isas[dtype], bits(wholes[dtype]))]
    length = next(iter(problems.values())).length
    html = paragraph(
        f"{BATCH} sequences of {length} tokens, {HEADS} heads over {KV_HEADS}, a window and ALiBi. Each row computes the "
        "same numbers in several ways; the sign says whether all bytes were equal (memcmp), the hashes are SHA-256 of these "
        "bytes, shortened. Rows have other hashes than one another where they look at other parts of the result. ISAs run in "
        "a process each; those that multiply pairs of bf16 in one instruction have bits of their own for bf16, and are "
        "compared with one another."
    )
    html += rendered(checks)
    lines = [_line(dtype, check) for dtype, check in checks]
    return Section(html, lines, all(check.is_equal() for _, check in checks))


def rendered(checks):
    """The table of [(dtype, Check)]."""
    rows = []
    for dtype, check in checks:
        ways = " ".join(f'<span class="hash">{escape(way)}: {short_hash(data)}</span>' for way, data in check.ways)
        rows.append((check.name, dtype, Raw(ways), tick(check.is_equal())))
    return table(("does not depend on", "precision", "computed with", "equal"), rows)


def _line(dtype, check):
    ways = ", ".join(way for way, _ in check.ways)
    return f"{'yes' if check.is_equal() else 'NO '}  {dtype:<4} {short_hash(check.ways[0][1])}  {check.name}: {ways}"
