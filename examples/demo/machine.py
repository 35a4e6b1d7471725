"""Section: this machine: CPU, the ISA chosen and why, threads, and its measured peaks."""

import os

import peak_share
import quire
from markup import paragraph, table
from section import Section


def machine(context):
    info = quire.info()
    load = os.getloadavg()[0]  # before anything is measured
    rows = [
        ("CPU", info["cpu"]),
        ("features", " ".join(info["features"])),
        ("ISA", f"{info['isa']} ({info['isa_why']}); available: {' '.join(info['available_isas'])}"),
        ("threads", f"{info['threads']} of {info['logical_cpus']} CPUs"),
        (
            "caches",
            f"L1d {info['l1d_bytes'] >> 10} KiB, L2 {info['l2_bytes'] >> 10} KiB, L3 {info['l3_bytes'] >> 20} MiB",
        ),
    ]
    measured = [(f"peak: {name}", f"{value:.4g} {unit}") for name, value, unit in peak_share.peaks(context.peak_rows)]
    rows += measured
    busy = f"load average when measuring began: {load:.1f}"
    if load > 0.5:
        busy += "; other programs were running, and figures of speed are lower or less certain than they could be"
    note = "Peaks are of all threads together, timed between the repetitions of the benchmark (bench/attention)."
    if not measured:
        note = "There is no bench/attention in this build, so peaks were not measured."
    lines = [f"{name:<26} {text}" for name, text in measured] or [note]
    return Section(table(("", ""), rows) + paragraph(f"{note} {busy[0].upper()}{busy[1:]}."), [*lines, busy])
