"""quire.torch.varlen_attn and varlen_attn_out against torch's SDPA per sequence in f64: windows, pages, mods, gradients, graphs."""

import inspect

import pytest
import quire.torch
import torch
import torch.nn.attention.varlen as torch_varlen
from packed_reference import assert_near, offsets, packed
from quire.torch import flex_attention, varlen_attn, varlen_attn_out
from torch.nn.attention.varlen import AuxRequest

Q_LENGTHS, K_LENGTHS = [5, 0, 33, 128, 1, 40], [7, 4, 20, 300, 0, 40]
WINDOWS = [(-1, -1), (-1, 0), (3, 0), (2, 5), (-1, 4), (10, -1), (0, 0)]


def tensors(q_heads=4, kv_heads=2, dim=32, v_dim=24, dtype=torch.float32, q_lengths=Q_LENGTHS, k_lengths=K_LENGTHS):
    sizes = ((sum(q_lengths), q_heads, dim), (sum(k_lengths), kv_heads, dim), (sum(k_lengths), kv_heads, v_dim))
    return [torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes]


def call(q, k, v, *, function=varlen_attn, q_lengths=Q_LENGTHS, k_lengths=K_LENGTHS, **options):
    options.setdefault("enable_gqa", True)
    sizes = max(q_lengths, default=0), max(k_lengths, default=0)
    return function(q, k, v, offsets(q_lengths), offsets(k_lengths), *sizes, **options)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_forward_and_backward(window, dtype):
    q, k, v = tensors(dtype=dtype)
    out = call(q, k, v, window_size=window)
    exact = packed(q, k, v, Q_LENGTHS, K_LENGTHS, window=window)
    assert out.dtype == dtype
    assert_near(out, exact, dtype)
    d_out = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, (q, k, v), d_out), torch.autograd.grad(exact, (q, k, v), d_out.double()), strict=True
    ):
        assert_near(ours, theirs.double(), torch.bfloat16 if dtype == torch.bfloat16 else dtype)


def test_signatures_are_torchs_with_ours_behind():
    hooks = ["key_indices", "sinks", "weight_mod", "normalize", "rope"]
    for name, more in (("varlen_attn", hooks), ("varlen_attn_out", [])):
        theirs = list(inspect.signature(getattr(torch_varlen, name)).parameters.values())
        ours = list(inspect.signature(getattr(quire.torch, name)).parameters.values())
        for one, other in zip(theirs, ours):
            assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default)
        assert [one.name for one in ours[len(theirs) :]] == ["score_mod", "mask_mod", "dropout_p", "seed", *more]


def test_lse_is_that_of_flex_attention_per_head():
    q, k, v = tensors()
    out, lse = call(q, k, v, return_aux=AuxRequest(lse=True), scale=0.3)
    assert lse.shape == (4, sum(Q_LENGTHS)) and lse.dtype == torch.float32
    begin_q, begin_k = sum(Q_LENGTHS[:3]), sum(K_LENGTHS[:3])
    one = (
        t[None].transpose(1, 2)
        for t in (q[begin_q : begin_q + 128], k[begin_k : begin_k + 300], v[begin_k : begin_k + 300])
    )
    alone, aux = flex_attention(*one, scale=0.3, enable_gqa=True, return_aux=quire.torch.AuxRequest(lse=True))
    assert torch.equal(lse[:, begin_q : begin_q + 128], aux.lse[0])
    assert torch.equal(out[begin_q : begin_q + 128], alone[0].transpose(0, 1))
    assert torch.equal(lse[:, -41], torch.full((4,), -torch.inf))  # no keys
    (gradient,) = torch.autograd.grad(lse[:, :5].sum(), q)
    assert gradient[:5].abs().min() > 0 and not gradient[5:].any()


def test_bits_do_not_depend_on_the_other_sequences():
    q, k, v = (one.detach() for one in tensors())
    out = call(q, k, v, window_size=(-1, 0))
    for i in range(len(Q_LENGTHS)):
        a, b = offsets(Q_LENGTHS), offsets(K_LENGTHS)
        rows, keys = slice(int(a[i]), int(a[i + 1])), slice(int(b[i]), int(b[i + 1]))
        lengths = {"q_lengths": [Q_LENGTHS[i]], "k_lengths": [K_LENGTHS[i]]}
        assert torch.equal(call(q[rows], k[keys], v[keys], window_size=(-1, 0), **lengths), out[rows])


def paged(k, v, lengths, page_size, spare=3):
    """Pages in a random order, garbage in all other slots."""
    counts = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(counts) + spare)
    table = torch.full((len(lengths), max(counts) + 1), -7, dtype=torch.int32)
    pools = [torch.full((len(order), page_size, *one.shape[1:]), torch.nan, dtype=one.dtype) for one in (k, v)]
    at = 0
    for i, (one_k, one_v) in enumerate(zip(k.split(lengths), v.split(lengths))):
        table[i, : counts[i]] = order[at : at + counts[i]]
        at += counts[i]
        for pool, rows in zip(pools, (one_k, one_v)):
            for p in range(counts[i]):
                part = rows[p * page_size : (p + 1) * page_size]
                pool[table[i, p], : len(part)] = part
    return *pools, table


@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (6, 0)])
def test_pages_give_the_bits_of_packed_keys(page_size, window):
    q, k, v = (one.detach() for one in tensors())
    k_pages, v_pages, table = paged(k, v, K_LENGTHS, page_size)
    lengths = torch.tensor(K_LENGTHS, dtype=torch.int32)
    options = dict(enable_gqa=True, window_size=window, return_aux=AuxRequest(lse=True))
    expected, expected_lse = call(q, k, v, **options)
    for cu_seq_k in (None, offsets(K_LENGTHS)):
        out, lse = varlen_attn(
            q, k_pages, v_pages, offsets(Q_LENGTHS), cu_seq_k, 128, 300, seqused_k=lengths, block_table=table, **options
        )
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    with pytest.raises(RuntimeError, match="block_table is an inference-only parameter"):
        varlen_attn(
            q.requires_grad_(),
            k_pages,
            v_pages,
            offsets(Q_LENGTHS),
            None,
            128,
            300,
            seqused_k=lengths,
            block_table=table,
            **options,
        )


def test_seqused_k_hides_the_rest_and_has_gradients():
    q, k, v = tensors()
    used = [4, 0, 20, 211, 0, 39]
    out = call(q, k, v, seqused_k=torch.tensor(used, dtype=torch.int32), window_size=(-1, 0))
    rows = torch.cat([torch.arange(n) + int(begin) for n, begin in zip(used, offsets(K_LENGTHS))])
    exact = packed(q, k[rows], v[rows], Q_LENGTHS, used, window=(-1, 0))
    assert_near(out, exact)
    d_out = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, (q, k, v), d_out), torch.autograd.grad(exact, (q, k, v), d_out.double())
    ):
        assert_near(ours, theirs.double())


def test_mods_see_the_sequence_and_places_inside_it():
    q, k, v = tensors(dtype=torch.float64)
    slopes = torch.rand(len(Q_LENGTHS), 4, dtype=torch.float64, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score - slopes[b, h] * abs(q_idx - kv_idx)

    def mask_mod(b, h, q_idx, kv_idx):
        return (kv_idx + h + b) % 3 != 0

    def bias(i, n, m):
        return -slopes[i].double()[:, None, None] * (torch.arange(n)[:, None] - torch.arange(m)).abs()

    def visible(i, n, m):
        return ((torch.arange(m) + torch.arange(4)[:, None, None] + i) % 3 != 0).expand(-1, n, -1)

    out = call(q, k, v, score_mod=score_mod, mask_mod=mask_mod, window_size=(40, 3))
    exact = packed(q, k, v, Q_LENGTHS, K_LENGTHS, window=(40, 3), bias=bias, visible=visible)
    assert_near(out, exact)
    d_out = torch.randn_like(out)
    inputs = (q, k, v, slopes)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs, d_out), torch.autograd.grad(exact, inputs, d_out.double())
    ):
        assert_near(ours, theirs)


def test_dropout_is_that_of_flex_attention():
    q, k, v = (one.detach() for one in tensors())
    out = call(q[:5], k[:7], v[:7], q_lengths=[5], k_lengths=[7], dropout_p=0.4, seed=7)
    alone = flex_attention(
        *(t[None].transpose(1, 2) for t in (q[:5], k[:7], v[:7])), enable_gqa=True, dropout_p=0.4, seed=7
    )
    assert torch.equal(out, alone[0].transpose(0, 1))


def test_out_is_written_or_left_alone():
    q, k, v = (one.detach() for one in tensors())
    expected, expected_lse = call(q, k, v, window_size=(-1, 0), return_aux=AuxRequest(lse=True))
    out = torch.empty(4, sum(Q_LENGTHS), 24).transpose(0, 1)
    cu_seq = offsets(Q_LENGTHS), offsets(K_LENGTHS)
    given, lse = varlen_attn_out(
        out, q, k, v, *cu_seq, 128, 300, window_size=(-1, 0), enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    assert given is out and torch.equal(out, expected) and torch.equal(lse, expected_lse)
    with pytest.raises(ValueError, match="out must be torch.float32"):
        varlen_attn_out(out[1:], q, k, v, *cu_seq, 128, 300, enable_gqa=True)
    before = out.clone()
    with pytest.raises(ValueError, match="beyond the 371 tokens"):
        varlen_attn_out(out, q, k, v, cu_seq[0], cu_seq[1] + 1, 128, 300, enable_gqa=True)
    with pytest.raises(RuntimeError, match="has no gradient"):
        varlen_attn_out(out, q.requires_grad_(), k, v, *cu_seq, 128, 300, enable_gqa=True)
    assert torch.equal(out, before)


@pytest.mark.parametrize(
    "changed, error, text",
    [
        ({"enable_gqa": False}, ValueError, "Hq=4 and Hkv=2"),
        ({"max_q": 127}, ValueError, "max_q is 127, and a sequence has 128"),
        ({"max_k": 299}, ValueError, "max_k is 299, and a sequence has 300"),
        ({"window_size": (1, 2, 3)}, ValueError, "window_size must be"),
        ({"cu_seq_q": offsets(Q_LENGTHS)[:-1]}, ValueError, "cu_seq_q has 5 sequences, cu_seq_k has 6"),
        ({"cu_seq_k": offsets(K_LENGTHS).float()}, TypeError, "cu_seq_k must be int32 or int64"),
        ({"cu_seq_k": None}, ValueError, "block_table and seqused_k are needed"),
        ({"cu_seq_q": offsets(Q_LENGTHS).flip(0)}, ValueError, "offsets"),
        ({"query": torch.randn(1, 207, 4, 32)}, ValueError, "query must be"),
        ({"query": torch.randn(207, 4, 16)}, ValueError, "same head dim"),
        ({"value": torch.randn(3, 2, 24)}, ValueError, "same tokens and heads"),
        ({"return_aux": True}, TypeError, "return_aux must be an AuxRequest"),
        ({"dropout_p": 2.0}, ValueError, "dropout_p must be in 0..1"),
        ({"seqused_k": torch.tensor([8, 4, 20, 300, 0, 40])}, ValueError, "sequence 0 has 8 in a slot of 7"),
        ({"nonsense": 1}, TypeError, "nonsense"),
        ({"query": torch.ones(207, 4, 32, dtype=torch.int32)}, TypeError, "query must be f32, f64, bf16 or f16"),
        ({"query": torch.randn(207, 4, 32).to_sparse()}, TypeError, "query must be a dense tensor"),
        ({"scale": float("nan")}, ValueError, r"\[varlen_attn\] scale must be finite"),
        (
            {"cu_seq_q": torch.tensor([0, 9, 5, 20, 30, 40, 50])},
            ValueError,
            r"\[varlen_attn\] query: offsets must not fall",
        ),
        ({"seqused_k": torch.tensor([-1, 4, 20, 300, 0, 40])}, ValueError, "lengths must not be negative"),
    ],
)
def test_errors_name_what_is_wrong(changed, error, text):
    q, k, v = (one.detach() for one in tensors())
    given = dict(
        query=q,
        key=k,
        value=v,
        cu_seq_q=offsets(Q_LENGTHS),
        cu_seq_k=offsets(K_LENGTHS),
        max_q=128,
        max_k=300,
        enable_gqa=True,
    )
    with pytest.raises(error, match=text):
        varlen_attn(**{**given, **changed})


def test_tokens_of_no_sequence_are_rows_that_see_nothing():
    x, cu_seq = torch.randn(20, 2, 16), torch.tensor([3, 7, 15])
    out, lse = varlen_attn(x, x, x, cu_seq, cu_seq, 8, 8, return_aux=AuxRequest(lse=True))
    outside = torch.ones(20, dtype=torch.bool)
    outside[3:15] = False
    assert not out[outside].any() and (lse[:, outside] == -torch.inf).all() and lse[:, 3:15].isfinite().all()


def test_out_that_overlaps_itself_is_refused():
    x, cu_seq = torch.randn(20, 4, 16), torch.tensor([0, 20])
    memory = torch.zeros(2000)
    with pytest.raises(ValueError, match="elements of out share memory"):
        varlen_attn_out(memory.as_strided((20, 4, 16), (4, 16, 1)), x, x, x, cu_seq, cu_seq, 20, 20)
    assert not memory.any()


def test_nothing_at_all():
    q, k, v = tensors(q_lengths=[0, 0], k_lengths=[0, 3])
    assert call(q, k, v, q_lengths=[0, 0], k_lengths=[0, 3]).shape == (0, 4, 24)
    nothing = torch.zeros(1, dtype=torch.int32)
    assert varlen_attn(q, k, v, nothing, nothing, 0, 0, enable_gqa=True, window_size=(-1, 0)).shape == (0, 4, 24)


def test_enable_puts_quire_behind_torchs_own():
    q, k, v = tensors(kv_heads=4, v_dim=32, dtype=torch.bfloat16)
    arguments = (q, k, v, offsets(Q_LENGTHS), offsets(K_LENGTHS), 128, 300)
    with pytest.raises(NotImplementedError):
        torch_varlen.varlen_attn(*arguments)
    with quire.torch.enable():
        out, lse = torch_varlen.varlen_attn(*arguments, window_size=(-1, 0), return_aux=AuxRequest(lse=True))
        out.sum().backward()
        into = torch.empty_like(q)
        with torch.no_grad():
            torch_varlen.varlen_attn_out(into, *arguments, window_size=(-1, 0))
    expected, expected_lse = varlen_attn(*arguments, window_size=(-1, 0), return_aux=AuxRequest(lse=True))
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse) and torch.equal(into, expected)
    assert q.grad is not None
    with pytest.raises(NotImplementedError):
        torch_varlen.varlen_attn(*arguments)


def test_compiled_with_a_window_has_the_bits_and_gradients():
    q, k, v = tensors()

    def attention(q, k, v, cu_q, cu_k):
        out, lse = varlen_attn(
            q, k, v, cu_q, cu_k, 300, 300, window_size=(20, 0), enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
        return out * 2, lse

    cu_seq = offsets(Q_LENGTHS), offsets(K_LENGTHS)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(q, k, v, *cu_seq), attention(q, k, v, *cu_seq)):
        assert torch.equal(ours, theirs)
    ours, theirs = (torch.autograd.grad(f(q, k, v, *cu_seq)[0].sum(), (q, k, v)) for f in (compiled, attention))
    for one, other in zip(ours, theirs):
        assert torch.equal(one, other)
    with torch.no_grad():
        out = torch.empty(sum(Q_LENGTHS), 4, 24)
        into = torch.compile(
            lambda out: varlen_attn_out(out, q, k, v, *cu_seq, 128, 300, enable_gqa=True),
            fullgraph=True,
            backend="aot_eager",
        )
        into(out)
        assert torch.equal(out, call(q, k, v))


def test_compiled_with_mods_that_learn():
    q, k, v = tensors()
    slopes = torch.rand(4, requires_grad=True)

    def attention(q, k, v, slopes):
        def score_mod(score, b, h, q_idx, kv_idx):
            return score - slopes[h] * abs(q_idx - kv_idx)

        return call(
            q, k, v, score_mod=score_mod, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx % 3 != 0, window_size=(-1, 5)
        )

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    inputs = (q, k, v, slopes)
    assert torch.equal(compiled(*inputs), attention(*inputs))
    ours, theirs = (torch.autograd.grad(f(*inputs).sum(), inputs) for f in (compiled, attention))
    for one, other in zip(ours, theirs):
        assert torch.equal(one, other)


def test_gradients_of_gradients_are_refused():
    q, k, v = tensors()
    (gradient,) = torch.autograd.grad(call(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients"):
        gradient.sum().backward()


def test_vmap_over_a_batch_of_calls():
    q, k, v = (torch.randn(3, *one.shape) for one in tensors())
    out = torch.vmap(lambda q, k, v: call(q, k, v, window_size=(-1, 0)))(q, k, v)
    assert torch.equal(out, torch.stack([call(*one, window_size=(-1, 0)) for one in zip(q, k, v)]))
