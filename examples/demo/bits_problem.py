"""The attention whose bits are compared: grouped heads, a window, ALiBi, lengths that are not multiples of anything."""

import quire
from arrays import DTYPES, random_arrays

BATCH, HEADS, KV_HEADS, DIM = 3, 4, 2, 64
DTYPE_NAMES = [name for name in ("f32", "bf16") if name in DTYPES]


class Problem:
    def __init__(self, dtype, quick=False):
        self.length, self.window = (97, 40) if quick else (333, 150)
        shapes = [(BATCH, heads, self.length, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        self.q, self.k, self.v = random_arrays(shapes, dtype, seed=1)
        self.mask_mod = quire.mods.sliding_window(self.window)
        self.score_mod = quire.mods.alibi(HEADS)

    def mask(self, block_size=128):
        return quire.create_block_mask(self.mask_mod, None, None, self.length, self.length, block_size)

    def run(self, q, k, v, mask):
        return quire.flex_attention(q, k, v, self.score_mod, mask, enable_gqa=True)

    def whole(self, block_size=128):
        """All batch entries and all rows in one call: [BATCH, HEADS, length, DIM]."""
        return self.run(self.q, self.k, self.v, self.mask(block_size))

    def rows(self, begin, end):
        """Queries begin .. end alone, over the keys that exist by then, as in decoding."""
        mask = quire.create_block_mask(self.mask_mod, None, None, end - begin, end, q_begin=begin)
        return self.run(self.q[:, :, begin:end], self.k[:, :, :end], self.v[:, :, :end], mask)
