from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest
import torch

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.decoding import DECODERS
from diffusion_mf.model import CORES, Labeller
from diffusion_mf.networks.encoders import ENCODERS
from diffusion_mf.structures import STRUCTURES
from diffusion_mf.systems import SYSTEMS

DOCUMENT = pathlib.Path(__file__).parent.parent / "docs" / "systems.md"

# Paper: table “Training objectives”, with λ_post of Diffusion-LCRF left to configurations; “Available final decoders”.
TABLE = {
    "unigram": ("direct", "unigram", {"denoising": 1}, ("argmax",), ("argmax", "mask-viterbi")),
    "mean-field": ("direct", "mean-field", {"denoising": 1}, ("argmax",), ("argmax", "mask-viterbi")),
    "lcrf": ("direct", "linear-chain", {"sequence": 1}, ("viterbi",), ("viterbi",)),
    "diffusion-uni": (
        "categorical",
        "unigram",
        {"denoising": 1, "posterior": 1},
        ("argmax",),
        ("argmax", "mask-viterbi"),
    ),
    "diffusion-mf": (
        "categorical",
        "mean-field",
        {"denoising": 1, "posterior": 1},
        ("argmax",),
        ("argmax", "mask-viterbi"),
    ),
    "diffusion-lcrf": ("categorical", "linear-chain", {"sequence": 1, "marginal": 1}, ("viterbi",), ("viterbi",)),
    "diffusionsl": ("bits", None, {"bits": 1}, ("native",), ("native", "mask-viterbi")),
}


def test_the_table_has_the_papers_seven_systems() -> None:
    assert list(SYSTEMS) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_every_row_is_the_papers(name) -> None:
    system = SYSTEMS[name]
    process, structure, weights, plain, constrained = TABLE[name]
    assert (system.name, system.process, system.structure) == (name, process, structure)
    assert {term: weight for term, weight in dataclasses.asdict(system.weights).items() if weight} == weights
    assert system.decoders(is_constrained=False) == plain
    assert system.decoders(is_constrained=True) == constrained
    assert system.is_diffusion is (process != "direct")


def test_every_name_in_the_table_exists() -> None:
    for system in SYSTEMS.values():
        assert system.process in CORES
        assert system.structure is None or system.structure in STRUCTURES
        assert set(system.plain_decoders + system.constrained_decoders) <= set(DECODERS)


def test_the_nearest_projection_replaces_native_decoding_only() -> None:
    assert SYSTEMS["diffusionsl"].decoders(is_constrained=True, projection="nearest") == ("argmax", "mask-viterbi")
    assert SYSTEMS["lcrf"].decoders(is_constrained=True, projection="nearest") == ("viterbi",)


def test_the_documented_example_adds_a_system_an_encoder_and_a_structure() -> None:
    example = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    before = [set(table) for table in (SYSTEMS, ENCODERS, STRUCTURES)]
    try:
        exec(example[1], {})
        config = Config.model_validate(
            {"task": "ner", "system": "diffusion-cautious", "encoder": {"kind": "bag-of-words", "width": 32}}
        )
        sentences = [Sentence(("a", "b"), ("O", "S-X")), Sentence(("b",), ("S-X",))]
        vocabulary = Vocabulary.build(sentences)
        labeller, batch = Labeller(config, vocabulary, LabelScheme.BMES), collate(sentences, vocabulary)
        losses = labeller.loss_sums(batch, seed=0, step=0, sentence_keys=torch.arange(2))
        assert losses.keys() == {"denoising", "posterior", "total"}
        losses["total"].backward()
        assert labeller.encoder.words.weight.grad.any()
        decoder_input = labeller.eval().predict(batch).decoder_input
        for decoder in labeller.decoders:
            assert DECODERS[decoder](decoder_input).shape == (2, 2)
    finally:
        for table, known in zip((SYSTEMS, ENCODERS, STRUCTURES), before, strict=True):
            for name in set(table) - known:
                del table[name]


def test_the_document_shows_the_grid_of_the_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = {
        tuple(re.findall(r"`([\w-]+)`", line)) for line in text.splitlines() if line.startswith("|") and "`" in line
    }
    for structure in ("unigram", "mean-field", "linear-chain"):
        direct, diffused = (
            next(name for name, system in SYSTEMS.items() if (system.process, system.structure) == (process, structure))
            for process in ("direct", "categorical")
        )
        assert (direct, diffused) in rows
