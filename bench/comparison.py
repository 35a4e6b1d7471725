"""Two calls that compute the same, timed against each other: the rows of a comparison, its table and its chart.

Both sides run one after the other, again and again, in one process; the ratio of the medians is the result.
"""

import statistics
import time

COLOURS = ("#4269d0", "#efb118", "#3ca951", "#9c6b4e", "#ff725c", "#a463f2", "#97bbf5", "#6cc5b0", "#9498a0")


class Row:
    """Two calls that compute the same; the mean of `calls` calls (of ours: `our_calls`) counts as one time."""

    def __init__(self, group, name, theirs, ours, repetitions=None, peer="torch", calls=1, our_calls=None):
        self.group, self.name, self.peer = group, name, peer
        self.sides = ((theirs, calls), (ours, our_calls or calls))
        self.repetitions = repetitions

    def run(self, repetitions):
        repetitions = self.repetitions or repetitions
        for call, calls in self.sides:  # not timed: first calls
            for _ in range(calls):
                call()
        times = [[self._seconds(*side) for side in self.sides] for _ in range(repetitions)]
        theirs, ours = zip(*times)
        ratios = sorted(a / b for a, b in times)
        return {
            "group": self.group,
            "name": self.name,
            "peer": self.peer,
            "peer_ms": statistics.median(theirs) * 1e3,
            "quire_ms": statistics.median(ours) * 1e3,
            "ratio": statistics.median(theirs) / statistics.median(ours),
            "ratio_low": ratios[0],
            "ratio_high": ratios[-1],
        }

    @staticmethod
    def _seconds(call, calls):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls


def table(results):
    lines = [f"{'':<40} {'peer ms':>12} {'quire ms':>12} {'ratio':>9}   of all pairs"]
    group = None
    for r in results:
        if (r["group"], r["peer"]) != group:
            group = r["group"], r["peer"]
            lines.append(f"-- {r['group']}, against {r['peer']}")
        lines.append(
            f"{r['name']:<40} {r['peer_ms']:>12.4g} {r['quire_ms']:>12.4g} {r['ratio']:>8.4g}x   "
            f"{r['ratio_low']:.3g} to {r['ratio_high']:.3g}"
        )
    return "\n".join(lines)


def chart(results, path):
    """Ratios as bars, on a logarithmic axis. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = list(reversed(results))
    groups = list(dict.fromkeys(r["group"] for r in results))
    colours = [COLOURS[groups.index(r["group"]) % len(COLOURS)] for r in rows]
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.27 * len(rows)))
    bars = axes.barh(range(len(rows)), [r["ratio"] for r in rows], left=0, color=colours, log=True)
    axes.bar_label(bars, [f"{r['ratio']:.1f}×" if r["ratio"] < 100 else f"{r['ratio']:,.0f}×" for r in rows], padding=3)
    axes.set_yticks(range(len(rows)), [f"{r['name']}  (vs {r['peer']})" for r in rows], fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(right=3 * max(r["ratio"] for r in rows))
    axes.set_xlabel("times as fast as PyTorch (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def dots(results, path):
    """A line for each name and a dot for each peer, at the ratio, on a logarithmic axis. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(reversed(list(dict.fromkeys((r["group"], r["name"]) for r in results))))
    peers = list(dict.fromkeys(r["peer"] for r in results))
    figure, axes = plt.subplots(figsize=(9.5, 1.2 + 0.34 * len(names)))
    for peer, colour, marker in zip(peers, COLOURS, "osD^vPX"):
        own = [r for r in results if r["peer"] == peer]
        places = [names.index((r["group"], r["name"])) for r in own]
        axes.plot([r["ratio"] for r in own], places, marker, color=colour, label=peer, markersize=7, alpha=0.9)
    axes.set_xscale("log")
    low, high = (choose(r["ratio"] for r in results) for choose in (min, max))
    axes.set_xlim(min(0.5, low / 1.3), max(2.0, high * 1.3))
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if low / 2 <= tick <= high * 2]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_yticks(range(len(names)), [f"{group}: {name}" for group, name in names], fontsize=8)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("the peer's time divided by Quire's (right of 1: Quire is faster)")
    axes.legend(ncols=len(peers), loc="lower center", bbox_to_anchor=(0.35, 1.0), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
