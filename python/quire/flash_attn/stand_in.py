"""install(): makes `import flash_attn` find quire.flash_attn if the real package is missing.

Python asks this finder only when no other finder knows the name, so a real flash_attn that is installed later wins in
the next process. Python layer, next to the functions.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_MODULES = {
    "flash_attn": "quire.flash_attn",
    "flash_attn.flash_attn_interface": "quire.flash_attn.flash_attn_interface",
    "flash_attn.bert_padding": "quire.flash_attn.bert_padding",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=fullname == "flash_attn")

    def exec_module(self, module: ModuleType) -> None:
        """Copies our names into the module that was asked for."""
        ours = importlib.import_module(_MODULES[module.__name__])
        kept = ("__all__", "__doc__", "__version__")
        for name, value in vars(ours).items():
            if not name.startswith("_") or name in kept:
                setattr(module, name, value)


_finder = _Finder()


def install() -> bool:
    """Makes `import flash_attn` return quire.flash_attn, with its submodules bert_padding and flash_attn_interface.
    Returns False, changing nothing, if the real package is installed. May be called again.

    >>> import quire.flash_attn
    >>> quire.flash_attn.install()
    True
    >>> import flash_attn
    >>> flash_attn.flash_attn_func is quire.flash_attn.flash_attn_func
    True
    """
    if _finder in sys.meta_path:
        return True
    if importlib.util.find_spec("flash_attn") is not None:
        return False
    sys.meta_path.append(_finder)
    importlib.invalidate_caches()
    return True
