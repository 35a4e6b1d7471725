"""Sequences in the pages of a PagedAttention, for tests."""

import random

import quire.torch as qt
import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention as TorchPagedAttention

CLASSES = (qt.PagedAttention, TorchPagedAttention)


class Pool:
    """Sequences in pages in random order, in caches that are NaN everywhere else."""

    def __init__(self, cls, page_size, lengths, n_pages=None, dtype=torch.float32, poison=float("nan"), dims=(16, 8)):
        n_pages = n_pages or sum(-(-length // page_size) for length in lengths) + 7
        self.paged = cls(n_pages, page_size, len(lengths) + 1, device="cpu")
        random.Random(page_size).shuffle(self.paged.empty_pages)
        self.lengths, batch, longest = torch.tensor(lengths), len(lengths), max(lengths)
        seed = torch.Generator().manual_seed(page_size)
        self.k = torch.randn(batch, 2, longest, dims[0], generator=seed).to(dtype)
        self.v = torch.randn(batch, 2, longest, dims[1], generator=seed).to(dtype)
        self.k_cache = torch.full((1, 2, n_pages * page_size, dims[0]), poison, dtype=dtype)
        self.v_cache = torch.full((1, 2, n_pages * page_size, dims[1]), poison, dtype=dtype)
        for b, length in enumerate(lengths):
            index = torch.tensor([b])
            self.paged.reserve(index, torch.tensor([length]))
            positions = torch.arange(length)[None]
            k, v = self.k[b : b + 1, :, :length], self.v[b : b + 1, :, :length]
            self.paged.assign(index, positions, k, v, self.k_cache, self.v_cache)
        self.longest = longest

    def query(self, q_len):
        seed = torch.Generator().manual_seed(7)
        return torch.randn(len(self.lengths), 4, q_len, self.k.shape[-1], generator=seed).to(self.k.dtype)

    def dense(self, query, rule, score_mod=None):
        lengths = self.lengths

        def inside(b, h, q_idx, kv_idx):
            return kv_idx < lengths[b]

        mask = qt.create_block_mask(
            qt.and_masks(rule, inside), len(lengths), 4, query.shape[2], self.longest, BLOCK_SIZE=32
        )
        return qt.flex_attention(query, self.k, self.v, score_mod, mask, enable_gqa=True)

    def logical(self, rule, q_len, **options):
        size = (32, self.paged.page_size)
        return qt.create_block_mask(rule, len(self.lengths), 4, q_len, self.longest, BLOCK_SIZE=size, **options)
