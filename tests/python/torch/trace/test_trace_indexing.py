"""Elements and rows of captured tensors, indexed in every way, against torch run element by element."""

import pytest
import torch
from quire.torch.trace import TraceError, trace_score_mod
from traced_values import by_elements, by_quire

SIZES = (1, 2, 5, 6)

LINE = torch.linspace(-2, 3, 5)
PLANE = torch.linspace(-1, 4, 30).reshape(5, 6)
CUBE = torch.linspace(0, 9, 60).reshape(2, 5, 6)
IDS = torch.tensor([4, 0, 3, 1, 2])
NEAR = torch.tensor([[0, 1, 2], [4, 4, 4], [3, 2, 0], [1, 0, 1], [2, 3, 4]])
PLACE = torch.tensor(2)

INDEXED = {
    "element": lambda s, b, h, q, k: s + PLANE[q, k],
    "chain": lambda s, b, h, q, k: PLANE[q][k] + CUBE[h][q][k],
    "mixed chain": lambda s, b, h, q, k: CUBE[h, q][k] + CUBE[h][q, k],
    "constant": lambda s, b, h, q, k: PLANE[q, 0] + PLANE[q, -1] + PLANE[-2, k] + PLANE[1][k],
    "all constant": lambda s, b, h, q, k: s + PLANE[1, 2] + LINE[-1],
    "negative": lambda s, b, h, q, k: LINE[q - 5] + PLANE[-1 - q, k - 6],
    "expression": lambda s, b, h, q, k: LINE[(q * 3 + k) % 5],
    "by another": lambda s, b, h, q, k: LINE[IDS[q]] + PLANE[IDS[IDS[q]], k],
    "by its own": lambda s, b, h, q, k: IDS[IDS[IDS[q]]],
    "int32": lambda s, b, h, q, k: PLANE[q.int(), k.to(torch.int32)],
    "captured place": lambda s, b, h, q, k: PLANE[PLACE, k] + PLANE[q, PLACE],
    "constant tensor place": lambda s, b, h, q, k: PLANE[torch.tensor(3), k],
    "ellipsis": lambda s, b, h, q, k: LINE[..., q] + CUBE[..., q, k][h],
    "slice before": lambda s, b, h, q, k: PLANE[:, k][q] + CUBE[:, q, k][h] + CUBE[h, :, k][q],
    "slice behind": lambda s, b, h, q, k: PLANE[q, :][k] + CUBE[h, :, :][q, k],
    "slice between": lambda s, b, h, q, k: PLANE[q, 1:4][k % 3] + PLANE[1:, 2:][q % 4, k % 4],
    "slice with step": lambda s, b, h, q, k: PLANE[q, ::2].sum() + PLANE[q, 1::2][1],
    "slice of captured": lambda s, b, h, q, k: PLANE[1:][q % 4, k] + PLANE[:, -2:][q, k % 2],
    "select of captured": lambda s, b, h, q, k: CUBE[1][q, k] + CUBE[:, 2][h, k],
    "captured by captured": lambda s, b, h, q, k: LINE[IDS][q] + PLANE[IDS][q, k],
    "new axis": lambda s, b, h, q, k: PLANE[q][None][0][k % 6] + PLANE[q].unsqueeze(0)[0][2],
    "method select": lambda s, b, h, q, k: PLANE[q].select(0, 3) + CUBE[h].select(1, 2)[q],
    "unpacked": lambda s, b, h, q, k: sum((lambda x, y, *rest: (x, y * 2))(*PLANE[q])),
    "iterated": lambda s, b, h, q, k: sum(x * i for i, x in enumerate(PLANE[q])),
    "flipped": lambda s, b, h, q, k: PLANE[q].flip(0)[1] + PLANE.flip(1)[q, k],
    "reshaped": lambda s, b, h, q, k: (
        PLANE[q].view(2, 3)[1, 2] + PLANE[q].reshape(3, 2)[2][0] + PLANE.reshape(-1)[q * 6 + k]
    ),
    "transposed": lambda s, b, h, q, k: PLANE.t()[k, q] + PLANE.T[k][q] + CUBE[h].T[k][q] + CUBE[h].mT[2, 1],
    "stacked": lambda s, b, h, q, k: torch.stack([q, k, q * k])[2] + torch.stack([s, s * 2]).sum(),
    "joined": lambda s, b, h, q, k: torch.cat([PLANE[q], LINE[1:3]])[7] + torch.cat([PLANE[q], IDS])[8],
    "split": lambda s, b, h, q, k: PLANE[q].split(2)[1][0] + PLANE[q].chunk(3)[2].sum(),
    "rows by rows": lambda s, b, h, q, k: LINE[NEAR[q]].sum() + PLANE[NEAR[q], k].amax(),
    "rows of rows": lambda s, b, h, q, k: PLANE[NEAR[q]][1][k] + PLANE[NEAR[q]].sum((0, 1)),
    "computed row": lambda s, b, h, q, k: (PLANE[q] * 2)[k] + (CUBE[h] + LINE[:, None])[q, k] + CUBE[h].sum(1)[q],
    "row of a row": lambda s, b, h, q, k: CUBE[h][2][k] + CUBE[h, 1].sum(),
    "large row is a row": lambda s, b, h, q, k: LARGE[h][0][7] + LARGE[h][3].sum(),
}
LARGE = torch.ones(2, 300, 300)


@pytest.mark.parametrize("mod", INDEXED.values(), ids=INDEXED.keys())
def test_values_are_those_of_torch(mod):
    error = 8 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(by_quire("score", mod, SIZES).double(), by_elements(mod, SIZES), rtol=error, atol=error)


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint16,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=map(str, DTYPES))
def test_tensors_of_every_dtype_and_layout(dtype):
    values = torch.arange(30).reshape(5, 6).to(torch.float32).to(dtype)
    wide = torch.arange(60).reshape(5, 12).to(torch.float32).to(dtype)[:, ::2]
    column = values[:, :1].expand(5, 6)
    for tensor in (values, values.t().contiguous().t(), wide, column):
        expected = tensor.double().expand(1, 2, 5, 6)
        assert torch.equal(by_quire("score", lambda s, b, h, q, k: tensor[q, k].to(s.dtype), SIZES).double(), expected)


def test_a_tensor_of_rank_8():
    tensor = torch.arange(256.0).reshape([2] * 8)
    mod = lambda s, b, h, q, k: tensor[0, 1, q % 2, k % 2, h, 0, (q + k) % 2, -1]  # noqa: E731
    assert torch.equal(by_quire("score", mod, SIZES).double(), by_elements(mod, SIZES))
    deep = torch.zeros([1] * 9)
    with pytest.raises(TraceError, match=r"at most 8 dimensions; got shape \(1, 1"):
        trace_score_mod(lambda s, b, h, q, k: deep[q][0, 0, 0, 0, 0, 0, 0, 0])


REFUSED = {
    "too many": (lambda s, b, h, q, k: LINE[q, k], IndexError, "too many indices for tensor of dimension 1"),
    "float": (lambda s, b, h, q, k: LINE[s], IndexError, "must be of dtype long or int; got torch.float32"),
    "int16": (lambda s, b, h, q, k: LINE[q.short()], IndexError, "must be of dtype long or int; got torch.int16"),
    "mask": (lambda s, b, h, q, k: LINE[q > k], TraceError, r"selects by a mask; convert it with .long\(\)"),
    "constant outside": (
        lambda s, b, h, q, k: PLANE[q, 6],
        IndexError,
        "index 6 is out of bounds for dimension 1 with size 6",
    ),
    "constant outside a row": (lambda s, b, h, q, k: PLANE[q][-7], IndexError, "index -7 is out of bounds"),
    "traced slice": (lambda s, b, h, q, k: PLANE[0, q:].sum(), TraceError, "a slice with traced ends cannot be traced"),
    "row": (lambda s, b, h, q, k: PLANE[q], TraceError, r"must return one value; got a tensor of shape \(6,\)"),
    "index_select": (
        lambda s, b, h, q, k: PLANE.index_select(0, q),
        TraceError,
        r"aten.index_select.default cannot be traced",
    ),
    "place in a flipped row": (
        lambda s, b, h, q, k: PLANE[q].flip(0)[k],
        TraceError,
        "a traced index into rearranged elements",
    ),
    "slice beside a traced place": (
        lambda s, b, h, q, k: (CUBE[h] * 2)[q, 1:].sum(),
        TraceError,
        "only elements and whole rows",
    ),
    "too large to move": (lambda s, b, h, q, k: LARGE[h].flip(0)[0, 0], TraceError, "too large to be rearranged"),
    "too large to write out": (
        lambda s, b, h, q, k: (LARGE[h] * 2).sum(),
        TraceError,
        "sum over 90000 computed elements",
    ),
    "bits": (lambda s, b, h, q, k: PLANE[q].view(torch.int32)[0], TraceError, "aten.view.dtype cannot be traced"),
    "too large to repeat": (lambda s, b, h, q, k: s.expand(100_000).sum(), TraceError, "too large to be written out"),
    "complex": (lambda s, b, h, q, k: COMPLEX[q].abs(), TraceError, "dtype torch.complex64 are not supported"),
    "sparse": (lambda s, b, h, q, k: SPARSE[q, k], TraceError, "must be strided; got one of layout torch.sparse_coo"),
    "meta": (lambda s, b, h, q, k: META[q], TraceError, "must be on the CPU; got one on meta"),
}
COMPLEX = torch.ones(5, dtype=torch.complex64)
SPARSE = PLANE.to_sparse()
META = torch.ones(5, device="meta")


@pytest.mark.parametrize(("mod", "kind", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(mod, kind, text):
    with pytest.raises(kind, match=text):
        trace_score_mod(mod)


def test_an_index_outside_names_tensor_and_index():
    with pytest.raises(IndexError, match="index 5 is outside buffer 'LINE' of size 5"):
        by_quire("score", lambda s, b, h, q, k: LINE[k], SIZES)
