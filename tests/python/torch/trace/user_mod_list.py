"""Where the mods of user_score_mods.py and user_mask_mods.py register, and the random tensors they capture."""

import torch

USER_MODS = []


def user_mod(kind):
    """Registers a factory(B, H, Q, KV) of mods of a kind, "score" or "mask"."""

    def add(factory):
        USER_MODS.append((factory.__name__, kind, factory))
        return factory

    return add


def generator(seed):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def documents(length, seed=3):
    """Ids of consecutive documents, one per token."""
    return torch.randint(0, 2, (length,), generator=generator(seed)).cumsum(0)
