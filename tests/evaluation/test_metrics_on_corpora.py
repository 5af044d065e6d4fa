"""Gold labels of the real corpora against damaged ones: every score is the oracles'."""

from __future__ import annotations

import pathlib
import random

import pytest
from damage import damaged

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.evaluation import NO_LABEL, score_sentences
from diffusion_mf.evaluation.paired_files import score_files
from oracles.brute_force_spans import typed_spans
from oracles.ud_word_evaluation import evaluate, evaluate_at, projected_tag

pytestmark = pytest.mark.corpora


@pytest.fixture(scope="module")
def entities(corpora: pathlib.Path) -> list[list[str]]:
    return [list(sentence.labels or ()) for sentence in read_task(corpora / "conll2003" / "dev.txt", Task.NER)]


@pytest.fixture(scope="module")
def chinese(corpora: pathlib.Path) -> pathlib.Path:
    return corpora / "ud-2.15" / "UD_Chinese-GSDSimp" / "zh_gsdsimp-ud-test.conllu"


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4])
def test_damaged_entities(entities: list[list[str]], rate: float) -> None:
    predicted = damaged(entities, 1, rate=rate, extra=(NO_LABEL,))
    metrics = score_sentences(Task.NER, LabelScheme.BMES, entities, predicted)
    gold_spans, spans = (
        {(number, *span) for number, labels in enumerate(corpus) for span in typed_spans(labels)}
        for corpus in (entities, predicted)
    )
    correct = len(gold_spans & spans)
    assert metrics["precision"] == pytest.approx(100 * correct / len(spans))
    assert metrics["recall"] == pytest.approx(100 * correct / len(gold_spans))
    pairs = [pair for sides in zip(entities, predicted, strict=True) for pair in zip(*sides, strict=True)]
    assert metrics["accuracy"] == pytest.approx(100 * sum(one == other for one, other in pairs) / len(pairs))
    assert (metrics["f1"] == 100.0) == (rate == 0.0)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4])
def test_damaged_words(chinese: pathlib.Path, rate: float) -> None:
    gold = [list(sentence.labels or ()) for sentence in read_task(chinese, Task.SEG_POS)]
    predicted = damaged(gold, 3, rate=rate, extra=(NO_LABEL,))
    metrics = score_sentences(Task.SEG_POS, LabelScheme.BMES, gold, predicted)

    def words_at(corpus: list[list[str]], **options: bool) -> list[tuple[tuple[int, int], str]]:
        words, offset = [], 0
        for labels in corpus:
            for start, end, tag in typed_spans(labels, **options):
                words.append(((offset + start, offset + end), tag))
            offset += len(labels)
        return words

    gold_words = words_at(gold)
    joint = evaluate_at(gold_words, words_at(predicted))
    assert metrics["joint_f1"] == pytest.approx(joint["xpos_f1"])
    assert metrics["aligned_xpos"] == pytest.approx(joint["xpos_aligned"])
    segments = evaluate_at(gold_words, words_at(predicted, match_types=False))
    assert metrics["seg_f1"] == pytest.approx(segments["words_f1"])
    tags = [label[2:] if label != NO_LABEL else None for labels in predicted for label in labels]
    votes = [projected_tag(tags[start:end]) == tag for (start, end), tag in gold_words]
    assert metrics["gold_xpos"] == pytest.approx(100 * sum(votes) / len(votes))
    assert (metrics["joint_f1"] == 100.0) == (rate == 0.0)


def test_a_file_cut_into_other_words(chinese: pathlib.Path, tmp_path: pathlib.Path) -> None:
    generator = random.Random(4)
    gold, system, lines = [], [], []
    for line in chinese.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) == 10 and fields[0].isdecimal():
            form, tag = fields[1], fields[4]
            gold.append((form, tag))
            cut = generator.randrange(1, len(form)) if len(form) > 1 and generator.random() < 0.2 else len(form)
            for piece in filter(None, (form[:cut], form[cut:])):
                system.append((piece, "XX" if generator.random() < 0.1 else tag))
                lines.append("\t".join(["1", piece, "_", "_", system[-1][1], "_", "_", "_", "_", "_"]))
        elif not line:
            lines.append("")
    predicted = tmp_path / "predicted.conllu"
    predicted.write_text("\n".join(lines) + "\n", encoding="utf-8")
    metrics = score_files(chinese, predicted, Task.SEG_POS).metrics
    expected = evaluate(gold, system)
    assert 50 < expected["xpos_f1"] < expected["words_f1"] < 100
    assert [metrics["seg_f1"], metrics["joint_f1"], metrics["aligned_xpos"]] == pytest.approx(list(expected.values()))


def test_forms_unknown_to_training_are_as_many_as_the_paper_says(corpora: pathlib.Path) -> None:
    folder = corpora / "conll2003"
    report = score_files(folder / "test.txt", folder / "test.txt", Task.NER, train_path=folder / "train.txt")
    assert round(100 * report.vocabulary[1].size / report.units, 2) == 12.18
    assert (report.sentences, report.units, report.scheme) == (3453, 46435, LabelScheme.IOB1)
