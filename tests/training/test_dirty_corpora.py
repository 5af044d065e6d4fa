"""Training on data as it is published: label sets, labels that training lacks, irregular tags, teachers of earlier versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.calibration import fit_temperature
from diffusion_mf.tagger import load_model
from diffusion_mf.training import corpora, evaluation
from diffusion_mf.training.corpora import TrainingData, read_training_data
from diffusion_mf.training.loop import train

ONE_EPOCH = {"training": {"epochs": 1, "budget": 2000}}


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content)
    return folder


def read(folder: Path, task: str = "ner", **data: Any) -> TrainingData:
    return read_training_data(small_runs.small_config(folder, {"task": task, "data": data}))


def test_every_type_has_all_boundary_labels(tmp_path: Path) -> None:
    # One type in words of one unit only, the other never in a span of three.
    write(tmp_path, train="a S-X\nb B-Y\nc E-Y\n", dev="a B-X\nb E-X\nc B-Y\nd M-Y\ne E-Y\nf O\n")
    data = read(tmp_path)
    assert data.vocabulary.labels == ("B-X", "B-Y", "E-X", "E-Y", "M-X", "M-Y", "O", "S-X", "S-Y")
    assert data.notes == ()


def test_a_longer_span_in_dev_than_in_train_is_no_other_label(tmp_path: Path) -> None:
    write(tmp_path, train="a B-PER\nb I-PER\nc O\n", dev="a B-PER\nb I-PER\nc I-PER\n")
    assert read(tmp_path).notes == ()


@pytest.mark.parametrize("task", ["pos", "seg-pos"])
def test_other_tasks_keep_the_labels_that_occur_in_training(task: str, tmp_path: Path) -> None:
    write(tmp_path, train="a S-X\nb B-Y\nc E-Y\n", dev="a S-X\nb B-Y\nc M-Y\nd E-Y\n")
    data = read(tmp_path, task, format="columns")
    assert data.vocabulary.labels == ("B-Y", "E-Y", "S-X")
    train_path, dev_path = tmp_path / "train.txt", tmp_path / "dev.txt"
    assert data.notes == (
        f"{dev_path}: 1 of 4 units have labels that {train_path} does not have (M-Y), first on line 3: they count as wrong",
    )


def test_what_was_repaired_is_told_and_strict_refuses(tmp_path: Path) -> None:
    write(tmp_path, train="a B-X\nb O\n\nc I-X\n\nd B-X\n", dev="\tB-X\n")
    notes = read(tmp_path).notes
    assert [note.partition(";")[0] for note in notes] == [
        f"{tmp_path / 'train.txt'}: 1 span with irregular tags repaired, first on line 4 (I-X read as B-X)",
        f"{tmp_path / 'dev.txt'}: 1 unit without a form read as _, first on line 1",
    ]
    with pytest.raises(InputError, match=r"train\.txt, line 4: a sentence cannot begin with 'I-X'"):
        read(tmp_path, strict=True)


def test_a_unit_without_a_label_is_refused_before_training(tmp_path: Path) -> None:
    write(tmp_path, train="a X\nb Y\n", dev="a X\nb _\n")
    with pytest.raises(InputError, match=r"dev\.txt, line 2: 'b' has no label"):
        read(tmp_path, "pos", format="columns")


def test_unknown_labels_count_as_wrong_and_the_temperature_is_fitted_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = small_runs.write_small_corpus(tmp_path / "corpus")
    for split in ("dev", "test"):
        path = corpus / f"{split}.txt"
        path.write_text(path.read_text() + "\nnew B-NEVER\nnewer E-NEVER\n")
    seen: list[torch.Tensor] = []

    def fit(marginals: torch.Tensor, labels: torch.Tensor) -> float:
        seen.append(labels)
        return fit_temperature(marginals, labels)

    monkeypatch.setattr(evaluation, "fit_temperature", fit)
    display = small_runs.RememberingDisplay()
    config = small_runs.small_config(corpus, ONE_EPOCH, {"data": {"test": str(corpus / "test.txt")}})
    model = load_model(train(config, output=tmp_path / "run", device="cpu", display=display))
    notes = [note for note in display.notes if "(B-NEVER, E-NEVER)" in note]
    assert [note.partition(": ")[0] for note in notes] == [str(corpus / "dev.txt"), str(corpus / "test.txt")]
    num_units = sum(len(sentence.units) for sentence in read_training_data(config).dev or ())
    assert num_units - 2 in map(len, seen)
    assert model.temperature != 1.0
    assert model.metrics["test"]["recall"] < 100


def test_a_teacher_of_an_earlier_version_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, train="a S-X\nb O\n\nc B-X\nd E-X\n", dev="a S-X\nb O\n")
    config = small_runs.small_config(tmp_path, ONE_EPOCH, {"system": "unigram"})
    with monkeypatch.context() as patch:
        patch.setattr(corpora, "complete_labels", lambda labels, scheme: labels)
        teacher = train(config, output=tmp_path / "teacher", device="cpu")
    assert "M-X" not in load_model(teacher).vocabulary.labels
    taught = {"data": {"teacher": str(teacher)}, "objective": {"teacher": 1.0}}
    config = small_runs.small_config(tmp_path, ONE_EPOCH, {"system": "unigram"}, taught)
    student = train(config, output=tmp_path / "student", device="cpu")
    assert "M-X" in load_model(student).vocabulary.labels
