"""How many random cases a property is tried with."""

import os


def runs(default):
    """QUIRE_PROPERTY_RUNS, which the C++ properties follow too, or the default."""
    return int(os.environ.get("QUIRE_PROPERTY_RUNS") or default)
