"""PyTorch: scaled_dot_product_attention, nested tensors for ragged batches, compiled flex_attention over its PagedAttention for
pages."""

import itertools

import torch
import torch.nn.functional as F

from peers.unsupported import Unsupported

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def version():
    return torch.__version__


def prepare(case, threads):
    torch.set_num_threads(threads)
    if case.format:
        raise Unsupported("no attention over codes")
    with torch.inference_mode():
        if case.page_size:
            return _paged(case)
        if len(set(case.q_lengths)) > 1:
            return _nested(case)
        return _dense(case)


def _tokens(out, case):
    return out.float().transpose(1, 2).reshape(-1, case.q_heads, case.dim).numpy()


def _dense(case):
    inputs = [
        [torch.from_numpy(one).to(DTYPES[case.dtype]).contiguous() for one in case.dense(turn)]
        for turn in range(case.turns)
    ]
    turns = itertools.cycle(inputs)
    is_causal, is_grouped = case.is_causal and not case.is_decode, case.q_heads != case.kv_heads

    @torch.inference_mode()
    def call(arguments=None):
        return F.scaled_dot_product_attention(*(arguments or next(turns)), is_causal=is_causal, enable_gqa=is_grouped)

    return call, lambda: _tokens(call(inputs[0]), case)


def _nested(case):
    """Nested tensors are never causal on a CPU, so it is a loop of dense calls, as people write it who have packed tensors."""
    packed = [torch.from_numpy(one).to(DTYPES[case.dtype]) for one in case.arrays()]
    bounds = list(itertools.pairwise(case.offsets(case.q_lengths).tolist()))

    @torch.inference_mode()
    def call():
        out = torch.empty_like(packed[0])
        for begin, end in bounds:
            one = (t[begin:end].transpose(0, 1).unsqueeze(0) for t in packed)
            out[begin:end] = F.scaled_dot_product_attention(*one, is_causal=case.is_causal)[0].transpose(0, 1)
        return out

    return call, lambda: call().float().numpy()


def _paged(case):
    import torch.nn.attention.experimental._paged_attention as paged
    import torch.nn.attention.flex_attention as flex

    table, count = case.pages()
    lengths = torch.tensor(case.kv_lengths)
    pages = paged.PagedAttention(count, case.page_size, len(lengths), device="cpu")
    used = [row[: -(-n // case.page_size)] for row, n in zip(table.tolist(), case.kv_lengths)]
    # It takes pages from the end of its list.
    pages.empty_pages = [page for row in reversed(used) for page in reversed(row)]
    for b, length in enumerate(case.kv_lengths):
        pages.reserve(torch.tensor([b]), torch.tensor([length]))
    slots, inputs = case.slots(), []
    found = [pages.page_table[b, : len(row)].tolist() for b, row in enumerate(used)]
    if found != used:
        raise Unsupported("its page table has another order")
    for turn in range(case.turns):
        q, k, v = (torch.from_numpy(one).to(DTYPES[case.dtype]) for one in case.arrays(turn))
        pools = []
        for one in (k, v):
            pool = torch.zeros(1, case.kv_heads, count * case.page_size, case.dim, dtype=one.dtype)
            pool[0][:, slots] = one.transpose(0, 1)
            pools.append(pool)
        inputs.append((q.unsqueeze(2), *pools))
    last = lengths - 1
    sizes = (len(lengths), 1, 1, int(lengths.max()))
    mask = flex.create_block_mask(
        lambda b, h, q, kv: kv <= q + last[b], *sizes, device="cpu", BLOCK_SIZE=(128, case.page_size)
    )
    mask = pages.convert_logical_block_mask(mask, kv_len=lengths)
    compiled, turns = torch.compile(flex.flex_attention), itertools.cycle(inputs)

    @torch.inference_mode()
    def call(arguments=None):
        return compiled(*(arguments or next(turns)), block_mask=mask, enable_gqa=True)

    return call, lambda: call(inputs[0]).float()[:, :, 0].numpy()
