"""CoNLL-U: what is a word, byte identity, and labels put back."""

from __future__ import annotations

import io
from pathlib import Path

import conllu as peer
import hypothesis.strategies as st
import pytest
from hypothesis import given

from diffusion_mf.data.conllu import (
    ConlluBlock,
    ConlluColumn,
    read_conllu,
    read_conllu_blocks,
    with_labels,
    write_conllu,
)
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError


def word(identifier: object, form: str, upos: str = "X", xpos: str = "_", misc: str = "_") -> str:
    return f"{identifier}\t{form}\t_\t{upos}\t{xpos}\t_\t_\t_\t_\t{misc}"


FILE = "\n".join(
    [
        "# sent_id = 1",
        "# text = vámonos 1\t2",
        word("1-2", "vámonos", "_"),
        word(1, "vamos", "VERB", "V1"),
        word(2, "nos", "PRON", "P2"),
        word("2.1", "elided", "VERB"),
        word(3, "New York", "PROPN", "N3", "SpaceAfter=No"),
        "",
        word(1, "_", "SYM"),
        "",
        "",
    ]
)


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "a.conllu"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


EXPECTED = [
    Sentence(("vamos", "nos", "New York"), ("VERB", "PRON", "PROPN"), 4),
    Sentence(("_",), ("SYM",), 9),
]


@pytest.mark.parametrize(
    "content",
    [
        FILE,
        FILE.rstrip("\n"),
        FILE.rstrip("\n") + "\n",
        "\ufeff" + FILE,
        FILE.replace("\n", "\r\n"),
        FILE.rstrip("\n").replace("\n", "\r\n"),
        FILE + "\n\n",
    ],
    ids=["plain", "no final line end", "no final blank line", "bom", "crlf", "crlf cut", "blank lines"],
)
def test_words_whatever_the_line_ends(content: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    assert list(read_conllu(path)) == EXPECTED
    blocks = list(read_conllu_blocks(path))
    assert [block.sentence for block in blocks if block.sentence is not None] == EXPECTED
    assert "".join(block.text for block in blocks).encode() == path.read_bytes()


def test_xpos_on_request(tmp_path: Path) -> None:
    sentences = list(read_conllu(write(tmp_path, FILE), column=ConlluColumn.XPOS))
    assert [sentence.labels for sentence in sentences] == [("V1", "P2", "N3"), ("_",)]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (word(1, "a") + "\n2\tb\tX\n", 2, "expected 10 columns"),
        (word(1, "a") + "\textra\n", 1, "found 11"),
        (f"# c\n\n{word(1, 'a')}\n", 1, "without words"),
        (f"{word(1, 'a')}\n\n{word('1-2', 'ab')}\n", 3, "without words"),
        (word("x", "a"), 1, "ID 'x'"),
        (word(1, ""), 1, "empty"),
    ],
)
def test_bad_lines_are_named(content: str, line: int, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    for read in (read_conllu, read_conllu_blocks):
        with pytest.raises(InputError, match=problem) as caught:
            list(read(path))
        assert caught.value.line == line


FIELD = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=4)
WORD = st.tuples(*[FIELD] * 9)
COMMENT = FIELD.map("#{}".format)
SENTENCE = st.tuples(st.lists(COMMENT, max_size=2), st.lists(WORD, min_size=1, max_size=3), st.integers(1, 3))


@st.composite
def weird_files(draw: st.DrawFn) -> str:
    """Valid in all that matters, odd in all that does not: marks, mixed line ends, skipped nodes, blank lines."""
    lines: list[str] = []
    for comments, words, blanks in draw(st.lists(SENTENCE, min_size=1, max_size=3)):
        lines += comments
        for number, fields in enumerate(words, 1):
            if draw(st.booleans()):
                skipped = draw(st.sampled_from([f"{number}-{number + 1}", f"{number - 1}.1"]))
                lines.append("\t".join([skipped, *["_"] * 9]))
            lines.append("\t".join([str(number), *fields]))
        lines += [""] * blanks
    text = "".join(line + draw(st.sampled_from(["\n", "\r\n"])) for line in lines)
    return draw(st.sampled_from(["", "\ufeff"])) + draw(st.sampled_from([text, text.rstrip("\r\n")]))


@given(text=weird_files())
def test_copy_is_byte_identical_and_labels_go_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("conllu"), text)
    blocks = list(read_conllu_blocks(path))
    assert "".join(block.text for block in blocks).encode() == path.read_bytes()
    # Blank lines after that which ends the last sentence are a block of their own.
    rest = [block.text for block in blocks if block.sentence is None]
    blocks = [block for block in blocks if block.sentence is not None]
    assert [block.sentence for block in blocks] == list(read_conllu(path))
    for column in (ConlluColumn.UPOS, ConlluColumn.XPOS):
        sentences = list(read_conllu(path, column=column))
        same = "".join(
            with_labels(block, sentence.labels, column=column)
            for block, sentence in zip(blocks, sentences, strict=True)
        )
        same += "".join(rest)
        assert same.encode() == path.read_bytes()
    labelled = [with_labels(block, ["NEW"] * len(block.sentence.units)) for block in blocks]
    changed = write(path.parent, "".join([*labelled, *rest]))
    assert all(set(sentence.labels) == {"NEW"} for sentence in read_conllu(changed))
    for old, new in zip(text.split("\n"), changed.read_bytes().decode().split("\n"), strict=True):
        old_fields, new_fields = old.split("\t"), new.split("\t")
        assert old_fields[:3] + old_fields[4:] == new_fields[:3] + new_fields[4:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("_", "Label=B-X"),
        ("SpaceAfter=No", "SpaceAfter=No|Label=B-X"),
        ("Label=O|Gloss=a", "Label=B-X|Gloss=a"),
        ("Gloss=a|Label=O|Label=P", "Gloss=a|Label=B-X"),
        ("OldLabel=O|Label", "OldLabel=O|Label|Label=B-X"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_misc_keeps_other_entries(before: str, after: str, end: str) -> None:
    block = ConlluBlock(word(1, "a", misc=before) + end, Sentence(("a",), ("X",), 1))
    assert with_labels(block, ["B-X"], column=ConlluColumn.MISC) == word(1, "a", misc=after) + end


def test_labels_that_would_break_a_line_are_refused() -> None:
    block = ConlluBlock(word(1, "a") + "\n", Sentence(("a",), ("X",), 1))
    for label, column in [("a\tb", ConlluColumn.UPOS), ("", ConlluColumn.XPOS), ("a|b", ConlluColumn.MISC)]:
        with pytest.raises(InputError, match="cannot be written to the column"):
            with_labels(block, [label], column=column)
    with pytest.raises(ValueError, match="2 labels for 1 words"):
        with_labels(block, ["X", "Y"])


@given(
    sentences=st.lists(
        st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=4).map(lambda rows: Sentence(*zip(*rows, strict=True))),
        min_size=1,
        max_size=3,
    ),
    column=st.sampled_from([ConlluColumn.UPOS, ConlluColumn.XPOS]),
)
def test_bare_files_round_trip_and_others_can_read_them(
    sentences: list[Sentence], column: ConlluColumn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stream = io.BytesIO()
    write_conllu(sentences, stream, column=column)
    path = write(tmp_path_factory.mktemp("bare"), stream.getvalue())
    assert [sentence[:2] for sentence in read_conllu(path, column=column)] == [sentence[:2] for sentence in sentences]


def test_another_reader_agrees(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    parsed = peer.parse(path.read_text())
    assert [tuple(token["form"] for token in tokens if isinstance(token["id"], int)) for tokens in parsed] == [
        sentence.units for sentence in read_conllu(path)
    ]


@pytest.mark.corpora
def test_real_treebanks_agree_with_another_reader(corpora: Path) -> None:
    for name in ("UD_English-EWT/en_ewt-ud-dev.conllu", "UD_French-GSD/fr_gsd-ud-test.conllu"):
        path = corpora / "ud-2.15" / name
        with path.open(encoding="utf-8") as stream:
            expected = [
                tuple((token["form"], token["upos"]) for token in tokens if isinstance(token["id"], int))
                for tokens in peer.parse_incr(stream)
            ]
        assert [tuple(zip(*sentence[:2], strict=True)) for sentence in read_conllu(path)] == expected
        assert "".join(block.text for block in read_conllu_blocks(path)).encode() == path.read_bytes()


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["# sent_id = 1", *(word(number, "w") for number in ("1", "2-3", "2", "3", "1", "2"))], 6),
        ([word(1, "Hi"), word(1, "I"), word(2, "go")], 2),
        (["# sent_id = 1", word(1, "Hi"), "# sent_id = 2", word(1, "Bye")], 4),
    ],
)
def test_sentences_without_a_blank_line_between_them_are_refused(lines: list[str], line: int, tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join(lines))
    with pytest.raises(
        InputError, match="the IDs start again at 1 without a blank line before; put a blank line"
    ) as caught:
        list(read_conllu(path))
    assert caught.value.line == line


@pytest.mark.parametrize("numbers", ["111", "123"])
def test_words_without_numbers_and_comments_between_numbered_ones_are_read(numbers: str, tmp_path: Path) -> None:
    lines = [word(number, form) for number, form in zip(numbers, "abc", strict=True)]
    if numbers == "123":
        lines.insert(1, "# comment")
    path = write(tmp_path, "\n".join(["# sent_id = 1", *lines, "", *lines]))
    assert [sentence.units for sentence in read_conllu(path)] == [("a", "b", "c")] * 2
