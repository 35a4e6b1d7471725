"""Asks Linux for the registers of AMX, which a process gets only on request: kernels of OpenVINO and vLLM that are called without
the rest of their engines find AMX and do not ask."""

import ctypes
import platform

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def allow_amx():
    """Nothing happens where there is no AMX."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
