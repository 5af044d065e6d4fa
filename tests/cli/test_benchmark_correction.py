"""``dmf benchmark correction``: annotators in lockstep need as many fixes as one who corrects a document by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch

from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, extract_spans
from diffusion_mf.lab.benchmarks.correction import (
    CORRECTION_ROW_KEY,
    Corrected,
    Corrector,
    GivenResult,
    Measured,
    ModelGroup,
    Order,
    Way,
    accuracy_of_others,
    correct,
    correction_rows,
    kept_name,
)
from diffusion_mf.tagger import Tagger, load_model
from diffusion_mf.training.loop import train

SYSTEMS: dict[str, dict[str, Any]] = {
    "unigram": {"system": "unigram"},
    "lcrf": {"system": "lcrf"},
    "recall": {
        "denoiser": {"recall": 3},
        "diffusion": {"own_trajectory_share": 0.5, "clamp_share": 0.5},
        "inference": {"num_calls": 3},
    },
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small corpus, four sentences a document."""
    return small_runs.write_small_documents(tmp_path_factory.mktemp("corpus"), size=4)


@pytest.fixture(scope="module")
def models(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: train(
            small_runs.small_config(documents, {"training": {"epochs": 4}}, changes), output=root / name, device="cpu"
        )
        for name, changes in SYSTEMS.items()
    }


def applied(sentences: list[Any], fixes: list[tuple[list[str], list[str]]], held: list[dict[int, str]]) -> list[Any]:
    """Clamps of what is held and, where nothing is, of fixes at the same words: the longest first, then the latest."""
    clamps = [dict(row) for row in held]
    for words, labels in [fix for size in range(9, 0, -1) for fix in fixes[::-1] if len(fix[0]) == size]:
        for sentence, clamp in zip(sentences, clamps, strict=True):
            for start in range(len(sentence.units) - len(words) + 1):
                places = range(start, start + len(words))
                before, after = clamp.get(start - 1, "O"), clamp.get(start + len(words), "O")
                is_cut = before[0] in "BM" or after[0] in "ME"
                if (
                    [*sentence.units[start : start + len(words)]] == words
                    and not is_cut
                    and not clamp.keys() & {*places}
                ):
                    clamp.update(zip(places, labels, strict=True))
    return clamps


def by_hand(tagger: Tagger, sentences: list[Any], order: Order, *, apply_to_all: bool = False) -> tuple[int, int]:
    """Errors and fixes of one document, with nothing but the tagger's clamps."""
    held: list[dict[int, str]] = [{} for _ in sentences]
    fixed: list[tuple[list[str], list[str]]] = []
    errors = fixes = -1
    while True:
        clamps = applied(sentences, fixed, held) if apply_to_all else held
        results = tagger.tag(sentences, clamp=clamps, scheme="bmes", documents=[1] * len(sentences))
        fixes += 1
        if errors < 0:
            errors = 0
            for sentence, result in zip(sentences, results, strict=True):
                gold = extract_spans(sentence.labels, LabelScheme.BMES)
                found = extract_spans(result.labels, LabelScheme.BMES)
                errors += sum(span not in found for span in gold)
                errors += sum(all(one.end <= span.start or span.end <= one.start for one in gold) for span in found)
        places = [(row, column) for row, sentence in enumerate(sentences) for column in range(len(sentence.units))]
        if order is Order.UNCERTAIN:
            places = [(row, column) for row, column in places if column not in held[row]]
            places.sort(key=lambda place: results[place[0]].scores[place[1]])
        for row, column in places:
            gold = sentences[row].labels
            if results[row].labels[column] == gold[column]:
                held[row][column] = gold[column]
                continue
            right = [span for span in extract_spans(gold, LabelScheme.BMES) if span.start <= column < span.end]
            found = extract_spans(results[row].labels, LabelScheme.BMES)
            wrong = next((span for span in found if span.start <= column < span.end), None)
            if not right and wrong is not None:
                every = extract_spans(gold, LabelScheme.BMES)
                right = [span for span in every if span.start < wrong.end and wrong.start < span.end] or [wrong]
            first = 0 if order is Order.READING else right[0].start
            for unit in {column, *range(first, right[0].end)}:
                held[row][unit] = gold[unit]
            start, end = right[0].start, right[0].end
            fixed.append(([*sentences[row].units[start:end]], [*gold[start:end]]))
            break
        else:
            return errors, fixes


@pytest.mark.parametrize("apply_to_all", [False, True])
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("name", list(SYSTEMS))
def test_all_annotators_in_lockstep_are_as_one_by_hand(
    name: str, order: Order, apply_to_all: bool, models: dict[str, Path], documents: Path
) -> None:
    sentences = read_task(documents / "dev.txt", load_model(models[name]).config.task).sentences
    corrector = Corrector(load_model(models[name]), sentences, device=CPU)
    found = correct(corrector, Way(order, apply_to_all))
    tagger = Tagger.load(models[name], device="cpu")
    numbers = sorted({sentence.document for sentence in sentences})
    assert len(numbers) == 4
    for place, number in enumerate(numbers):
        own = [sentence for sentence in sentences if sentence.document == number]
        if order is Order.UNCERTAIN and name != "recall" and not apply_to_all:
            # Without recall, sentences have annotators of their own: the same fixes in another order.
            expected = tuple(np.sum([by_hand(tagger, [sentence], order) for sentence in own], axis=0))
        else:
            expected = by_hand(tagger, own, order, apply_to_all=apply_to_all)
        members = corrector.documents == place
        assert (found.errors[members].sum(), found.fixes[members].sum()) == expected
    assert found.errors.sum() > 10


def test_unigram_fixes_are_errors_where_nothing_follows(models: dict[str, Path], documents: Path) -> None:
    """Argmax of independent units: a fix changes nothing else, except that spans are fixed as a whole."""
    model = load_model(models["unigram"])
    sentences = read_task(documents / "dev.txt", model.config.task).sentences
    corrector = Corrector(model, sentences, device=CPU)
    found = correct(corrector, Way(Order.READING))
    assert found.fixes.sum() == pytest.approx(found.errors.sum(), rel=0.25)


def test_what_an_annotator_decides(models: dict[str, Path], documents: Path) -> None:
    model = load_model(models["lcrf"])
    sentence = next(
        sentence
        for sentence in read_task(documents / "dev.txt", model.config.task)
        if any(label.startswith("B-") for label in sentence.labels or ())
    )
    corrector = Corrector(model, [sentence], device=CPU)
    gold = corrector.gold[0]
    span = next(each for each in corrector.spans(gold) if each.end - each.start > 1)
    outside = model.vocabulary.label_ids["O"]
    # A span that was missed.
    missed = gold.copy()
    missed[span.start : span.end] = outside
    assert corrector.num_errors(0, missed) == 1
    assert corrector.fixed_units(0, missed, span.start) == range(span.start, span.end)
    assert corrector.fixed_units(0, missed, span.end - 1) == range(span.start, span.end)
    # A span that was invented.
    place = int(np.flatnonzero(gold == outside)[0])
    invented = gold.copy()
    invented[place] = next(index for name, index in model.vocabulary.label_ids.items() if name.startswith("S-"))
    assert corrector.num_errors(0, invented) == 1
    assert corrector.fixed_units(0, invented, place) == range(place, place + 1)


def test_a_wrong_span_that_overlaps_is_one_error() -> None:
    corrector = Corrector.__new__(Corrector)
    corrector._has_spans = True
    corrector._gold_spans = [[LabelledSpan(2, 4, "X")]]
    corrector._names = ("O", "B-X", "M-X", "E-X")  # type: ignore[assignment]
    labels = np.array([0, 1, 2, 2, 3, 0])
    assert corrector.num_errors(0, labels) == 1
    assert corrector.fixed_units(0, labels, 1) == range(2, 4)


def test_the_accuracy_on_the_others(models: dict[str, Path], documents: Path) -> None:
    model = load_model(models["unigram"])
    sentences = read_task(documents / "dev.txt", model.config.task).sentences
    corrector = Corrector(model, sentences, device=CPU)
    tagger = Tagger.load(models["unigram"], device="cpu")
    right = np.concatenate(
        [
            np.array(result.labels) == np.array(sentence.labels)
            for sentence, result in zip(sentences, tagger.tag(sentences, scheme="bmes"), strict=True)
        ]
    )
    drawn = np.random.default_rng(0).random(len(right))
    results = list(accuracy_of_others(corrector, [10, 50]))
    for share, result in zip((10, 50), results, strict=True):
        assert result.without == pytest.approx(100 * right[drawn >= share / 100].mean())
        # Legal neighbours of a given label may follow from it.
        assert result.accuracy >= result.without


def _measured(system: str, seed: int, fixes: list[int]) -> Measured:
    counts = Corrected(np.array([4, 4, 2]), np.array(fixes))
    return Measured(
        ModelGroup(system, "scratch", "nothing", 0.0),
        seed,
        {"decoder": "argmax", "per": "1,000 units"},
        {Way(Order.READING): counts},
        {5.0: GivenResult(90.0 + seed, 80.0)},
        np.array([0, 0, 1]),
        100,
    )


def test_rows_are_means_over_seeds_and_compared_by_document() -> None:
    rows = correction_rows(
        [_measured("lcrf", 1, [4, 4, 2]), *(_measured("diffusion-mf", seed, [2, seed, 1]) for seed in (1, 2))]
    )
    by_key = {(row["system"], row["order"], row["given"]): row for row in rows}
    assert len(by_key) == len(rows) == 4
    row = by_key["diffusion-mf", "reading", None]
    assert row["seeds"] == [1, 2]
    assert (row["errors"], row["fixes"]) == (100, pytest.approx(45))
    assert row["saved"] == pytest.approx(55)
    assert row["fixes_by_seed"] == {"1": 40, "2": 50}
    assert row["minus_lcrf"]["difference"] == pytest.approx(-55)
    assert row["minus_lcrf"]["p_fewer"] == 0
    assert row["minus_lcrf"]["low"] < -55 < row["minus_lcrf"]["high"] < 0
    assert "minus_lcrf" not in by_key["lcrf", "reading", None]
    assert by_key["diffusion-mf", None, 5.0]["accuracy_of_others"] == 91.5


def test_the_best_lcrf_may_see_documents_and_be_corrected_in_another_way() -> None:
    plain, ours = _measured("lcrf", 1, [4, 4, 2]), _measured("diffusion-mf", 1, [2, 2, 1])
    seeing = plain._replace(group=plain.group._replace(recall="states"))
    corrected = {
        Way(Order.READING): Corrected(np.array([4, 4, 2]), np.array([4, 3, 2])),
        Way(Order.READING, True): Corrected(np.array([4, 4, 2]), np.array([2, 1, 1])),
    }
    everywhere = seeing._replace(corrected={**seeing.corrected, **corrected})
    # Seed 2 was measured before fixes could be applied to all.
    rows = correction_rows([plain, everywhere, seeing._replace(seed=2), ours])
    (row,) = [row for row in rows if row["system"] == "diffusion-mf" and row["order"]]
    best = row["minus_best_lcrf"]
    assert (best["recall"], best["applied_to_all"], best["difference"]) == ("states", True, pytest.approx(10))
    assert row["minus_lcrf"]["difference"] == pytest.approx(-50)
    assert row["minus_lcrf_with_states"]["difference"] == pytest.approx(-45), "the mean of seeds with 9 and 10 fixes"
    seeds = {
        row["applied_to_all"]: row["seeds"]
        for row in rows
        if row["system"] == "lcrf" and row["recall"] == "states" and row["order"]
    }
    assert seeds == {False: [1, 2], True: [1]}


def test_the_command(dmf, models: dict[str, Path], documents: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    output, plot = tmp_path / "correction.json", tmp_path / "correction.png"
    arguments = ("benchmark", "correction", *models.values(), "--data", documents / "dev.txt", "--device", "cpu")
    outcome = dmf(*arguments, "--output", output, "--plot", plot, "--json")
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert rows == json.loads(output.read_text())
    assert plot.stat().st_size > 10_000
    assert {(row["system"], row["recall"], row["order"], row["applied_to_all"], row["given"]) for row in rows} == {
        (system, recall, *way, given)
        for system, recall in (("unigram", "nothing"), ("lcrf", "nothing"), ("diffusion-mf", "beliefs"))
        for way, given in (
            *(((order, is_applied), None) for order in ("reading", "uncertain") for is_applied in (False, True)),
            *(((None, False), share) for share in (1, 5, 10, 25, 50)),
        )
    }
    for row in rows:
        assert {"command", "commit", "hardware", "versions", "date", "seeds", "corpus", "file"} <= set(row)
        if row["order"]:
            assert row["errors"] > 0
            assert ("minus_lcrf" in row) == (row["system"] != "lcrf")
    printed = dmf("benchmark", "correction", models["recall"], *arguments[-4:])
    assert printed.status == 0
    assert b"clamps, recall of beliefs" in printed.stdout
    assert len(json.loads(output.read_text())) == len(rows)
    # Several at a time, and those measured before, come to the same.
    kept = tmp_path / "kept"
    at_once = dmf(*arguments, "--workers", 2, "--keep", kept, "--json")
    later = dmf("benchmark", "correction", *sorted(kept.iterdir()), *arguments[-4:], "--json")
    for outcome in (at_once, later):
        assert outcome.status == 0, outcome.stderr
        again = {tuple(row[key] for key in CORRECTION_ROW_KEY): row for row in json.loads(outcome.stdout)}
        for row in rows:
            other = again.pop(tuple(row[key] for key in CORRECTION_ROW_KEY))
            assert {**row, "command": None, "date": None} == {**other, "command": None, "date": None}
        assert not again


def test_measurements_with_rows_of_their_own_are_kept_apart() -> None:
    facts = {"corpus": "c", "file": "dev.txt", "calls": None}
    nothing = np.zeros(1, dtype=np.int64)
    first = Measured(ModelGroup("diffusion-mf", "scratch", "nothing", 0.5), 1, facts, {}, {}, nothing, 1)
    others = [
        first._replace(group=ModelGroup("diffusion-mf", "scratch", "beliefs", 0.5)),
        first._replace(group=ModelGroup("diffusion-mf", "scratch", "nothing", 0.25)),
        first._replace(group=ModelGroup("diffusion-uni", "scratch", "nothing", 0.5)),
        first._replace(group=ModelGroup("diffusion-mf", "window", "nothing", 0.5)),
        first._replace(seed=2),
        *(first._replace(facts={**facts, key: value}) for key, value in (("corpus", "d"), ("file", "t"), ("calls", 2))),
    ]
    assert len({kept_name(each) for each in (first, *others)}) == 1 + len(others)


def test_measurements_of_other_data_are_refused(dmf, models: dict[str, Path], documents: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--data", documents / "dev.txt", "--device", "cpu")
    assert dmf("benchmark", "correction", models["unigram"], *arguments, "--keep", tmp_path / "kept").status == 0
    (kept,) = (tmp_path / "kept").iterdir()
    for path, options, message in [
        (kept, ("--calls", 3), "it was measured on dev.txt"),
        (kept, ("--calls", 3), "with its own calls"),
        (kept, ("--corpus", "another"), "it was measured on dev.txt"),
        (models["unigram"] / "metrics.json", (), "these are not the measurements of a model"),
        (tmp_path / "none.json", (), "none.json: no such file"),
    ]:
        outcome = dmf("benchmark", "correction", path, *arguments, *options)
        assert outcome.status == 2
        assert message in outcome.stderr


def test_sentences_with_unknown_labels_are_left_out(models: dict[str, Path], documents: Path) -> None:
    model = load_model(models["unigram"])
    sentences = list(read_task(documents / "dev.txt", model.config.task).sentences)
    sentences[1] = sentences[1]._replace(labels=("S-NEW",) + ("O",) * (len(sentences[1].units) - 1))
    corrector = Corrector(model, sentences, device=CPU)
    assert corrector.num_left_out == 1
    assert len(corrector.sentences) == len(corrector.documents) == len(sentences) - 1


def _invented_documents(number: int, draw: random.Random) -> str:
    """Names that are persons in one document and places in another, without any other hint."""
    documents = []
    for _ in range(number):
        kinds = {f"N{name}": draw.choice(["PER", "LOC"]) for name in draw.sample(range(40), 3)}
        units = [draw.choice([*kinds, *(f"w{word}" for word in range(6))]) for _ in range(30)]
        lines = [f"{unit} S-{kinds[unit]}" if unit in kinds else f"{unit} O" for unit in units]
        documents.append("\n\n".join(["-DOCSTART- O", *("\n".join(lines[at : at + 5]) for at in range(0, 30, 5))]))
    return "\n\n".join(documents) + "\n\n"


def test_a_fixed_name_carries_over_to_its_other_occurrences(tmp_path: Path) -> None:
    draw = random.Random(1)
    for split, number in (("train", 100), ("dev", 12)):
        (tmp_path / f"{split}.txt").write_text(_invented_documents(number, draw))
    config = small_runs.small_config(
        tmp_path,
        small_runs.NO_DROPOUT,
        {
            "data": {"scheme": "bmes"},
            "encoder": {"pair_width": 0},
            "denoiser": {"recall": 4, "state_input": True},
            "diffusion": {"own_trajectory_share": 0.8, "own_trajectory_calls": 1, "clamp_share": 0.7},
            "training": {"epochs": 12, "evaluate_every": 12, "budget": 300, "accumulation": 1, "learning_rate": 1e-2},
            "inference": {"num_calls": 3},
        },
    )
    model = load_model(train(config, output=tmp_path / "run", device="cpu"))
    sentences = read_task(tmp_path / "dev.txt", model.config.task).sentences
    found = correct(Corrector(model, sentences, device=CPU), Way(Order.READING))
    # About half of the names are wrong at first, and each needs one fix.
    assert found.fixes.sum() < 0.75 * found.errors.sum()
