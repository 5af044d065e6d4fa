"""What results tell beside labels, and models as bytes."""

from __future__ import annotations

import importlib.resources
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import small_model, small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.calibration import SpanCalibration
from diffusion_mf.tagger import Span, TaggedSentence, Tagger, save_model
from oracles.chain_enumeration import Enumerated

SENTENCES = [["Ada", "sings"], [], ["the", "royal", "choir", "of", "Oslo"]]


@pytest.mark.parametrize("scheme", ["bmes", "bio2", "iob1"])
@pytest.mark.parametrize("system", ["unigram", "diffusion-mf", "diffusionsl"])
def test_marginals_are_where_the_scores_come_from(system: str, scheme: str) -> None:
    tagger = small_tagger(system)
    labels = list(tagger.labels_in(scheme))
    plain = tagger.tag(SENTENCES, scheme=scheme)
    assert all(result.marginals is None for result in plain)
    results = tagger.tag(SENTENCES, scheme=scheme, marginals=True, trajectory=True)
    assert [result.labels for result in results] == [result.labels for result in plain]
    assert [len(result.trajectory or ()) for result in results] == [
        len(results[0].trajectory or ()),
        0,
        len(results[2].trajectory or ()),
    ]
    for words, result in zip(SENTENCES, results, strict=True):
        assert result.marginals is not None
        assert result.marginals.shape == (len(words), len(labels))
        np.testing.assert_allclose(result.marginals.sum(1), np.ones(len(words)), atol=1e-5)
        for index, (label, score) in enumerate(zip(result.labels, result.scores, strict=True)):
            if label in labels:
                assert result.marginals[index, labels.index(label)] == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("clamp", [None, {1: {"O", "E-PER", "M-ORG"}}])
def test_span_confidence_of_a_chain_is_the_probability_of_the_span(monkeypatch: pytest.MonkeyPatch, clamp: Any) -> None:
    tagger = small_tagger("lcrf", temperature=1.7)
    seen: list[Any] = []
    chain_scores = Tagger._chain_scores
    monkeypatch.setattr(
        Tagger, "_chain_scores", lambda self, *inputs: seen.append(inputs) or chain_scores(self, *inputs)
    )
    num_spans = 0
    for words in (["Ada", "Byron", "sings"], ["the", "choir", "sings"], ["Oslo", "Eve"]):
        (result,) = tagger.tag([words], scheme="bmes", clamp=None if clamp is None else [clamp])
        unary, transition, start, end = seen[-1][0].potentials
        oracle = Enumerated(
            unary[0].double() / 1.7,
            (transition if transition.dim() == 2 else transition[0]).double() / 1.7,
            len(words),
            None if start is None else start.double() / 1.7,
            None if end is None else end.double() / 1.7,
            None if seen[-1][1] is None else seen[-1][1][0],
        )
        ids = [tagger.labels.index(label) for label in result.labels]
        for span in result.spans:
            num_spans += 1
            expected = sum(
                probability
                for path, probability in zip(oracle.paths, oracle.probabilities().tolist(), strict=True)
                if list(path[span.start : span.end]) == ids[span.start : span.end]
            )
            assert span.confidence == pytest.approx(expected, abs=1e-5)
    assert num_spans


def test_span_confidence_elsewhere_is_fitted(tmp_path: Path) -> None:
    sentences = [["Ada", "Byron", "sings", "in", "Oslo"], ["the", "royal", "choir"]]
    for system in ("diffusion-mf", "diffusion-lcrf"):
        model = small_model(system, settings={"inference": {"scores_from": "first"}})
        save_model(tmp_path / system, model._replace(span_calibration=(0.5, -1.0)))
        plain, fitted = Tagger(model, device="cpu"), Tagger.load(tmp_path / system, device="cpu")
        spans = [span for result in plain.tag(sentences, scheme="bmes") for span in result.spans]
        assert spans
        for span, other in zip(spans, (span for result in fitted.tag(sentences) for span in result.spans), strict=True):
            assert other == span._replace(confidence=pytest.approx(SpanCalibration(0.5, -1.0)(span.confidence)))
        # What is known stays certain.
        (known,) = fitted.tag([["Ada", "Byron"]], clamp=[{"units": [0, 2], "type": "PER"}])
        assert known.spans == [Span(0, 2, "PER", 1.0)]


def test_a_result_as_a_dictionary() -> None:
    result = TaggedSentence(
        ("Ada", "Byron", "sings"), ["B-PER", "I-PER", "O"], [0.5, 0.75, 1.0], [Span(0, 2, "PER", 0.5)]
    )
    expected = {
        "units": ["Ada", "Byron", "sings"],
        "labels": ["B-PER", "I-PER", "O"],
        "scores": [0.5, 0.75, 1.0],
        "spans": [{"start": 0, "end": 2, "label": "PER", "confidence": 0.5, "text": "Ada Byron"}],
    }
    assert json.loads(json.dumps(result.to_dict())) == expected
    assert result.characters_of(result.spans[0]) is None


def test_spans_of_a_text_have_its_characters() -> None:
    text = "Yes, Ada  Byron-King sang."
    offsets = ((0, 3), (3, 4), (5, 8), (10, 15), (15, 16), (16, 20), (21, 25), (25, 26))
    units = tuple(text[start:end] for start, end in offsets)
    result = TaggedSentence(units, ["O"] * 8, [1.0] * 8, [Span(2, 6, "PER", 0.5)], offsets=offsets)
    (span,) = result.to_dict()["spans"]
    assert (span["start_char"], span["end_char"]) == (5, 20)
    assert span["text"] == "Ada Byron-King"
    assert result.to_dict()["offsets"][0] == [0, 3]
    for result in small_tagger().tag_text(text):
        for each in result.to_dict()["spans"]:
            assert text[each["start_char"] : each["end_char"]].split() == each["text"].split()


def test_words_of_characters_are_joined_without_blanks() -> None:
    tagger = small_tagger("lcrf", Task.SEG_POS)
    result = tagger.tag(["abcdefg"])[0]
    assert "".join(span["text"] for span in result.to_dict()["spans"]) == "abcdefg"


@pytest.mark.parametrize("task", list(Task))
def test_bytes_hold_the_whole_model(task: Task) -> None:
    tagger = small_tagger("diffusion-mf", task)
    data = tagger.to_bytes()
    assert data == tagger.to_bytes()
    again = Tagger.from_bytes(data, device="cpu")
    sentences = ["abc"] if task is Task.SEG_POS else SENTENCES
    assert again.tag(sentences) == tagger.tag(sentences)
    assert again.metrics == tagger.metrics
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"config.json", "model.safetensors", "vocabulary.json"} <= set(names)


def test_other_bytes_are_refused() -> None:
    with pytest.raises(InputError, match=r"these bytes are no model; give what Tagger\.to_bytes returned"):
        Tagger.from_bytes(b"PK nothing")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../outside", "x")
    with pytest.raises(InputError, match=r"hold '\.\./outside', which is no file of one"):
        Tagger.from_bytes(buffer.getvalue())
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(InputError, match="model folder"):
        Tagger.from_bytes(buffer.getvalue())


def test_a_tagger_says_what_it_is() -> None:
    shown = repr(small_tagger("diffusion-mf", Task.NER, source_scheme=LabelScheme.BIO2))
    assert shown.startswith("Tagger(diffusion-mf for ner: 6 labels in bio2 (B-LOC, B-ORG, B-PER, I-ORG, I-PER, O)")
    assert ", decoder mask-viterbi, on cpu)" in shown
    assert "calls" in shown
    assert "calls" not in repr(small_tagger("lcrf", Task.POS))


def test_the_package_says_that_it_has_types() -> None:
    assert (importlib.resources.files("diffusion_mf") / "py.typed").is_file()


def test_second_best_labels() -> None:
    marginals = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]], dtype=np.float32)
    result = TaggedSentence(("a", "b", "c"), ["X", "Y", "_"], [0.5, 0.2, 0.0], [], marginals=marginals)
    assert result.second_best("XYZ") == [
        ("Y", pytest.approx(0.3)),
        ("Z", pytest.approx(0.7)),
        ("X", pytest.approx(0.4)),
    ]
    with pytest.raises(ValueError, match="tagged without marginals"):
        TaggedSentence(("a",), ["X"], [1.0], []).second_best("X")
    only = TaggedSentence(("a",), ["X"], [1.0], [], marginals=np.ones((1, 1), dtype=np.float32))
    assert only.second_best("X") == [("X", 0.0)]
