"""With a model that recalls, a fix of one occurrence reaches the others: shown by a small model, trained for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from served_models import client_of
from small_runs import NO_DROPOUT, SMALL_MODEL

from diffusion_mf.config import Config
from diffusion_mf.tagger import Tagger
from diffusion_mf.training.loop import train

# A name is a person or a place all through a document; only some sentences tell which.
CUES = {"PER": ["{} sleeps now", "old {} sings"], "LOC": ["they live in {}", "near {} it rains"]}
NEUTRAL = ["we spoke about {}", "{} was in the news", "nobody forgets {} here"]
SETTINGS: dict[str, Any] = {
    "denoiser": {"recall": 8, "width": 32},
    "encoder": {"width": 32, "word_width": 16, "pair_width": 0},
    "diffusion": {"clamp_share": 0.5, "own_trajectory_share": 0.5, "own_trajectory_calls": 2},
    "training": {"epochs": 8, "budget": 80, "accumulation": 1, "learning_rate": 7e-3, "log_every": 50},
    "inference": {"num_calls": 4},
}


def invented(generator: random.Random) -> str:
    return "".join(generator.choice("bdfgklmnprt") + generator.choice("aeiou") for _ in range(3)).capitalize()


def document(generator: random.Random) -> str:
    lines = ["-DOCSTART- O", ""]
    name, kind = invented(generator), generator.choice(["PER", "LOC"])
    sentences = [generator.choice(CUES[kind]), *generator.choices(NEUTRAL, k=3)]
    generator.shuffle(sentences)
    for sentence in sentences:
        lines += [f"{name} B-{kind}" if word == "{}" else f"{word} O" for word in sentence.split()] + [""]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Tagger:
    folder: Path = tmp_path_factory.mktemp("recall")
    generator = random.Random(5)
    for name, size in (("train", 250), ("dev", 20)):
        folder.joinpath(f"{name}.txt").write_text("".join(document(generator) for _ in range(size)), encoding="utf-8")
    values: dict[str, Any] = {
        "task": "ner",
        "system": "diffusion-mf",
        "data": {"train": str(folder / "train.txt"), "dev": str(folder / "dev.txt")},
    }
    for change in (SMALL_MODEL, NO_DROPOUT, SETTINGS, {"encoder": {"word_dropout": 0.3}}):
        for section, settings in change.items():
            values[section] = {**values.get(section, {}), **settings}
    train(Config.model_validate(values), output=folder / "run", device="cpu")
    return Tagger.load(folder / "run" / "model", device="cpu")


def test_a_fix_of_one_occurrence_reaches_the_others(tagger: Tagger) -> None:
    generator = random.Random(99)
    followed = total = 0
    with client_of({"names": tagger}) as client:
        assert client.get("/models").json()["models"][0]["recall"]
        for _ in range(6):
            name = invented(generator)
            sentences = [sentence.format(name).split() for sentence in NEUTRAL]
            places = [sentence.index(name) for sentence in sentences]
            for kind in ("PER", "LOC"):
                clamps = [[{"units": [places[0], places[0] + 1], "type": kind}], None, None]
                body = {"sentences": sentences, "documents": [1, 1, 1], "clamps": clamps}
                found = client.post("/tag", json=body).json()["sentences"]
                labels = [sentence["labels"][place] for sentence, place in zip(found, places, strict=True)]
                assert labels[0] == f"B-{kind}"
                followed += labels[1:].count(f"B-{kind}")
                total += 2
                # A sentence of another document hears nothing of it.
                alone = client.post("/tag", json=body | {"documents": [1, 2, 3]}).json()["sentences"]
                free = client.post("/tag", json={"sentences": sentences}).json()["sentences"]
                assert [each["labels"] for each in alone[1:]] == [each["labels"] for each in free[1:]]
    assert followed >= 0.9 * total, f"{followed} of {total} followed"
