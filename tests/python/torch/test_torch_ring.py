"""torch's own context parallelism on the CPU, over gloo, with quire.torch.enable(): SDPA under context_parallel(), which torch alone
refuses there, and flex_attention under _ContextParallel."""

import pytest
import torch
import torch.nn.functional as F
from context_ranks import on_ranks, run_ranks

LENGTH, SEQ_DIM = 512, 2


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(1, 4, LENGTH, 32).to(dtype) for _ in range(3)]


def with_gradients(inputs, attention):
    """Output and gradients of a loss that is a sum over tokens."""
    leaves = [one.detach().clone().requires_grad_() for one in inputs]
    out = attention(*leaves)
    (out.float() * torch.linspace(-1, 1, out.size(-1))).sum().backward()
    return [out.detach(), *(one.grad for one in leaves)]


def expect_close(found, wanted):
    for one, other in zip(found, wanted):
        bound = (2**-7 if one.dtype is torch.bfloat16 else 2**-18) * other.float().abs().max()
        off = (one.float() - other.float()).abs().max()
        assert off <= bound, f"off by {off}, {off / bound:.2f} of the bound"


def ring(rank, ranks, rotate, is_causal, balances, dtype=torch.float32, enables=True):
    """F.scaled_dot_product_attention inside of context_parallel()."""
    import quire.torch
    import torch.distributed.tensor.experimental._context_parallel._attention as torch_attention
    from torch.distributed.device_mesh import init_device_mesh

    torch_attention._cp_options.enable_load_balance = balances
    torch_attention.set_rotate_method(rotate)
    mesh = init_device_mesh("cpu", (ranks,))

    def attention(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    inputs = tensors(dtype)
    wanted = with_gradients([one.float() for one in inputs], attention)
    if enables:
        quire.torch.enable()
    with torch_attention.context_parallel(mesh, buffers=inputs, buffer_seq_dims=[SEQ_DIM] * 3):
        mine = with_gradients(inputs, attention)
        found = torch_attention.context_parallel_unshard(mesh, mine, [SEQ_DIM] * 4)
    expect_close(found, wanted)
    quire.torch.disable()
    return True


def flex(rank, ranks, balances):
    """flex_attention in a module under _ContextParallel, whose mask is sharded with the tensors."""
    import quire.torch
    import torch.distributed.tensor.experimental._context_parallel._attention as torch_attention
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer
    from torch.distributed.tensor.parallel import parallelize_module
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Attention(torch.nn.Module):
        def forward(self, query, key, value, block_mask):
            return flex_attention(query, key, value, block_mask=block_mask)

    mesh = init_device_mesh("cpu", (ranks,))
    style = torch_attention._ContextParallel
    balancer = _HeadTailLoadBalancer(LENGTH, ranks, "cpu") if balances else None
    with quire.torch.enable():
        mask = create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu")
        wanted = with_gradients(tensors(), lambda *qkv: flex_attention(*qkv, block_mask=mask))
        module = parallelize_module(Attention(), mesh, style(SEQ_DIM, style.AttentionType.FLEX))
        *mine, part = torch_attention._context_parallel_shard(
            mesh, [*tensors(), mask], [SEQ_DIM, SEQ_DIM, SEQ_DIM, 0], balancer
        )
        made = with_gradients(mine, lambda *qkv: module(*qkv, part))
        found = torch_attention.context_parallel_unshard(mesh, made, [SEQ_DIM] * 4, balancer)
    expect_close(found, wanted)
    if not balances:  # keys lie in order, and forward is one call: the bits of one process
        assert torch.equal(found[0], wanted[0])
    return True


def test_sdpa(tmp_path):
    assert all(on_ranks(tmp_path, ring, 2, "allgather", True, True))


def test_torch_alone_refuses(tmp_path):
    """What enable() is for; where torch learns it, the handlers can go."""
    for _, error in run_ranks(tmp_path, ring, 2, "allgather", True, True, torch.float32, False):
        assert error is not None and "sharding strategy" in error[1]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rotate", "is_causal", "balances"),
    [("alltoall", True, True), ("allgather", True, False), ("allgather", False, False)],
)
def test_sdpa_otherwise(tmp_path, ranks, dtype, rotate, is_causal, balances):
    assert all(on_ranks(tmp_path, ring, ranks, rotate, is_causal, balances, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("balances", [False, True])
def test_flex_attention(tmp_path, balances):
    assert all(on_ranks(tmp_path, flex, 2, balances))
