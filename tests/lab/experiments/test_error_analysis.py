"""Where a model errs, with a tagger that is right or wrong on purpose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.lab.experiments import scores as error_analysis
from diffusion_mf.lab.experiments.selection import Group


class _Tagger:
    """Everything is a noun, with a score of 0.75."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def tag(self, sentences: tuple[Sentence, ...], *, decoder: str, scheme: LabelScheme) -> list[Any]:
        assert scheme is LabelScheme.BMES
        label = "N" if decoder == "mask-viterbi" else "I-N"
        sizes = [len(sentence.units) for sentence in sentences]
        return [SimpleNamespace(labels=[label] * size, scores=[0.75] * size) for size in sizes]


def _model(task: Task, *decoders: str) -> Any:
    labeller = SimpleNamespace(decoders=decoders, config=SimpleNamespace(inference=SimpleNamespace(decoder=None)))
    config = SimpleNamespace(task=task)
    return SimpleNamespace(config=config, decoder="mask-viterbi", scheme=LabelScheme.BMES, labeller=labeller)


def test_counts_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_analysis, "Tagger", _Tagger)
    train = (Sentence(("a", "b", "b"), ("N", "N", "V")), Sentence(("a", "c"), ("N", "V")))
    dev = (Sentence(("a", "b", "new"), ("N", "V", "N")), Sentence(("c",), ("V",)))
    data: Any = SimpleNamespace(train=train, dev=dev, scheme=LabelScheme.PLAIN)
    found = error_analysis.analyse(_model(Task.POS, "mask-viterbi"), data, device=torch.device("cpu"))
    assert {row["name"]: (row["size"], row["accuracy"]) for row in found["rarity"]} == {
        "unseen": (1, 100.0),  # new
        "1": (1, 0.0),  # c
        "2-4": (2, 50.0),  # a is right, b is not
    }
    # b alone is ambiguous: a and new stand beside it; b itself and c have no other such form near them.
    assert {row["name"]: (row["size"], row["accuracy"]) for row in found["ambiguity"]} == {
        "1": (2, 100.0),
        "none": (2, 0.0),
    }
    assert found["calibration"]["bins"] == [{"size": 4, "score": 0.75, "accuracy": 0.5}]
    assert found["calibration"]["error"] == pytest.approx(0.25)
    assert found["invalid_sentences"] == 0
    assert [row["size"] for row in found["lengths"]] == [2]
    assert found["confusions"] == [["V", "N", 2]]


def test_invalid_spans_of_every_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_analysis, "Tagger", _Tagger)
    sentence = Sentence(("a", "b"), ("O", "O"))
    data: Any = SimpleNamespace(train=(sentence,), dev=(sentence,), scheme=LabelScheme.BIO2)
    found = error_analysis.analyse(_model(Task.NER, "argmax", "mask-viterbi"), data, device=torch.device("cpu"))
    assert found["invalid_by_decoder"]["argmax"] == 100
    assert found["invalid_by_decoder"]["mask-viterbi"] == found["invalid_sentences"]


def test_invalid_spans_are_compared_by_decoder() -> None:
    result = {"decoder": "argmax", "analysis": {"invalid_by_decoder": {"argmax": 7.0, "mask-viterbi": 0.0}}}
    place = {"corpus": "c", "system": "unigram", "encoder": "scratch", "variant": ""}
    group = Group(**place, results={1: result, 2: {"decoder": "argmax"}}, planned=(1, 2))
    assert group.invalid_rates("argmax") == {1: 7.0}
    assert group.invalid_rates("viterbi") == {}
