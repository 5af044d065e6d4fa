"""A tagger on a GPU, with batches in flight, says what it says on a CPU. Needs a GPU."""

from __future__ import annotations

import random

import pytest
from small_models import small_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.tagger import TaggedSentence, Tagger

pytestmark = pytest.mark.gpu

FORMS = ["Ada", "Byron", "sings", "in", "Oslo", "for", "the", "royal", "choir", "Eve", "unseen"]


# In bfloat16 a model with random weights is as far from float32 on a CPU: 0.047 on average for Diffusion-MF.
PRECISIONS = {"float32": 1e-3, "bfloat16": 0.1}


def assert_alike(found: list[TaggedSentence], expected: list[TaggedSentence], difference: float) -> None:
    """Nearly all labels are the same, and their scores on average within ``difference``."""
    pairs = [
        (label, score, other, other_score)
        for one, two in zip(found, expected, strict=True)
        for label, score, other, other_score in zip(one.labels, one.scores, two.labels, two.scores, strict=True)
    ]
    same = [(score, other) for label, score, name, other in pairs if label == name]
    assert len(same) > 0.95 * len(pairs)
    assert sum(abs(score - other) for score, other in same) < difference * len(same)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("system", ["lcrf", "diffusion-mf", "diffusionsl"])
def test_labels_and_scores(system: str, precision: str) -> None:
    generator = random.Random(1)
    sentences = [generator.choices(FORMS, k=generator.randrange(30)) for _ in range(300)]
    # Twice the same small batches: the second time most are replayed.
    model = small_model(system, Task.NER, settings={"inference": {"precision": precision}})
    found = Tagger(model, device="cuda").tag(sentences * 2, batch_tokens=200)
    expected = Tagger(small_model(system, Task.NER), device="cpu").tag(sentences)
    assert [result.units for result in found] == [tuple(sentence) for sentence in sentences * 2]
    assert_alike(found, expected * 2, PRECISIONS[precision])


def test_documents() -> None:
    """Batches of documents are recorded and replayed like others.

    In float32 only: with random weights documents magnify any difference.
    """
    generator = random.Random(2)
    sentences = [generator.choices(FORMS, k=generator.randrange(30)) for _ in range(300)]
    documents = [None if index % 12 > 9 else index // 12 for index in range(300)]
    recall = {"denoiser": {"width": 16, "heads": 2, "layers": 1, "time_width": 8, "recall": 4}}
    inference = {"precision": "float32", "layout": "packed"}
    model = small_model(settings=recall | {"inference": inference})
    found = Tagger(model, device="cuda").tag(sentences * 2, documents=documents * 2, batch_tokens=200)
    expected = Tagger(small_model(settings=recall), device="cpu").tag(sentences, documents=documents)
    apart = Tagger(small_model(settings=recall), device="cpu").tag(sentences)
    assert [result.labels for result in apart] != [result.labels for result in expected]
    assert_alike(found, expected * 2, PRECISIONS["float32"])


@pytest.mark.parametrize("has_clamps", [False, True])
@pytest.mark.parametrize("scheme", [LabelScheme.BIO2, LabelScheme.IOB1])
def test_labels_of_schemes_that_print_several_alike(scheme: LabelScheme, has_clamps: bool) -> None:
    generator = random.Random(3)
    sentences = [generator.choices(FORMS, k=generator.randrange(2, 30)) for _ in range(200)]
    clamps = [{1: "I-PER"} if index % 2 else {"units": [0, 2], "type": "ORG"} for index in range(200)]
    options = {"source_scheme": scheme, "has_complete_labels": True}
    model = small_model("diffusion-mf", settings={"inference": {"precision": "float32"}}, **options)
    clamp = clamps if has_clamps else None
    found = Tagger(model, device="cuda").tag(sentences, clamp=clamp, batch_tokens=200)
    expected = Tagger(small_model("diffusion-mf", **options), device="cpu").tag(sentences, clamp=clamp)
    assert_alike(found, expected, PRECISIONS["float32"])
    if has_clamps:
        assert {result.labels[1] for result in found[1::2]} == {"I-PER"}
