"""Trains a small GPT on a context that is twice as long as one process may hold: two processes hold a half each, and
quire.torch.context_parallel attends over the whole. Every process has the same limit of memory (RLIMIT_DATA), under which the whole
context does not fit into one of them; the loss curve of two is that of one process without a limit.

    python examples/train_long_context.py [--steps 6] [--length 8192]

Prints the curve of both, and what one process says under the limit.
"""

import argparse
import pathlib
import resource
import sys
import tempfile
from datetime import timedelta
from multiprocessing import get_context

import torch
import torch.distributed as dist
import torch.nn.functional as F
from quire.torch import context_parallel as cp
from quire.torch import create_block_mask, flex_attention

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH, HEADS, LAYERS = 192, 6, 2
BYTES_PER_TOKEN = 52_000  # memory of a step at its peak: activations, gradients, logits


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, HEADS + 1))

    def forward(self, x, attention):
        def alibi(score, b, h, q_idx, kv_idx):
            return score + self.slopes[h] * (kv_idx - q_idx) * 0.1

        q, k, v = self.project(self.norm(x)).view(-1, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3).unsqueeze(1)
        x = x + self.out(attention(q, k, v, alibi).squeeze(0).transpose(0, 1).reshape(-1, WIDTH))
        return x + self.mlp(self.norm2(x))


class Gpt(torch.nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.embedding = torch.nn.Embedding(characters, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, characters)

    def forward(self, tokens, attention):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, attention)
        return self.head(x)


def read_text(length):
    """`length` + 1 numbers of characters, and how many characters there are."""
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("docs/*.md")))
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    return torch.tensor([number[c] for c in text[: length + 1]]), len(characters)


def train(rank, ranks, length, steps):
    """The loss of every step, over the whole context, on every rank."""
    torch.manual_seed(0)
    tokens, characters = read_text(length)
    model = Gpt(characters)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mask = create_block_mask(causal, None, None, length, length, device="cpu")
    shards = cp.plan_shards(mask, ranks)
    mine = cp.positions(shards, rank)

    def attention(q, k, v, score_mod):
        if ranks == 1:
            return flex_attention(q, k, v, score_mod, mask)
        return cp.flex_attention(q, k, v, score_mod, mask, shards=shards)

    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[mine], attention), tokens[mine + 1], reduction="sum") / length
        loss.backward()
        total = loss.detach().clone()
        if ranks > 1:  # parts of the sum over the context, of gradients as of the loss
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(total)
        optimizer.step()
        losses.append(total.item())
    return losses


def limit_memory(tokens):
    """Limits this process to its current memory plus room for a step over this many tokens."""
    held = int(pathlib.Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    most = held + tokens * BYTES_PER_TOKEN + (96 << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def enter(rank, ranks, path, results, length, steps, tokens):
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=ranks, timeout=timedelta(minutes=10)
        )
    if tokens:
        limit_memory(tokens)
    try:
        results.put((rank, train(rank, ranks, length, steps), None))
    except (MemoryError, RuntimeError) as error:
        results.put((rank, None, str(error).splitlines()[0]))
    if ranks > 1:
        dist.destroy_process_group()


def run(ranks, length, steps, tokens):
    """The losses of rank 0, in processes with room for a step over this many tokens each (0: no limit)."""
    context = get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=enter, args=(rank, ranks, f"{folder}/group", results, length, steps, tokens))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        found = sorted(results.get() for _ in range(ranks))
        for process in processes:
            process.join()
    return found[0][1:]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--length", type=int, default=8192)
    given = arguments.parse_args()
    half = given.length // 2
    _, refused = run(1, given.length, 1, half)
    print(f"one process with room for {half:,} tokens, {given.length:,} tokens: {refused or 'it fits!'}")
    alone, error = run(1, given.length, given.steps, 0)
    spread, error = run(2, given.length, given.steps, half)
    if spread is None:
        sys.exit(f"two processes with room for {half:,} tokens each: {error}")
    print("step   one process   two processes of a half each")
    for step, (one, two) in enumerate(zip(alone, spread)):
        print(f"{step:4}   {one:11.6f}   {two:13.6f}")
    largest = max(abs(one - two) for one, two in zip(alone, spread))
    print(f"largest difference of the loss: {largest:.1e}")
    if refused is None or largest > 1e-4:
        sys.exit("the curve is not that of one process, or the limit is none")


if __name__ == "__main__":
    main()
