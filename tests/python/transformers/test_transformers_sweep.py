"""Every architecture of transformers, made small: with Quire it computes what `eager` computes, or it is refused by name.

The whole sweep is slow and part of `make check-all`; a slice of it runs always. architecture_sweep.py says what is compared.
"""

import collections

import pytest
from architecture_sweep import outcome
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
)


def of(mapping):
    return {kind.model_type: kind for kind in mapping.keys()}


DECODERS = of(MODEL_FOR_CAUSAL_LM_MAPPING)
GROUPS = {
    "decoders": (AutoModelForCausalLM, DECODERS),
    # of models that also see and hear
    "text parts": (
        AutoModel,
        {n: k for n, k in of(MODEL_MAPPING).items() if n.endswith("_text") and n not in DECODERS},
    ),
    "encoders": (AutoModelForMaskedLM, {n: k for n, k in of(MODEL_FOR_MASKED_LM_MAPPING).items() if n not in DECODERS}),
    "encoder-decoders": (AutoModelForSeq2SeqLM, of(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)),
}

# What `eager` cannot run in this way, and why.
NOT_RUN = {
    "blt": "wants patches of bytes",
    "cpmant": "puts tokens of its own in front",
    "esmc": "its vocabulary cannot be cut",
    "gemma3n": "wants a library for images",
    "gemma4_assistant": "wants the states of another model",
    "gemma4_unified_assistant": "wants the states of another model",
    "hunyuan_vl_text": "wants positions on several axes",
    "kyutai_speech_to_text": "wants codes of sounds",
    "musicgen": "wants codes of sounds",
    "musicgen_melody": "wants codes of sounds",
    "nemo_speechlm": "its parts must fit each other",
    "perceiver": "gives as many rows as it likes",
    "sam3_lite_text": "wants images",
    "speech_to_text": "wants sounds",
    "voxtral_realtime": "wants sounds",
    "voxtral_realtime_text": "AutoModel does not find it",
}


def report(name, outcomes):
    counts = collections.Counter(one.kind for one in outcomes)
    own = sum(one.kind == "right" and not one.calls for one in outcomes)
    lines = [
        f"{name}: {counts['right']} right ({own} of them without asking for attention), {counts['refused']} refused by name, "
        f"{counts['wrong']} wrong, {counts['none']} not run"
    ]
    return "\n".join(lines + [f"  {one.name}: {one.kind}: {one.text[:160]}" for one in outcomes if one.kind != "right"])


def check(outcomes):
    assert not [(one.name, one.text) for one in outcomes if one.kind == "wrong"]
    assert not [(one.name, one.text) for one in outcomes if one.kind == "none" and one.name not in NOT_RUN]
    # Otherwise the comparison says nothing about masks.
    assert not [one.name for one in outcomes if one.calls and one.kind == "right" and not one.masks_matter]


SLICE = """axk2 bloom deepseek_v32 deepseek_v4 doge falcon gemma2 glm_moe_dsa gpt_oss hy_v4 llama minimax_m3_vl_text
    mistral qwen4_exp_text""".split()
REFUSED = {"bloom", "falcon"}


@pytest.mark.parametrize("name", SLICE)
def test_a_slice(name):
    found = outcome(AutoModelForCausalLM, DECODERS[name])
    assert found.kind == ("refused" if name in REFUSED else "right"), found.text
    check([found])
    assert name not in found.text if found.kind == "right" else name in found.text


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_architecture(group, capsys):
    auto, kinds = GROUPS[group]
    outcomes = [outcome(auto, kind) for kind in kinds.values()]
    with capsys.disabled():
        print("\n" + report(group, outcomes))
    check(outcomes)
    assert sum(one.kind == "right" for one in outcomes) > len(outcomes) / 2
