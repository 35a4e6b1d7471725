"""Mods in Python: written as functions and as text, combined, drawn, and used by attention on NumPy arrays."""

import numpy as np
import quire

# A mask is a rule about positions; a score mod changes a score. A function is called once, with expressions.
window = quire.MaskMod(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 3)
banded = quire.mods.causal() & window
slopes = quire.Buffer(np.array([0.5, 0.25], np.float32), "slopes")
alibi = quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx))
print("banded:", banded)
print("alibi: ", alibi)

# The same as text.
capped = quire.ScoreMod("20 * tanh(score / 20) + slopes[h] * (kv_idx - q_idx)", {"slopes": slopes})
print("capped:", capped)
print(quire.draw(banded, 8, width=16))

# Attention: f32, f64, f16 or bf16, any strides. Results are of the inputs' kind.
random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 2, 300, 64)).astype(np.float32) for _ in range(3))
mask = quire.create_block_mask(banded, None, None, 300, 300)
out, aux = quire.flex_attention(q, k, v, alibi, mask, return_aux=quire.AuxRequest(lse=True))
print(mask)
print(type(out).__name__, out.dtype, out.shape, "lse", aux.lse.shape)

# A traced value cannot be used to decide anything.
try:
    quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: score if q_idx >= kv_idx else 0)
except TypeError as error:
    print(error)
