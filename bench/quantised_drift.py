"""What quantised keys and values cost a language model: the loss of the small GPT of examples/train_gpt.py, trained here, over
other batches than those of its training, with keys and values as they are and as codes of each format. The table is the
change of exp(loss), the perplexity.

    python bench/quantised_drift.py [--steps 400] [--batches 8]
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import pathlib
import sys
import types

import torch
import torch.nn.functional as F
from quire.torch import flex_attention, quantize

ROOT = pathlib.Path(__file__).resolve().parents[1]
FORMATS = ["int8", "u8", "int8_channel", "q8_0", "fp8_e4m3", "fp8_e5m2", "int4", "q4_0"]


def example() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt", ROOT / "examples/train_gpt.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_gpt"] = module
    spec.loader.exec_module(module)
    return module


class Coded:
    """flex_attention with keys and values coded first; in the place of the example's."""

    def __init__(self) -> None:
        self.format: str | None = None
        self.hadamard = False

    def __call__(self, query, key, value, *options):
        if self.format is not None:
            key, value = (quantize(x.contiguous(), self.format, self.hadamard) for x in (key, value))
        return flex_attention(query, key, value, *options)


def loss_of(gpt, batches) -> float:
    """Nats a character, over all of them."""
    total, count = 0.0, 0
    with torch.no_grad():
        for tokens, targets, document in batches:
            logits = gpt(tokens, document).flatten(0, 1)
            total += F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum").item()
            count += int((targets >= 0).sum())
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    train_gpt = example()
    corpus = train_gpt.Corpus(train_gpt.read_texts())
    options = types.SimpleNamespace(seed=0, width=128, layers=4, rows=4, length=512)  # the example's
    gpt, losses = train_gpt.train(corpus, given.steps, 2, options, train_gpt.Progress(quiet=True))
    print(f"{given.steps} steps, training loss {sum(losses[-20:]) / len(losses[-20:]):.3f}")
    generator = torch.Generator().manual_seed(12345)  # other batches than those of the training
    batches = [corpus.batch(8, 512, generator) for _ in range(given.batches)]
    coded = train_gpt.flex_attention = Coded()
    plain = loss_of(gpt, batches)
    print(f"loss {plain:.4f}, perplexity {math.exp(plain):.4f}")
    for name in FORMATS:
        changes = []
        for coded.hadamard in (False, True):
            coded.format = name
            changes.append(100 * (math.exp(loss_of(gpt, batches) - plain) - 1))
        print(f"  {name:13} {changes[0]:+.3f} %   with hadamard {changes[1]:+.3f} %", flush=True)


if __name__ == "__main__":
    main()
