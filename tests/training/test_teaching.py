from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import NO_DROPOUT, read_log, settings
from small_runs import small_config as small_run
from tiny_models import KEYS, small_config, small_labeller, whole_batch

from diffusion_mf import Tagger, train
from diffusion_mf.config import Config
from diffusion_mf.errors import InputError
from diffusion_mf.model.core import TeacherMarginals


def test_marginals_are_found_by_sentence() -> None:
    marginals = torch.arange(12.0).view(6, 2)
    teacher = TeacherMarginals(marginals, [1, 3, 2])
    found = teacher(torch.tensor([2, 0, 1]), 3)
    assert torch.equal(found[0, :2], marginals[4:])
    assert torch.equal(found[1, :1], marginals[:1])
    assert torch.equal(found[2], marginals[1:4])
    assert not teacher.state_dict()
    with pytest.raises(ValueError, match="marginals for 6 units, but 5"):
        TeacherMarginals(marginals, [1, 2, 2])


@pytest.mark.parametrize("system", ["unigram", "mean-field", "lcrf"])
def test_a_teacher_sure_of_the_labels_adds_the_cross_entropy_of_the_labels(system: str) -> None:
    objective = {"teacher": 0.5, **({"marginal": 1.0} if system == "lcrf" else {})}
    labeller = small_labeller(system, data={"teacher": "somewhere"}, objective=objective).eval()
    batch = whole_batch()
    one_hot = torch.nn.functional.one_hot(batch.label_ids, labeller.num_labels).float()
    is_unit = torch.arange(batch.label_ids.shape[1]) < batch.lengths[:, None]
    # Sentence b of the batch has key KEYS[b]; the others of the corpus have no units.
    lengths = [0] * (int(KEYS.max()) + 1)
    for key, length in zip(KEYS.tolist(), batch.lengths.tolist(), strict=True):
        lengths[key] = length
    order = KEYS.argsort()
    labeller.teacher = TeacherMarginals(torch.cat([one_hot[row][is_unit[row]] for row in order]), lengths)
    terms = labeller.loss_sums(batch, seed=1, step=1, sentence_keys=KEYS)
    expected = terms["marginal" if system == "lcrf" else "denoising"]
    torch.testing.assert_close(terms["teacher"], expected)
    own = sum(value for name, value in terms.items() if name not in ("teacher", "total"))
    torch.testing.assert_close(terms["total"], own + 0.5 * terms["teacher"])


def test_a_student_learns_from_its_teacher_and_is_an_ordinary_model(corpus: Path, tmp_path: Path) -> None:
    train(small_run(corpus, {"system": "unigram"}), output=tmp_path / "teacher")
    folder = tmp_path / "teacher" / "model"
    changes = {
        "system": "unigram",
        "data": {"teacher": str(folder)},
        # Gold labels count for nothing: whatever is learnt comes from the teacher.
        "objective": {"teacher": 1.0, "denoising": 0.0},
        "encoder": {"kind": "window"},
        "training": {"epochs": 12, "accumulation": 1, "learning_rate": 1e-2},
    }
    train(small_run(corpus, NO_DROPOUT, changes), output=tmp_path / "student")
    losses = [entry["losses"] for entry in read_log(tmp_path / "student", "step")]
    assert set(losses[0]) == {"teacher"}
    assert losses[-1]["teacher"] < 0.8 * losses[0]["teacher"]
    student = Tagger.load(tmp_path / "student" / "model")
    assert student.model.labeller.teacher is None
    assert not any("teacher" in name for name in student.model.labeller.state_dict())
    sentences = [["Ada", "sings"], ["in", "Oslo", "."]]
    assert [len(result.labels) for result in student.tag(sentences)] == [2, 3]


def test_a_teacher_of_other_labels_is_refused(corpus: Path, tmp_path: Path) -> None:
    from small_models import write_model

    from diffusion_mf.data.corpus import Task

    other = write_model(tmp_path / "other", "unigram", Task.POS)
    changes = {"system": "unigram", "data": {"teacher": str(other)}, "objective": {"teacher": 1.0}}
    with pytest.raises(InputError, match="labels differ"):
        train(small_run(corpus, changes), output=tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"system": "unigram", "objective": {"teacher": 1.0}}, "needs two settings"),
        ({"system": "unigram", "data": {"teacher": "folder"}}, "needs two settings"),
        ({"system": "diffusion-mf", "data": {"teacher": "folder"}, "objective": {"teacher": 1.0}}, "only direct"),
    ],
)
def test_settings_of_a_teacher(changes: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        small_config(changes.pop("system"), **changes)
    assert Config.model_validate(settings(Path("nowhere"))).data.teacher is None
