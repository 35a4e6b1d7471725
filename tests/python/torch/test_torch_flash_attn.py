"""quire.flash_attn against torch's SDPA per sequence in f64: every function, forward and backward; install() and a model that uses it."""

import importlib
import inspect
import subprocess
import sys

import pytest
import quire.flash_attn
import torch
import torch.nn.functional as F
from packed_reference import assert_near, offsets, one_sequence, packed
from quire.flash_attn import bert_padding as padding
from quire.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

OPTIONS = [
    "dropout_p",
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "alibi_slopes",
    "deterministic",
    "return_attn_probs",
]
DEFAULTS = [0.0, None, False, (-1, -1), 0.0, None, False, False]
VARLEN = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]


@pytest.mark.parametrize(
    "name, tensors",
    [
        ("flash_attn_func", ["q", "k", "v"]),
        ("flash_attn_kvpacked_func", ["q", "kv"]),
        ("flash_attn_qkvpacked_func", ["qkv"]),
        ("flash_attn_varlen_func", ["q", "k", "v", *VARLEN]),
        ("flash_attn_varlen_kvpacked_func", ["q", "kv", *VARLEN]),
        ("flash_attn_varlen_qkvpacked_func", ["qkv", "cu_seqlens", "max_seqlen"]),
    ],
)
def test_signatures(name, tensors):
    parameters = inspect.signature(getattr(quire.flash_attn, name)).parameters
    last = ["block_table"] if name == "flash_attn_varlen_func" else []
    assert list(parameters) == [*tensors, *OPTIONS, *last]
    assert [parameters[option].default for option in OPTIONS] == DEFAULTS
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters.values())


def exact_scores(q, k, softcap, slopes, i):
    """What stands in the place of scaled scores: the difference to them, as a bias [H, n, m]."""
    n, m, heads = q.shape[0], k.shape[0], q.shape[1]
    scores = (
        torch.einsum("nhd,mhd->hnm", q.double(), k.double().repeat_interleave(heads // k.shape[1], 1))
        * q.shape[2] ** -0.5
    )
    changed = softcap * torch.tanh(scores / softcap) if softcap > 0 else scores
    if slopes is not None:
        slope = (slopes if slopes.dim() == 1 else slopes[i]).double()[:, None, None]
        changed = changed - slope * (torch.arange(n)[:, None] + m - n - torch.arange(m)).abs()
    return changed - scores


def check(out, inputs, exact, dtype=torch.float32):
    assert_near(out, exact, dtype)
    d_out = torch.randn_like(out)
    ours = torch.autograd.grad(out, inputs, d_out)
    theirs = torch.autograd.grad(exact, inputs, d_out.double(), allow_unused=True, materialize_grads=True)
    for one, other in zip(ours, theirs, strict=True):
        assert_near(one, other.double(), dtype)


@pytest.mark.parametrize("q_len, k_len", [(7, 7), (5, 40), (40, 5), (1, 33), (3, 0)])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window_size": (4, 2)}, {"causal": True, "window_size": (3, 9)}, {"softmax_scale": 0.2}],
)
def test_padded_batches(q_len, k_len, options):
    q, k, v = (torch.randn(2, n, h, 32, requires_grad=True) for n, h in ((q_len, 6), (k_len, 2), (k_len, 2)))
    left, right = options.get("window_size", (-1, -1))
    window = (left, 0) if options.get("causal") else (left, right)
    exact = torch.stack([one_sequence(*one, window=window, scale=options.get("softmax_scale")) for one in zip(q, k, v)])
    check(flash_attn_func(q, k, v, **options), (q, k, v), exact)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("slopes", [None, (4,), (3, 4)])
def test_soft_cap_and_alibi(softcap, slopes):
    slopes = None if slopes is None else torch.rand(slopes)
    q_lengths, k_lengths = [9, 0, 30], [20, 6, 11]
    q, k, v = (torch.randn(n, h, 16, requires_grad=True) for n, h in ((39, 4), (37, 2), (37, 2)))
    out = flash_attn_varlen_func(
        q, k, v, offsets(q_lengths), offsets(k_lengths), 30, 20, causal=True, softcap=softcap, alibi_slopes=slopes
    )

    def bias(i, n, m):
        return exact_scores(q.split(q_lengths)[i], k.split(k_lengths)[i], softcap, slopes, i)

    check(out, (q, k, v), packed(q, k, v, q_lengths, k_lengths, window=(-1, 0), bias=bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_stacked_tensors_are_the_same_function(dtype):
    qkv = torch.randn(2, 30, 3, 4, 32, dtype=dtype, requires_grad=True)
    options = {"causal": True, "window_size": (10, 0), "softcap": 20.0}
    expected = flash_attn_func(*qkv.unbind(2), **options)
    assert torch.equal(flash_attn_qkvpacked_func(qkv, **options), expected)
    assert torch.equal(flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], **options), expected)
    cu_seqlens = offsets([30, 30])
    flat = qkv.flatten(0, 1)
    assert torch.equal(flash_attn_varlen_qkvpacked_func(flat, cu_seqlens, 30, **options), expected.flatten(0, 1))
    packed_kv = flash_attn_varlen_kvpacked_func(flat[:, 0], flat[:, 1:], cu_seqlens, cu_seqlens, 30, 30, **options)
    assert torch.equal(packed_kv, expected.flatten(0, 1))
    (gradient,) = torch.autograd.grad(flash_attn_qkvpacked_func(qkv, **options).sum(), qkv)
    (other,) = torch.autograd.grad(expected.sum(), qkv)
    assert torch.equal(gradient, other)


def test_probabilities_and_lse():
    q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 1030, 2, 16), torch.randn(2, 1030, 2, 16)
    out, lse, weights = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert lse.shape == (2, 4, 9) and weights.shape == (2, 4, 9, 1030)
    assert_near(weights.sum(-1), torch.ones(2, 4, 9, dtype=torch.float64))
    assert_near(torch.einsum("bhnm,bmhd->bnhd", weights, v.repeat_interleave(2, 2)), out.double())
    torch.manual_seed(3)
    out, _, dropped = flash_attn_func(q, k, v, dropout_p=0.25, causal=True, return_attn_probs=True)
    assert_near(dropped.abs(), weights.double())
    share = (dropped < 0).sum() / (dropped != 0).sum()
    assert 0.23 < share < 0.27
    kept = dropped.clamp(min=0) / 0.75
    assert_near(torch.einsum("bhnm,bmhd->bnhd", kept, v.repeat_interleave(2, 2)), out.double())
    _, lse, weights = flash_attn_varlen_func(
        q[0], k[0], v[0], offsets([4, 5]), offsets([1000, 30]), 5, 1000, return_attn_probs=True
    )
    assert lse.shape == (4, 9) and weights.shape == (2, 4, 5, 1000)
    assert not weights[0, :, 4:].any() and not weights[1, :, :, 30:].any()


def test_dropout_has_gradients_and_follows_torchs_seed():
    q = torch.randn(1, 20, 2, 16, requires_grad=True)

    def once():
        torch.manual_seed(5)
        out = flash_attn_func(q, q, q, dropout_p=0.5)
        return out, torch.autograd.grad(out.square().sum(), q)[0]

    (out, gradient), (again, same) = once(), once()
    assert torch.equal(out, again) and torch.equal(gradient, same)
    assert not torch.equal(flash_attn_func(q, q, q, dropout_p=0.5), out)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("page_size", [4, 256])
def test_pages(page_size):
    lengths = [9, 0, 300, 4]
    q, k, v = torch.randn(8, 4, 16), torch.randn(313, 2, 16), torch.randn(313, 2, 16)
    counts = [-(-n // page_size) for n in lengths]
    table = torch.zeros(4, max(counts), dtype=torch.int32)
    pages = [torch.full((sum(counts), page_size, 2, 16), torch.nan) for _ in range(2)]
    at = 0
    for i, n in enumerate(lengths):
        table[i, : counts[i]] = torch.arange(at, at + counts[i]).flip(0)
        at += counts[i]
        for pool, rows in zip(pages, (k.split(lengths)[i], v.split(lengths)[i])):
            for j in range(n):
                pool[table[i, j // page_size], j % page_size] = rows[j]
    arguments = offsets([2, 2, 2, 2]), offsets(lengths), 2, 300
    expected = flash_attn_varlen_func(q, k, v, *arguments, causal=True)
    assert torch.equal(flash_attn_varlen_func(q, *pages, *arguments, causal=True, block_table=table), expected)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"dropout_p": 1.5}, ValueError, "dropout_p"),
        ({"causal": "yes"}, TypeError, "causal must be a bool"),
        ({"window_size": 3}, ValueError, "window_size must be"),
        ({"alibi_slopes": torch.rand(3)}, ValueError, "alibi_slopes must be"),
        ({"alibi_slopes": torch.ones(4, dtype=torch.int64)}, TypeError, "alibi_slopes must be floats"),
        ({"alibi_slopes": torch.rand(4, device="meta")}, TypeError, "alibi_slopes must be floats on the CPU"),
        ({"softmax_scale": "1"}, TypeError, "softmax_scale must be a number"),
        ({"softcap": float("nan")}, ValueError, "softcap must be finite"),
        ({"softcap": "30"}, TypeError, "softcap must be a number"),
        ({"bias": 1}, TypeError, "bias"),
    ],
)
def test_errors_name_what_is_wrong(options, error, text):
    q = torch.randn(2, 5, 4, 16)
    with pytest.raises(error, match=text):
        flash_attn_func(q, q, q, **options)


def test_shapes_that_do_not_fit():
    q = torch.randn(2, 5, 4, 16)
    with pytest.raises(ValueError, match="same batch"):
        flash_attn_func(q, q[:1], q[:1])
    with pytest.raises(ValueError, match="Hq=4 and Hkv=3"):
        flash_attn_func(q, q[:, :, :3], q[:, :, :3])
    with pytest.raises(ValueError, match="qkv must be"):
        flash_attn_qkvpacked_func(q)
    with pytest.raises(ValueError, match="kv must be"):
        flash_attn_varlen_kvpacked_func(q[0], torch.randn(5, 3, 4, 16), offsets([5]), offsets([5]), 5, 5)


def test_padding_that_does_not_fit():
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="the mask must be a tensor with 2 axes at least; got list"):
        padding.unpad_input(x, [[1, 1, 0], [1, 0, 0]])
    with pytest.raises(ValueError, match="an index for each of 2 rows; got"):
        padding.pad_input(x[0, :2], torch.tensor([0]), 2, 3)


def test_compiled():
    qkv = torch.randn(2, 30, 3, 4, 16, requires_grad=True)
    slopes = torch.rand(4)

    def attention(qkv):
        return flash_attn_qkvpacked_func(qkv, causal=True, softcap=5.0, alibi_slopes=slopes)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(qkv), attention(qkv))
    ours, theirs = (torch.autograd.grad(f(qkv).sum(), qkv)[0] for f in (compiled, attention))
    assert torch.equal(ours, theirs)


# ---- bert_padding


def test_padding_there_and_back():
    x = torch.randn(3, 7, 4, 2, requires_grad=True)
    mask = torch.tensor([[1] * 5 + [0] * 2, [0] * 7, [0, 1, 1, 0, 1, 0, 1]])
    tokens, indices, cu_seqlens, longest, used = padding.unpad_input(x, mask)
    assert cu_seqlens.tolist() == [0, 5, 5, 9] and cu_seqlens.dtype == torch.int32 and longest == 5
    assert used.tolist() == [5, 0, 4] and torch.equal(tokens, x[mask.bool()])
    back = padding.pad_input(tokens, indices, 3, 7)
    assert torch.equal(back, x * mask[..., None, None])
    d = torch.randn_like(back)
    (gradient,) = torch.autograd.grad(back, x, d)
    assert torch.equal(gradient, d * mask[..., None, None])
    unused = torch.tensor([[0] * 5 + [1, 0], [0] * 7, [0] * 7])
    _, _, cu_seqlens, longest, used = padding.unpad_input(x, mask, unused)
    assert cu_seqlens.tolist() == [0, 6, 6, 10] and longest == 6 and used.tolist() == [5, 0, 4]


def test_rows_of_several_sequences_and_residuals():
    x = torch.randn(2, 6, 3, requires_grad=True)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    tokens, indices, cu_seqlens, longest = padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert cu_seqlens.tolist() == [0, 2, 5, 11] and longest == 6 and indices.tolist() == [0, 1, 2, 3, 4, *range(6, 12)]
    rows, same = padding.index_first_axis_residual(tokens, torch.tensor([1, 3]))
    (gradient,) = torch.autograd.grad((rows.sum() + 2 * same.sum()), tokens)
    assert gradient[:, 0].tolist() == [2, 3, 2, 3, 2, 2, 2, 2, 2, 2, 2]
    with pytest.raises(ValueError, match="the mask must be"):
        padding.unpad_input(x, lengths[:, :3])


# ---- a model of somebody else's


@pytest.fixture
def flash_attn():
    assert quire.flash_attn.install()
    yield importlib.import_module("flash_attn")


def test_install_finds_every_module(flash_attn):
    assert flash_attn.flash_attn_func is flash_attn_func and flash_attn.__version__ >= "2.6"
    interface = importlib.import_module("flash_attn.flash_attn_interface")
    assert interface.flash_attn_with_kvcache is quire.flash_attn.flash_attn_with_kvcache
    assert importlib.import_module("flash_attn.bert_padding").pad_input is padding.pad_input
    assert importlib.util.find_spec("flash_attn.losses") is None
    assert quire.flash_attn.__spec__.name == "quire.flash_attn"


def test_install_leaves_the_real_one_alone(tmp_path, python_env):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn/__init__.py").write_text("real = True")
    code = "import quire.flash_attn as q; print(q.install()); import flash_attn; print(flash_attn.real)"
    env = {**python_env, "PYTHONPATH": f"{python_env['PYTHONPATH']}:{tmp_path}"}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]


def test_an_unpadded_bert_runs_and_learns(flash_attn):
    bert = importlib.import_module("unpadded_bert")
    torch.manual_seed(0)
    model = bert.Bert()
    ids = torch.randint(100, (4, 50))
    mask = (torch.arange(50) < torch.tensor([50, 3, 17, 1])[:, None]).long()
    logits = model(ids, mask)

    def padded(x, layer):  # the same attention over padded rows
        q, k, v = layer.attention.qkv(x).unflatten(-1, (3, 4, -1)).unbind(2)
        out = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask.bool()[:, None, None]
        )
        x = layer.norm1(x + layer.attention.out(out.transpose(1, 2).flatten(2)))
        return layer.norm2(x + layer.mlp(x))

    x = model.embedding(ids)
    for layer in model.layers:
        x = padded(x, layer)
    rows = mask.bool()
    torch.testing.assert_close(logits[rows], model.head(x)[rows], rtol=1e-4, atol=1e-4)
    labels = torch.where((torch.rand(4, 50) < 0.3) & rows, ids, -100)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(ids, mask, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
