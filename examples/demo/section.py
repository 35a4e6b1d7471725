"""What the parts of the demo share: where the programs are, how much time is left, and what a part returns."""

import dataclasses
import functools
import os
import pathlib
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOW_TO_GET_TORCH = "PyTorch is not here. `pip install torch==2.13.0` (requirements-test.txt has it) adds this part."


@dataclasses.dataclass
class Section:
    """One part of the report: `html` for the page, `lines` for the terminal. Not `good`: something shown is wrong."""

    html: str
    lines: list[str]
    good: bool = True


@dataclasses.dataclass
class Context:
    """`build`: the folder with the program quire, examples/ and bench/; `build_name`: as it was typed. `quick`: tiny sizes,
    for tests."""

    build: pathlib.Path
    quick: bool = False
    seconds: float = 80.0  # of the two minutes that building and showing may take
    build_name: str = "build/demo"
    begin: float = dataclasses.field(default_factory=time.monotonic)

    def seconds_left(self):
        return self.seconds - (time.monotonic() - self.begin)

    def program(self, name):
        """The path of a program of the build, None if it was not built."""
        path = self.build / name
        return path if os.access(path, os.X_OK) else None

    @functools.cached_property
    def torch(self):
        """The module, or None."""
        # Torch's threads otherwise spin for a while after each of its calls, in the time of whatever is measured next.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            import torch
        except ImportError:
            return None
        return torch

    @functools.cached_property
    def peak_rows(self):
        """The rows of bench/attention, measured once: the machine's peaks and the shares of them."""
        import peak_share

        return peak_share.measure(self)
