"""Mods the way users of torch's flex_attention write them.

USER_MODS: [(name, kind, factory)], kind "score" or "mask"; factory(B, H, Q, KV) gives a mod for these sizes. Factories are
deterministic: two calls give mods that compute the same. Shared by the tests of tracing and of attention.
"""

import user_mask_mods  # noqa: F401
import user_score_mods  # noqa: F401
from user_mod_list import USER_MODS

__all__ = ["USER_MODS"]
