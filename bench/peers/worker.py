"""A process with one peer in it: prepares a case when told, and times calls when told, so that peers take turns without
disturbing one another's threads.

    python worker.py PEER THREADS

Lines of JSON on standard input: {"prepare": number of a case}, {"time": calls}, {"save": path}, {"forget": 0}; one line of JSON is
the answer to each. A peer that is not installed, or has no such call, says why.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from peers.cases import cases  # noqa: E402
from peers.unsupported import Unsupported  # noqa: E402


def answer_of(peer, request, state):
    """peer: a module with prepare(case, threads) -> (call, output): a function to time, and one that gives its result as f32
    [tokens, heads, dim]."""
    if "prepare" in request:
        state.clear()
        case = list(cases())[request["prepare"]]
        call, output = peer.prepare(case, state_threads())
        begin = time.perf_counter()
        call()
        call()
        state.update(call=call, output=output)
        return {"seconds": (time.perf_counter() - begin) / 2}
    if "time" in request:
        call = state["call"]
        begin = time.perf_counter()
        for _ in range(request["time"]):
            call()
        return {"seconds": (time.perf_counter() - begin) / request["time"]}
    if "save" in request:
        np.save(request["save"], np.asarray(state["output"](), np.float32))
        return {"saved": True}
    state.clear()
    return {"forgotten": True}


def state_threads():
    return int(sys.argv[2])


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    try:
        peer = importlib.import_module(f"peers.{sys.argv[1]}_peer")
        print(json.dumps({"version": peer.version()}), file=answers, flush=True)
    except (ImportError, OSError) as error:
        print(json.dumps({"missing": f"{type(error).__name__}: {error}".split("\n")[0]}), file=answers, flush=True)
        return
    state = {}
    for line in sys.stdin:
        try:
            answer = answer_of(peer, json.loads(line), state)
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:  # a peer's own; the other peers go on
            text = str(error).strip().split("\n")[0][:200]
            answer = {"failed": f"{type(error).__name__}: {text}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
