"""Quire against other implementations of attention on CPUs: PyTorch, JAX, ONNX Runtime, OpenVINO, ggml and vLLM, as far as they
are installed, on the same tensors.

Each peer is in a process of its own (bench/peers/worker.py), so that nobody's threads run beside another's; they take turns, and
the ratio of the medians is the result (above 1: Quire is faster). Results are compared with Quire's before anything is timed.
Rows where a peer wins stay; what a peer does not have, or is not installed, is named. `make bench-peers` installs them:

    python bench/compare_peers.py [--groups prefill,decode,…] [--peers torch,jax,…] [--repetitions 9] [--threads 2]
        [--json F] [--markdown F] [--chart F.png]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from comparison import dots
from peers.cases import cases

HERE = Path(__file__).resolve().parent
PEERS = {
    "torch": "PyTorch",
    "jax": "JAX",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "ggml": "ggml",
    "vllm": "vLLM",
}
# The largest difference from Quire's result, of numbers of about 1, that roundings in these types explain.
TOLERANCES = {"f32": 1e-3, "f16": 1e-2, "bf16": 4e-2, "q8_0": 3e-2, "q4_0": 2e-1, "u8": 5e-2}
_SECONDS_OF_A_TIME = 0.05


# What helps a peer whose process was ended by a signal: its AMX kernels may meet a system that does not allow them.
_FALLBACKS = {"openvino": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}}


class Worker:
    """A peer's process. `missing`: why there is none."""

    def __init__(self, peer, threads, more=None):
        self.peer, self.threads = peer, threads
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads), **(more or {})}
        command = [_python_of(peer), str(HERE / "peers/worker.py"), peer, str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        hello = self._read()
        self.version, self.missing = hello.get("version"), hello.get("missing") or hello.get("failed")

    def ask(self, **request):
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"failed": "the process has ended", "is_dead": True}
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        return (
            json.loads(line) if line else {"failed": f"the process ended with {self._process.wait()}", "is_dead": True}
        )

    def end(self):
        self._process.stdin.close()
        self._process.wait()


def _python_of(peer):
    """vLLM has an environment of its own: QUIRE_VLLM_VENV, as of scripts/vllm-venv."""
    venv = os.environ.get("QUIRE_VLLM_VENV") or str(HERE.parent / ".cache/vllm-venv")
    python = Path(venv) / "bin/python"
    return str(python) if peer == "vllm" and python.exists() else sys.executable


def start(peers, threads):
    workers = {}
    for peer in ("quire", *peers):
        worker = Worker(peer, threads)
        name = PEERS.get(peer, "Quire")
        if worker.missing:
            print(f"{name}: not there ({worker.missing})", file=sys.stderr)
        else:
            print(f"{name} {worker.version}", file=sys.stderr)
            workers[peer] = worker
    return workers


def revived(worker):
    """A new process for one that has died."""
    more = _FALLBACKS.get(worker.peer, {})
    print(f"{PEERS.get(worker.peer, 'Quire')}: its process died; a new one {more or ''}", file=sys.stderr)
    return Worker(worker.peer, worker.threads, more)


def prepared(workers, number, case):
    """Of each peer that has the case: how many calls make a time. Says why of the others, and checks results."""
    calls, why = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for peer, worker in list(workers.items()):
            answer = worker.ask(prepare=number)
            if answer.get("is_dead"):
                worker = workers[peer] = revived(worker)
                answer = worker.ask(prepare=number)
            path = str(Path(folder) / f"{peer}.npy")
            saved = worker.ask(save=path) if "seconds" in answer else answer
            if "saved" not in saved:
                why[peer] = saved.get("unsupported") or saved.get("failed")
                continue
            difference = _difference(path, str(Path(folder) / "quire.npy"))
            if difference > TOLERANCES[case.format or case.dtype]:
                why[peer] = f"its result differs by {difference:.2g}"
            else:
                calls[peer] = max(1, round(_SECONDS_OF_A_TIME / answer["seconds"]))
    return calls, why


def _difference(path, reference):
    found, wanted = np.load(path), np.load(reference)
    return float(np.abs(found - wanted).max()) if found.shape == wanted.shape else float("inf")


def timed(workers, calls, repetitions):
    """Seconds of each peer, repetition by repetition."""
    times = {peer: [] for peer in calls}
    for _ in range(repetitions):
        for peer, count in calls.items():
            time.sleep(0.005)  # until nobody's threads spin any more
            times[peer].append(workers[peer].ask(time=count)["seconds"])
    return times


def wait_for(path):
    while path and not Path(path).exists():
        time.sleep(0.05)


def results_of(case, times):
    ours = times.pop("quire")
    for peer, theirs in times.items():
        ratios = sorted(a / b for a, b in zip(theirs, ours))
        yield {
            "group": case.group,
            "name": case.name,
            "peer": PEERS[peer],
            "peer_ms": statistics.median(theirs) * 1e3,
            "quire_ms": statistics.median(ours) * 1e3,
            "ratio": statistics.median(theirs) / statistics.median(ours),
            "ratio_low": ratios[0],
            "ratio_high": ratios[-1],
        }


def markdown(results, skipped, peers):
    """A row for each case, a column for each peer: times of the peer divided by Quire's."""
    names = [PEERS[peer] for peer in peers]
    lines = ["| | Quire, ms | " + " | ".join(names) + " |", "| --- | --- |" + " --- |" * len(names)]
    rows = list(dict.fromkeys((r["group"], r["name"]) for r in results))
    for group, name in rows:
        own = {r["peer"]: r for r in results if (r["group"], r["name"]) == (group, name)}
        cells = [f"{own[peer]['ratio']:.2f}" if peer in own else "–" for peer in names]
        first = next(iter(own.values()))
        lines.append(f"| {group}: {name} | {first['quire_ms']:.3g} | " + " | ".join(cells) + " |")
    why = sorted({f"{PEERS[peer]}: {reason}" for _, peer, reason in skipped if peer != "quire"})
    return "\n".join(lines) + "\n\nNot there: " + "; ".join(why) + ".\n" if why else "\n".join(lines) + "\n"


def main():
    every = list(cases())
    groups = list(dict.fromkeys(case.group for case in every))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--groups", default=",".join(groups), help="comma-separated: " + ", ".join(groups))
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated: " + ", ".join(PEERS))
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--when", help="on a machine that others use: time a prepared case when this file is there, then delete it"
    )
    parser.add_argument("--json", help="write the results there; those of other cases that it holds are kept")
    parser.add_argument("--markdown", help="write the table there")
    parser.add_argument("--chart", help="write a chart there (needs matplotlib)")
    options = parser.parse_args()
    peers = options.peers.split(",")
    workers = start(peers, options.threads)
    results, skipped = [], []
    for number, case in enumerate(every):
        if case.group not in options.groups.split(",") or options.filter not in case.name:
            continue
        calls, why = prepared(workers, number, case)
        skipped += [(case.name, peer, reason) for peer, reason in why.items()]
        for peer, reason in why.items():
            print(f"{case.group}: {case.name}: {PEERS.get(peer, 'Quire')}: {reason}", file=sys.stderr)
        if "quire" in calls and len(calls) > 1:
            wait_for(options.when)
            found = list(results_of(case, timed(workers, calls, options.repetitions)))
            results += found
            if options.when:
                Path(options.when).unlink(missing_ok=True)
            for one in found:
                print(f"{case.group}: {case.name}: {one['ratio']:.3g} x {one['peer']}", file=sys.stderr)
            if options.json:  # after each case: what was measured stays if the run is ended
                _merged(Path(options.json), results, skipped, every)
        for worker in workers.values():
            worker.ask(forget=0)
    for worker in workers.values():
        worker.end()
    if options.json:
        results, skipped = _merged(Path(options.json), results, skipped, every)
    text = markdown(results, skipped, [peer for peer in peers if PEERS[peer] in {r["peer"] for r in results}])
    print(text)
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.chart:
        dots(results, options.chart)


def _merged(path, results, skipped, every):
    """With what the file holds of other cases, in the order of the cases."""
    old = json.loads(path.read_text()) if path.exists() else {"results": [], "skipped": []}
    new = {(r["name"], r["peer"]) for r in results}
    results = results + [r for r in old["results"] if (r["name"], r["peer"]) not in new]
    seen = {tuple(one[:2]) for one in skipped}
    skipped = skipped + [tuple(one) for one in old["skipped"] if tuple(one[:2]) not in seen]
    order = {case.name: place for place, case in enumerate(every)}
    results.sort(key=lambda r: (order.get(r["name"], len(order)), list(PEERS.values()).index(r["peer"])))
    path.write_text(json.dumps({"results": results, "skipped": skipped}, indent=1))
    return results, skipped


if __name__ == "__main__":
    main()
