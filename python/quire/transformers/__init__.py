"""quire.transformers: Quire as an attention implementation of Hugging Face transformers.

    import quire.transformers
    quire.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="quire")

Importing it registers nothing. Python layer, above quire.torch.
"""

from quire.requirements import require

require("torch", "2.13")
require("transformers", "5.22")

from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402

from quire.transformers.attention import quire_attention  # noqa: E402
from quire.transformers.cache import QuireCache  # noqa: E402
from quire.transformers.continuous_batching import admit  # noqa: E402
from quire.transformers.masks import quire_mask  # noqa: E402
from quire.transformers.own_classes import refuse_in_tables  # noqa: E402

__all__ = ["QuireCache", "quire_attention", "quire_mask", "register"]


def register(name: str = "quire") -> None:
    """Registers `attn_implementation=name` with transformers, for models made before and after. May be called again.

    >>> import quire.transformers
    >>> quire.transformers.register()
    >>> from transformers import AutoModel, LlamaConfig
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)
    >>> AutoModel.from_config(config, attn_implementation="quire").config._attn_implementation
    'quire'
    """
    AttentionInterface.register(name, quire_attention)
    AttentionMaskInterface.register(name, quire_mask)
    refuse_in_tables(name)
    admit(name)
