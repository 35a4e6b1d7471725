"""Values and slopes of traced functions far out and at their corners are torch's: no NaN of a branch that is not chosen."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.functional as F

FUNCTIONS = {
    "elu": F.elu,
    "elu(2)": lambda x: F.elu(x, 2.0),
    "selu": F.selu,
    "celu": F.celu,
    "celu(0.5)": lambda x: F.celu(x, 0.5),
    "softplus": F.softplus,
    "softplus(2, 10)": lambda x: F.softplus(x, 2.0, 10.0),
    "silu": F.silu,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 1.0, 2.0),
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "asinh": torch.asinh,
    "acosh": lambda x: torch.acosh(x.abs() + 1.5),
    "hypot": lambda x: torch.hypot(x, x * 0 + 1.0),
    "logaddexp": lambda x: torch.logaddexp(x, x * 0 + 1.0),
    "xlogy": lambda x: torch.xlogy(x, 2.0),
    "erf": torch.erf,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
}
SIZES = [
    0.0,
    1e-30,
    1e-9,
    1e-3,
    0.5,
    1.0,
    3.0,
    6.0,
    19.9,
    20.1,
    80.0,
    88.0,
    89.0,
    100.0,
    1e3,
    1e4,
    1e9,
    1e10,
    1e20,
    1e30,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes(name, dtype):
    """Of one key, lse is its score: the gradient of lse is the slope of the mod."""
    function = FUNCTIONS[name]
    x = torch.tensor([sign * size for size in SIZES for sign in (1.0, -1.0)], dtype=dtype, requires_grad=True)
    expected = function(x)
    slopes = torch.autograd.grad(expected.sum(), x)[0]
    query = x.detach().reshape(1, 1, -1, 1).requires_grad_()
    one = torch.ones(1, 1, 1, 1, dtype=dtype)
    mod = lambda score, b, h, q_idx, kv_idx: function(score)  # noqa: E731
    _, aux = quire_torch.flex_attention(query, one, one, mod, scale=1.0, return_aux=quire_torch.AuxRequest(lse=True))
    found = torch.autograd.grad(aux.lse.sum(), query)[0]
    # Torch's own have constants in f32 and thresholds of 1e-9, in f64 too.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-7, "atol": 1e-8}
    torch.testing.assert_close(aux.lse.flatten(), expected.detach(), **tolerance)
    torch.testing.assert_close(
        found.flatten(), slopes, equal_nan=name == "gelu, tanh", **tolerance
    )  # x^3 overflows in torch's
