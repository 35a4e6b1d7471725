"""The same attention over jagged and paged keys: sequences of different lengths packed one after the other, in the pages of a
PagedAttention, and in a KVCache. Each is compared with the sequences computed alone, to the bit."""

import dataclasses

import numpy as np
import quire
from arrays import bits, random_arrays, short_hash
from attention_f64 import attention_f64, max_error
from markup import Raw, paragraph, table, tick
from section import Section

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 16
LENGTHS, QUICK_LENGTHS = (400, 137, 1, 263), (40, 17, 1, 33)
TOLERANCE = 1e-5  # of f32 results near 1
CAUSAL = "q_idx >= kv_idx"


@dataclasses.dataclass
class Batch:
    """q, k, v of each sequence: [tokens, heads, dim]."""

    lengths: tuple
    sequences: list

    @classmethod
    def random(cls, lengths):
        heads = (HEADS, KV_HEADS, KV_HEADS)
        return cls(lengths, [random_arrays([(n, h, DIM) for h in heads], "f32", seed=n) for n in lengths])

    def packed(self, which):
        return np.concatenate([one[which] for one in self.sequences])

    def split(self, tokens):
        return np.split(tokens, np.cumsum(self.lengths)[:-1])


def heads_first(tokens):
    return tokens.swapaxes(0, 1)[None]


def alone(batch):
    """Dense tensors, one call for each sequence."""
    outs = []
    for n, sequence in zip(batch.lengths, batch.sequences):
        mask = quire.create_block_mask(CAUSAL, None, None, n, n)
        out = quire.flex_attention(*(heads_first(one) for one in sequence), block_mask=mask, enable_gqa=True)
        outs.append(out[0].swapaxes(0, 1))
    return outs


def jagged(batch):
    """One call over sequences packed one after the other."""
    offsets = np.cumsum([0, *batch.lengths])
    q, k, v = (quire.Jagged(batch.packed(i), offsets) for i in range(3))
    return list(quire.flex_attention(q, k, v, mask_mod=CAUSAL, enable_gqa=True))


def paged(batch):
    """One call over a pool whose pages were dealt out in turn, so that no sequence is contiguous."""
    count, longest = len(batch.lengths), max(batch.lengths)
    pages = sum(-(-n // PAGE) for n in batch.lengths)
    tables = quire.PagedAttention(pages, PAGE, count)
    k_cache, v_cache = np.zeros((2, 1, KV_HEADS, pages * PAGE, DIM), np.float32)
    for begin in range(0, longest, PAGE):
        for i, (n, (_, k, v)) in enumerate(zip(batch.lengths, batch.sequences)):
            if begin >= n:
                continue
            end = min(begin + PAGE, n)
            tables.reserve(i, end)
            rows = (heads_first(one[begin:end]) for one in (k, v))
            tables.assign(np.array([i]), np.arange(begin, end)[None], *rows, k_cache, v_cache)
    q = np.zeros((count, HEADS, longest, DIM), np.float32)
    for i, (n, sequence) in enumerate(zip(batch.lengths, batch.sequences)):
        q[i, :, :n] = heads_first(sequence[0])[0]
    mask = quire.create_block_mask(CAUSAL, count, None, longest, longest, BLOCK_SIZE=PAGE)
    mask = tables.convert_logical_block_mask(mask, kv_len=np.array(batch.lengths))
    out = quire.flex_attention(q, k_cache, v_cache, block_mask=mask, enable_gqa=True)
    return [out[i, :, :n].swapaxes(0, 1) for i, n in enumerate(batch.lengths)]


def cached(batch):
    """A KVCache that all sequences are appended to, then one call for the tokens of all."""
    cache = quire.KVCache(
        layers=1, kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE, n_pages=sum(batch.lengths) // PAGE + 8
    )
    sequences = [cache.create() for _ in batch.lengths]
    counts = list(batch.lengths)
    cache.append(sequences, counts, k=batch.packed(1)[None], v=batch.packed(2)[None])
    return batch.split(quire.attend(cache, 0, sequences, batch.packed(0), counts=counts))


# name -> (what it is, function); the first is what the others are compared with
WAYS = {
    "dense, each alone": ("a call for each sequence", alone),
    "jagged": ("packed one after the other, one call", jagged),
    f"paged, {PAGE} tokens": (
        "PagedAttention: pages handed out in turns, so that no sequence lies together; one call",
        paged,
    ),
    "KVCache and attend": ("appended to a KVCache, one call for all tokens of all sequences", cached),
}


def batches(context):
    batch = Batch.random(QUICK_LENGTHS if context.quick else LENGTHS)
    exact = [
        attention_f64(*(heads_first(one) for one in sequence), mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
        for sequence in batch.sequences
    ]
    first, rows, lines, good = None, [], [], True
    for name, (meaning, compute) in WAYS.items():
        outs = compute(batch)
        data = b"".join(bits(out) for out in outs)
        first = data if first is None else first
        error, is_equal = max(max_error(heads_first(out), one) for out, one in zip(outs, exact)), data == first
        good &= error < TOLERANCE and is_equal
        hashed = Raw(f'<span class="hash">{short_hash(data)}</span>')
        rows.append((name, meaning, f"{error:.1e}", hashed, tick(is_equal)))
        lines.append(f"{name}: error against f64 {error:.1e}, bits equal: {'yes' if is_equal else 'NO'}")
    lengths = ", ".join(str(n) for n in batch.lengths)
    html = "<h3>Jagged and paged</h3>" + paragraph(
        f"Sequences of {lengths} tokens, {HEADS} heads over {KV_HEADS} of keys, causal, f32: the same numbers, kept in four "
        "ways."
    )
    html += table(("keys and values", "", "error against f64", "hash", "bits equal"), rows, numeric=(2,))
    return Section(html, lines, good)
