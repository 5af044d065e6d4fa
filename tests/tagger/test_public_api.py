from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import diffusion_mf
import diffusion_mf.errors
from diffusion_mf.training.resumption import begun_run


def loaded_modules(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_the_package_and_its_commands_waits_for_nothing() -> None:
    loaded = loaded_modules("import diffusion_mf, diffusion_mf.cli")
    assert "diffusion_mf.cli.tag" in loaded
    assert not loaded & {"torch", "numpy", "matplotlib", "safetensors", "pydantic", "huggingface_hub"}


def test_training_labelling_and_the_demonstration_do_without_the_libraries_of_experiments() -> None:
    modules = ("training.loop", "tagger", "evaluation.report", "lab.demo.run", "lab.experiments.worker")
    loaded = loaded_modules("\n".join(f"import diffusion_mf.{module}" for module in modules))
    assert "torch" in loaded
    assert not loaded & {"pandas", "scipy", "optuna"}


def test_the_names_promised() -> None:
    from diffusion_mf import Tagger, load, train

    assert Tagger.__name__ == "Tagger"
    assert callable(load)
    assert callable(train)
    assert {"Tagger", "load", "train"} <= set(dir(diffusion_mf))
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = diffusion_mf.tarin


SMALL = {
    "encoder.width": 16,
    "encoder.layers": 1,
    "encoder.heads": 2,
    "denoiser.width": 16,
    "denoiser.layers": 1,
    "denoiser.heads": 2,
    "training.epochs": 2,
    "inference.num_calls": 2,
}
PAIRS = [(["Ada", "sleeps"], ["B-PER", "O"]), (["Rome", "is", "old"], ["B-LOC", "O", "O"])] * 8


def test_pairs_are_enough_to_train_on(capsys: pytest.CaptureFixture[str]) -> None:
    tagger = diffusion_mf.train(train=PAIRS, dev=PAIRS[:2], system="unigram", settings=SMALL, device="cpu")
    assert len(tagger.tag([["Ada"]])[0].labels) == 1
    shown = capsys.readouterr().err
    assert "dmf: task: ner, spans of 2 types" in shown
    assert "epoch 2 of 2" in shown


class FakeDataset(list):  # type: ignore[type-arg]
    """What the library datasets has: rows, and features that know the names of labels."""

    class _Names:
        names = ("O", "B-PER", "B-LOC")

    class _List:
        def __init__(self, feature: object) -> None:
            self.feature = feature

    def __init__(self, rows: list[dict[str, object]], **others: object) -> None:
        super().__init__(rows)
        self.features = {"tokens": None, "ner_tags": self._List(self._Names()), **others}


ROWS: list[dict[str, object]] = [
    {"tokens": ["Ada", "sleeps"], "ner_tags": [1, 0]},
    {"tokens": [], "ner_tags": []},
    {"tokens": ["Rome"], "ner_tags": [2]},
] * 8


def test_a_hugging_face_data_set_with_its_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    splits = {"train": FakeDataset(ROWS), "validation": FakeDataset(ROWS[:3])}
    tagger = diffusion_mf.train(
        train=splits, settings=SMALL, output=tmp_path / "run", device="cpu", on_progress=seen.append
    )
    assert {"B-PER", "B-LOC"} <= set(tagger.labels)
    assert [progress.step for progress in seen][-1] == seen[-1].num_steps
    assert not capsys.readouterr().err
    # The data are kept beside the run, which can be resumed without them.
    longer = diffusion_mf.train(
        output=tmp_path / "run", resume=True, settings={"training.epochs": 3}, device="cpu", on_progress=seen.append
    )
    assert longer.labels == tagger.labels
    with pytest.raises(diffusion_mf.errors.InputError, match="another run was started"):
        diffusion_mf.train(train=PAIRS, output=tmp_path / "run")


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([-1, -1], 'row 25 of the train data: the "ner_tags" are all -1, which stands for no label; leave out'),
        (
            [0, -1],
            'row 25 of the train data: "ner_tags" contains -1, but its labels have the numbers 0 to 2; label every',
        ),
        ([0, -100], "contains -100, but its labels have the numbers 0 to 2; give the dataset as it was before"),
        ([3, 0], "contains 3, but its labels have the numbers 0 to 2"),
        ([None, 0], "contains None, but its labels"),
        (["O", None], 'row 25 of the train data: "ner_tags" contains None, which is no label; label every token'),
        (["O", ""], "contains '', which is no label"),
    ],
)
def test_tags_of_a_data_set_that_are_no_labels(tags: list[object], message: str) -> None:
    rows = FakeDataset([*ROWS, {"tokens": ["Ada", "sleeps"], "ner_tags": tags}])
    with pytest.raises(diffusion_mf.errors.InputError) as refused:
        diffusion_mf.train(train=rows)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["validation", "dev", "valid"])
def test_dev_data_of_a_data_set_by_their_usual_names(name: str, tmp_path: Path) -> None:
    splits = {"train": FakeDataset(ROWS), name: FakeDataset(ROWS[:3]), "test": FakeDataset(ROWS[:6])}
    diffusion_mf.train(
        train=splits, settings={**SMALL, "training.epochs": 1}, system="unigram", output=tmp_path / "run", device="cpu"
    )
    assert sorted(path.name for path in (tmp_path / "run/data").iterdir()) == ["dev.jsonl", "test.jsonl", "train.jsonl"]
    assert len((tmp_path / "run/data/dev.jsonl").read_text().splitlines()) == 2


def test_two_splits_of_dev_data_are_a_question() -> None:
    splits = {"train": FakeDataset(ROWS), "validation": FakeDataset(ROWS), "dev": FakeDataset(ROWS)}
    with pytest.raises(
        diffusion_mf.errors.InputError, match=r"several splits of dev data \(validation, dev\); give one"
    ):
        diffusion_mf.train(train=splits)


def test_a_data_set_with_two_kinds_of_tags_is_a_question() -> None:
    rows = [{**row, "pos_tags": row["ner_tags"]} for row in ROWS]
    with pytest.raises(diffusion_mf.errors.InputError, match="choose task ner or pos"):
        diffusion_mf.train(train=FakeDataset(rows, pos_tags=None))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(["a", "b"], ["X"])], "sentence 1 of the train data has 2 words, but labels: 1; give every word one label"),
        ([PAIRS[0], (["a"], [1])], "sentence 2 of the train data has labels that are not a list of non-empty strings"),
        ([("Ada sleeps", ["X", "Y"])], "sentence 1 of the train data has words that are not a list"),
        ([(["Ada"], None)], "sentence 1 of the train data has labels that are not a list"),
        ([PAIRS[0], ([], [])], "sentence 2 of the train data is empty"),
        ([{"tokens": ["a"], "tags": ["X"]}], "sentence 1 of the train data is not a pair of words and labels"),
        ([[["a", "X"], ["b", "Y"], ["c", "Z"]]], "sentence 1 of the train data is not a pair of words and labels"),
        (
            [[("a", "X")], [("b", "Y"), ("c", 1)]],
            "sentence 2 of the train data has labels that are not a list of non-empty",
        ),
        ([[("a", "X")], []], "sentence 2 of the train data is empty"),
        (
            [[("a", "X"), ("b", "Y")], [("c", "X"), ("d", "Y")]],
            "two words with their labels, or the words and the labels",
        ),
        ([], "the train data have no sentences"),
        ({"test": FakeDataset(ROWS)}, "no split called train .it has test"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(pairs: list[tuple[list[str], list[str]]], message: str) -> None:
    with pytest.raises(diffusion_mf.errors.InputError, match=message):
        diffusion_mf.train(train=pairs)


def test_sentences_may_be_lists_of_word_and_label_as_in_nltk(tmp_path: Path) -> None:
    tagged = [list(zip(*pair, strict=True)) for pair in PAIRS]
    assert {len(sentence) for sentence in tagged} != {2}
    runs = [
        diffusion_mf.train(train=data, output=tmp_path / name, system="unigram", settings=SMALL, device="cpu")
        for name, data in (("pairs", PAIRS), ("tagged", tagged))
    ]
    assert runs[0].labels == runs[1].labels
    files = [tmp_path / name / "data/train.jsonl" for name in ("pairs", "tagged")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_errors_in_pairs_name_the_sentence() -> None:
    pairs = [PAIRS[0], (["a", "b"], ["O", "PER"]), (["a"], ["B-PER"])]
    with pytest.raises(diffusion_mf.errors.InputError, match=r"^sentence 2 of the train data: .*'PER'"):
        diffusion_mf.train(train=pairs, task="ner")


@pytest.mark.parametrize("minutes", [-1, 0, float("nan"), "x"])
def test_impossible_times_are_refused(minutes: object) -> None:
    with pytest.raises(diffusion_mf.errors.InputError, match=r"minutes must be a number of at least 0\.1"):
        diffusion_mf.train(train=PAIRS, minutes=minutes)  # type: ignore[arg-type]


def test_a_run_resumed_in_python_keeps_the_settings_of_the_command_line(tmp_path: Path) -> None:
    """They are in its checkpoint, whoever writes it."""
    arguments: dict[str, object] = {"train": PAIRS, "output": tmp_path / "run", "device": "cpu"}
    diffusion_mf.train(**arguments, system="unigram", settings=SMALL)  # type: ignore[arg-type]
    diffusion_mf.train(output=tmp_path / "run", resume=True, settings={"training.epochs": 3}, device="cpu")
    begun = begun_run(tmp_path / "run")
    assert begun is not None
    assert 'system="unigram"' in begun.overrides
    assert "encoder.width=16" in begun.overrides
    assert begun.overrides[-1] == "training.epochs=3"


def test_nothing_to_train_on_is_said() -> None:
    with pytest.raises(diffusion_mf.errors.InputError, match="nothing to train on"):
        diffusion_mf.train()
