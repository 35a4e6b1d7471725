"""What differs between versions of torch and is not a name: found by asking torch, never by its version.

A mask of other lengths than the tensors' is a ValueError in 2.13 and a RuntimeError in some later versions; a part of a
mask keeps the lengths of the whole in 2.13 and has its own in later ones. Python layer, below validate.py and
block_mask.py.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask
from torch.utils._python_dispatch import _disable_current_modes

from quire.torch import originals


@functools.cache
def error_of_lengths() -> type[Exception]:
    """What torch's flex_attention raises for a mask of other lengths. Asked once, when such an error is due."""
    with _disable_current_modes(), torch.no_grad():
        mask = _mask(torch.ones(1, 1, 1, dtype=torch.int32, device="cpu"), (1, 1), (1, 1))
        tensor = torch.zeros(1, 1, 2, 1, device="cpu")
        try:
            originals.flex_attention(tensor, tensor, tensor, block_mask=mask)
        except RuntimeError:
            return RuntimeError
        except Exception:  # ValueError, or that of a version which is not known
            pass
    return ValueError


def lengths_of_part(
    counts: Tensor, seq_lengths: tuple[int, int], block_size: tuple[int, int], index: tuple
) -> tuple[int, int]:
    """seq_lengths of mask[index] for a mask with these kv_num_blocks, as torch has it."""
    missing = 3 - counts.dim()  # torch indexes masks of batches and heads only
    counts = counts[(None,) * missing]
    return _mask(counts, seq_lengths, block_size)[(slice(None),) * missing + index].seq_lengths


def _mask(counts: Tensor, seq_lengths: tuple[int, int], block_size: tuple[int, int]) -> TorchBlockMask:
    """Torch's own, with lists of one column, which is enough for its lengths."""
    indices = torch.zeros_like(counts).unsqueeze(-1)
    return TorchBlockMask(seq_lengths, counts, indices, None, None, None, None, None, None, BLOCK_SIZE=block_size)
