"""quire.vllm: vLLM's attention on CPUs by Quire. A plugin of vLLM (entry point group vllm.general_plugins): once both are installed,

    vllm serve MODEL

uses it; QUIRE_VLLM=0 switches it off. set_mods gives layers a mask or a score mod of one's own. docs/vllm.md has the rest.

Importing it does not import vLLM. Python layer, above quire.torch.
"""

from quire.requirements import require

require("torch", "2.13")

from quire.vllm.layer_mods import clear_mods, set_mods  # noqa: E402
from quire.vllm.registration import register  # noqa: E402

__all__ = ["clear_mods", "register", "set_mods"]
