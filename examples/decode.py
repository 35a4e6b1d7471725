"""Decoding with NumPy arrays: a cache of keys and values grows by a token per step, and every step sees a sliding window.

The bits of every step are those of one call over the whole sequence.
"""

import numpy as np
import quire

HEADS, KV_HEADS, DIM, PROMPT, STEPS, WINDOW = 8, 2, 64, 100, 20, 32
LENGTH = PROMPT + STEPS

random = np.random.default_rng(0)
q = random.standard_normal((1, HEADS, LENGTH, DIM)).astype(np.float32)
k, v = (random.standard_normal((1, KV_HEADS, LENGTH, DIM)).astype(np.float32) for _ in range(2))

mod = quire.mods.softcap(30.0)
window = quire.mods.sliding_window(WINDOW)
whole = quire.create_block_mask(window, None, None, LENGTH, LENGTH)
expected = quire.flex_attention(q, k, v, mod, whole, enable_gqa=True)

different = 0
for position in range(PROMPT, LENGTH):
    seen = position + 1
    mask = quire.create_block_mask(window, None, None, 1, seen, q_begin=position)
    step = quire.flex_attention(q[:, :, position:seen], k[:, :, :seen], v[:, :, :seen], mod, mask, enable_gqa=True)
    different += not np.array_equal(step[:, :, 0], expected[:, :, position])
print(f"{STEPS} steps over {LENGTH} tokens, steps with other bits than one call over all: {different}")
