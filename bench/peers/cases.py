"""The calls that every peer computes, and the numbers they compute with.

A case is a batch of sequences: queries and keys of each, one after the other, [tokens, heads, dim], made from a seed, so that
every process has the same. What decodes has several batches, which take turns: their keys come from memory, as a model's
layers' do, and not from a cache.
"""

import dataclasses
import random

import numpy as np

BYTES = {"f32": 4, "bf16": 2, "f16": 2}
# Of keys and values that take turns.
_BYTES_OF_TURNS = 400_000_000


@dataclasses.dataclass(frozen=True)
class Case:
    group: str
    name: str
    dtype: str  # of queries, and of keys that are not codes
    q_heads: int
    kv_heads: int
    dim: int
    q_lengths: tuple
    kv_lengths: tuple
    is_causal: bool  # the last query sees the last key
    page_size: int = 0
    format: str = ""  # of codes: q8_0, q4_0, u8

    @property
    def is_decode(self):
        return max(self.q_lengths) == 1

    @property
    def turns(self):
        size = 2 * sum(self.kv_lengths) * self.kv_heads * self.dim * BYTES[self.dtype]
        return max(1, -(-_BYTES_OF_TURNS // size)) if self.is_decode else 1

    def offsets(self, lengths):
        return np.concatenate([[0], np.cumsum(lengths)])

    def arrays(self, turn=0):
        """q, k and v, f32; values are those of the case's dtype."""
        generator = np.random.default_rng(turn)
        shapes = [(sum(self.q_lengths), self.q_heads), (sum(self.kv_lengths), self.kv_heads)]
        made = [generator.standard_normal((*shapes[i], self.dim), np.float32) for i in (0, 1, 1)]
        return [rounded(one, self.dtype) for one in made]

    def dense(self, turn=0):
        """The same as [batch, heads, length, dim], of sequences of one length."""
        batch = len(self.q_lengths)
        return [one.reshape(batch, -1, *one.shape[1:]).transpose(0, 2, 1, 3) for one in self.arrays(turn)]

    def pages(self):
        """(page table [sequences, most pages], pages in all): pages in an order that memory does not know."""
        counts = [-(-length // self.page_size) for length in self.kv_lengths]
        order = list(range(sum(counts)))
        random.Random(0).shuffle(order)
        table = np.zeros((len(counts), max(counts)), np.int32)
        for row, count in enumerate(counts):
            table[row, :count] = [order.pop() for _ in range(count)]
        return table, sum(counts)

    def slots(self):
        """Of each key its place in the pool of pages."""
        table, _ = self.pages()
        return np.concatenate(
            [
                table[row, np.arange(length) // self.page_size] * self.page_size + np.arange(length) % self.page_size
                for row, length in enumerate(self.kv_lengths)
            ]
        )


def rounded(array, dtype):
    """f32 numbers that bf16 or f16 can hold."""
    if dtype == "f16":
        return array.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = array.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return array


def cases():
    lengths = random.Random(0)
    ragged = tuple(lengths.randint(16, 1024) for _ in range(16))
    served = (4096, 3000, 2500, 2048, 1500, 1000, 700, 300)
    one, heads = (1,), dict(q_heads=32, kv_heads=8, dim=128)
    for dtype in ("f32", "bf16"):
        sizes = dict(dtype=dtype, q_heads=8, kv_heads=8, dim=64, q_lengths=(2048,), kv_lengths=(2048,))
        yield Case("prefill", f"2,048 tokens, 8 heads of 64, full, {dtype}", is_causal=False, **sizes)
        yield Case("prefill", f"2,048 tokens, 8 heads of 64, causal, {dtype}", is_causal=True, **sizes)
        sizes = {**heads, "dtype": dtype, "q_lengths": (512,), "kv_lengths": (512,)}
        yield Case("prefill", f"512 tokens, 32/8 heads of 128, causal, {dtype}", is_causal=True, **sizes)
    for dtype in ("f32", "bf16", "f16"):
        sizes = {**heads, "dtype": dtype, "q_lengths": one, "kv_lengths": (8192,)}
        yield Case("decode", f"1 query, 8,192 keys, 32/8 heads of 128, {dtype}", is_causal=True, **sizes)
    for dtype in ("f32", "bf16"):
        sizes = {**heads, "dtype": dtype, "q_lengths": one * len(served), "kv_lengths": served}
        yield Case("paged", f"8 sequences decode, pages of 32, {dtype}", is_causal=True, page_size=32, **sizes)
        sizes = dict(dtype=dtype, q_heads=8, kv_heads=8, dim=64, q_lengths=ragged, kv_lengths=ragged)
        yield Case("jagged", f"16 sequences of 16 to 1,024, 8 heads of 64, causal, {dtype}", is_causal=True, **sizes)
    sizes = {**heads, "dtype": "f32", "q_lengths": one, "kv_lengths": (8192,)}
    for coded in ("q8_0", "q4_0"):
        yield Case("quantised", f"1 query, 8,192 keys, {coded}", is_causal=True, format=coded, **sizes)
    sizes = {**heads, "dtype": "f32", "q_lengths": one * len(served), "kv_lengths": served}
    yield Case("quantised", "8 sequences decode, pages of 32, u8", is_causal=True, page_size=32, format="u8", **sizes)
