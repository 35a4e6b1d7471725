"""Modules to export, with arguments: each way a mask or a mod may come into a program. Imported by tests and the processes they start."""

import torch
import torch.nn.attention.bias
from quire.torch import create_block_mask, flex_attention, scaled_dot_product_attention
from torch import nn

LENGTH = 60


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def create(mask_mod):
    return create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)


class MaskOnModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = torch.tensor(20)
        self.mask = create(lambda b, h, q, kv: (q >= kv) & (q - kv < self.window))

    def forward(self, x):
        return flex_attention(x, x, x, block_mask=self.mask)


class MaskMadeInside(nn.Module):
    def forward(self, x):
        return flex_attention(x, x, x, block_mask=create(causal))


class MaskOfABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("documents", torch.arange(LENGTH) // 25)

    def forward(self, x):
        mask = create(lambda b, h, q, kv: self.documents[q] == self.documents[kv])
        return flex_attention(x, x, x, block_mask=mask)


class MaskOfAnArgument(nn.Module):
    def forward(self, x, documents):
        return flex_attention(x, x, x, block_mask=create(lambda b, h, q, kv: documents[q] == documents[kv]))


class MaskGiven(nn.Module):
    def forward(self, x, mask):
        return flex_attention(x, x, x, block_mask=mask)


class ScoreMod(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, LENGTH))
        self.slopes = torch.tensor([0.5, 0.25])  # neither a parameter nor a buffer

    def forward(self, x):
        return flex_attention(x, x, x, lambda s, b, h, q, kv: s + self.bias[kv] + self.slopes[h] * (kv - q))


class Sdpa(nn.Module):
    def forward(self, x, attn_mask):
        return scaled_dot_product_attention(x, x, x, attn_mask=attn_mask)


class IndexTensors(nn.Module):
    def forward(self, x):
        mask = create(causal)
        return flex_attention(x, x, x, block_mask=mask) * mask.kv_num_blocks.sum(), mask.q_indices


def query():
    return torch.randn(1, 2, LENGTH, 8, generator=torch.Generator().manual_seed(0))


def cases():
    """name: (module, arguments)."""
    x = query()
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(3)
    documents = torch.arange(LENGTH) // 18
    return {
        "mask on the module": (MaskOnModule(), (x,)),
        "mask made inside": (MaskMadeInside(), (x,)),
        "mask made inside of a buffer": (MaskOfABuffer(), (x,)),
        "mask made inside of an argument": (MaskOfAnArgument(), (x, documents)),
        "mask given": (MaskGiven(), (x, create(causal))),
        "mask given that captures": (MaskGiven(), (x, create(lambda b, h, q, kv: documents[q] == documents[kv]))),
        "score mod": (ScoreMod(), (x,)),
        "SDPA with a mask": (Sdpa(), (x, visible)),
        "SDPA with a float mask": (Sdpa(), (x, visible.float())),
        "index tensors of a mask made inside": (IndexTensors(), (x,)),
    }
