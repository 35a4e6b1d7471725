"""A separate program: the attention of same_bits.py in a process that QUIRE_ISA forces to an ISA. Writes the bits of
the results to standard output, in the order of the precisions, and the ISA that ran to standard error.
"""

import sys

import quire
from arrays import bits
from bits_problem import DTYPE_NAMES, Problem

if __name__ == "__main__":
    print(quire.info()["isa"], file=sys.stderr)
    for dtype in DTYPE_NAMES:
        sys.stdout.buffer.write(bits(Problem(dtype, quick="--quick" in sys.argv).whole()))
