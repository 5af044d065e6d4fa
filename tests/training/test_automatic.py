"""Configurations from a corpus alone, held-out sentences, runs of a given time, and warnings about data and schedules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import small_runs

from diffusion_mf.config import Config, with_overrides
from diffusion_mf.data.corpus import Corpus, Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.training import loop
from diffusion_mf.training.automatic import choose_config
from diffusion_mf.training.corpora import data_warnings, hold_out, read_training_data


def corpus_of(*sentences: Sentence) -> Corpus:
    plain = LabelScheme.PLAIN
    return Corpus(path="c", task=Task.POS, sentences=sentences, source_scheme=plain)


def numbered(count: int, document_of: Any = lambda index: 0) -> Corpus:
    return corpus_of(*(Sentence((str(i),), ("X",), i, document_of(i)) for i in range(count)))


def test_sentences_held_out_are_drawn_by_the_seed() -> None:
    corpus = numbered(40)
    train, dev = hold_out(corpus, 8, seed=1)
    assert len(dev) == 8
    assert sorted([*train, *dev], key=lambda sentence: sentence.line) == [*corpus]
    assert hold_out(corpus, 8, seed=1) == (train, dev)
    assert hold_out(corpus, 8, seed=2)[1] != dev
    # What is drawn must not change from version to version: runs are resumed and repeated.
    assert [sentence.line for sentence in dev] == [1, 11, 16, 20, 24, 32, 35, 38]


def test_documents_are_held_out_whole() -> None:
    corpus = numbered(40, lambda index: index // 5 + 1)
    train, dev = hold_out(corpus, 8, seed=1)
    assert len(dev) == 10
    assert not {sentence.document for sentence in train} & {sentence.document for sentence in dev}


def test_a_document_is_held_out_if_every_type_of_entity_stays_in_training() -> None:
    """Each document has a label of its own: a boundary, which the model knows nevertheless, or a type."""
    tags = [("O", "B-X", "M-X", "E-X"), ("O", "S-X"), ("O", "B-X", "E-X", "S-Y")]
    sentences = [Sentence(("a",) * len(tags[i // 10]), tags[i // 10], i, i // 10 + 1) for i in range(30)]
    corpus = Corpus(path="c", task=Task.NER, sentences=tuple(sentences), source_scheme=LabelScheme.BMES)
    held_out = {frozenset(sentence.document for sentence in hold_out(corpus, 8, seed=seed)[1]) for seed in range(8)}
    assert held_out == {frozenset({1}), frozenset({2})}
    # As parts of speech, these labels have no types.
    plain = corpus_of(*sentences)
    assert {sentence.document for seed in range(8) for sentence in hold_out(plain, 8, seed=seed)[1]} == {1, 2, 3}


def test_where_documents_are_too_long_sentences_are_held_out() -> None:
    train, dev = hold_out(numbered(40, lambda index: index // 20 + 1), 8, seed=1)
    assert (len(train), len(dev)) == (32, 8)


def test_repeated_sentences_are_held_out_together() -> None:
    """Otherwise dev would be in the training data."""
    corpus = corpus_of(*(Sentence((str(index % 10),), ("X",), index) for index in range(40)))
    for seed in range(8):
        train, dev = hold_out(corpus, 10, seed=seed)
        assert len(dev) in (8, 12)
        assert not {sentence.units for sentence in train} & {sentence.units for sentence in dev}
    # Two sentences make up the corpus: nothing could be held out without dividing them.
    train, dev = hold_out(corpus_of(*(Sentence((str(i % 2),), ("XY"[i % 2],), i) for i in range(40))), 8, seed=1)
    assert (len(train), len(dev)) == (32, 8)


def test_no_label_is_held_out_altogether() -> None:
    sentences = [Sentence((str(i),), ("RARE",) if i < 2 else ("X",), i) for i in range(20)]
    for seed in range(20):
        train, _ = hold_out(corpus_of(*sentences), 10, seed=seed)
        assert {label for sentence in train for label in sentence.labels or ()} == {"RARE", "X"}
    with pytest.raises(InputError, match="no sentences can be held out"):
        hold_out(corpus_of(Sentence(("a",), ("A",)), Sentence(("b",), ("B",))), 1, seed=1)


def write_tags(path: Path, count: int) -> Path:
    path.write_text("".join(f"w{i} {'NOUN' if i % 2 else 'VERB'}\nend PUNCT\n\n" for i in range(count)))
    return path


def test_what_is_given_wins_over_corpus_and_recipe(tmp_path: Path) -> None:
    path = write_tags(tmp_path / "train.txt", 20)
    config, sources, lines, *_ = choose_config(path, device_type="cpu")
    assert (config.task, config.system, config.data.held_out) == (Task.POS, "diffusion-mf", 4)
    assert sources["training", "epochs"].option == "recipe"
    assert sources["data", "held_out"].option == "corpus"
    assert any("4 sentences held out from the training file" in line and "--dev FILE" in line for line in lines)
    assert all("(--" in line for line in lines if not line.startswith("train:"))
    given = ["system=unigram", "training.epochs=7", "data.held_out=2", "task=pos", "seed=3"]
    config, sources, *_ = choose_config(path, given, device_type="cpu")
    assert (config.system, config.training.epochs, config.data.held_out, config.seed) == ("unigram", 7, 2, 3)
    assert sources["training", "epochs"].option == "--set"
    assert choose_config(path, [f"data.dev={path}"], device_type="cpu").config.data.held_out == 0


def test_settings_given_may_need_those_of_the_recipe(tmp_path: Path) -> None:
    """Features need a window, which the recipe chooses for small corpora."""
    path = tmp_path / "train.txt"
    path.write_text("\n".join(f"w{index % 7} N\nsees V\nit P\n" for index in range(20)))
    config = choose_config(path, ["encoder.features=true", "encoder.word_width=0"], device_type="cpu").config
    assert (config.encoder.kind, config.encoder.word_width) == ("window", 0)
    with pytest.raises(InputError, match="features need kind"):
        choose_config(path, ["encoder.features=true", "encoder.kind=scratch"], device_type="cpu")


def test_settings_given_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training.epoch;.*epochs"):
        choose_config(tmp_path / "none.txt", ["training.epoch=7"], device_type="cpu")
    with pytest.raises(InputError, match=r"none.txt: .*no such file|none.txt: .*exist"):
        choose_config(tmp_path / "none.txt", device_type="cpu")


def test_names_are_recalled_where_documents_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    documents = [
        f"-DOCSTART- O\n\nAda{place} B-PER\nsings O\n\nI O\nmet O\nAda{place} B-PER\n\n" for place in range(130)
    ]
    path.write_text("".join(documents))
    config, sources, lines, *_ = choose_config(path, device_type="cpu")
    assert (config.encoder.recall, config.encoder.recall_dropout) == (8, 0.25)
    assert sources["encoder", "recall"].option == "recipe"
    assert any(line.startswith("documents: ") and "encoder.recall=0" in line for line in lines)
    # Something else is asked for.
    assert choose_config(path, ["encoder.recall=0"], device_type="cpu").config.recall == 0
    of_beliefs = choose_config(path, ["denoiser.recall=4"], device_type="cpu").config
    assert (of_beliefs.recall, of_beliefs.encoder.recall) == (4, 0)
    path.write_text("".join(documents).replace("-DOCSTART- O\n\n", ""))
    config, _, lines, *_ = choose_config(path, device_type="cpu")
    assert config.recall == 0
    assert not any(line.startswith("documents: ") for line in lines)


def test_a_pretrained_encoder_is_taken(tmp_path: Path) -> None:
    path = write_tags(tmp_path / "train.txt", 20)
    given = ["encoder.kind=pretrained", "encoder.model=some/encoder"]
    config, _, lines, *_ = choose_config(path, given, device_type="cpu")
    assert config.encoder.kind == "pretrained"
    assert any("diffusion-mf on some/encoder" in line for line in lines)


def test_xpos_alone_stays_xpos_when_the_run_reads_the_file(tmp_path: Path) -> None:
    rows = "".join(f"1\tw{i}\t_\t_\tT{i % 3}\t_\t_\t_\t_\t_\n\n" for i in range(30))
    (tmp_path / "a.conllu").write_text(rows)
    config = choose_config(tmp_path / "a.conllu", device_type="cpu").config
    assert config.data.column == "xpos"
    assert read_training_data(config).vocabulary.labels == ("T0", "T1", "T2")


def test_a_finished_model_brings_its_own_sizes(finished_run: Path, corpus: Path) -> None:
    given = [f"data.start={finished_run / 'model'}"]
    config = choose_config(corpus / "train.txt", given, device_type="cpu").config
    assert config.encoder.width == small_runs.SMALL_MODEL["encoder"]["width"]
    assert config.denoiser.layers == small_runs.SMALL_MODEL["denoiser"]["layers"]


def test_a_run_can_end_within_an_epoch(corpus: Path, tmp_path: Path) -> None:
    config = small_runs.small_config(corpus, {"training": {"epochs": 9, "max_steps": 5}})
    loop.train(config, output=tmp_path, device="cpu")
    assert len(small_runs.read_log(tmp_path, "step")) == 5
    assert [entry["step"] for entry in small_runs.read_log(tmp_path, "evaluation")][-1] == 5
    with pytest.raises(InputError, match=r"training.max_steps = 5, not 4"):
        loop.train(with_overrides(config, ["training.max_steps=4"]), output=tmp_path, device="cpu", resume=True)
    loop.train(with_overrides(config, ["training.max_steps=6"]), output=tmp_path, device="cpu", resume=True)
    assert len(small_runs.read_log(tmp_path, "step")) == 6


def fitted(config: Config, minutes: float, monkeypatch: pytest.MonkeyPatch) -> loop.FittedTime:
    """With a second a step and no evaluations to speak of."""
    monkeypatch.setattr(loop._Run, "measure_pace", lambda self, at_most: (1.0, 0.0))
    return loop.fit_to_time(config, minutes, device="cpu")


def test_a_run_is_fitted_to_a_time(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_runs.small_config(corpus, {"training": {"epochs": 50, "accumulation": 1, "warmup_steps": 500}})
    run_steps = 14 * 50  # about
    changes, line, planned_steps = fitted(config, run_steps / 60 / 2, monkeypatch)
    assert 20 <= changes["training.epochs"] <= 25
    assert 20 <= changes["training.warmup_steps"] <= 40
    assert "training.max_steps" not in changes
    assert changes["training.ema_decay"] == 0.9
    assert "steps fit into" in line
    assert run_steps - 50 <= planned_steps <= run_steps + 50
    changes, *_ = fitted(config, 0.5, monkeypatch)
    assert 20 <= changes["training.max_steps"] <= 30
    assert changes["training.epochs"] <= 3
    assert fitted(config, 1000, monkeypatch).changes == {"training.epochs": 50}
    _, line, _ = fitted(config, 1e-9, monkeypatch)
    assert re.fullmatch(
        r"time: 1e-09 min are too short: preparing and evaluating alone take about [\d.]+ min; 1 of \d+ steps will be trained",
        line,
    )


@pytest.mark.parametrize("planned_steps", [None, 4, 5])
def test_a_run_with_too_little_time_says_so_at_the_end(planned_steps: int | None, corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = small_runs.small_config(corpus, {"training": {"epochs": 1, "max_steps": 1}})
    display = loop.Callbacks(said.append)
    loop.train(config, output=tmp_path, device="cpu", display=display, planned_steps=planned_steps)
    warning = (
        "there was time for 1 of the 5 steps planned, which is too few for a good model; allow more time with --minutes"
    )
    assert (said[-1] == warning) is (planned_steps == 5)
    assert any("there was time for" in entry["message"] for entry in small_runs.read_log(tmp_path, "note")) is (
        planned_steps == 5
    )


def test_the_pace_of_a_run_is_measured(corpus: Path) -> None:
    changes, *_ = loop.fit_to_time(small_runs.small_config(corpus, {"training": {"epochs": 1000}}), 0.1, device="cpu")
    assert 0 < changes["training.epochs"] < 1000


def warnings_of(tmp_path: Path, train: str, dev: str) -> list[str]:
    for name, text in (("train.txt", train), ("dev.txt", dev)):
        (tmp_path / name).write_text(text)
    values = {"task": "pos", "system": "unigram", "data": {"train": str(tmp_path / "train.txt")}}
    values["data"]["dev"] = str(tmp_path / "dev.txt")  # type: ignore[index]
    config = Config.model_validate(values)
    return [*data_warnings(read_training_data(config), config)]


def test_a_small_dev_set_is_warned_about(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, "a X\nb Y\n\n", "c X\nd Y\n\n")
    assert warning.startswith("dev has only 2 labels to choose the best epoch by: a score of 90 is uncertain by ±42.4")
    large = "".join(f"w{i} X\n\n" for i in range(600))
    assert warnings_of(tmp_path, "a X\nb Y\n\n", large) == []


def test_overlap_is_warned_about(tmp_path: Path) -> None:
    rows = [f"w{i} X\n\n" for i in range(600)]
    (warning,) = warnings_of(tmp_path, "".join(rows[:300]), "".join(rows))
    assert warning.startswith("50 % of the dev sentences (300 of 600) are also in the training data")
    assert warnings_of(tmp_path, "".join(rows[:60]), "".join(rows)) == []


def test_what_to_do_about_repeats_in_a_file_that_dev_is_held_out_from(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"w{i % 2} {'XY'[i % 2]}\n\n" for i in range(2000)))
    data = {"train": str(tmp_path / "train.txt"), "held_out": 600}
    config = Config.model_validate({"task": "pos", "system": "unigram", "data": data})
    (warning,) = data_warnings(read_training_data(config), config)
    assert warning.endswith("leave out the repeats, or give other dev data with --dev")


def test_test_data_that_are_not_new_are_warned_about(tmp_path: Path) -> None:
    rows = [f"w{i} X\n\n" for i in range(600)]
    for name, part in (("train", rows[:100]), ("dev", rows), ("test", rows)):
        (tmp_path / f"{name}.txt").write_text("".join(part))
    files = {name: str(tmp_path / f"{name}.txt") for name in ("train", "dev", "test")}
    config = Config.model_validate({"task": "pos", "system": "unigram", "data": files})
    found = [*data_warnings(read_training_data(config), config)]
    assert [message.split(":")[0] for message in found] == [
        "17 % of the dev sentences (100 of 600) are also in the training data",
        "17 % of the test sentences (100 of 600) are also in the training data",
        "100 % of the test sentences (600 of 600) are also in the dev data",
    ]


def test_schedules_and_scores_are_warned_about(corpus: Path, tmp_path: Path) -> None:
    """The same messages are shown and in the log."""
    said: list[str] = []
    config = small_runs.small_config(corpus, {"training": {"epochs": 1, "warmup_steps": 1000, "budget": 2000}})
    loop.train(config, output=tmp_path, device="cpu", display=loop.Callbacks(said.append))
    logged = [entry["message"] for entry in small_runs.read_log(tmp_path, "note")]
    assert logged == said
    assert any("the warm-up of 1,000 steps is longer than the run of 1" in message for message in said)
    assert any(message.endswith("its full value; train for more epochs") for message in said)
    assert any("the f1 on dev is 0" in message for message in said)


def test_dev_data_without_entities_are_what_is_wrong(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("Nobody O\nsleeps O\n\n")
    said: list[str] = []
    config = small_runs.small_config(corpus, {"data": {"dev": str(tmp_path / "dev.txt")}, "training": {"epochs": 1}})
    loop.train(config, output=tmp_path / "run", device="cpu", display=loop.Callbacks(said.append))
    assert "dev has no entities, so every model scores 0 on it; give other dev data with --dev" in said
    assert not any("learnt nothing" in message for message in said)


def test_a_score_of_zero_on_other_labels_is_explained_by_them(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("Paris S-CITY\nsleeps O\n\n" * 12)
    said: list[str] = []
    config = small_runs.small_config(corpus, {"data": {"dev": str(tmp_path / "dev.txt")}, "training": {"epochs": 1}})
    loop.train(config, output=tmp_path / "run", device="cpu", display=loop.Callbacks(said.append))
    (message,) = [message for message in said if "the f1 on dev is 0" in message]
    assert message.endswith("is 0, because training has none of its labels; compare them with dmf data check")


@pytest.mark.parametrize(("num_entities", "is_warned"), [(1, False), (12, True)])
def test_a_score_of_zero_on_a_handful_of_entities_says_nothing(
    num_entities: int, is_warned: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.evaluate
    monkeypatch.setattr(
        loop,
        "evaluate",
        lambda *args, **options: loop.dataclasses.replace(real(*args, **options), score=0.0),  # type: ignore[attr-defined]
    )
    (tmp_path / "dev.txt").write_text("Paris S-LOC\nsleeps O\n\n" * num_entities)
    said: list[str] = []
    config = small_runs.small_config(corpus, {"data": {"dev": str(tmp_path / "dev.txt")}, "training": {"epochs": 1}})
    loop.train(config, output=tmp_path / "run", device="cpu", display=loop.Callbacks(said.append))
    assert any("learnt nothing" in message for message in said) == is_warned


def test_a_score_of_zero_that_another_number_of_calls_has_not_is_no_warning(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.evaluate

    def evaluate(*args: Any, num_calls: int | None = None, **options: Any) -> Any:
        found = real(*args, num_calls=num_calls, **options)
        score = 50.0 if num_calls == right else 0.0
        scores = {name: {**row, "f1": score} for name, row in found.scores.items()}
        return loop.dataclasses.replace(found, scores=scores, score=score)  # type: ignore[attr-defined]

    monkeypatch.setattr(loop, "evaluate", evaluate)
    (tmp_path / "dev.txt").write_text("Paris S-LOC\nsleeps O\n\n" * 12)
    values = {"data": {"dev": str(tmp_path / "dev.txt")}, "training": {"epochs": 1, "max_steps": 1}}
    config = small_runs.small_config(corpus, {**values, "inference": {"num_calls": "auto"}})
    for right, is_warned in ((1, False), (-1, True)):
        said: list[str] = []
        folder = tmp_path / f"run {right}"
        loop.train(config, output=folder, device="cpu", display=loop.Callbacks(said.append))
        assert any("learnt nothing" in message for message in said) == is_warned
        # A run that is over does not say it again.
        said.clear()
        loop.train(config, output=folder, device="cpu", display=loop.Callbacks(said.append), resume=True)
        assert not any("learnt nothing" in message for message in said)


def test_a_score_that_still_rises_is_told_with_the_command_that_goes_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, scores = loop.evaluate, iter([0.0, 40.0, 50.0])
    monkeypatch.setattr(
        loop,
        "evaluate",
        lambda *args, **options: loop.dataclasses.replace(real(*args, **options), score=next(scores)),  # type: ignore[attr-defined]
    )
    said: list[str] = []
    config = small_runs.small_config(corpus, {"training": {"epochs": 2, "budget": 2000}})
    loop.train(
        config, output=tmp_path, device="cpu", display=loop.Callbacks(said.append), resume_command="dmf train --resume"
    )
    (message,) = [message for message in said if "still rising" in message]
    assert message.endswith("to train longer: dmf train --resume --set training.epochs=4")
