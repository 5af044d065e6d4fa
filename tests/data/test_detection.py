"""What a labelled file holds, from the file alone, and the questions that are asked where two readings are likely."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.detection import check_table, detect
from diffusion_mf.data.files import FieldChoice
from diffusion_mf.data.formats import read_task
from diffusion_mf.errors import InputError


def conllu(*rows: tuple[str, str, str]) -> str:
    """One sentence of (form, UPOS, XPOS)."""
    lines = (f"{number}\t{form}\t_\t{upos}\t{xpos}\t_\t_\t_\t_\t_" for number, (form, upos, xpos) in enumerate(rows, 1))
    return "\n".join(lines) + "\n\n"


IOB1 = "-DOCSTART- -X- -X- O\n\nAda NNP B-NP I-PER\nLee NNP I-NP I-PER\nsleeps VBZ B-VP O\n\nRome NNP B-NP I-LOC\n\n"

CASES = {
    "entities in CoNLL-2003's columns": (
        "train.txt",
        IOB1,
        "ner",
        "spans of 2 types (PER LOC), scheme iob1",
        "4 space-separated",
    ),
    "tags that look like words": (
        "train.txt",
        "dogs n\nbark v\n\ncats n\nmeow v\n\n",
        "pos",
        "2 labels (n v)",
        "columns",
    ),
    "UPOS": ("a.conllu", conllu(("a", "DET", "DT"), ("dog", "NOUN", "NN")), "pos", "2 labels", "labels in UPOS"),
    "XPOS with spaces": ("a.conllu", conllu(("a", "_", "DT"), ("dog", "_", "NN")), "pos", "2 labels", "labels in XPOS"),
    "XPOS without spaces": (
        "a.conllu",
        conllu(("我们", "_", "PRP"), ("走", "_", "VV")),
        "seg-pos",
        "words of 2 tags (PRP VV) from characters",
        "labels in XPOS",
    ),
    "UPOS without spaces": (
        "a.conllu",
        conllu(("我们", "PRON", "PRP"), ("走", "VERB", "VV")),
        "pos",
        "--task seg-pos would also segment characters into words",
        "labels in UPOS",
    ),
    "characters with boundaries": ("a.bmes", "我\tB-N\n们\tE-N\n走\tS-V\n\n", "seg-pos", "words of 2 tags", "columns"),
    "characters with entities": ("a.bmes", "李\tS-PER\n走\tO\n\n", "ner", "spans of 1 type (PER)", "columns"),
    "bare boundaries": ("a.tsv", "New\tB\nYork\tI\nis\tO\n\n", "ner", "spans of 1 type, scheme bio2", "columns"),
    "JSON Lines": ("a.jsonl", '{"units": ["a", "b"], "labels": ["X", "Y"]}\n', "pos", "2 labels", "jsonl"),
    "JSON Lines under another name": ("train.txt", '{"units": ["Ada"], "labels": ["B-PER"]}\n', "ner", "bio2", "jsonl"),
    "JSON Lines as one list": ("a.json", '[{"units": ["Ada"],\n "labels": ["B-PER"]}]\n', "ner", "bio2", "jsonl"),
    "a Hugging Face file": ("a.jsonl", '{"tokens": ["Ada"], "ner_tags": ["B-PER"]}\n', "ner", "bio2", "hugging-face"),
    "spans of texts": (
        "a.jsonl",
        '{"text": "Ada sleeps.", "label": [[0, 3, "PER"]]}\n',
        "ner",
        "spans of 1 type (PER)",
        "doccano",
    ),
    "doccano with relations": (
        "a.jsonl",
        '{"text": "Ada sleeps.", "entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}], "relations": []}\n',
        "ner",
        "spans of 1 type (PER)",
        "doccano",
    ),
    "units numbered from 0": (
        "a.tsv",
        "0\tAda\tB-PER\n1\tsleeps\tO\n\n0\tHere\tO\n",
        "ner",
        "spans of 1 type (PER)",
        "units in column 2",
    ),
    "one space after a word": ("a.tsv", "Ada\tB-PER\nis \tO\nhere\tO\n", "ner", "1 type", "columns"),
    "a rare tag first": ("a.tsv", "Bonjour\tINTJ\nAda\tNOUN\nis\tVERB\n", "pos", "3 labels", "columns"),
    "a header with an unknown name": (
        "a.tsv",
        "id\ttoken\tlemma\tner_tag\tcomment\n1\tAda\tAda\tB-PER\t\n2\tis\tbe\tO\tsure?\n",
        "ner",
        "spans of 1 type (PER)",
        "units in column 2, tags in column 4",
    ),
    "names of labels beside other lists": (
        "a.jsonl",
        '{"splits": ["train"], "label_names": ["O", "B-PER"]}\n{"tokens": ["Ada"], "ner_tags": [1]}\n',
        "ner",
        "bio2",
        "hugging-face",
    ),
    "words and white space": (
        "a.jsonl",
        '{"text": "Ada", "tokens": ["Ada"], "ner_tags": ["B-PER"]}',
        "ner",
        "bio2",
        "hugging-face",
    ),
    "word order": ("a.tsv", "Ada\tS\nsees\tV\nRome\tO\n\nAda\tS\nsleeps\tV\n", "pos", "3 labels (S V O)", "columns"),
    "tags that end like boundaries": ("a.tsv", "a\tNN-S\nb\tADJ-S\nc\tADJ-B\nd\tV-I\n", "pos", "4 labels", "columns"),
    "a few tags like those of spans": ("a.tsv", "a\tX.B\nb\tX.I\nc\tN\nd\tV\ne\tV.3SG\n", "pos", "5 labels", "columns"),
    "many labels": (
        "a.tsv",
        "".join(f"{word}\t{tag}\n" for word, tag in zip("abcdefgh", "VVNNAAPQ", strict=True)),
        "pos",
        "5 labels (A N V P …)",
        "columns",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_task_and_format(case: str, tmp_path: Path) -> None:
    name, text, task, about_task, about_format = CASES[case]
    (tmp_path / name).write_text(text)
    found = detect(tmp_path / name)
    of_format, of_task = found.lines()
    assert found.task == task
    assert of_task.startswith(f"task: {task}, ")
    assert about_task in of_task
    assert about_format in of_format
    assert "--format" in of_format
    assert "--task" in of_task


QUESTIONS = {
    "one tag without a prefix": ("a.txt", "Ada B-PER\nsleeps O\n\nRome LOC\n\n", ("line 4", "'LOC'", "--task pos")),
    "types without prefixes": ("a.txt", "Ada PER\nsleeps O\nhere O\n\n", ("PER", "B-PER", "--task pos")),
    "too many labels": ("a.tsv", "".join(f"w{i}\tl{i}\n" for i in range(30)), ("30 different labels", "--tag-column")),
    "one label": ("a.txt", "dogs X\nbark X\n\n", ("every unit has the label X",)),
    "nothing but O": ("a.txt", "dogs O\nbark O\n\n", ("every unit has the label O",)),
    "plain text": ("a.txt", "Dogs bark .\nThe cats do not .\n", ("text without labels", "--format")),
    "a table of commas": ("a.txt", 'word,tag\nAda,B-PER\n",",O\n', ("separated by commas", "with tabs")),
    "a table of semicolons": ("a.csv", "word;tag\nAda;B-PER\n", ("separated by semicolons", "with tabs")),
    "quotation marks": ("a.tsv", '"Ada"\t"B-PER"\n"is"\t"O"\n', ("in quotation marks", "without them")),
    "spaces at the ends": ("a.tsv", "Ada\tB-PER\nis\tO \n", ("line 2", "'O ' ends in a space", "remove the spaces")),
    "spaces before tags": (
        "a.tsv",
        "Ada\t B-PER\nis\t O\n",
        ("line 1", "' B-PER' begins with a space", "remove the spaces"),
    ),
    "spaces after words": (
        "a.tsv",
        "Ada \tB-PER\nis \tO\n,\tO\n",
        ("most forms end in a space", "'Ada '", "remove the spaces"),
    ),
    "no blank lines": ("a.tsv", "Ada\tB-PER\nis\tO\n" * 300, ("one sentence of 600 units", "blank line after every")),
    "an unknown header": (
        "a.tsv",
        "wort\tmarke x\nAda\tB-PER\nis\tO\n",
        ("line 1", "looks like a header", "--form-column wort --tag-column 'marke x'"),
    ),
    "a header above plain tags": (
        "a.tsv",
        "Mot\tCatégorie\nAda\tNOUN\nis\tVERB\n",
        ("line 1", "looks like a header", "--form-column Mot --tag-column 'Catégorie'"),
    ),
    "a header of common words above plain tags": (
        "a.tsv",
        "WORD\tLABEL_1\n\nAda\tNOUN\nis\tVERB\n",
        ("line 1", "looks like a header"),
    ),
    "a header that ends in words": (
        "a.tsv",
        "nr\tword\n1\tAda\n2\tis\n\n1\tHi\n",
        ("line 1", "looks like a header", "columns with --form-column and --tag-column"),
    ),
    "a header without tags": (
        "a.tsv",
        "id\tword\n1\tAda\n2\tis\n\n1\tHi\n",
        ("line 2", "no labels", "--tag-column"),
    ),
    "a small o": ("a.txt", "We o\nmet o\nAda B-PER\n", ("line 1", "'o', on 2 units,", "write O")),
    "a zero": ("a.txt", "We 0\nAda B-PER\n", ("line 1", "'0', on 1 unit,", "write O")),
    "a missing tag in the first lines": ("a.txt", "Ada B-PER\nis\n" + "here O\n" * 30, ("line 2", "found 1")),
    "tags before words": (
        "a.tsv",
        "O\tThe\nB-PER\tE-mail\nO\tis\n",
        ("column 1", "only tags such as B-PER", "--form-column 2 --tag-column 1"),
    ),
    "numbers before words": (
        "a.tsv",
        "17\tAda\tB-PER\n18\tis\tO\n",
        ("column 1", "only numbers", "--form-column 2"),
    ),
    "numbers of sentences and words": (
        "a.tsv",
        "1-1\t0-3\tAda\tB-PER\n1-2\t4-6\tis\tO\n\n2.1\t7-9\tHe\tO\n",
        ("column 1", "only numbers", "--form-column 2 or 3"),
    ),
    "prefixes in lower case": ("a.tsv", "Ada\tb-per\nis\to\n", ("'b-per'", "write B-per", "--task pos")),
    "underscores": ("a.tsv", "Ada\tB_PER\nis\tO\n", ("'B_PER'", "write B-PER", "--task pos")),
    "spans in spans": (
        "a.tsv",
        "The\tB-ORG\nBank\tI-ORG\nof\tI-ORG\nRome\tI-ORG|B-LOC\n",
        ("line 4", "'I-ORG|B-LOC'", "two spans", "--task ner or --task pos"),
    ),
    "words beside labels": (
        "a.jsonl",
        '{"sentence": ["Ada", "is"], "labels": ["B-PER", "O"]}\n',
        ("line 1", 'no list of words under the key "tokens"', "such as --form-column sentence"),
    ),
    "words under another key": ("a.jsonl", '{"text": ["Ada"], "tags": ["B-PER"]}\n', ("line 1", "--form-column")),
    "Label Studio's other export": (
        "a.json",
        '[{"id": 1, "text": "Ada is", "label": [{"start": 0, "end": 3, "labels": ["PER"]}]}]',
        ("line 1", "JSON-MIN", "export JSON instead"),
    ),
    "no labels": ("a.jsonl", '{"units": ["a"]}\n', ("no labels",)),
    "CoNLL-U without tags": ("a.conllu", conllu(("a", "_", "_")), ("UPOS and XPOS", "--column")),
    "entities and parts of speech": (
        "a.jsonl",
        json.dumps({"tokens": ["Ada"], "ner_tags": ["B-PER"], "pos_tags": ["NNP"]}),
        ("--task ner or --task pos",),
    ),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_what_is_not_plain_is_asked(case: str, tmp_path: Path) -> None:
    name, text, fragments = QUESTIONS[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        detect(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert all(fragment in str(caught.value) for fragment in fragments)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Ada,B-PER\nis,O\n,\nOslo,B-LOC\n", "separated by commas"),
        ("word;tag\ndogs;n\n", "separated by semicolons"),
        ("New York,B-LOC\nis,O\n", "separated by commas"),
        ('"Ada"\t"B-PER"\n"is"\t"O"\n', "in quotation marks"),
        ('"Ada" "B-PER"\n\n"is" "O"\n', "in quotation marks"),
        ("Hello, world!\nPlease, come.\n", None),
        ("Paris,France\nRome,Italy\n", None),
        ("Word, tag\n", None),
        ("1,5\tNUM\n2,5\tNUM\n", None),
        ("1,5 NUM\n2,5 NUM\n", None),
        ("a B-X,O\nb B-Y,O\n", None),
        ("Ja,...\nNo,!\n", None),
        ('"\t"\n"a\tX"\n', None),
        ("a," + "b" * 200_000 + "\n", None),
    ],
)
def test_tables_of_spreadsheets_are_no_text(text: str, problem: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    if problem is None:
        check_table(path)
        return
    for use in (check_table, detect, lambda path: read_task(path, Task.NER)):
        with pytest.raises(InputError, match=problem):
            use(path)


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        ("NP-B NP-I", "'NP-B' looks like the label of a span, but is not written as one; write B-NP, and O"),
        ("B:NP I:NP VP", "write B-NP"),
        ("B.NP M.NP E.NP", "write B-NP"),
        ("B/NP I/NP", "write B-NP"),
        ("NP_B NP_I", "write B-NP"),
        ("np_b np_i", "write B-np"),
        ("B- I-", "write B, and O"),
    ],
)
@pytest.mark.parametrize("others", ["", "O\tO\n"])
def test_spans_in_another_spelling_are_not_tags_of_words(labels: str, remedy: str, others: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(others + "".join(f"{number}\t{label}\n" for number, label in enumerate(labels.split() * 2)))
    with pytest.raises(InputError, match=re.escape(remedy)):
        detect(path)
    assert detect(path, task=Task.POS).task is Task.POS


def test_the_answer_settles_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(QUESTIONS["types without prefixes"][1])
    assert detect(tmp_path / "a.txt", task=Task.POS).kinds == ("O", "PER")
    (tmp_path / "a.jsonl").write_text(QUESTIONS["entities and parts of speech"][1])
    assert detect(tmp_path / "a.jsonl", task=Task.NER).scheme == "bio2"
    (tmp_path / "c.txt").write_text(IOB1)
    assert detect(tmp_path / "c.txt", task=Task.POS).kinds == ("I-PER", "I-LOC", "O")
    (tmp_path / "d.tsv").write_text(QUESTIONS["an unknown header"][1])
    named = FieldChoice(form_column="wort", tag_column="marke x")
    assert detect(tmp_path / "d.tsv", fields=named).kinds == ("PER",)
    (tmp_path / "e.tsv").write_text(QUESTIONS["tags before words"][1])
    assert detect(tmp_path / "e.tsv", fields=FieldChoice(form_column="2", tag_column="1")).kinds == ("PER",)
    (tmp_path / "f.tsv").write_text(QUESTIONS["spans in spans"][1])
    assert detect(tmp_path / "f.tsv", task=Task.NER).kinds == ("ORG", "ORG|B-LOC")


def test_files_of_a_folder_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "my corpus"
    folder.mkdir()
    with pytest.raises(InputError, match=r"this is a folder, .*; name a labelled file\."):
        detect(folder)
    for split in ("train", "test"):
        (folder / f"{split}.txt").write_text("Ada B-PER\n")
    with pytest.raises(InputError) as caught:
        detect(folder)
    assert str(caught.value).endswith(f"dmf train '{folder}/train.txt' --test '{folder}/test.txt'.")


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "task", "about"),
    [
        ("conll2003/train.txt", "ner", "spans of 4 types (PER ORG LOC MISC), scheme iob1"),
        ("ud-2.15/UD_English-EWT/en_ewt-ud-train.conllu", "pos", "17 labels"),
        ("ud-2.15/UD_Chinese-GSDSimp/zh_gsdsimp-ud-train.reconstructed.conllu", "seg-pos", "words of 40 tags ("),
        ("small/btc/train.txt", "ner", "spans of 3 types ("),
        ("small/sec/train.txt", "ner", "spans of 4 types (PER ORG LOC MISC), scheme iob1"),
        ("small/ta-ttb/ta_ttb-ud-train.conllu", "pos", "13 labels"),
        ("small/uner-da/da_ddt-ud-train.iob2", "ner", "spans of 3 types (PER ORG LOC), scheme bio2"),
    ],
)
def test_published_corpora(corpora: Path, name: str, task: str, about: str) -> None:
    if not (corpora / name).exists():
        pytest.skip(f"{name} is not among the corpora")
    found = detect(corpora / name)
    assert found.task == task
    assert about in found.lines()[1]
