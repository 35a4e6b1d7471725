"""Explains which package a part of Quire needs when it is missing or too old. Python layer, below everything else."""

from __future__ import annotations

import importlib
import re


def require(package: str, at_least: str) -> None:
    """Imports a package. Raises ModuleNotFoundError if it is missing, ImportError if its version is below `at_least`,
    "2.13".
    """
    advice = f'quire.{package} needs {package} {at_least} or later: pip install ".[{package}]" in a checkout of Quire'
    try:
        version = importlib.import_module(package).__version__
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(advice, name=package) from None
    if _numbers(version) < _numbers(at_least):
        raise ImportError(f"{advice}; got {version}", name=package)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
