"""Quire's attention for JAX: flex_attention, create_block_mask and scaled_dot_product_attention under jit, grad and vmap. Python
layer.

    import jax
    import quire.jax

    mask = quire.jax.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 2048, 2048)
    out = jax.jit(lambda q, k, v: quire.jax.flex_attention(q, k, v, block_mask=mask))(q, k, v)

Arrays are [B, H, L, E], as in quire and torch; mods are texts, or functions of jax.numpy operations. docs/jax.md says what
differs from jax.nn.dot_product_attention.
"""

from quire.requirements import require as _require

_require("jax", "0.10")

from quire.jax.block_mask import BlockMask, create_block_mask  # noqa: E402
from quire.jax.flex_attention import flex_attention  # noqa: E402
from quire.jax.sdpa import scaled_dot_product_attention  # noqa: E402
from quire.trace import TraceError  # noqa: E402

__all__ = ["BlockMask", "TraceError", "create_block_mask", "flex_attention", "scaled_dot_product_attention"]
