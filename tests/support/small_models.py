"""Real labellers of every system, small and with random weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme, complete_labels
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.model import Labeller
from diffusion_mf.tagger import StoredModel, Tagger, load_model, save_model

WORDS = {
    Task.POS: "mira/NOUN sel/VERB da/DET toro/NOUN vi/ADP Lanu/PROPN ./PUNCT",
    Task.NER: "Ada/B-PER Byron/E-PER sings/O in/O Oslo/S-LOC for/O the/B-ORG royal/M-ORG choir/E-ORG Eve/S-PER",
    Task.SEG_POS: "a/B-NN b/E-NN c/S-VV d/B-VV e/M-VV f/E-VV g/S-PU",
}


def vocabulary_of(task: Task, *, min_pair_count: int | None = None) -> Vocabulary:
    words = [word.rsplit("/", 1) for word in WORDS[task].split()]
    sentence = Sentence(tuple(form for form, _ in words), tuple(label for _, label in words))
    return Vocabulary.build([sentence], min_pair_count=min_pair_count)


def small_model(
    system: str = "diffusion-mf",
    task: Task = Task.NER,
    *,
    seed: int = 1,
    decoder: str | None = None,
    temperature: float = 1.5,
    settings: dict[str, Any] | None = None,
    source_scheme: LabelScheme | None = None,
    legal_decoder: str | None = None,
    has_complete_labels: bool = False,
    source_columns: tuple[int, int] | None = None,
) -> StoredModel:
    """A model that knows nothing, but has opinions: its last weights are drawn wider than for training."""
    values = {
        "task": str(task),
        "system": system,
        "encoder": {
            "width": 16, "heads": 2, "layers": 1, "word_width": 8, "character_width": 4, "character_hidden": 4,
        },
        "denoiser": {"width": 16, "heads": 2, "layers": 1, "time_width": 8},
        "structure": {"scorer_width": 16},
    }  # fmt: skip
    config = Config.model_validate(values | (settings or {}))
    vocabulary = vocabulary_of(task, min_pair_count=1 if config.encoder.pair_width else None)
    if has_complete_labels:
        vocabulary = dataclasses.replace(vocabulary, labels=tuple(complete_labels(vocabulary.labels, task.scheme)))
    generator = torch.Generator().manual_seed(seed)
    labeller = Labeller(config, vocabulary, task.scheme).eval()
    with torch.no_grad():
        for parameter in labeller.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return StoredModel(
        labeller=labeller,
        config=config,
        vocabulary=vocabulary,
        scheme=task.scheme,
        decoder=decoder or labeller.decoders[-1],
        temperature=temperature,
        metrics={"dev": {"f1": 12.5}},
        source_scheme=source_scheme,
        legal_decoder=legal_decoder,
        source_columns=source_columns,
    )


def small_tagger(system: str = "diffusion-mf", task: Task = Task.NER, **options: Any) -> Tagger:
    return Tagger(small_model(system, task, **options), device="cpu")


def refusal(folder: Path) -> str:
    """Why a model folder is refused, in one line."""
    with pytest.raises(InputError) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def correct_checksums(folder: Path) -> None:
    """Correct the checksums after a change of files, as somebody would who means it."""
    path = folder / "config.json"
    description = json.loads(path.read_text())
    description["checksums"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in description["checksums"]
    }
    path.write_text(json.dumps(description))
    (folder / "manifest.json").unlink(missing_ok=True)


def write_model(folder: Path, system: str = "diffusion-mf", task: Task = Task.NER, **options: Any) -> Path:
    save_model(folder, small_model(system, task, **options))
    return folder
