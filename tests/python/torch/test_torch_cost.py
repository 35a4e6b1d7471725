"""What a small call costs beside torch's own. Timings: slow tests, for a machine with nothing else to do."""

import time

import pytest
import torch

from quire.torch import create_block_mask, flex_attention


def least_seconds(call, calls=100, rounds=200):
    """The quickest of many rounds: what it takes undisturbed."""
    for _ in range(calls):
        call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return min(times)


@pytest.mark.slow
def test_a_tiny_call_costs_at_most_four_of_sdpa():
    query, key, value = torch.randn(1, 4, 1, 64), torch.randn(1, 4, 16, 64), torch.randn(1, 4, 16, 64)
    slopes = torch.rand(4)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    mask = create_block_mask(lambda b, h, q, kv: kv <= q + 15, None, None, 1, 16)
    theirs = least_seconds(lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value))
    for arguments in ((), (alibi,), (alibi, mask)):
        ours = least_seconds(lambda: flex_attention(query, key, value, *arguments))
        assert ours <= 4 * theirs, f"{ours * 1e6:.1f} us against {theirs * 1e6:.1f} us of SDPA"
