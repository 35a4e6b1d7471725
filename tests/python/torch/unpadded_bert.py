"""A BERT with unpadding, written for flash-attn as users have it: it knows nothing of Quire. For test_torch_flash_attn.py."""

import torch
import torch.nn.functional as F
from flash_attn import flash_attn_varlen_qkvpacked_func
from flash_attn.bert_padding import index_first_axis_residual, pad_input, unpad_input
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cu_seqlens, max_seqlen):
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        p = self.dropout if self.training else 0.0
        return self.out(flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=p).flatten(1))


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attention = SelfAttention(dim, heads, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cu_seqlens, max_seqlen):
        x = self.norm1(x + self.attention(x, cu_seqlens, max_seqlen))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    def __init__(self, vocabulary=100, dim=64, heads=4, layers=2, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids, attention_mask, labels=None):
        batch, seqlen = ids.shape
        x, indices, cu_seqlens, max_seqlen, _ = unpad_input(self.embedding(ids), attention_mask)
        for layer in self.layers:
            x = layer(x, cu_seqlens, max_seqlen)
        if labels is None:
            return self.head(pad_input(x, indices, batch, seqlen))
        wanted = labels.flatten()[indices]
        rows = torch.nonzero(wanted >= 0).flatten()
        chosen, _ = index_first_axis_residual(x, rows)
        return F.cross_entropy(self.head(chosen), wanted[rows])
