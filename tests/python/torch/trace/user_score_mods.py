"""Score mods the way users of torch's flex_attention write them."""

import functools
import math

import torch
import torch.nn.functional as F
from user_mod_list import documents, randn, user_mod

SOFT_CAP = 15.0


@user_mod("score")
def identity(B, H, Q, KV):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score

    return score_mod


@user_mod("score")
def alibi(B, H, Q, KV):
    slopes = torch.exp2(-((torch.arange(H) + 1.0) * 8.0 / H))

    def alibi_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return alibi_mod


@user_mod("score")
def alibi_computed(B, H, Q, KV):
    def alibi_score_mod(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / H))
        bias = (q_idx - kv_idx) * scale
        return score + bias

    return alibi_score_mod


@user_mod("score")
def alibi_causal(B, H, Q, KV):
    slopes = torch.exp2(-((torch.arange(H) + 1.0) * 8.0 / H)).to(torch.bfloat16)

    def score_mod(score, b, h, q_idx, kv_idx):
        bias = slopes[h] * (kv_idx - q_idx)
        return torch.where(q_idx >= kv_idx, score + bias, -float("inf"))

    return score_mod


@user_mod("score")
def relative_positional(B, H, Q, KV):
    return lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx)


@user_mod("score")
def tanh_softcap(B, H, Q, KV):
    soft_cap = 20

    def tanh_softcap(score, b, h, q_idx, kv_idx):
        score = score / soft_cap
        score = torch.tanh(score)
        return score * soft_cap

    return tanh_softcap


@user_mod("score")
def softcap_global(B, H, Q, KV):
    return lambda score, b, h, q_idx, kv_idx: SOFT_CAP * (score / SOFT_CAP).tanh()


@user_mod("score")
def softcap_partial(B, H, Q, KV):
    def capped(cap, score, b, h, q_idx, kv_idx, *, scale=1.0):
        return cap * torch.tanh(score * scale / cap)

    return functools.partial(capped, 30.0, scale=0.5)


@user_mod("score")
def relative_bias_table(B, H, Q, KV):
    bias = randn(H, Q + KV - 1)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx - kv_idx + KV - 1]

    return score_mod


@user_mod("score")
def dense_bias(B, H, Q, KV):
    bias = randn(B, H, Q, KV, seed=5)
    return lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx]


@user_mod("score")
def dense_bias_chain(B, H, Q, KV):
    bias = randn(B, H, Q, KV, seed=6).to(torch.float16)
    return lambda score, b, h, q_idx, kv_idx: score + bias[b][h][q_idx][kv_idx]


@user_mod("score")
def t5_buckets(B, H, Q, KV):
    num_buckets, max_distance = 32, 128
    embedding = randn(num_buckets, H, seed=7)

    def t5_bias(score, b, h, q_idx, kv_idx):
        relative = kv_idx - q_idx
        half = num_buckets // 2
        bucket = (relative > 0).to(torch.long) * half
        distance = torch.abs(relative)
        max_exact = half // 2
        is_small = distance < max_exact
        safe = torch.clamp(distance, min=1).float()
        large = max_exact + (torch.log(safe / max_exact) / math.log(max_distance / max_exact) * (half - max_exact)).to(
            torch.long
        )
        large = torch.min(large, torch.full_like(large, half - 1))
        bucket = bucket + torch.where(is_small, distance, large)
        return score + embedding[bucket, h]

    return t5_bias


@user_mod("score")
def checkerboard(B, H, Q, KV):
    def checkerboard(score, batch, head, q_idx, k_idx):
        score = torch.where(torch.abs(k_idx - q_idx) == 1, score * 0.5, score)
        score = torch.where(k_idx == q_idx, score * 2.0, score)
        return score

    return checkerboard


@user_mod("score")
def head_offset(B, H, Q, KV):
    head_offset = randn(H, seed=8)
    return lambda score, b, h, q_idx, kv_idx: score * head_offset[h]


@user_mod("score")
def latent_rope(B, H, Q, KV):
    q_rope, k_rope = randn(B, H, Q, 8, seed=9), randn(B, 1, KV, 8, seed=10)

    def mla_rope_score_mod(score, b, h, q_idx, kv_idx):
        return score + torch.dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx])

    return mla_rope_score_mod


@user_mod("score")
def row_product_sum(B, H, Q, KV):
    a, c = randn(Q, 6, seed=11), randn(KV, 6, seed=12)
    return lambda score, b, h, q_idx, kv_idx: score + (a[q_idx] * c[kv_idx]).sum(-1) * 0.25


@user_mod("score")
def learned_gate(B, H, Q, KV):
    gate, weight = randn(Q, KV, seed=13), torch.nn.Parameter(torch.tensor(0.75), requires_grad=False)
    return lambda score, b, h, q_idx, kv_idx: score * torch.sigmoid(gate[q_idx, kv_idx]) * weight


@user_mod("score")
def activations(B, H, Q, KV):
    def score_mod(score, b, h, q_idx, kv_idx):
        return F.gelu(score) + F.silu(score) + F.softplus(score) + F.relu(score)

    return score_mod


@user_mod("score")
def squared_distance(B, H, Q, KV):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score - 0.01 * (q_idx - kv_idx) ** 2

    return score_mod


@user_mod("score")
def log_length(B, H, Q, KV):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score * torch.log(q_idx + 1.0) / math.log(KV + 1)

    return score_mod


@user_mod("score")
def yoco_decay(B, H, Q, KV):
    decay = torch.log(1 - torch.exp2(-5 - torch.arange(H, dtype=torch.float32)))

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + decay[h] * torch.abs(q_idx - kv_idx)

    return score_mod


@user_mod("score")
def document_and_alibi(B, H, Q, KV):
    doc_q, doc_kv = documents(Q), documents(KV)
    slopes = randn(H, seed=14)

    def score_mod(score, b, h, q_idx, kv_idx):
        same = doc_q[q_idx] == doc_kv[kv_idx]
        return torch.where(same, score + slopes[h] * (q_idx - kv_idx), score - 1e4)

    return score_mod


@user_mod("score")
def masked_fill(B, H, Q, KV):
    return lambda score, b, h, q_idx, kv_idx: score.masked_fill(q_idx < kv_idx, float("-inf"))


@user_mod("score")
def object_with_state(B, H, Q, KV):
    class Bias:
        strength = 0.5

        def __init__(self):
            self.table = randn(Q, KV, seed=15)
            self.offset = 3

        def shift(self, kv_idx):
            return kv_idx * self.strength + self.offset

        def __call__(self, score, b, h, q_idx, kv_idx):
            return score + self.table[q_idx, kv_idx] - self.shift(kv_idx)

    return Bias()


@user_mod("score")
def bound_method(B, H, Q, KV):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(randn(H, seed=16), requires_grad=False)
            self.register_buffer("distance", torch.arange(KV))

        def score_mod(self, score, b, h, q_idx, kv_idx):
            return score + self.bias[h] * self.distance[kv_idx]

    return Layer().score_mod


@user_mod("score")
def default_argument(B, H, Q, KV):
    table = randn(KV, seed=17)

    def score_mod(score, b, h, q_idx, kv_idx, table=table, factor=2):
        return score + table[kv_idx] * factor

    return score_mod


@user_mod("score")
def nested_functions(B, H, Q, KV):
    def distance(a, c):
        return (a - c).abs()

    def score_mod(score, b, h, q_idx, kv_idx):
        def penalty(x):
            return 0.125 * x

        return score - penalty(distance(q_idx, kv_idx))

    return score_mod


@user_mod("score")
def whole_tensor_computed(B, H, Q, KV):
    table, slopes = randn(Q, seed=18), randn(H, seed=19)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table.abs()[q_idx] * slopes.exp()[h] + torch.arange(KV)[kv_idx]

    return score_mod


@user_mod("score")
def dtype_follows_score(B, H, Q, KV):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + (q_idx - kv_idx).to(score.dtype) * torch.tensor(0.5, dtype=score.dtype)

    return score_mod


@user_mod("score")
def inputs_per_batch(B, H, Q, KV):
    lengths = torch.arange(B) + 3
    temperature = torch.linspace(0.5, 2.0, B)
    return lambda score, b, h, q_idx, kv_idx: torch.where(kv_idx < lengths[b], score / temperature[b], -math.inf)


@user_mod("score")
def dynamic_scale(B, H, Q, KV):
    scale = torch.tensor(1.5)
    return lambda score, b, h, q_idx, kv_idx: score * scale - torch.rsqrt(kv_idx + scale)


@user_mod("score")
def constant_score(B, H, Q, KV):
    return lambda score, b, h, q_idx, kv_idx: torch.zeros_like(score)


@user_mod("score")
def cosine_position(B, H, Q, KV):
    return lambda score, b, h, q_idx, kv_idx: score + torch.cos((q_idx - kv_idx) * (math.pi / 7)) * torch.sin(h * 0.5)
