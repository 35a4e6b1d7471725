"""Mask mods the way users of torch's flex_attention write them."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks
from user_mod_list import documents, generator, user_mod

WINDOW = 5
SINKS = torch.tensor([2, 0, 3, 1, 2, 2, 0, 1])


@user_mod("mask")
def noop(B, H, Q, KV):
    return noop_mask


@user_mod("mask")
def causal(B, H, Q, KV):
    def causal_mask(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    return causal_mask


@user_mod("mask")
def sliding_window(B, H, Q, KV):
    def sliding_window(b, h, q_idx, kv_idx):
        return q_idx - kv_idx <= WINDOW

    return and_masks(sliding_window, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)


@user_mod("mask")
def two_sided_window(B, H, Q, KV):
    return lambda b, h, q_idx, kv_idx: torch.abs(q_idx - kv_idx) <= WINDOW


@user_mod("mask")
def prefix_lm(B, H, Q, KV):
    prefix_length = torch.arange(B, dtype=torch.int32) * 2 + 1

    def prefix_mask(b, h, q_idx, kv_idx):
        return kv_idx < prefix_length[b]

    def causal_mask(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    return or_masks(prefix_mask, causal_mask)


@user_mod("mask")
def document(B, H, Q, KV):
    document_id, key_document = documents(Q).to(torch.int32), documents(KV).to(torch.int32)

    def document_mask(b, h, q_idx, kv_idx):
        return document_id[q_idx] == key_document[kv_idx]

    return document_mask


@user_mod("mask")
def document_from_offsets(B, H, Q, KV):
    length = max(Q, KV)
    offsets = torch.tensor([0, length // 3, length // 2, length])
    counts = offsets[1:] - offsets[:-1]
    document_id = torch.repeat_interleave(torch.arange(len(counts)), counts)

    def inner(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def doc_mask_mod(b, h, q_idx, kv_idx):
        same_doc = document_id[q_idx] == document_id[kv_idx]
        q_logical = q_idx - offsets[document_id[q_idx]]
        kv_logical = kv_idx - offsets[document_id[kv_idx]]
        return same_doc & inner(b, h, q_logical, kv_logical)

    return doc_mask_mod


@user_mod("mask")
def document_by_search(B, H, Q, KV):
    ends = torch.tensor([3, 4, 9, 100])

    def mask(b, h, q_idx, kv_idx):
        return torch.bucketize(q_idx, ends, right=True) == torch.searchsorted(ends, kv_idx, right=True)

    return mask


@user_mod("mask")
def dilated_window(B, H, Q, KV):
    dilation = 2

    def dilated(b, h, q_idx, kv_idx):
        diff = torch.abs(q_idx - kv_idx)
        return (diff <= WINDOW) & ((diff % dilation) == 0) & (diff >= 0)

    return dilated


@user_mod("mask")
def natten(B, H, Q, KV):
    width, kernel_w, kernel_h = 4, 3, 3
    height = max(Q, KV) // width + 1

    def get_x_y(idx):
        return idx // width, idx % width

    def natten_mask_mod(b, h, q_idx, kv_idx):
        q_x, q_y = get_x_y(q_idx)
        kv_x, kv_y = get_x_y(kv_idx)
        center_x = q_x.clamp(kernel_w // 2, (height - 1) - kernel_w // 2)
        center_y = q_y.clamp(kernel_h // 2, (width - 1) - kernel_h // 2)
        hori = (center_x - kv_x).abs() <= kernel_w // 2
        vert = (center_y - kv_y).abs() <= kernel_h // 2
        return hori & vert

    return natten_mask_mod


@user_mod("mask")
def morton(B, H, Q, KV):
    def deinterleave(code):
        x, y = torch.zeros_like(code), torch.zeros_like(code)
        for bit in range(4):
            x = x | ((code >> (2 * bit)) & 1) << bit
            y = y | ((code >> (2 * bit + 1)) & 1) << bit
        return x, y

    def mask(b, h, q_idx, kv_idx):
        qx, qy = deinterleave(q_idx)
        kx, ky = deinterleave(kv_idx)
        return ((qx - kx).abs() <= 1) & ((qy - ky).abs() <= 1)

    return mask


@user_mod("mask")
def sparse_blocks(B, H, Q, KV):
    layout = torch.rand(H, Q // 4 + 1, KV // 4 + 1, generator=generator(20)) > 0.5
    return lambda b, h, q_idx, kv_idx: layout[h, q_idx // 4, kv_idx // 4]


@user_mod("mask")
def not_padding(B, H, Q, KV):
    padded = torch.rand(B, KV, generator=generator(21)) > 0.7

    def mask(b, h, q_idx, kv_idx):
        return ~padded[b, kv_idx]

    return mask


@user_mod("mask")
def padding_lengths(B, H, Q, KV):
    lengths = (torch.arange(B) + 2).to(torch.int16)
    return lambda b, h, q_idx, kv_idx: (q_idx < lengths[b]) & (kv_idx < lengths[b])


@user_mod("mask")
def streaming_sinks(B, H, Q, KV):
    def mask(b, h, q_idx, kv_idx):
        return (kv_idx < SINKS[h % len(SINKS)]) | ((q_idx - kv_idx < WINDOW) & (kv_idx <= q_idx))

    return mask


@user_mod("mask")
def intervals(B, H, Q, KV):
    doc = documents(Q) % 4
    spans = torch.tensor([[0, 4], [2, 7], [1, 3], [5, 9]])

    def mask(b, h, q_idx, kv_idx):
        interval = spans[doc[q_idx]]
        return (interval[0] <= kv_idx) & (kv_idx < interval[1])

    return mask


@user_mod("mask")
def unpacked_interval(B, H, Q, KV):
    spans = torch.tensor([[0, 4], [2, 7], [1, 3]])

    def mask(b, h, q_idx, kv_idx):
        begin, end = spans[q_idx % 3]
        return torch.logical_and(kv_idx >= begin, kv_idx < end)

    return mask


@user_mod("mask")
def per_head(B, H, Q, KV):
    window = torch.arange(H) + 1

    def mask(b, h, q_idx, kv_idx):
        is_local = h < H // 2
        local = (q_idx - kv_idx).abs() < window[h]
        return torch.where(is_local, local, q_idx >= kv_idx)

    return mask


@user_mod("mask")
def butterfly(B, H, Q, KV):
    return lambda b, h, q_idx, kv_idx: (q_idx ^ kv_idx) & ((q_idx ^ kv_idx) - 1) == 0


@user_mod("mask")
def strided(B, H, Q, KV):
    return lambda b, h, q_idx, kv_idx: torch.eq(torch.remainder(q_idx - kv_idx, 3), 0) & q_idx.ge(kv_idx)


@user_mod("mask")
def offset_causal(B, H, Q, KV):
    offset = torch.tensor(KV - Q)
    return lambda b, h, q_idx, kv_idx: q_idx + offset >= kv_idx


@user_mod("mask")
def dataclass_config(B, H, Q, KV):
    @dataclass
    class Config:
        window: int = 4
        bidirectional: bool = False

    config = Config()

    def mask(b, h, q_idx, kv_idx):
        near = (q_idx - kv_idx).abs() < config.window
        return near if config.bidirectional else near & (q_idx >= kv_idx)

    return mask


@user_mod("mask")
def namespace_of_tensors(B, H, Q, KV):
    batch = SimpleNamespace(ids=documents(Q), key_ids=documents(KV), limit=6)
    return lambda b, h, q_idx, kv_idx: (batch.ids[q_idx] == batch.key_ids[kv_idx]) & (kv_idx < batch.limit)


@user_mod("mask")
def combined(B, H, Q, KV):
    def window(size):
        return lambda b, h, q_idx, kv_idx: q_idx - kv_idx < size

    def is_sink(b, h, q_idx, kv_idx):
        return kv_idx < 2

    return and_masks(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, or_masks(window(3), is_sink))


@user_mod("mask")
def neighbours(B, H, Q, KV):
    near = torch.randint(0, KV, (Q, 3), generator=generator(22))
    return lambda b, h, q_idx, kv_idx: (near[q_idx] == kv_idx).any()


@user_mod("mask")
def graph(B, H, Q, KV):
    adjacency = (torch.rand(Q, KV, generator=generator(23)) > 0.4).to(torch.uint8)
    return lambda b, h, q_idx, kv_idx: adjacency[q_idx, kv_idx].bool() | (q_idx == kv_idx)


@user_mod("mask")
def multimodal(B, H, Q, KV):
    image_id = torch.randint(-1, 3, (B, max(Q, KV)), generator=generator(24))

    def mask(b, h, q_idx, kv_idx):
        same_image = (image_id[b, q_idx] == image_id[b, kv_idx]) & (image_id[b, q_idx] >= 0)
        return same_image | (q_idx >= kv_idx)

    return mask


@user_mod("mask")
def half_open_with_ones(B, H, Q, KV):
    def mask(b, h, q_idx, kv_idx):
        visible = q_idx.new_ones((), dtype=torch.bool)
        for step in (2, 3):
            visible = visible & (q_idx // step >= kv_idx // step)
        return visible

    return mask


@user_mod("mask")
def diffusion_blocks(B, H, Q, KV):
    block, half = 4, KV // 2

    def block_diff_mask(b, h, q_idx, kv_idx):
        x0_q, x0_kv = q_idx >= half, kv_idx >= half
        block_q = torch.where(x0_q, (q_idx - half) // block, q_idx // block)
        block_kv = torch.where(x0_kv, (kv_idx - half) // block, kv_idx // block)
        diagonal = (block_q == block_kv) & (x0_q == x0_kv)
        offset = (block_q > block_kv) & x0_kv & ~x0_q
        causal = (block_q >= block_kv) & x0_kv & x0_q
        return diagonal | offset | causal

    return block_diff_mask
