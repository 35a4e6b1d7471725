"""Which keywords of a layer's call attention may ignore; all others are refused.

transformers passes on whatever a model was called with. A keyword is harmless if no implementation of attention that
works with masks could use it; the list was made from the calls in transformers' models. Python layer, bottom of this
package.
"""

from __future__ import annotations

from typing import Any

# Already applied before attention is called: tokens and positions are in query and key, caches in key and value.
_APPLIED = frozenset(
    """input_ids inputs_embeds position_ids position_embeddings cache_position past_key_values past_key_value use_cache
    cache_params layer_idx logits_indices logits_processor_args""".split()
)
# Already in the mask, which quire_mask made from them. Flash attention, which has no mask, needs them.
_IN_THE_MASK = frozenset(
    """sliding_window token_type_ids mm_token_type_ids block_sequence_ids encoder_hidden_states encoder_attention_mask
    seq_idx""".split()
)
# About what the model returns, its loss, or how other parts of it compute.
_ELSEWHERE = frozenset(
    """return_dict output_hidden_states output_router_logits num_items_in_batch logits_to_keep labels deterministic
    cross_attention_kwargs""".split()
)
_HARMLESS = _APPLIED | _IN_THE_MASK | _ELSEWHERE
# Several sequences in one row. The mask of such a row keeps them apart; without one they would see each other.
_PACKED = frozenset("cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k".split())
# Of continuous batching, with its cache.
BATCH = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "read_index", "write_index", "block_table")
_PAGED = frozenset("block_table read_index write_index".split())


def refuse_over_pages(indices: Any, block_indices: Any, position_bias: Any, output_attentions: Any) -> None:
    """Raises NotImplementedError for what attention over pages does not support."""
    given = {"indices": indices, "block_indices": block_indices, "position_bias": position_bias}
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"[quire.transformers] {name} with keys in pages; use another cache")
    if output_attentions:
        raise NotImplementedError("[quire.transformers] output_attentions with keys in pages; use another cache")


def refuse_unknown(kwargs: dict[str, Any], has_mask: bool) -> None:
    """Raises NotImplementedError for a keyword that may change the result. None counts as not given."""
    for name, value in kwargs.items():
        if value is None or name in _HARMLESS or (name in _PACKED and has_mask):
            continue
        if name in _PAGED:
            raise NotImplementedError(f"[quire.transformers] {name} is continuous batching's, and comes with its cache")
        if name in _PACKED:
            if (
                name.startswith("max_length") or value.numel() <= 2
            ):  # one sequence; the maximum lengths come with a list of offsets
                continue
            raise NotImplementedError(
                f"[quire.transformers] {name} without an attention mask: packed sequences are told apart by their mask, which "
                "transformers makes of position_ids"
            )
        raise NotImplementedError(
            f"[quire.transformers] this model passes {name} to its attention, and Quire does not know what that means; "
            'use attn_implementation="eager" for it'
        )
