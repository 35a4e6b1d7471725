"""flex_attention over NumPy and DLPack arrays and jagged batches, and evaluate, which writes a mod's values out.
Python layer."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from . import _core
from ._core import BlockMask, JaggedBlockMask, MaskMod, ScoreMod
from .arrays import like
from .hooks import Rope, hook_options
from .jagged import are_jagged
from .option_checks import (
    check_aux,
    check_dropout,
    check_flag,
    check_int,
    check_kernel_options,
    check_scale,
    check_seed,
    check_weights,
)
from .quantized import kv_view

Backend = Literal["AUTO", "TRITON", "FLASH", "TRITON_DECODE"]
_BACKENDS = typing.get_args(Backend)


class AuxRequest(NamedTuple):
    """What to return besides the output.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 2, 3, 8), numpy.float32)
    >>> out, aux = quire.flex_attention(x, x, x, return_aux=quire.AuxRequest(lse=True))
    >>> aux.lse.shape, aux.max_scores
    ((1, 2, 3), None)
    """

    lse: bool = False
    max_scores: bool = False
    key_weights: bool = False  # [B, Hq, S]: the softmax weights that queries gave to each key, summed over the queries
    entropy: bool = False  # [B, Hq, L]: of each query's softmax weights, in nats
    # The queries that key_weights sums over, (begin, end); only these are paid for. Negative numbers count from the
    # end, None is the end.
    key_weights_queries: tuple[int, int | None] | None = None


class AuxOutput(NamedTuple):
    """[B, Hq, L] each, f32 (f64 if computed in f64); None if it was not asked for. For a jagged query: Jagged, with
    values [total, Hq] or [Hq, total], in the query's order.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 1, 2, 4), numpy.float32)
    >>> quire.flex_attention(x, x, x, return_aux=quire.AuxRequest(max_scores=True))[1]
    AuxOutput(lse=None, max_scores=array([[[2., 2.]]], dtype=float32))
    """

    lse: Any = None
    max_scores: Any = None


class WeightsOutput(NamedTuple):
    """Replaces AuxOutput if the weights of keys or the entropy were asked for. key_weights: [B, Hq, S], for a jagged
    key Jagged in its order; the others as in AuxOutput.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 1, 2, 4), numpy.float32)
    >>> aux = quire.flex_attention(x, x, x, return_aux=quire.AuxRequest(key_weights=True))[1]
    >>> isinstance(aux, quire.WeightsOutput), aux.key_weights, aux.lse
    (True, array([[[1., 1.]]], dtype=float32), None)
    """

    lse: Any = None
    max_scores: Any = None
    key_weights: Any = None
    entropy: Any = None


def aux_output(return_aux: AuxRequest, *found: Any) -> AuxOutput | WeightsOutput:
    """Of lse, max_scores, key_weights and entropy."""
    if getattr(return_aux, "key_weights", False) or getattr(return_aux, "entropy", False):
        return WeightsOutput(*found)
    return AuxOutput(*found[:2])


class FlexKernelOptions(TypedDict, total=False):
    """PyTorch's options, which tune GPU kernels. All are accepted here; BACKEND must be one of PyTorch's. Other names
    give a warning.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 2, 3, 8), numpy.float32)
    >>> options: quire.FlexKernelOptions = {"BACKEND": "AUTO"}
    >>> quire.flex_attention(x, x, x, kernel_options=options).shape
    (1, 2, 3, 8)
    """

    BACKEND: Backend


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: ScoreMod | Callable | str | None = None,
    block_mask: BlockMask | JaggedBlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    q_begin: int | Sequence[int] | None = None,
    mask_mod: MaskMod | Callable | str | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    sinks: Any = None,
    lse_with_sinks: bool = False,
    weight_mod: ScoreMod | Callable | str | None = None,
    normalize: str | None = None,
    rope: Rope | None = None,
    key_indices: Any = None,
) -> Any:
    """softmax(score_mod(query key^T * scale)) value over the keys that the block mask leaves visible.

    Args:
        query: [B, Hq, L, E]; key: [Bkv, Hkv, S, E]; value: [Bkv, Hkv, S, Ev]. f32, f64, bf16 or f16 each, any strides,
            NumPy or DLPack; read in place. Bkv is B, or 1 with a block mask. Key and value may be a QuantizedTensor
            each, which gives the bits of the call over dequantize(key), dequantize(value) if they are not rotated. Or
            all three Jagged: then b in mods is the index of the sequence, and q_idx and kv_idx count inside it.
        score_mod: a ScoreMod, a text, or a function of (score, b, h, q_idx, kv_idx), which is traced at each call: to
            avoid that, make a ScoreMod from it once.
        block_mask: which keys are visible; by default all. For jagged inputs a JaggedBlockMask.
        scale: 1 / sqrt(E) if not given.
        enable_gqa: Hq may be a multiple of Hkv.
        return_lse: also return the natural log of the sum of exp(score).
        kernel_options: accepted for compatibility with PyTorch; see FlexKernelOptions.
        return_aux: what to return besides the output.
        q_begin: q_idx of the first query, one number or one per batch entry; by default the block mask's.
        mask_mod: for jagged inputs, instead of a block mask: the rule, proved for each sequence.
        dropout_p: the probability that a weight is dropped; the others are divided by 1 - dropout_p.
        seed: of the dropout, 64 bits; by default a new one. Which weights are dropped depends only on (seed, b, h,
            q_idx, kv_idx), not on layouts, threads or how queries are divided into calls.
        sinks: [Hq] floats: a logit per head that takes part in the sum of weights but has no value.
        lse_with_sinks: lse covers the whole sum, the sink included; otherwise only the keys.
        weight_mod: replaces softmax: the weight of a key as a formula of (score, b, h, q_idx, kv_idx), with the score
            after scale and score_mod. lse is then the sum of a row's weights, not its log.
        normalize: for these weights: None, or "sum": they are divided by the sum of their row (a row whose sum is 0
            gives 0).
        rope: rotates queries by q_idx and keys by kv_idx when they are read; see Rope.
        key_indices: int32 [B, L, k], or [B, Hq, L, k]: each query sees only these keys, further restricted by the mask;
            -1 marks an unused entry. Other keys are never read. For Jagged inputs [total, k], or the query's shape with
            k in place of its dim.

    Returns:
        [B, Hq, L, Ev] of the query's kind and dtype; with return_lse (out, lse); with return_aux (out, AuxOutput). The
        memory is new and owned by the results. For Jagged inputs all of these are Jagged. A row that sees nothing gives
        0 and an lse of -inf.

    >>> import numpy, quire
    >>> random = numpy.random.default_rng(0)
    >>> q = random.standard_normal((1, 8, 300, 64), numpy.float32)
    >>> k, v = random.standard_normal((2, 1, 2, 300, 64), numpy.float32)
    >>> causal = quire.create_block_mask("q_idx >= kv_idx", None, None, 300, 300)
    >>> out = quire.flex_attention(q, k, v, "20.0 * tanh(score / 20.0)", causal, enable_gqa=True)
    >>> out.shape, bool(numpy.allclose(out[0, 5, 0], v[0, 1, 0]))  # the first query sees the first key only
    ((1, 8, 300, 64), True)
    """
    wants_lse, wants_max = check_aux("flex_attention", return_lse, return_aux)
    wants = (wants_lse, wants_max, *check_weights("flex_attention", return_aux))
    if kernel_options is not None:
        check_flex_kernel_options(kernel_options)
    scale = check_scale("flex_attention", scale)
    enable_gqa = check_flag("flex_attention", "enable_gqa", enable_gqa)
    dropout_p = check_dropout("flex_attention", dropout_p)
    if score_mod is not None and type(score_mod) is not ScoreMod:
        score_mod = ScoreMod(score_mod)
    options = dict(
        score_mod=score_mod,
        block_mask=block_mask,
        mask_mod=mask_mod,
        q_begin=q_begin,
        scale=scale,
        enable_gqa=enable_gqa,
        dropout_p=dropout_p,
        seed=check_seed("flex_attention", dropout_p, seed),
        **hook_options("flex_attention", sinks, lse_with_sinks, weight_mod, normalize, rope),
        key_indices=key_indices,
    )
    result, lse, *others = compute("flex_attention", (query, key, value), options, wants)
    if return_aux is not None:
        return result, aux_output(return_aux, lse, *others)
    return (result, lse) if return_lse else result


def compute(
    function: str, inputs: tuple[Any, Any, Any], options: dict[str, Any], wants: tuple[Any, ...]
) -> tuple[Any, ...]:
    """(out, lse, max_scores, key_weights, entropy) of arrays or of Jagged inputs. options: for _core.Options; wants:
    what is wanted besides the output, as _core.new_attention takes it. Errors name `function`."""
    query, mask_mod, block_mask = inputs[0], options["mask_mod"], options["block_mask"]
    if are_jagged(function, *inputs):
        if options["q_begin"] is not None:
            raise ValueError(f"[{function}] q_begin is not for jagged inputs")
        mask_mod, block_mask = jagged_mask(mask_mod, block_mask, function)
        views: list[Any] = [one.views() for one in inputs]
        makers = [one.with_values for one in (query, query, query, inputs[1], query)]
    else:
        check_dense_mask(function, mask_mod, block_mask)
        views = [_core.view(query), kv_view(inputs[1]), kv_view(inputs[2])]
        makers = [lambda one: like(one, query)] * 5
    options = {**options, "mask_mod": mask_mod, "block_mask": block_mask}
    results = _core.new_attention(_core.Options(function, **options), *views, *wants)
    return tuple(None if one is None else make(one) for one, make in zip(results, makers, strict=True))


def check_dense_mask(where: str, mask_mod: Any, block_mask: Any) -> None:
    """Checks the mask of a call over dense arrays."""
    if mask_mod is not None:
        raise ValueError(f"[{where}] mask_mod is for jagged inputs; give create_block_mask(mask_mod, ...) otherwise")
    if isinstance(block_mask, JaggedBlockMask):
        raise TypeError(f"[{where}] a JaggedBlockMask is for jagged inputs")
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"[{where}] block_mask must be a BlockMask, from create_block_mask(mask_mod, ...); "
            f"got {type(block_mask).__name__}"
        )


def jagged_mask(
    mask_mod: Any, block_mask: Any, where: str = "flex_attention"
) -> tuple[MaskMod | None, JaggedBlockMask | None]:
    """The mask of jagged inputs, as _core takes it."""
    if block_mask is not None and not isinstance(block_mask, JaggedBlockMask):
        raise TypeError(
            f"[{where}] the block mask of jagged inputs must be a JaggedBlockMask, from create_jagged_block_mask; "
            f"got {type(block_mask).__name__}"
        )
    if mask_mod is not None and not isinstance(mask_mod, MaskMod):
        mask_mod = MaskMod(mask_mod)
    return mask_mod, block_mask


def check_flex_kernel_options(options: Mapping[str, Any]) -> None:
    check_kernel_options("flex_attention", options)
    backend = options.get("BACKEND", "AUTO")
    if backend not in _BACKENDS:
        raise ValueError(f"[flex_attention] BACKEND must be one of {_BACKENDS}; got {backend!r}")


def evaluate(
    mod: ScoreMod | MaskMod | Callable,
    scores_or_shape: Any,
    q_begin: int = 0,
    kv_begin: int = 0,
) -> Any:
    """Writes out a mod's values. For inspection and tests: attention itself never stores them.

    evaluate(score_mod, scores): f32 or f64 scores [B, H, q_len, kv_len] -> the same shape, dtype and kind of array.
    evaluate(mask_mod, (B, H, q_len, kv_len)): bools of that shape, NumPy.

    >>> import numpy, quire
    >>> quire.evaluate(quire.ScoreMod("score + kv_idx - q_idx"), numpy.zeros((1, 1, 2, 3)))[0, 0]
    array([[ 0.,  1.,  2.],
           [-1.,  0.,  1.]])
    >>> quire.evaluate(quire.mods.causal(), (1, 1, 1, 3), q_begin=1)[0, 0]
    array([[ True,  True, False]])
    """
    q_begin, kv_begin = check_int("evaluate", "q_begin", q_begin), check_int("evaluate", "kv_begin", kv_begin)
    if isinstance(mod, MaskMod):
        return _core.evaluate_mask(mod, scores_or_shape, q_begin, kv_begin)
    if isinstance(scores_or_shape, (tuple, list)) and not isinstance(mod, ScoreMod):
        return _core.evaluate_mask(MaskMod(mod), scores_or_shape, q_begin, kv_begin)
    result = _core.evaluate_score(mod, scores_or_shape, q_begin, kv_begin)
    return like(_core.view(result), scores_or_shape)
