"""quire.flash_attn: flash-attn 2's functions on the CPU, by Quire, with the same names, arguments and results.

    import quire.flash_attn
    quire.flash_attn.install()
    from flash_attn import flash_attn_varlen_func   # Quire's, unless the real package is there

Python layer, above quire.torch.
"""

from quire.requirements import require

require("torch", "2.13")

from quire.flash_attn.flash_attn_interface import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from quire.flash_attn.stand_in import install  # noqa: E402

__version__ = "2.8.4"  # the version these functions correspond to: code that runs on either asks for it

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
]
