"""Column files: layout, scheme detection, round trips, bad lines."""

from __future__ import annotations

import io
import itertools
import re
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from diffusion_mf.data.columns import Separator, detect_layout, read_column_blocks, read_columns, write_columns
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import LIMIT_VARIABLE, FieldChoice
from diffusion_mf.data.formats import FileFormat, FormatOptions, read_source, read_task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, detect_scheme, encode_spans
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "a.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


CONLL = """-DOCSTART- -X- -X- O

Mira NNP I-NP I-PER
saw  VBD I-VP O

-DOCSTART- -X- -X- O
Oslo NNP I-NP I-LOC
Bergen NNP I-NP B-LOC
"""


def test_shared_task_layout(tmp_path: Path) -> None:
    path = write(tmp_path, CONLL)
    layout = detect_layout(path)
    assert (layout.separator, layout.num_columns, layout.tag_column) == (Separator.SPACE, 4, 3)
    assert layout.describe() == "4 space-separated columns, units in column 1, tags in column 4"
    assert list(read_columns(path, layout)) == [
        Sentence(("Mira", "saw"), ("I-PER", "O"), 3, 1),
        Sentence(("Oslo", "Bergen"), ("I-LOC", "B-LOC"), 7, 2),
    ]


def test_a_document_start_ends_a_sentence_and_its_tag_counts_nowhere(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tB-X\n-DOCSTART-\tnonsense\nb\tO\n")
    corpus = read_task(path, Task.NER)
    assert corpus.source_scheme is LabelScheme.BIO2
    assert [sentence.units for sentence in corpus] == [("a",), ("b",)]


def test_given_columns_and_separator(tmp_path: Path) -> None:
    path = write(tmp_path, "1\tNew York\tB-LOC\t_\r\n2\tis\tO\t_\r\n \r\n1\tbig\tO\t_")
    layout = detect_layout(path, form_column="2", tag_column="3")
    assert layout.separator is Separator.TAB
    assert list(read_columns(path, layout)) == [
        Sentence(("New York", "is"), ("B-LOC", "O"), 1),
        Sentence(("big",), ("O",), 4),
    ]
    with pytest.raises(InputError, match="no tag column 5, only 4"):
        detect_layout(path, tag_column="5")
    spaced = detect_layout(write(tmp_path, "a\tb X\n"), separator=Separator.SPACE)
    assert [s.units for s in read_columns(tmp_path / "a.txt", spaced)] == [("a\tb",)]


def test_no_break_spaces_stay_inside_units(tmp_path: Path) -> None:
    path = write(tmp_path, "1\u00a0000 NUM\n\u3000 SYM\n")
    assert [s.units for s in read_columns(path, detect_layout(path))] == [("1\u00a0000", "\u3000")]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("a X O\nb O\n", 2, "expected 3 space-separated"),
        ("a\tO\n\nb\tO\tO\n", 3, "expected 2 tab-separated"),
        ("a\t\n", 1, r"the tag is empty \(column 2 of 2\)"),
        ("a\tX\n\tX\n", 2, r"the unit is empty \(column 1 of 2\)"),
        ("a\tX\nb X\n", 2, "space-separated here, but tab-separated in the first line"),
        ("a X\nb\tX\n", 2, "tab-separated here, but space-separated in the first line"),
        ("", None, "no sentences"),
        ("\n-DOCSTART- O\n\n", None, "no sentences"),
    ],
)
def test_bad_lines_are_named(content: str, line: int | None, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=problem) as caught:
        list(read_columns(path, detect_layout(path)))
    assert caught.value.line == line


def detect(*sequences: str) -> LabelScheme:
    line = 1
    sentences = []
    for sequence in sequences:
        labels = tuple(sequence.split())
        sentences.append(Sentence(("u",) * len(labels), labels, line))
        line += len(labels) + 1
    return detect_scheme(sentences, path="a.txt", is_unit_per_line=True)


@pytest.mark.parametrize(
    ("sequences", "scheme"),
    [
        (["O O"], "plain"),
        (["NN VB O", "-LRB- X-Y"], "plain"),
        (["NN M S"], "plain"),
        (["B E S", "B M E"], "bmes"),
        (["O I-A I-A"], "iob1"),
        (["I-A I-B", "I-A B-A"], "iob1"),
        (["O B-A I-A"], "bio2"),
        (["B-A B-A I-A B-B"], "bio2"),
        (["B I O B"], "bio2"),
        (["B-A I-A E-A"], "iobes"),
        (["S-A I-A"], "iobes"),
        (["B-A M-A E-A"], "bmes"),
        (["B-A M-A I-A E-A"], "bmes"),
        (["B-A E-A S-B"], "bmes"),
        (["S-A"], "bmes"),
        (["B-A I-A L-A"], "bilou"),
        (["U-A"], "bilou"),
        # Mistakes: the scheme that is contradicted least.
        (["B-A I-A", "O I-A", "B-A O"], "bio2"),
        (["O I-A", "I-A I-A", "O B-A"], "iob1"),
        (["O I-A", "B-A I-A"], "bio2"),
        (["B-A M-A E-A", "B-A M-A"], "bmes"),
        (["B-A I-A I-A", "B-A", "B-A", "B-A E-A"], "bio2"),
        (["B-A I-A E-A", "S-A", "B-A I-A"], "iobes"),
        (["U-A", "B-A L-A", "S-A"], "bilou"),
        (["S-A", "B-A E-A", "U-A"], "bmes"),
    ],
)
def test_scheme_is_told_by_the_labels(sequences: list[str], scheme: str) -> None:
    assert detect(*sequences) == scheme


@pytest.mark.parametrize(
    ("sequences", "line", "words"),
    [
        (["B-A I-A", "X-A"], 4, ["'X-A'", "no boundary prefix", "line 1", "--scheme"]),
        (["NN B-A"], 1, ["'NN'", "line 2"]),
    ],
)
def test_labels_with_and_without_a_boundary_are_asked_about(sequences: list[str], line: int, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        detect(*sequences)
    assert caught.value.line == line
    assert all(part in str(caught.value) for part in words)


@st.composite
def span_sentences(draw: st.DrawFn) -> tuple[int, list[LabelledSpan]]:
    length = draw(st.integers(1, 8))
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
    spans = [LabelledSpan(a, b, draw(st.sampled_from("XY"))) for a, b in itertools.pairwise(cuts)]
    return length, [span for span in spans if draw(st.booleans())]


@given(sentences=st.lists(span_sentences(), min_size=1, max_size=4), scheme=st.sampled_from(["iob1", "bio2", "bilou"]))
def test_what_a_scheme_writes_is_never_taken_for_another(
    sentences: list[tuple[int, list[LabelledSpan]]], scheme: str
) -> None:
    """Any file with a span tells IOB1, BIO2 and BILOU apart; a file of O alone is plain."""
    texts = [" ".join(encode_spans(spans, length, LabelScheme(scheme))) for length, spans in sentences]
    expected = scheme if any(spans for _, spans in sentences) else "plain"
    assert detect(*texts) == expected


FIELD = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(
    rows=st.lists(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_labelled_files_round_trip(rows: list[list[tuple[str, str]]], tmp_path_factory: pytest.TempPathFactory) -> None:
    sentences = [Sentence(*zip(*sentence, strict=True)) for sentence in rows]
    stream = io.BytesIO()
    write_columns(sentences, stream)
    path = write(tmp_path_factory.mktemp("columns"), stream.getvalue())
    layout = detect_layout(path)
    assert [sentence[:2] for sentence in read_columns(path, layout)] == [sentence[:2] for sentence in sentences]


def test_unlabelled_files_round_trip_and_a_mark_survives(tmp_path: Path) -> None:
    sentences = [Sentence(("\ufeffa", "b"), None), Sentence(("c",), None)]
    stream = io.BytesIO()
    write_columns(sentences, stream)
    path = write(tmp_path, stream.getvalue())
    layout = detect_layout(path)
    assert layout.tag_column is None
    assert "no tags" in layout.describe()
    assert [sentence[:2] for sentence in read_columns(path, layout)] == [sentence[:2] for sentence in sentences]


@pytest.mark.parametrize(
    "sentences",
    [
        [Sentence(("a\tb",), ("X",))],
        [Sentence(("a",), ("X\n",))],
        [Sentence(("-DOCSTART-",), ("X",))],
        [Sentence(("a b",), None)],
        [Sentence(("",), ("X",))],
        [Sentence(("a",), ("X",)), Sentence(("b",), None)],
    ],
)
def test_what_would_not_be_read_back_is_refused(sentences: list[Sentence]) -> None:
    with pytest.raises(InputError):
        write_columns(sentences, io.BytesIO())


UNIVERSAL_NER = (
    "# sent_id = a-1\n# text = Ada sings\n1\tAda\tB-PER\tB-PER#O\ts\n2\tsings\tO\tO#O\ts\n\n"
    "# sent_id = a-2\n1\t#\tO\tO#O\ts\n"
)


@pytest.mark.parametrize(("text", "form_column", "tag_column", "has_header"), [
    (UNIVERSAL_NER, 1, 2, False),
    ("# free text\n# newdoc id = 1\nAda NNP B-PER\nsings VB O\n", 0, 2, False),
    ("1 CD O\n\n1 CD O\n2 CD O\n", 0, 2, False),
    ("1\tAda\tPROPN\n2\tsings\tVERB\n", 1, 2, False),
    ("0\tAda\tPROPN\n1\tsings\tVERB\n", 1, 2, False),
    ("1\tAda\tPROPN\n3\tsings\tVERB\n", 0, 2, False),
    ("Token\tLabel\nAda\tB-PER\n", 0, 1, True),
    ("Sentence #\tWord\tTag\n1\tAda\tB-PER\n", 1, 2, True),
    ("id lemma word ner\n1 ada Ada B-PER\n", 2, 3, True),
    ("# global.columns = ID FORM LEMMA NER MISC\n1\tAda\tada\tB-PER\t_\n2\tsings\tsing\tO\t_\n", 1, 3, False),
    ("#Ada\tB-PER\nword\tO\n", 0, 1, False),
    ("# B-PER\n#\tO\n", 0, 1, False),
    ("#id\tword\ttag\n1\tAda\tB-PER\n", 1, 2, True),
    ("#\tword\tner\tx\n1\tAda\tB-PER\t_\n", 1, 2, True),
    ("# a b\n# tag word\nB-PER Ada\n", 1, 0, False),
    ("# each word tag\nAda NNP B-PER\n", 0, 2, False),
    ("id\tword\n1\tAda\n", 1, None, True),
    ("#id\tword\tlemma\n1\tAda\tAda\n", 1, None, True),
    ("word lemma\nAda Ada\n", 0, None, True),
    ("# word number\nAda B-PER\n", 0, 1, False),
    ("Words\tword\nare\tbe\n", 0, 1, False),
    ("word\tmark\nAda\tX\n", 0, 1, False),
    ("word\nAda\n", 0, None, False),
])  # fmt: skip
def test_columns_are_found(
    text: str, form_column: int, tag_column: int | None, has_header: bool, tmp_path: Path
) -> None:
    layout = detect_layout(write(tmp_path, text))
    assert (layout.form_column, layout.tag_column, layout.has_header) == (form_column, tag_column, has_header)


def test_comments_and_header_lines_are_no_units(tmp_path: Path) -> None:
    path = write(tmp_path, UNIVERSAL_NER)
    assert list(read_columns(path, detect_layout(path))) == [
        Sentence(("Ada", "sings"), ("B-PER", "O"), 3),
        Sentence(("#",), ("O",), 7),
    ]
    path = write(tmp_path, "# newdoc\nword tag\n# NN\n#x NN\n# newdoc\nb NN\n")
    assert list(read_columns(path, detect_layout(path))) == [
        Sentence(("#", "#x"), ("NN", "NN"), 3, 1),
        Sentence(("b",), ("NN",), 6, 2),
    ]


MULTICONER = "# id a1 domain=en\nAda _ _ B-PER\n# _ _ O\n\n# id b2 domain=en\nOslo _ _ B-LOC\n\n"
GERMEVAL = "#\thttp://x [2009]\n1\tAda\tB-PER\tO\n2\t#\tO\tO\n\n#\thttp://y [2010]\n1\tOslo\tB-LOC\tO\n\n"
WEBANNO = "#FORMAT=WebAnno TSV 3.2\n#T_SP=x\n\n\n#Text=Ada #\n1\tAda\tB-PER\n2\t#\tO\n\n#Text=Oslo\n1\tOslo\tB-LOC\n"


@pytest.mark.parametrize(
    "text", [MULTICONER, GERMEVAL, WEBANNO, "id\tword\tner\n1\tAda\tB-PER\n2\t#\tO\n\nid\tword\tner\n1\tOslo\tB-LOC\n"]
)
@pytest.mark.parametrize("name", ["a.txt", "a.tsv"])
def test_comments_and_repeated_headers_are_no_units(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    corpus = read_task(path, Task.NER, fields=FieldChoice(tag_column="3" if text is GERMEVAL else None))
    assert [sentence.units for sentence in corpus] == [("Ada", "#"), ("Oslo",)]
    assert [sentence.labels for sentence in corpus] == [("S-PER", "O"), ("S-LOC",)]
    blocks = [*read_column_blocks(path, tag_column="3" if text is GERMEVAL else None)]
    assert "".join(block.text for block in blocks) == text
    tagged = "".join(block.with_tags(["X"] * len(block.sentence.units) if block.sentence else ()) for block in blocks)
    assert tagged == re.sub(
        r"\b[BO](-PER|-LOC)?$" if text is not GERMEVAL else r"\b[BO](-PER|-LOC)?(?=\tO$)", "X", text, flags=re.M
    )


@pytest.mark.parametrize(
    "text",
    [
        "# HT\nAda NN\n\n# HT\nOslo NN\n",
        "#\tNN\nAda\tNN\n\n#\tSYM\nOslo\tNN\n",
        "#\tA\nAda\tNN\n\nOslo\tNN\n\n#\tB\nLee\tNN\n\n",
        "#a\tA\nAda\tNN\n\n#b\tB\nOslo\tNN\n",
    ],
)
def test_units_that_begin_with_a_hash_stay_units(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    units = [unit for sentence in read_columns(path, detect_layout(path)) for unit in sentence.units]
    assert units == [re.split(r"[\t ]", line)[0] for line in text.splitlines() if line]


def test_a_header_that_begins_with_a_hash_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "#wort\tmarke\nAda\tB-PER\nist\tO\n")
    for form in ("wort", "#wort"):
        layout = detect_layout(path, form_column=form, tag_column="marke")
        assert [sentence.units for sentence in read_columns(path, layout)] == [("Ada", "ist")]
    with pytest.raises(InputError, match="no column is called 'x'"):
        detect_layout(path, form_column="wort", tag_column="x")


@pytest.mark.parametrize(("text", "options", "problem"), [
    ("word pos ner\na b c\n", {}, "several columns contain tags (pos, ner); choose one with --tag-column"),
    ("1\ta\tX\tY\n2\tb\tX\tY\n", {}, "2 columns follow the form, and it is not clear which contains the tags"),
    ("a b\n", {"tag_column": "ner"}, "no column is called 'ner', and there is no header line"),
    ("word tag\na b\n", {"tag_column": "ner"}, "no column is called 'ner', only word, tag"),
    ("a b\n", {"form_column": "2"}, "column 2 cannot be both form and tag"),
    ("a b\n", {"form_column": "0"}, "there is no form column 0, only 2 column(s)"),
    ("word tag\n", {}, "contains no sentences"),
])  # fmt: skip
def test_what_is_not_plain_is_asked_for(text: str, options: dict, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        list(read_source(path, FileFormat.COLUMNS, FormatOptions(fields=FieldChoice(**options))).sentences)
    assert problem in str(caught.value)


def test_blocks_of_a_column_file_are_the_file(tmp_path: Path) -> None:
    for text in (UNIVERSAL_NER, "\ufeffa b\r\n\r\n\n# x = 1\nc d", "-DOCSTART-\n\na\n-DOCSTART-\nb\n\n\n"):
        path = write(tmp_path, text)
        assert "".join(block.text for block in read_column_blocks(path)) == text


@given(
    st.lists(st.sampled_from(["a\tO", "b\tO", "", " ", "# x = 1", "# free", "-DOCSTART-\tO", "#\tO"]), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
)
def test_blocks_lose_nothing(lines: list[str], end: str) -> None:
    text = end.join(["a\tO", *lines])
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), text)
        blocks = list(read_column_blocks(path))
        assert "".join(block.text for block in blocks) == text
        assert [block.sentence for block in blocks if block.sentence] == list(read_columns(path, detect_layout(path)))
        tagged = "".join(
            block.with_tags(["X"] * len(block.sentence.units if block.sentence else ())) for block in blocks
        )
        assert tagged == re.sub(r"(?m)^(a|b|#)\tO", r"\1\tX", text)


def test_what_stands_between_two_sentences_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    path = write(tmp_path, "a\tO\n\n" + "# x = 1\n\n" * 300_000)
    with pytest.raises(InputError, match="too much text between two sentences"):
        list(read_column_blocks(path))


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("Ada\nvisited\tO\nParis\tB-LOC\n", 1, "expected 2 tab-separated columns as in the lines after it, found 1"),
        ("Ada\nvisited O\nParis B-LOC\n", 1, "expected 2 space-separated columns as in the lines after it, found 1"),
        ("Ada\tNNP\nvisited\tVB\tO\nParis\tNNP\tB-LOC\n", 1, "expected 3 tab-separated columns"),
        ("Ada\nvisited\tO\n", 2, "expected 1 tab-separated column(s) as in the first line, found 2"),
        ("Ada\nvisited\tO\nParis\n", 2, "expected 1 tab-separated column(s) as in the first line, found 2"),
    ],
)
def test_a_first_row_without_its_tag_is_named(content: str, line: int, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        list(read_columns(path, detect_layout(path)))
    assert caught.value.line == line


def test_a_tab_is_no_part_of_a_unit(tmp_path: Path) -> None:
    """The first sentence, from which the layout of a pipe is detected, has no tags."""
    path = write(tmp_path, "Ada\n\nvisited\tO\n")
    layout = detect_layout(path, lines=["Ada", ""])
    with pytest.raises(InputError, match="expected 1 space-separated") as caught:
        list(read_columns(path, layout))
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("1\tAda\tO\n2\tis\tO\n1\tBob\tO\n2\tran\tO\n", 3, "the numbers of the units start again at 1"),
        ("0\tAda\tO\n1\tis\tO\n\n0\tHi\tO\n1\tBob\tO\n0\tran\tO\n", 6, "the numbers of the units start again at 0"),
        ("sentence_id\tword\ttag\n1\tAda\tO\n1\tis\tO\n2\tBob\tO\n", 4, "another sentence (2 after 1) begins"),
        ("Sentence #\tWord\tTag\nS1\tAda\tO\n\tis\tO\nS2\tBob\tO\n", 4, "another sentence (S2 after S1) begins"),
    ],
)
def test_missing_blank_lines_are_found(content: str, line: int, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    layout = detect_layout(path)
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        list(read_columns(path, layout))
    assert caught.value.line == line
    assert "blank line after every sentence" in str(caught.value)
    lines = content.splitlines(keepends=True)
    path = write(tmp_path, "".join([*lines[: line - 1], "\n", *lines[line - 1 :]]))
    assert list(read_columns(path, detect_layout(path)))[-1].line == line + 1


def test_numbers_that_are_not_those_of_units_may_repeat(tmp_path: Path) -> None:
    for name in ("sent_id", "doc_id"):
        path = write(tmp_path, f"{name}\tword\ttag\n1\tYes\tO\n\n1\tAda\tO\n1\tis\tO\n\n2\tBob\tO\n")
        assert [sentence.units for sentence in read_columns(path, detect_layout(path))] == [
            ("Yes",),
            ("Ada", "is"),
            ("Bob",),
        ]


def test_a_column_of_units_may_be_called_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence\ttag\nAda\tO\nis\tO\n")
    assert [row.units for row in read_columns(path, detect_layout(path, form_column="sentence"))] == [("Ada", "is")]


def test_tags_that_are_numbers_get_the_names_given(tmp_path: Path) -> None:
    path = write(tmp_path, "Ada\t1\nis\t0\n\nBob\tO\nran\t2\n")
    names = FieldChoice(label_names=("O", "B-PER", "B-LOC"))
    assert [sentence.labels for sentence in read_task(path, Task.NER, fields=names)] == [("S-PER", "O"), ("O", "S-LOC")]
    with pytest.raises(InputError, match="the label 2 is outside the 2 label names") as caught:
        read_task(path, Task.NER, fields=FieldChoice(label_names=("O", "B-PER")))
    assert caught.value.line == 5
    own = read_task(write(tmp_path, "a\t1\nb\t0\n"), Task.POS, fields=FieldChoice(label_names=("1", "0")))
    assert [sentence.labels for sentence in own] == [("1", "0")]
