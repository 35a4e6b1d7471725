"""quire.torch.varlen_attn against a loop of torch's SDPA over the sequences, which is what a CPU has without it.

python bench/varlen_torch.py [--threads 2] [--repetitions 5]
"""

import argparse

import torch
import torch.nn.functional as F
from comparison import Row, table
from quire.torch import varlen_attn

SEQUENCES, HEADS, DIM = 32, 8, 64


def rows():
    """32 sequences of 16 to 1024 tokens, lengths evenly spread and shuffled."""
    torch.manual_seed(0)
    lengths = torch.linspace(16, 1024, SEQUENCES).long()[torch.randperm(SEQUENCES)].tolist()
    cu_seq = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = torch.randn(3, sum(lengths), HEADS, DIM).to(dtype)
        for is_causal in (False, True):
            window = (-1, 0 if is_causal else -1)

            def ours(q=q, k=k, v=v, window=window):
                return varlen_attn(q, k, v, cu_seq, cu_seq, 1024, 1024, window_size=window)

            def theirs(q=q, k=k, v=v, is_causal=is_causal):
                parts = zip(*(one.split(lengths) for one in (q, k, v)))
                one_by_one = (
                    F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in part), is_causal=is_causal)
                    for part in parts
                )
                return torch.cat([one[0].transpose(0, 1) for one in one_by_one])

            name = f"{str(dtype)[6:]}, {'causal' if is_causal else 'full'}"
            yield Row("forward", name, theirs, ours, peer="a loop of SDPA")
            yield Row(
                "forward and backward", name, _trained(theirs, q, k, v), _trained(ours, q, k, v), peer="a loop of SDPA"
            )


def _trained(call, q, k, v):
    tensors = [one.clone().requires_grad_() for one in (q, k, v)]

    def run():
        call(*tensors).sum().backward()
        for one in tensors:
            one.grad = None

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = [row.run(given.repetitions) for row in rows()]
    print(table(sorted(found, key=lambda one: one["group"])))
