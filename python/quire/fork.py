"""After os.fork() the child has none of its parent's threads: it works with one of its own until it asks for more."""

from __future__ import annotations

import os

from ._core import set_num_threads


def install() -> None:
    """Registers what a child does first. Called once, when the package is imported."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: set_num_threads(1))
