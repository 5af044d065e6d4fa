"""Fixes as the page makes them: every one is honoured, and what is labelled around them is legal."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

pytest.importorskip("fastapi")

from served_models import client_of
from small_models import WORDS, small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme, check_sequence
from diffusion_mf.tagger import Tagger

PER_REQUEST = 25
TAGGERS: dict[str, dict[str, Any]] = {
    "ner-bmes": {"system": "diffusion-mf", "task": Task.NER, "has_complete_labels": True},
    "ner-bio": {"system": "diffusion-lcrf", "task": Task.NER, "source_scheme": LabelScheme.BIO2, "has_complete_labels": True},
    "ner-direct": {"system": "mean-field", "task": Task.NER, "source_scheme": LabelScheme.IOBES, "has_complete_labels": True},
    "ner-bits": {"system": "diffusionsl", "task": Task.NER, "decoder": "mask-viterbi", "has_complete_labels": True},
    "pos": {"system": "diffusion-mf", "task": Task.POS},
    "words": {"system": "diffusion-mf", "task": Task.SEG_POS, "has_complete_labels": True},
}  # fmt: skip


class Fix(NamedTuple):
    """Units of a sentence that are one span of a kind, or in none (None), or have a label."""

    start: int
    end: int
    kind: str | None


def random_fixes(generator: random.Random, size: int, kinds: list[str | None], *, has_spans: bool) -> list[Fix]:
    """Fixes one after the other, each of which replaces those that it overlaps, as in the page."""
    fixes: list[Fix] = []
    for _ in range(generator.randint(1, 4)):
        start = generator.randrange(size)
        end = start + (generator.randint(1, min(4, size - start)) if has_spans else 1)
        fixes = [fix for fix in fixes if fix.end <= start or end <= fix.start]
        fixes.append(Fix(start, end, generator.choice(kinds)))
    return fixes


def clamp_of(fixes: list[Fix], *, has_spans: bool) -> list[dict[str, Any]]:
    """What the page sends."""
    return [
        {"units": [fix.start, fix.end], "type": fix.kind}
        if has_spans and fix.kind is not None
        else {str(unit): fix.kind or "O" for unit in range(fix.start, fix.end)}
        for fix in fixes
    ]


def check_fixes(client: TestClient, name: str, tagger: Tagger, num_cases: int, seed: int) -> int:
    generator = random.Random(seed)
    forms = [word.rsplit("/", 1)[0] for word in WORDS[tagger.task].split()] + ["unseen"]
    has_spans = tagger.scheme is not LabelScheme.PLAIN
    kinds: list[str | None] = sorted({label.split("-", 1)[-1] for label in tagger.labels} - {"O"})
    if "O" in tagger.labels:
        kinds.append(None)
    cases = [generator.choices(forms, k=generator.randint(1, 14)) for _ in range(num_cases)]
    checked = 0
    for first in range(0, num_cases, PER_REQUEST):
        sentences = cases[first : first + PER_REQUEST]
        fixes = [random_fixes(generator, len(units), kinds, has_spans=has_spans) for units in sentences]
        clamps = [clamp_of(each, has_spans=has_spans) for each in fixes]
        response = client.post("/tag", json={"model": name, "sentences": sentences, "clamps": clamps, "scores": True})
        assert response.status_code == 200, response.text
        for answer, wanted in zip(response.json()["sentences"], fixes, strict=True):
            spans = {(span["start"], span["end"], span["label"]) for span in answer["spans"]}
            for fix in wanted:
                if has_spans and fix.kind is not None:
                    assert tuple(fix) in spans
                else:
                    assert set(answer["labels"][fix.start : fix.end]) == {fix.kind or "O"}
            assert set(answer["labels"]) <= set(tagger.labels)
            if has_spans:
                check_sequence(answer["labels"], tagger.scheme)
            checked += 1
    return checked


@pytest.mark.parametrize("name", TAGGERS)
def test_every_fix_is_honoured_and_the_rest_is_legal(name: str) -> None:
    tagger = small_tagger(**TAGGERS[name])
    with client_of({name: tagger}) as client:
        assert check_fixes(client, name, tagger, 50, seed=1) == 50


@pytest.mark.slow
def test_ten_thousand_fixed_sentences() -> None:
    taggers = {name: small_tagger(**options) for name, options in TAGGERS.items()}
    with client_of(taggers) as client:
        cases = [check_fixes(client, name, tagger, 1_700, seed=2) for name, tagger in taggers.items()]
    assert sum(cases) >= 10_000
