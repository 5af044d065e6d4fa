"""Repairs: irregular gold tags against an independent reading of conlleval's conventions, and units without a form."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from seqeval.metrics.sequence_labeling import get_entities

from diffusion_mf.data.corpus import Task, re_encode
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import (
    LabelError,
    LabelledSpan,
    LabelScheme,
    check_sequence,
    extract_spans,
    repair_spans,
)
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from oracles.conlleval_spans import conlleval_spans

LETTERS = {"iob1": "BI", "bio2": "BI", "iobes": "BIES", "bmes": "BMES", "bilou": "BILU"}


def tags_of(letters: str) -> st.SearchStrategy[list[str]]:
    """Any order of tags of two types; O more often than by chance."""
    tags = ["O", "O", *(f"{letter}-{kind}" for letter in letters for kind in ("X", "Y-Z"))]
    return st.lists(st.sampled_from(tags), max_size=12)


def repaired(labels: list[str], scheme: LabelScheme, target: LabelScheme | None) -> list[str]:
    sentence = Sentence(("u",) * len(labels), tuple(labels), 1)
    found = re_encode([sentence], scheme, target, path="a", is_unit_per_line=True, repairs=Repairs("a"))
    return list(next(iter(found)).labels or ())


@pytest.mark.parametrize("name", LETTERS)
@given(data=st.data())
def test_repaired_spans_are_conllevals(name: str, data: st.DataObject) -> None:
    labels, scheme = data.draw(tags_of(LETTERS[name])), LabelScheme(name)
    expected = [LabelledSpan(*span) for span in conlleval_spans(labels)]
    assert repair_spans(labels) == expected
    for target in (None, LabelScheme.BMES, LabelScheme.BIO2):
        made = repaired(labels, scheme, target)
        check_sequence(made, target or scheme)
        assert extract_spans(made, target or scheme) == expected


@pytest.mark.parametrize("letters", ["BI", "BIES"])
@given(data=st.data())
def test_repaired_spans_are_those_of_seqeval(letters: str, data: st.DataObject) -> None:
    labels = data.draw(tags_of(letters))
    found = [(kind, start, end - 1) for start, end, kind in repair_spans(labels)]
    assert found == get_entities(labels)


@given(labels=tags_of("BIMESLU"))
def test_letters_of_all_schemes_are_understood_together(labels: list[str]) -> None:
    assert repair_spans(labels) == conlleval_spans(labels)


def test_the_examples_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (BIO2|BMES): `([^`]+)`[^|]*\| `([^`]+)` \|$", text, flags=re.MULTILINE)
    assert len(rows) == 4
    for name, before, after in rows:
        assert repaired(before.split(), LabelScheme(name.lower()), None) == after.split()


@pytest.mark.parametrize("label", ["Q-X", "O-X", "B-", "_", "X", ""])
def test_what_is_no_label_is_not_repaired(label: str, tmp_path: Path) -> None:
    with pytest.raises(LabelError) as caught:
        repair_spans(["O", "I-X", label])
    assert caught.value.index == 2
    if label:
        path = tmp_path / "a.tsv"
        path.write_text(f"a\tB-X\nb\tI-X\n\nc\t{label}\n")
        with pytest.raises(InputError) as refused:
            read_task(path, Task.NER)
        assert refused.value.line == 4


def test_each_repaired_span_is_counted_and_the_first_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tB-X\nb\tO\n\nc\tO\nd\tI-X\ne\tI-X\nf\tI-Y\n\ng\tB-Y\nh\tI-Y\n")
    corpus = read_task(path, Task.NER)
    assert [s.labels for s in corpus] == [("S-X", "O"), ("O", "B-X", "E-X", "S-Y"), ("B-Y", "E-Y")]
    assert corpus.repaired == (
        f"{path}: 2 spans with irregular tags repaired, first on line 5 (I-X I-X read as B-X I-X); "
        "dmf data check lists them, --strict (data.strict) refuses them"
    )
    with pytest.raises(InputError, match="line 5: 'I-X' cannot follow 'O' in the scheme bio2"):
        read_task(path, Task.NER, strict=True)


def test_legal_files_have_nothing_to_tell(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tB-X\nb\tI-X\n\nc\tO\n")
    assert read_task(path, Task.NER).repaired is None
    # The letter I where BMES writes M is no mistake, in a repaired sentence neither.
    path.write_text("a\tB-X\nb\tI-X\nc\tM-X\nd\tE-X\n\ne\tB-Y\nf\tI-Y\ng\tE-Y\nh\tE-X\n")
    corpus = read_task(path, Task.NER)
    assert corpus.sentences[1].labels == ("B-Y", "M-Y", "E-Y", "S-X")
    assert "1 span with irregular tags repaired, first on line 9 (E-X read as S-X)" in str(corpus.repaired)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.tsv", "a\tB-X\n\tI-X\nc\tO\n", 2),
        ("a.txt", "a NN B-X\n NN I-X\nc NN O\n", 2),
        ("a.jsonl", json.dumps({"units": ["a", "", "c"], "labels": ["B-X", "I-X", "O"]}) + "\n", 1),
    ],
)
def test_a_tag_without_a_form_keeps_its_place(name: str, content: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    corpus = read_task(path, Task.NER)
    assert [sentence[:2] for sentence in corpus] == [(("a", "_", "c"), ("B-X", "E-X", "O"))]
    assert f"1 unit without a form read as _, first on line {line};" in str(corpus.repaired)
    with pytest.raises(InputError) as caught:
        read_task(path, Task.NER, strict=True)
    assert caught.value.line == line


def test_a_word_of_conllu_without_a_form_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n2\t\t_\tY\t_\t_\t_\t_\t_\t_\n")
    corpus = read_task(path, Task.POS)
    assert [sentence[:2] for sentence in corpus] == [(("a", "_"), ("X", "Y"))]
    assert "first on line 2" in str(corpus.repaired)
    with pytest.raises(InputError, match="a column is empty"):
        read_task(path, Task.POS, strict=True)


def test_a_line_that_lacks_a_column_inside_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in ("a NN O\nb O\n", "a NN O\n O\n", "a\tO\nb\n"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"expected . .*-separated column") as caught:
            read_task(path, Task.NER)
        assert caught.value.line == 2


def damaged_copy(source: list[list[str]], generator: random.Random) -> list[list[str]]:
    """Sentences of a column file as lines, with one tag in twenty replaced and one line in thirty removed."""
    tags = sorted({line.split()[-1] for sentence in source for line in sentence})
    copy = []
    for sentence in source:
        lines = [line for line in sentence if generator.random() > 1 / 30]
        copy.append(
            [
                f"{line.split()[0]} {generator.choice(tags if generator.random() < 0.05 else line.split()[-1:])}"
                for line in lines
            ]
        )
    return [sentence for sentence in copy if sentence]


@pytest.mark.corpora
@pytest.mark.parametrize("name", ["conll2003/dev.txt", "small/sec/train.txt", "small/btc/test.txt"])
@pytest.mark.parametrize("scheme", ["as it is", "bmes", "iobes", "bilou", "bio2"])
def test_damaged_copies_have_the_spans_of_the_oracle(name: str, scheme: str, corpora: Path, tmp_path: Path) -> None:
    text = (corpora / name).read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.split("\n\n")]
    source = [
        [line for line in block if len(line.split()) > 1 and not line.startswith("-DOCSTART-")] for block in blocks
    ]
    if scheme != "as it is":
        clean = read_task(corpora / name, Task.NER)
        encoded = re_encode(clean, LabelScheme.BMES, LabelScheme(scheme), path="a", is_unit_per_line=True)
        source = [[f"u{index} {label}" for index, label in enumerate(sentence.labels or ())] for sentence in encoded]
    copy = damaged_copy(source, random.Random(1))
    path = tmp_path / "damaged.txt"
    path.write_text("".join("".join(f"{line}\n" for line in sentence) + "\n" for sentence in copy), encoding="utf-8")
    corpus = read_task(path, Task.NER)
    assert len(corpus) == len(copy)
    for sentence, lines in zip(corpus, copy, strict=True):
        tags = [line.split()[-1] for line in lines]
        assert extract_spans(sentence.labels or (), LabelScheme.BMES) == conlleval_spans(tags)
    # Any order of O and I is IOB1.
    assert "irregular tags repaired" in str(corpus.repaired) or not any(
        "B-" in line for block in copy for line in block
    )
    if scheme not in ("as it is", "bmes", "iobes"):
        assert corpus.source_scheme == scheme
