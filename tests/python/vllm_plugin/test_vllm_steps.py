"""The step of an engine by quire.vllm, without vLLM: every kind of layer against plain formulas, and the bits of a request in any batch."""

import pytest
import quire
import torch
from engine_step import Requests, attend, metadata, reference
from quire.vllm.layer_mods import LayerMods
from quire.vllm.rule import LayerRule

LENGTHS = [1, 33, 700, 64, 260]
COUNTS = [1, 33, 1, 10, 200]  # a first token, a prefill, a decode, a chunk, a long chunk
HEADS = 8


def expect_reference(
    requests, rule, counts=COUNTS, causal=True, is_cross=False, sinks=None, dtype=torch.float32, **more
):
    step = metadata(requests, range(len(requests.lengths)), counts, causal=causal, is_cross=is_cross)
    q = torch.randn(sum(counts), HEADS, requests.dim).to(dtype)
    out = attend(requests, rule, q, step, sinks=sinks)
    allowed = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    first = 0
    for i, count in enumerate(counts):
        k, v = requests.read(i)
        begin = 0 if is_cross else requests.lengths[i] - count
        looks_back = causal if isinstance(causal, bool) else bool(causal[i])
        expected = reference(
            q[first : first + count],
            k,
            v,
            scale=rule.scale,
            q_begin=begin,
            window=rule.window,
            causal=looks_back and not is_cross,
            softcap=rule.softcap,
            alibi=rule.alibi or None,
            sinks=sinks,
            **more,
        )
        assert (out[first : first + count].double() - expected).abs().max() < allowed, i
        first += count
    assert len(step.plans) == 1


RULES = {
    "causal": LayerRule(0.125),
    "window": LayerRule(0.125, window=50),
    "softcap": LayerRule(0.5, softcap=2.0),
    "alibi": LayerRule(0.125, alibi=tuple(0.5**i for i in range(HEADS))),
    "all": LayerRule(0.125, window=100, softcap=5.0, alibi=(0.1,) * HEADS, has_sinks=True),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
def test_mixed_steps(name, dtype):
    rule = RULES[name]
    sinks = torch.randn(HEADS).to(dtype) if rule.has_sinks else None
    expect_reference(Requests(LENGTHS, dtype=dtype), rule, sinks=sinks, dtype=dtype)


@pytest.mark.parametrize("dim, v_dim, block", [(64, 64, 16), (40, 56, 32), (17, 17, 5), (192, 128, 128)])
def test_any_head_size_and_block_size(dim, v_dim, block):
    expect_reference(Requests(LENGTHS, dim=dim, v_dim=v_dim, block=block), LayerRule(0.1))


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_caches(format):
    expect_reference(Requests(LENGTHS, format=format), LayerRule(0.125, window=300))


def test_requests_that_look_both_ways():
    rule = LayerRule(0.125, window=40)
    requests = Requests(LENGTHS)
    expect_reference(requests, rule, causal=False)
    expect_reference(requests, LayerRule(0.125), causal=False)
    expect_reference(requests, rule, causal=torch.tensor([True, False, True, False, True]))


def test_cross_attention():
    expect_reference(
        Requests([30, 1, 300, 64, 5]), LayerRule(0.125), counts=[4, 1, 7, 1, 50], causal=False, is_cross=True
    )


def test_encoders():
    requests = Requests([5, 130, 1, 64])
    step = metadata(requests, range(4), requests.lengths, causal=False)
    q = torch.randn(200, HEADS, 64)
    k, v = torch.cat(requests.k), torch.cat(requests.v)
    for rule in (LayerRule(0.125), LayerRule(0.125, window=20, softcap=3.0)):
        out = torch.empty_like(q)
        step.over_tokens(rule, q, k, v, 1).run(q, quire._core.view(k), quire._core.view(v), out)
        parts = zip(*(one.split(requests.lengths) for one in (q, k, v)))
        expected = torch.cat(
            [
                reference(*p, scale=0.125, q_begin=0, window=rule.window, causal=False, softcap=rule.softcap)
                for p in parts
            ]
        )
        assert (out.double() - expected).abs().max() < 1e-5


def test_mods_of_ones_own():
    mods = LayerMods(
        quire.MaskMod("kv_idx % 3 != 1 or kv_idx == q_idx"), quire.ScoreMod("score * 2.0 - 0.01 * (q_idx - kv_idx)")
    )
    requests = Requests(LENGTHS)
    step = metadata(requests, range(5), COUNTS)
    q = torch.randn(sum(COUNTS), HEADS, 64)
    out = attend(requests, LayerRule(0.125, window=100, softcap=4.0, mods=mods), q, step)
    first = 0
    for i, count in enumerate(COUNTS):
        k, v = requests.read(i)
        group = (
            torch.einsum("qhd,khd->hqk", q[first : first + count].double(), k.double().repeat_interleave(4, 1)) * 0.125
        )
        place, key = LENGTHS[i] - count + torch.arange(count)[:, None], torch.arange(LENGTHS[i])[None]
        scores = 4.0 * torch.tanh(group / 4.0) * 2.0 - 0.01 * (place - key)
        seen = (key <= place) & (place - key < 100) & ((key % 3 != 1) | (key == place))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, v.double().repeat_interleave(4, 1))
        assert (out[first : first + count].double() - expected).abs().max() < 1e-5
        first += count


def test_lse_for_parts_of_the_keys():
    """What decode context parallelism needs: parts of a request's keys on two ranks, merged by their lse."""
    requests = Requests([96, 300])
    q = torch.randn(2, HEADS, 64)
    whole = attend(requests, LayerRule(0.125), q, metadata(requests, [0, 1], [1, 1]))
    states = []
    for half in (0, 1):
        keys = [0, 0]
        part = Requests([48, 150], block=32)
        for i, n in enumerate((96, 300)):
            keys[i] = slice(half * n // 2, (half + 1) * n // 2)
            part.k[i], part.v[i] = requests.k[i][keys[i]], requests.v[i][keys[i]]
            part.write(i, 0, n // 2)
        step = metadata(part, [0, 1], [1, 1], is_cross=True)
        pages, out, lse = part.pages(), torch.empty(2, HEADS, 64), torch.empty(2, HEADS)
        step.over_pages(LayerRule(0.125), q, pages, 1).run(q, pages.k, pages.v, out, lse=lse)
        states.append((out.numpy(), lse.numpy()))
    merged = quire.merge_states(*states)[0]
    assert abs(merged - whole.numpy()).max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    "rule", [LayerRule(0.125), LayerRule(0.125, window=600, softcap=20.0)], ids=["causal", "window"]
)
def test_bits_of_a_request_do_not_depend_on_its_batch(dtype, rule):
    """Batch invariance of the layer: alone, among 32, in one prefill or in chunks, decoded or prefilled, on 1 or 2 threads."""
    lengths = [1500, *(37 * i % 1300 + 1 for i in range(31))]
    requests = Requests(lengths, dtype=dtype)
    q = torch.randn(1500, HEADS, 64).to(dtype)
    whole = attend(requests, rule, q, metadata(requests, [0], [1500]))
    for threads in (1, 2):
        alone = attend(requests, rule, q[-1:], metadata(requests, [0], [1]), threads)
        assert torch.equal(alone, whole[-1:])
        counts = [1, *(min(n, 1 + 97 * i % 300) for i, n in enumerate(lengths[1:]))]
        others = torch.randn(sum(counts) - 1, HEADS, 64).to(dtype)
        many = attend(requests, rule, torch.cat([q[-1:], others]), metadata(requests, range(32), counts), threads)
        assert torch.equal(many[:1], whole[-1:])
        for chunk in (256, 501):  # each among another request's tokens
            parts = []
            for begin in range(0, 1500, chunk):
                end = min(begin + chunk, 1500)
                step = metadata(requests, [5, 0], [1, end - begin], ends=[lengths[5], end])
                parts.append(attend(requests, rule, torch.cat([others[:1], q[begin:end]]), step, threads)[1:])
            assert torch.equal(torch.cat(parts), whole)


def test_shared_prefixes_change_no_bit():
    requests = Requests([1200] * 6, kv_heads=2)
    for i in range(1, 6):  # blocks of the first 1024 keys are the first request's
        requests.table[i, :32] = requests.table[0, :32]
        requests.k[i][:1024], requests.v[i][:1024] = requests.k[0][:1024], requests.v[0][:1024]
    q = torch.randn(6, HEADS, 64)
    together = attend(requests, LayerRule(0.125), q, metadata(requests, range(6), [1] * 6))
    for i in range(6):
        assert torch.equal(
            together[i : i + 1], attend(requests, LayerRule(0.125), q[i : i + 1], metadata(requests, [i], [1]))
        )


def test_layers_share_a_plan_and_nothing_else():
    requests, others = Requests(LENGTHS, seed=1), Requests(LENGTHS, seed=2)
    others.table = requests.table
    for i in range(len(LENGTHS)):
        others.write(i, 0, LENGTHS[i])
    step = metadata(requests, range(5), COUNTS)
    rule = LayerRule(0.125, has_sinks=True)
    q = torch.randn(sum(COUNTS), HEADS, 64)
    for one in (requests, others):
        sinks = torch.randn(HEADS)
        alone = attend(one, rule, q, metadata(one, range(5), COUNTS), sinks=sinks)
        assert torch.equal(attend(one, rule, q, step, sinks=sinks), alone)
    assert len(step.plans) == 1
