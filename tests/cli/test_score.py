from __future__ import annotations

import json
import pathlib
import unicodedata
from collections.abc import Callable

import pytest

GOLD = "Ada\tB-PER\nLovelace\tI-PER\nwrote\tO\n\nOslo\tB-LOC\nsleeps\tO\n"


def write(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def conllu(*sentences: str) -> str:
    """CoNLL-U of sentences such as ``ab/NN c/VV``; the tag stands in both columns."""
    blocks = []
    for sentence in sentences:
        rows = [word.rsplit("/", 1) for word in sentence.split()]
        blocks.append(
            "".join(f"{i}\t{form}\t_\t{tag}\t{tag}\t_\t_\t_\t_\t_\n" for i, (form, tag) in enumerate(rows, 1))
        )
    return "\n".join(blocks) + "\n"


@pytest.fixture
def score(dmf: Callable, tmp_path: pathlib.Path) -> Callable:
    """Score two texts written as files, and return the JSON."""

    def run(gold: str, predicted: str, *arguments: object, suffix: str = ".tsv") -> dict:
        files = write(tmp_path, f"gold{suffix}", gold), write(tmp_path, f"predicted{suffix}", predicted)
        outcome = dmf("score", *files, *arguments, "--json")
        assert outcome.status == 0, outcome.stderr
        return json.loads(outcome.stdout)

    return run


def test_entities(score: Callable) -> None:
    values = score(GOLD, "Ada\tB-PER\nLovelace\tI-PER\nwrote\tI-LOC\n\nOslo\tO\nsleeps\tO\n", "--task", "ner")
    assert {name: values[name] for name in ("accuracy", "precision", "recall", "f1")} == {
        "accuracy": 60.0, "precision": 50.0, "recall": 50.0, "f1": 50.0,
    }  # fmt: skip
    assert (values["task"], values["scheme"], values["predicted_scheme"]) == ("ner", "bio2", "bio2")
    assert (values["sentences"], values["units"], values["primary_metric"]) == (2, 5, "f1")
    assert (values["exact_match"], values["invalid_rate"], values["malformed_fragments"]) == (0.0, 50.0, 1)
    assert "labels" not in values
    assert "vocabulary" not in values


def test_predictions_in_a_scheme_of_their_own_and_malformed(score: Callable) -> None:
    predicted = "Ada\tB-PER\nLovelace\tM-PER\nwrote\tO\n\nOslo\tS-LOC\nsleeps\t_\n"
    values = score(GOLD, predicted, "--task", "ner", "--scheme", "bmes")
    assert (values["scheme"], values["predicted_scheme"]) == ("bio2", "bmes")
    # The unclosed entity is ignored; of its labels the first is right, and what is no label is wrong even where O is.
    assert (values["precision"], values["recall"], values["accuracy"]) == (100.0, 50.0, 60.0)
    assert (values["malformed_fragments"], values["invalid_rate"]) == (2, 100.0)


@pytest.mark.parametrize("gold", [
    "Ada\tI-PER\nLovelace\tI-PER\nwrote\tO\n", "Ada\tB-PER\nLovelace\tI-PER\nwrote\tO\n",
    "Ada\tB-PER\nLovelace\tE-PER\nwrote\tO\n", "Ada\tB-PER\nLovelace\tL-PER\nwrote\tO\n",
])  # fmt: skip
@pytest.mark.parametrize(("scheme", "labels"), [
    ("iob1", "I-PER I-PER O"), ("bio2", "B-PER I-PER O"), ("iobes", "B-PER E-PER O"), ("bilou", "B-PER L-PER O"),
])  # fmt: skip
def test_schemes_of_the_two_files_need_not_agree(score: Callable, gold: str, scheme: str, labels: str) -> None:
    words = ["Ada", "Lovelace", "wrote"]
    predicted = "".join(f"{word}\t{label}\n" for word, label in zip(words, labels.split(), strict=True))
    values = score(gold, predicted, "--task", "ner", "--scheme", scheme)
    assert (values["accuracy"], values["f1"], values["invalid_rate"]) == (100.0, 100.0, 0.0)


def test_gold_without_entities(score: Callable) -> None:
    values = score("a\tO\nb\tO\n", "a\tO\nb\tS-X\n", "--task", "ner")
    assert (values["accuracy"], values["precision"], values["recall"], values["f1"]) == (50.0, 0.0, 0.0, 0.0)


def test_irregular_gold_is_repaired_and_predictions_are_not(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.tsv", "a\tB-X\n\tM-X\nc\tO\nd\tM-Y\n")
    outcome = dmf("score", gold, gold, "--task", "ner", "--json")
    values = json.loads(outcome.stdout)
    # Read as gold there are two entities; read as predictions, none is complete.
    assert (values["scheme"], values["precision"], values["recall"]) == ("bmes", 0.0, 0.0)
    assert (values["malformed_fragments"], values["accuracy"]) == (2, 50.0)
    assert outcome.stderr.splitlines()[0] == (
        f"dmf: {gold}: 2 spans with irregular tags repaired, first on line 2 (B-X M-X read as B-X E-X); "
        "1 unit without a form read as _, first on line 2; dmf data check lists them, --strict (data.strict) refuses them"
    )
    legal = write(tmp_path, "legal.tsv", "a\tB-X\n_\tE-X\nc\tO\nd\tS-Y\n")
    assert json.loads(dmf("score", gold, legal, "--task", "ner", "--json").stdout)["f1"] == 100.0
    outcome = dmf("score", write(tmp_path, "g.tsv", "a\tB-X\nb\tO\nc\tI-X\n"), legal, "--task", "ner", "--strict")
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert "the unit or the tag" not in dmf("score", gold, gold, "--task", "ner").stderr
    assert "line 2: the unit is empty" in dmf("score", gold, gold, "--task", "ner", "--strict").stderr


def test_irregular_gold_in_strict_mode_is_named(dmf: Callable, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "gold.tsv", "a\tB-X\nb\tO\nc\tI-X\n")
    outcome = dmf("score", path, path, "--task", "ner", "--strict")
    assert outcome.status == 2
    assert f"{path}, line 3: 'I-X' cannot follow 'O' in the scheme bio2" in outcome.stderr


def test_open_predictions_read_in_a_closed_scheme_are_remarked_upon(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.tsv", "a\tB-X\nb\tE-X\n")
    predicted = write(tmp_path, "predicted.tsv", "a\tB-X\nb\tI-X\n")
    outcome = dmf("score", gold, predicted, "--task", "ner", "--json")
    assert "add --scheme bio2" in outcome.stderr
    assert json.loads(outcome.stdout)["f1"] == 0.0
    assert dmf("score", gold, predicted, "--task", "ner", "--scheme", "bio2").stderr == ""
    assert dmf("score", gold, gold, "--task", "ner").stderr == ""


def test_tags_of_words(score: Callable) -> None:
    gold, predicted = conllu("a/DET b/NOUN c/VERB", "d/X"), conllu("a/DET b/VERB c/VERB", "d/_")
    values = score(gold, predicted, "--task", "pos", "--details", suffix=".conllu")
    assert (values["accuracy"], values["recall"], values["f1"]) == (50.0, 50.0, pytest.approx(400 / 7))
    assert values["precision"] == pytest.approx(200 / 3)
    assert values["confusion"] == [
        {"gold": "DET", "predicted": "DET", "count": 1},
        {"gold": "NOUN", "predicted": "VERB", "count": 1},
        {"gold": "VERB", "predicted": "VERB", "count": 1},
        {"gold": "X", "predicted": "_", "count": 1},
    ]
    verb = next(row for row in values["labels"] if row["label"] == "VERB")
    assert verb == {
        "label": "VERB", "precision": 50.0, "recall": 100.0, "f1": pytest.approx(200 / 3), "support": 1, "predicted": 2, "correct": 1,
    }  # fmt: skip
    assert [(row["name"], row["sentences"]) for row in values["lengths"]] == [("1-10", 2)]
    assert values["types"] == []


def test_the_column_is_a_choice(score: Callable) -> None:
    gold = "1\ta\t_\tNOUN\tNN\t_\t_\t_\t_\t_\n"
    predicted = "1\ta\t_\tVERB\tNN\t_\t_\t_\t_\t_\n"
    assert score(gold, predicted, "--task", "pos", suffix=".conllu")["accuracy"] == 0.0
    assert score(gold, predicted, "--task", "pos", "--column", "xpos", suffix=".conllu")["accuracy"] == 100.0


def test_words_may_be_cut_differently(score: Callable) -> None:
    values = score(
        conllu("ab/NN c/VV de/NN"), conllu("ab/NN cd/VV e/NN"), "--task", "seg-pos", "--details", suffix=".conllu"
    )
    assert values["seg_f1"] == values["joint_f1"] == pytest.approx(100 / 3)
    assert (values["aligned_xpos"], values["gold_xpos"], values["accuracy"]) == (100.0, pytest.approx(200 / 3), 40.0)
    assert values["primary_metric"] == "joint_f1"
    assert [row["label"] for row in values["types"]] == ["NN", "VV"]


def test_malformed_characters_come_as_json_lines_against_words(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.conllu", conllu("ab/NN c/NN"))
    row = {"units": ["a", "b", "c"], "labels": ["B-NN", "E-VV", "S-NN"]}
    predicted = write(tmp_path, "predicted.jsonl", json.dumps(row) + "\n")
    values = json.loads(dmf("score", gold, predicted, "--task", "seg-pos", "--json").stdout)
    assert (values["seg_f1"], values["joint_f1"]) == (100.0, pytest.approx(200 / 3))
    assert values["malformed_fragments"] == 1


def test_a_training_file_tells_known_forms(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.tsv", GOLD)
    predicted = write(tmp_path, "predicted.tsv", GOLD.replace("Oslo\tB-LOC", "Oslo\tB-ORG"))
    train = write(tmp_path, "train.tsv", "Ada\tB-PER\nLovelace\tI-PER\nwrote\tO\n")
    values = json.loads(dmf("score", gold, predicted, "--task", "ner", "--train", train, "--json").stdout)
    known, unknown = values["vocabulary"]
    assert (known["name"], known["units"], known["f1"]) == ("in vocabulary", 3, 100.0)
    assert (unknown["name"], unknown["units"], unknown["accuracy"], unknown["f1"]) == (
        "out of vocabulary",
        2,
        50.0,
        0.0,
    )
    words = write(tmp_path, "gold.conllu", conllu("ab/NN c/VV"))
    train = write(tmp_path, "train.jsonl", '{"units": ["a", "b"], "labels": ["B-NN", "E-NN"]}\n')
    values = json.loads(dmf("score", words, words, "--task", "seg-pos", "--train", train, "--json").stdout)
    assert [row["words"] for row in values["vocabulary"]] == [1, 1]


def test_tables_show_the_same_figures(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.tsv", GOLD)
    predicted = write(tmp_path, "predicted.tsv", GOLD.replace("Lovelace\tI-PER", "Lovelace\tO"))
    outcome = dmf("score", gold, predicted, "--task", "ner", "--details", "--train", gold)
    rows = [line.split() for line in outcome.stdout.decode().splitlines()]
    assert outcome.status == 0
    for row in (
        ["accuracy", "60.00"], ["precision", "50.00"], ["recall", "50.00"], ["f1", "50.00"], ["exact", "match", "50.00"],
        ["invalid", "sentences", "0.00"], ["malformed", "fragments", "0"], ["sentences", "2"], ["units", "5"],
        ["LOC", "100.00", "100.00", "100.00", "1"], ["PER", "0.00", "0.00", "0.00", "1"],
        ["B-PER", "S-PER", "1"], ["E-PER", "O", "1"], ["1-10", "2", "60.00", "50.00", "50.00", "50.00", "50.00"],
        ["in", "vocabulary", "5", "60.00", "50.00", "50.00", "50.00"],
    ):  # fmt: skip
        assert row in rows, row


def test_standard_input_and_compression(dmf: Callable, tmp_path: pathlib.Path) -> None:
    import gzip

    predicted = tmp_path / "predicted.tsv.gz"
    predicted.write_bytes(gzip.compress(GOLD.encode()))
    outcome = dmf("score", "-", predicted, "--task", "ner", "--json", stdin=GOLD.encode())
    assert json.loads(outcome.stdout)["f1"] == 100.0
    outcome = dmf("score", "-", "-", "--task", "ner", stdin=GOLD.encode())
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert "only one of the files can be standard input" in outcome.stderr


BAD_PREDICTIONS = {
    "a unit missing": (GOLD.replace("wrote\tO\n", ""), 1, "a sentence has 2 units, but 3 on line 1 of GOLD"),
    "another unit": (GOLD.replace("sleeps", "wakes"), 6, "unit 2 of the sentence is 'wakes', but 'sleeps' on line 6 of GOLD"),
    "a sentence missing": (GOLD.split("\n\n")[0] + "\n", None, "ends after 1 sentence, but GOLD continues on line 5"),
    "a sentence too many": (GOLD + "\nmore\tO\n", 8, "continues, but GOLD ends after 2 sentences"),
    "an unknown prefix": (GOLD.replace("Lovelace\tI-PER", "Lovelace\tQ-PER"), 2, "label 'Q-PER' is not of the scheme bio2"),
    "another scheme": (GOLD.replace("Oslo\tB-LOC", "Oslo\tS-LOC"), 5, "label 'S-LOC' is not of the scheme bio2"),
    "an empty file": ("", None, "contains no sentences"),
    "no labels": ("Ada\nLovelace\nwrote\n\nOslo\nsleeps\n", 1, "no labels"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PREDICTIONS)
def test_bad_predictions_are_one_sentence_and_exit_2(dmf: Callable, tmp_path: pathlib.Path, case: str) -> None:
    text, line, problem = BAD_PREDICTIONS[case]
    gold, predicted = write(tmp_path, "gold.tsv", GOLD), write(tmp_path, "predicted.tsv", text)
    outcome = dmf("score", gold, predicted, "--task", "ner")
    place = str(predicted) if line is None else f"{predicted}, line {line}"
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert outcome.stderr.startswith(f"dmf: {place}: {problem.replace('GOLD', str(gold))}")
    assert outcome.stderr.count("\n") == 1
    assert "; " in outcome.stderr, "a remedy is named"


def test_units_that_only_look_alike_are_said_to_differ_in_composition(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold, predicted = (write(tmp_path, form, unicodedata.normalize(form, "Köln\tB-LOC\n")) for form in ("NFC", "NFD"))
    outcome = dmf("score", gold, predicted, "--task", "ner")
    assert outcome.status == 2
    assert f"in another Unicode composition on line 1 of {gold}; convert both files to the same one" in outcome.stderr


def test_bad_paths_are_one_sentence_and_exit_2(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.tsv", GOLD)
    empty = write(tmp_path, "empty.tsv", "")
    for first, second, problem in (
        (gold, tmp_path / "absent.tsv", f"{tmp_path / 'absent.tsv'}: no such file"),
        (tmp_path / "absent.tsv", gold, f"{tmp_path / 'absent.tsv'}: no such file"),
        (gold, tmp_path, f"{tmp_path}: this is a directory"),
        (tmp_path, gold, f"{tmp_path}: this is a directory"),
        (empty, gold, f"{empty}: contains no sentences"),
        (
            write(tmp_path, "gold.conllu", GOLD),
            gold,
            "the task ner reads columns, jsonl, hugging-face, doccano, prodigy, label-studio or brat, not",
        ),
    ):
        outcome = dmf("score", first, second, "--task", "ner")
        assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, b"", 1)
        assert problem in outcome.stderr


def test_characters_must_agree(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.conllu", conllu("ab/NN c/VV"))
    for text, problem in (
        (conllu("ab/NN d/VV"), f"character 3 of the sentence is 'd', but 'c' on line 1 of {gold}"),
        (conllu("ab/NN cd/VV"), f"a sentence has 4 characters, but 3 on line 1 of {gold}"),
    ):
        predicted = write(tmp_path, "predicted.conllu", text)
        outcome = dmf("score", gold, predicted, "--task", "seg-pos")
        assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
        assert f"{predicted}, line 1: {problem}" in outcome.stderr


def test_characters_may_be_labelled_in_an_open_scheme(dmf: Callable, tmp_path: pathlib.Path) -> None:
    gold = write(tmp_path, "gold.txt", "a B\nb I\nc B\n\n")
    wrong = write(tmp_path, "wrong.txt", "a B\nb I\nc I\n\n")
    values = json.loads(dmf("score", gold, gold, "--task", "seg-pos", "--json").stdout)
    assert (values["seg_f1"], values["scheme"]) == (100.0, "bio2")
    assert json.loads(dmf("score", gold, wrong, "--task", "seg-pos", "--json").stdout)["seg_f1"] == 0.0
    closed = write(tmp_path, "closed.txt", "a B\nb E\nc S\n\n")
    values = json.loads(dmf("score", closed, gold, "--task", "seg-pos", "--scheme", "bio2", "--json").stdout)
    assert (values["seg_f1"], values["predicted_scheme"]) == (100.0, "bio2")


@pytest.mark.parametrize("task", ["pos", "ner"])
def test_spaces_around_tags_are_no_other_label(task: str, dmf: Callable, tmp_path: pathlib.Path) -> None:
    clean, spaced = write(tmp_path, "a.tsv", GOLD), write(tmp_path, "b.tsv", GOLD.replace("\tO", "\tO ", 1))
    for arguments in (["score", clean, spaced], ["score", spaced, clean], ["data", "check", spaced]):
        outcome = dmf(*arguments, "--task", task)
        assert outcome.status == 2
        output = outcome.stderr + outcome.stdout.decode()
        assert f"{spaced}, line 3: the tag 'O ' ends in a space; remove the spaces around tags" in output
    outcome = dmf("data", "convert", spaced, "-", "--to", "doccano")
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert "line 3: the tag 'O ' ends in a space" in outcome.stderr


def test_gold_that_cannot_be_scored(dmf: Callable, tmp_path: pathlib.Path) -> None:
    unlabelled = write(tmp_path, "gold.conllu", conllu("a/_ b/_"))
    for task in ("pos", "seg-pos"):
        outcome = dmf("score", unlabelled, unlabelled, "--task", task)
        assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
        assert "a gold unit has no label" in outcome.stderr
    labelled = write(tmp_path, "labelled.conllu", conllu("a/NN"))
    for task, scheme in (("pos", "bmes"), ("seg-pos", "bio2")):
        outcome = dmf("score", labelled, labelled, "--task", task, "--scheme", scheme)
        assert outcome.status == 2
        assert f"labels of the task {task} cannot be in the scheme {scheme}" in outcome.stderr
    for arguments in (["--task", "parse"], ["--task", "pos", "--scheme", "bioes2"], []):
        assert dmf("score", labelled, labelled, *arguments).status == 2
