"""Runs a function in the processes of a gloo group and brings its results back. Tests only."""

import traceback
from datetime import timedelta
from multiprocessing import get_context

import torch
import torch.distributed as dist

_TIMEOUT = 60


def _enter(function, rank, ranks, path, results, timeout, arguments):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout)
    )
    try:
        results.put((rank, function(rank, ranks, *arguments), None))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
        results.put((rank, None, (type(error).__name__, str(error), traceback.format_exc())))
    dist.destroy_process_group()


def run_ranks(tmp_path, function, ranks, *arguments, timeout=_TIMEOUT):
    """[(result, None) or (None, (name of the exception, text, traceback))] of function(rank, ranks, *arguments), by rank. A rank that
    dies without a word gives (None, None)."""
    context = get_context("spawn")
    results = context.SimpleQueue()
    path = tmp_path / f"group-{ranks}-{function.__name__}"
    processes = [
        context.Process(target=_enter, args=(function, rank, ranks, path, results, timeout, arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(2 * timeout + 60)
    found = [(None, None)] * ranks
    while not results.empty():
        rank, result, error = results.get()
        found[rank] = (result, error)
    return found


def on_ranks(tmp_path, function, ranks, *arguments):
    """The results, where no rank may fail."""
    found = run_ranks(tmp_path, function, ranks, *arguments)
    for rank, (_, error) in enumerate(found):
        assert error is None, f"rank {rank}: {error[2]}"
    return [result for result, _ in found]
