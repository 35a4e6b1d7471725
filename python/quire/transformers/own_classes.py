"""Rejects, by name, models that keep a class per attention implementation in a table of their own (Falcon, GPT-J,
GPT-Neo, …) and would raise a KeyError.

Such a table is found in the module of a model class when transformers checks the name of the implementation, before a
layer is made, and gets an entry that raises. Python layer, bottom of this package.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from transformers import PreTrainedModel

_names: set[str] = set()


def _refuse(config: Any, *args: Any, **kwargs: Any) -> None:
    raise NotImplementedError(
        f"[quire.transformers] {config.model_type} has an attention of its own, a class for each of the implementations it knows, "
        'and quire is none of them; use "eager" for it'
    )


def refuse_in_tables(name: str) -> None:
    """Does so for `attn_implementation=name`."""
    if not _names:
        _watch_names()
    _names.add(name)


def _watch_names() -> None:
    check = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(check)
    def checked(self: PreTrainedModel, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        chosen = check(self, requested_attention, *args, **kwargs)
        if chosen in _names:
            for name, table in vars(sys.modules[type(self).__module__]).items():
                if name.endswith("_ATTENTION_CLASSES") and isinstance(table, dict):
                    table.setdefault(chosen, _refuse)
        return chosen

    PreTrainedModel.get_correct_attn_implementation = checked  # type: ignore[method-assign]
