"""What Quire says in vLLM's log. vLLM sets its logging up after it has loaded plugins where an engine runs in the process that made it: what
is said before that is kept until a layer is made. Python layer, below impl.py and registration.py.
"""

from __future__ import annotations

import logging
from typing import Any

_unheard: list[tuple[str, tuple[Any, ...]]] = []


def log() -> logging.Logger:
    """A child of vLLM's logger, so that its handlers and levels hold."""
    return logging.getLogger("vllm.quire")


def inform(text: str, *values: Any) -> None:
    """Now, or when it can be heard."""
    if log().isEnabledFor(logging.INFO):
        log().info(text, *values)
    else:
        _unheard.append((text, values))


def inform_of_the_unheard() -> None:
    """Once there is somebody to hear it."""
    if not _unheard or not log().isEnabledFor(logging.INFO):
        return
    for text, values in dict.fromkeys(_unheard):
        log().info(text, *values)
    _unheard.clear()
