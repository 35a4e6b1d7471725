"""What `attn_implementation="quire"` makes of an architecture: as `eager`, refused by name, or wrong.

Support of test_transformers_sweep.py. A model with random weights, large enough for masks to matter, is run by both
implementations: a plain batch, padded ones, and token after token over a cache.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from small_models import padding
from tiny_configs import VOCABULARY, tiny_config
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

LENGTH, LENGTHS = 19, (19, 11)
PROMPT, END = 13, 16
# Of the largest logit: two orders in f32, with layers of experts and states behind them, differ by 1e-6 to 1e-5.
TOLERANCE = 1e-4


@dataclasses.dataclass
class Outcome:
    """kind: right, refused or wrong, or none if `eager` itself cannot run it. text: what was said, or how wrong it is.
    calls: of Quire's attention. masks_matter: without them `eager` gives something else."""

    name: str
    kind: str
    text: str = ""
    calls: int = 0
    masks_matter: bool = False


def _without_mask(module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs):
    """Every query sees every key, whatever the mask."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("without_mask", _without_mask)
AttentionMaskInterface.register("without_mask", sdpa_mask)


def made(auto: Any, config_class: type, implementation: str, weights: dict | None = None) -> torch.nn.Module:
    """With the given weights, or random ones that are larger than those of a fresh model. auto: a class of transformers that
    makes models of any configuration."""
    torch.manual_seed(1)
    model = auto.from_config(tiny_config(config_class), attn_implementation=implementation, dtype=torch.float32).eval()
    if weights is not None:
        model.load_state_dict(weights)
        return model
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and "conv" not in name:
            torch.nn.init.normal_(parameter, std=1.2 / parameter.shape[-1] ** 0.5)
        elif "sink" in name:
            torch.nn.init.normal_(parameter)
    return model


def _first(outputs: Any) -> torch.Tensor:
    return outputs.logits if "logits" in outputs else outputs[0]


def results(model: torch.nn.Module, ids: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Logits, or states, of the tokens that are none of padding: [tokens, width] each."""
    is_pair = model.config.is_encoder_decoder and "decoder_input_ids" in inspect.signature(model.forward).parameters
    others = {"decoder_input_ids": ids.flip(1)[:, :PROMPT]} if is_pair else {}
    with torch.no_grad():
        for side in ("none", "left", "right"):
            mask = padding(LENGTHS, ids.shape[1], side) if side != "none" else torch.ones_like(ids)
            torch.manual_seed(2)
            got = _first(model(ids, **others) if side == "none" else model(ids, attention_mask=mask, **others))
            yield f"padding: {side}", got.flatten(0, 1) if is_pair else got[mask.bool()]
        if not is_pair and "past_key_values" in inspect.signature(model.forward).parameters:
            yield from _token_after_token(model, ids, padding(LENGTHS, ids.shape[1], "left"))


def _token_after_token(
    model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    torch.manual_seed(2)
    outputs = model(ids[:, :PROMPT], attention_mask=mask[:, :PROMPT], use_cache=True)
    for end in range(PROMPT + 1, END + 1):
        cache = outputs.get("past_key_values")
        if cache is None:
            return
        outputs = model(ids[:, end - 1 : end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        yield f"token {end}", _first(outputs)[:, -1]


def _difference(expected: torch.Tensor, got: torch.Tensor) -> float:
    """The largest, in units of the largest logit; NaN is as wrong as can be."""
    return ((got - expected).abs().max() / expected.abs().max()).nan_to_num(torch.inf).item()


def outcome(auto: Any, config_class: type) -> Outcome:
    """Of one architecture."""
    name = config_class.model_type
    torch.manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, LENGTH))
    try:
        eager = made(auto, config_class, "eager")
        weights = eager.state_dict()
        expected = dict(results(eager, ids))
    except Exception as error:  # noqa: BLE001, whatever it is: the caller has a list of those that may be here
        return Outcome(name, "none", f"{type(error).__name__}: {error}")
    calls = []
    attend = AttentionInterface._global_mapping["quire"]

    def counted(*args, **kwargs):
        calls.append(None)
        return attend(*args, **kwargs)

    AttentionInterface.register("quire", counted)
    try:
        quire = made(auto, config_class, "quire", weights)
        for case, got in results(quire, ids):
            difference = _difference(expected[case], got)
            if difference > TOLERANCE:
                return Outcome(name, "wrong", f"{case}: {difference:.1e} of the largest logit", len(calls))
    except NotImplementedError as error:
        is_ours = str(error).startswith("[quire.transformers]")
        return Outcome(name, "refused" if is_ours else "wrong", f"{type(error).__name__}: {error}", len(calls))
    except Exception as error:  # noqa: BLE001, a refusal without a name is none
        return Outcome(name, "wrong", f"{type(error).__name__}: {error}", len(calls))
    finally:
        AttentionInterface.register("quire", attend)
    return Outcome(
        name, "right", "", len(calls), bool(calls) and _masks_matter(auto, config_class, weights, ids, expected)
    )


def _masks_matter(auto: Any, config_class: type, weights: dict, ids: torch.Tensor, expected: dict) -> bool:
    """Whether a mask that is not looked at would be seen in the logits."""
    blind = made(auto, config_class, "without_mask", weights)
    return any(_difference(expected[case], got) > 10 * TOLERANCE for case, got in results(blind, ids))
