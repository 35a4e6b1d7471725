"""What cannot be traced is an error that names the operation and the user's line."""

import inspect
import math

import pytest
import torch
from quire.torch.trace import TraceError, trace_mask_mod, trace_score_mod

TABLE = torch.arange(8.0)


def condition(score, b, h, q_idx, kv_idx):
    if q_idx > 3:
        return score
    return score * 2


def loop(score, b, h, q_idx, kv_idx):
    while kv_idx < q_idx:
        kv_idx = kv_idx + 1
    return score


def both(score, b, h, q_idx, kv_idx):
    return q_idx > 3 and kv_idx > 3


def chained(score, b, h, q_idx, kv_idx):
    return 0 < q_idx < 5


def builtin_min(score, b, h, q_idx, kv_idx):
    return score + min(q_idx, 3)


def membership(score, b, h, q_idx, kv_idx):
    return score * (q_idx in (1, 2))


def item(score, b, h, q_idx, kv_idx):
    return score + q_idx.item()


def to_int(score, b, h, q_idx, kv_idx):
    return score + int(q_idx)


def to_float(score, b, h, q_idx, kv_idx):
    return score + math.exp(q_idx)


def to_index(score, b, h, q_idx, kv_idx):
    return sum(range(q_idx), score)


def of_a_list(score, b, h, q_idx, kv_idx):
    return score + [1, 2, 3][q_idx]


def of_an_array(score, b, h, q_idx, kv_idx):
    return score + TABLE.numpy()[q_idx]


def to_list(score, b, h, q_idx, kv_idx):
    return score + q_idx.tolist()


def to_numpy(score, b, h, q_idx, kv_idx):
    return score.numpy()


def in_place_captured(score, b, h, q_idx, kv_idx):
    TABLE.add_(1)
    return score


def assignment(score, b, h, q_idx, kv_idx):
    TABLE[0] = 1
    return score


def random(score, b, h, q_idx, kv_idx):
    return score + torch.rand_like(score)


def random_captured(score, b, h, q_idx, kv_idx):
    return score + torch.rand(8)[q_idx]


def dropout(score, b, h, q_idx, kv_idx):
    return torch.nn.functional.dropout(score, 0.5)


def unsupported(score, b, h, q_idx, kv_idx):
    return torch.special.i0(score)


def unsupported_deeper(score, b, h, q_idx, kv_idx):
    return helper(score)


def helper(score):
    return torch.atan2(score, score)


def running_sum(score, b, h, q_idx, kv_idx):
    return TABLE[q_idx:].cumsum(0) if q_idx is None else TABLE.reshape(2, 4)[h].cumsum(0)[1]


def distances(score, b, h, q_idx, kv_idx):
    return torch.cdist(TABLE.reshape(2, 2, 2)[h], TABLE.reshape(2, 2, 2)[h])[0, 1]


def moved_away(score, b, h, q_idx, kv_idx):
    return score.to("meta")


LINES = [
    (condition, 1, "the truth of a traced value"),
    (loop, 1, "the truth of a traced value"),
    (both, 1, "the truth of a traced value"),
    (chained, 1, "the truth of a traced value"),
    (builtin_min, 1, "the truth of a traced value"),
    (membership, 1, "the truth of a traced value"),
    (item, 1, r"the value of a traced tensor \(item\)"),
    (to_int, 1, r"the value of a traced tensor \(__int__\)"),
    (to_float, 1, r"the value of a traced tensor \(__float__\)"),
    (to_index, 1, r"the value of a traced tensor \(__index__\)"),
    (of_a_list, 1, r"the value of a traced tensor \(__index__\) .*, index a tensor: torch.tensor\(a_list\)\[q_idx\]"),
    (of_an_array, 1, r"the value of a traced tensor \(__array__\) .*, torch.from_numpy\(an_array\)\[q_idx\]"),
    (to_list, 1, r"the value of a traced tensor \(tolist\)"),
    (to_numpy, 1, r"the value of a traced tensor \(numpy\)"),
    (in_place_captured, 1, r"the in-place operation aten.add_.Tensor cannot be traced"),
    (assignment, 1, "an assignment to elements of a tensor cannot be traced"),
    (random, 1, r"the random operation aten.rand_like.default cannot be traced"),
    (random_captured, 1, r"the random operation aten.rand.default cannot be traced"),
    (dropout, 1, r"the operation aten.empty_like.default in dropout\(\) cannot be traced"),
    (unsupported, 1, r"the operation aten.i0.default in special_i0\(\) cannot be traced"),
    (running_sum, 1, r"the operation aten.cumsum.default cannot be traced"),
    (distances, 1, r"the operation aten._cdist_forward.default cannot be traced"),
    (moved_away, 1, "it cannot move values to meta"),
]


def first_line(function):
    return inspect.getsourcelines(function)[1]


@pytest.mark.parametrize(("mod", "below", "text"), LINES, ids=[m.__name__ for m, _, _ in LINES])
def test_operation_and_line_are_named(mod, below, text):
    with pytest.raises(TraceError, match=text) as caught:
        trace_score_mod(mod)
    assert str(caught.value).endswith(f"(at {__file__}:{first_line(mod) + below})")
    assert str(caught.value).startswith("[trace] ")


def test_the_line_is_the_innermost_of_the_user():
    with pytest.raises(TraceError, match=r"aten.atan2.default") as caught:
        trace_score_mod(unsupported_deeper)
    assert str(caught.value).endswith(f"(at {__file__}:{first_line(helper) + 1})")


def test_a_trace_error_is_a_runtime_error():
    assert issubclass(TraceError, RuntimeError)


def test_captured_tensors_are_as_before():
    before = TABLE.clone()
    for mod in (in_place_captured, assignment):
        with pytest.raises(TraceError):
            trace_score_mod(mod)
    assert torch.equal(TABLE, before)


@pytest.mark.parametrize("result", [None, "x", (1, 2), [1.0], {}])
def test_results_that_are_no_value(result):
    with pytest.raises(TraceError, match=f"must return a tensor or a number; got {type(result).__name__}"):
        trace_score_mod(lambda score, b, h, q_idx, kv_idx: result)


def test_wrong_number_of_arguments():
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        trace_mask_mod(lambda score, b, h, q_idx, kv_idx: score)
    with pytest.raises(TypeError, match="takes 4 positional arguments but 5 were given"):
        trace_score_mod(lambda b, h, q_idx, kv_idx: b)


def test_what_the_mod_throws_comes_through():
    def mod(b, h, q_idx, kv_idx):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace_mask_mod(mod)


def test_what_torch_throws_comes_through():
    with pytest.raises(RuntimeError, match="Integers to negative integer powers are not allowed"):
        trace_score_mod(lambda score, b, h, q_idx, kv_idx: q_idx**-2)
    with pytest.raises(RuntimeError, match="Subtraction, the `-` operator, with two bool tensors is not supported"):
        trace_mask_mod(lambda b, h, q_idx, kv_idx: (q_idx > 1) - (kv_idx > 1))


def test_torch_works_as_before_after_an_error():
    with pytest.raises(TraceError):
        trace_score_mod(condition)
    assert torch.is_grad_enabled()
    assert (torch.arange(3)[torch.tensor(1)] + 1).item() == 2


def test_a_traced_value_that_escapes_is_refused_later():
    kept = []

    def mod(score, b, h, q_idx, kv_idx):
        kept.append(q_idx)
        return score

    trace_score_mod(mod)
    assert repr(kept[0]) == "TracedTensor(shape=(), dtype=torch.int64)"
    with pytest.raises(TraceError, match="after the mod had ended"):
        kept[0] + 1
