"""Section: how far results are from f64, and how far PyTorch's are in the same precision."""

import mod_spellings
import quire
from arrays import DTYPES, epsilon, random_arrays, to_torch
from attention_f64 import attention_f64, max_error
from layouts import causal_numpy
from markup import paragraph, table, tick
from section import HOW_TO_GET_TORCH, Section

RULES = ["plain", "causal", "mod"]
EPSILONS = 4  # an error above this many roundings of the largest value is shown as wrong


def with_quire(rule, q, k, v):
    mask = (
        quire.create_block_mask(quire.mods.causal(), None, None, q.shape[2], k.shape[2]) if rule == "causal" else None
    )
    return quire.flex_attention(q, k, v, mod_spellings.from_text() if rule == "mod" else None, mask)


def with_f64(rule, q, k, v):
    score_mod = mod_spellings.in_numpy if rule == "mod" else None
    return attention_f64(q, k, v, score_mod, causal_numpy if rule == "causal" else None)


def with_torch(torch, rule, q, k, v):
    """scaled_dot_product_attention. For the mod operations of torch in f32, rounded at the end: what torch's flex_attention
    does where it is not compiled, without the seconds that its first call takes. As f64.
    """
    q, k, v = (to_torch(torch, one) for one in (q, k, v))
    with torch.inference_mode():
        if rule != "mod":
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=rule == "causal")
            return out.double().numpy()
        scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
        at = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
        weights = mod_spellings.with_torch()(scores, *at).softmax(-1)
        return (weights @ v.float()).to(q.dtype).double().numpy()


def accuracy(context):
    length = 64 if context.quick else 512
    rows, lines, good = [], [], True
    for name, dtype in DTYPES.items():
        q, k, v = random_arrays([(1, mod_spellings.HEADS, length, 64)] * 3, name)
        for rule in RULES:
            exact = with_f64(rule, q, k, v)
            errors = [max_error(exact.astype(dtype), exact), max_error(with_quire(rule, q, k, v), exact)]
            if context.torch is not None:
                errors.append(max_error(with_torch(context.torch, rule, q, k, v), exact))
            good &= errors[1] <= EPSILONS * epsilon(dtype) * float(abs(v).max())
            rows.append(
                (
                    name,
                    rule,
                    *(f"{error:.2e}" for error in errors),
                    *(tick(errors[1] <= 2 * theirs) for theirs in errors[2:]),
                )
            )
            lines.append(
                f"{name:<5} {rule:<7} "
                + "  ".join(f"{title} {error:.2e}" for title, error in zip(_TITLES[1:3], errors[1:]))
            )
    html = paragraph(
        "The largest difference from attention in f64 (NumPy, plain formulas, the same rounded inputs): "
        f"{mod_spellings.HEADS} heads, {length} tokens, 64 numbers a head. The mod is the one above. “Rounding alone” is "
        "the f64 result stored in that precision: no implementation can be expected to be below it."
    )
    html += table(("precision", "rule", *_TITLES[: len(rows[0]) - 2]), rows, numeric=(2, 3, 4))
    if context.torch is None:
        html += paragraph(HOW_TO_GET_TORCH)
    else:
        html += paragraph("PyTorch: scaled_dot_product_attention, and its plain operations in f32 for the mod.")
    if "bf16" not in DTYPES:
        html += paragraph("bf16 in NumPy needs ml_dtypes (pip install ml_dtypes).")
    return Section(html, ["largest difference from f64", *lines], good)


_TITLES = ("rounding alone", "Quire", "PyTorch", "at most twice PyTorch's")
