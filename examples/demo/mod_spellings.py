"""One rule written in three ways: as text, as a Python function over Quire's expressions, as a function over torch
tensors.

Scores decrease with the distance, each head at its own rate, and are squeezed into -20 .. 20.
"""

import numpy as np
import quire

HEADS = 4
RATES = np.array([0.8, 0.4, 0.2, 0.1], np.float32)

TEXT = "20.0 * tanh((score - decay[h] * log1p(abs(q_idx - kv_idx))) / 20.0)"


def from_text():
    return quire.ScoreMod(TEXT, {"decay": RATES})


def from_function():
    decay = quire.Buffer(RATES, "decay")

    def fading(score, b, h, q_idx, kv_idx):
        distance = abs(q_idx - kv_idx)
        return 20.0 * quire.tanh((score - decay[h] * quire.log1p(distance)) / 20.0)

    return quire.ScoreMod(fading)


def with_torch():
    import torch

    decay = torch.from_numpy(RATES)

    def fading(score, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).abs()
        return 20.0 * torch.tanh((score - decay[h] * torch.log1p(distance)) / 20.0)

    return fading


def in_numpy(score, b, h, q_idx, kv_idx):
    """For the reference in f64."""
    return 20.0 * np.tanh((score - RATES.astype(np.float64)[h] * np.log1p(abs(q_idx - kv_idx))) / 20.0)
