"""os.fork(): what a child does first, and locks that are never found locked in a child. Python layer.

A child has a copy of all objects but only the thread that forked: its calls start new threads. It begins with one,
because a process pool usually has as many children as there are cores, and may ask for more.
"""

from __future__ import annotations

import os
import threading

from ._core import set_num_threads


def install() -> None:
    """Registers what a child does first. Called once, when the package is imported."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: set_num_threads(1))


def lock() -> threading.Lock:
    """A process-wide lock. In a child it is unlocked, whichever thread of the parent held it at the fork."""
    made = threading.Lock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made._at_fork_reinit)  # type: ignore[attr-defined]
    return made
