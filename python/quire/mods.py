"""Ready-made mods: common masks and score mods, and the gallery of more, kept as text. Python layer.

    >>> import quire
    >>> quire.mods.causal() & ~quire.mods.attention_sink(1)
    quire.MaskMod('(q_idx >= kv_idx) & ~(kv_idx < 1)')
    >>> type(quire.mods.gallery_entry("natten_2d").mod(q_len=4096, kv_len=4096)).__name__
    'MaskMod'

docs/mods.md shows them all. Tables are arrays, read in place unless documented as copied.
"""

from ._core import (
    GalleryEntry,
    alibi,
    alibi_slopes,
    attention_sink,
    bias_2d,
    causal,
    causal_bottom_right,
    chunked,
    document,
    document_from_offsets,
    gallery,
    gallery_entry,
    padding,
    prefix_lm,
    relative_bias,
    shared_prefix,
    sliding_window,
    softcap,
    streaming,
    tree,
)

__all__ = [
    "GalleryEntry",
    "alibi",
    "alibi_slopes",
    "attention_sink",
    "bias_2d",
    "causal",
    "causal_bottom_right",
    "chunked",
    "document",
    "document_from_offsets",
    "gallery",
    "gallery_entry",
    "padding",
    "prefix_lm",
    "relative_bias",
    "shared_prefix",
    "sliding_window",
    "softcap",
    "streaming",
    "tree",
]
