"""``dmf data convert``: formats, schemes and characters there and back, from and to files and pipes."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
import zstandard

CONLLU = (
    "\ufeff# text = ab c\r\n"
    "1-2\tabc\t_\t_\t_\t_\t_\t_\t_\t_\r\n"
    "1\tab\ta\tDET\tD\tF=1\t2\tdet\t_\tSpaceAfter=No\r\n"
    "2\tc\tc\tNOUN\tN\t_\t0\troot\t_\t_\r\n"
    "\r\n"
    "1\td\td\tX\tS\t_\t0\troot\t_\t_"
)
BARE = "1\tab\t_\tDET\t_\t_\t_\t_\t_\t_\n2\tc\t_\tNOUN\t_\t_\t_\t_\t_\t_\n\n1\td\t_\tX\t_\t_\t_\t_\t_\t_\n\n"
IOB1 = "-DOCSTART- -X- O O\n\na x x I-P\nb x x I-P\nc x x B-P\nd x x O\n\ne x x I-L\n"
BY_SCHEME = {
    "iob1": ["I-P", "I-P", "B-P", "O", "I-L"],
    "bio2": ["B-P", "I-P", "B-P", "O", "B-L"],
    "iobes": ["B-P", "E-P", "S-P", "O", "S-L"],
    "bmes": ["B-P", "E-P", "S-P", "O", "S-L"],
    "bilou": ["B-P", "L-P", "U-P", "O", "U-L"],
}


def columns(labels: list[str]) -> str:
    rows = [f"{unit}\t{label}\n" for unit, label in zip("abcde", labels, strict=True)]
    return "".join(rows[:4]) + "\n" + rows[4] + "\n"


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    path = tmp_path / "in.conllu"
    path.write_bytes(CONLLU.encode())
    return path


def test_conllu_to_conllu_is_byte_identical(dmf, treebank: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.conllu"
    outcome = dmf("data", "convert", treebank, target)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", "")
    assert target.read_bytes() == treebank.read_bytes()
    piped = dmf("data", "convert", "-", "-", "--from", "conllu", "--to", "conllu", stdin=treebank.read_bytes())
    assert piped.stdout == treebank.read_bytes()


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_conllu_words_and_labels_go_there_and_back(suffix: str, dmf, treebank: Path, tmp_path: Path) -> None:
    between, back = tmp_path / f"between{suffix}", tmp_path / "back.conllu"
    assert dmf("data", "convert", treebank, between).status == 0
    assert dmf("data", "convert", between, back).status == 0
    assert back.read_text() == BARE
    assert dmf("data", "convert", treebank, between, "--column", "xpos").status == 0
    assert dmf("data", "convert", between, "-", "--to", "jsonl").stdout.decode() == (
        '{"units": ["ab", "c"], "labels": ["D", "N"]}\n{"units": ["d"], "labels": ["S"]}\n'
    )


def test_entities_in_misc_go_there_and_back(dmf, tmp_path: Path) -> None:
    source, between, back = tmp_path / "a.tsv", tmp_path / "a.conllu", tmp_path / "b.tsv"
    source.write_text("Ada\tB-PER\nleft\tO\n\n")
    assert dmf("data", "convert", source, between, "--column", "misc").status == 0
    outcome = dmf("score", source, between, "--task", "ner")
    assert (outcome.status, "dmf data convert --column misc" in outcome.stderr) == (2, True)
    assert dmf("data", "convert", between, back, "--column", "misc", "--to-scheme", "bio2").status == 0
    assert back.read_text() == source.read_text()
    between.write_text(
        between.read_text().replace("Label=", "SpaceAfter=No|Label=") + between.read_text().replace("Label=", "x=")
    )
    outcome = dmf("data", "convert", between, "-", "--to", "jsonl", "--column", "misc")
    assert [json.loads(line).get("labels") for line in outcome.stdout.splitlines()] == [["B-PER", "O"], None]


def test_text_has_no_labels_and_conllu_marks_that(dmf, treebank: Path, tmp_path: Path) -> None:
    text, back = tmp_path / "a.tok", tmp_path / "b.conllu"
    dmf("data", "convert", treebank, text)
    assert text.read_text() == "ab c\nd\n"
    dmf("data", "convert", text, back)
    assert back.read_text() == BARE.replace("DET", "_").replace("NOUN", "_").replace("X", "_")
    assert json.loads(dmf("data", "convert", back, "-", "--to", "jsonl").stdout.splitlines()[0]) == {
        "units": ["ab", "c"]
    }


@pytest.mark.parametrize("scheme", list(BY_SCHEME))
def test_schemes_there_and_back(scheme: str, dmf, tmp_path: Path) -> None:
    source, between, back = tmp_path / "in.txt", tmp_path / "between.tsv", tmp_path / "back.tsv"
    source.write_text(IOB1)
    outcome = dmf("data", "convert", source, between, "--from", "columns", "--to-scheme", scheme)
    assert outcome.status == 0
    assert outcome.stderr == (
        f"dmf: {source}: 4 space-separated columns, units in column 1, tags in column 4, scheme iob1 (detected)\n"
    )
    assert between.read_text() == columns(BY_SCHEME[scheme])
    outcome = dmf("data", "convert", between, back, "--scheme", scheme, "--to-scheme", "iob1")
    assert f"scheme {scheme} (as given)" in outcome.stderr
    assert back.read_text() == columns(BY_SCHEME["iob1"])


def test_json_labels_are_detected_only_when_they_are_to_change(dmf) -> None:
    line = b'{"units": ["a", "b"], "labels": ["I-P", "I-P"]}\n'
    arguments = ("data", "convert", "-", "-", "--from", "jsonl", "--to", "jsonl")
    same = dmf(*arguments, stdin=line)
    assert (same.stdout, same.stderr) == (line, "")
    changed = dmf(*arguments, "--to-scheme", "bilou", stdin=line)
    assert json.loads(changed.stdout)["labels"] == ["B-P", "L-P"]
    assert changed.stderr == "dmf: -: scheme iob1 (detected)\n"


def test_columns_are_chosen_by_number(dmf) -> None:
    outcome = dmf(
        *("data", "convert", "-", "-", "--from", "columns", "--to", "columns"),
        *("--form-column", 2, "--tag-column", 3, "--separator", "tab"),
        stdin=b"1\tNew York\tB-L\t_\n2\tis\tO\t_\n",
    )
    assert outcome.stdout == b"New York\tB-L\nis\tO\n\n"
    assert "units in column 2, tags in column 3, scheme bio2 (detected)" in outcome.stderr


@pytest.mark.parametrize("suffix", [".jsonl", ".bmes"])
def test_characters_there_and_back(suffix: str, dmf, treebank: Path, tmp_path: Path) -> None:
    between, back = tmp_path / f"between{suffix}", tmp_path / "back.conllu"
    assert dmf("data", "convert", treebank, between, "--characters").status == 0
    assert dmf("data", "convert", between, "-", "--to", "jsonl").stdout.splitlines()[0] == (
        b'{"units": ["a", "b", "c"], "labels": ["B-D", "E-D", "S-N"]}'
    )
    assert dmf("data", "convert", between, back, "--characters").status == 0
    words = [line.split("\t")[1:5] for line in back.read_text().splitlines() if line]
    assert words == [["ab", "_", "_", "D"], ["c", "_", "_", "N"], ["d", "_", "_", "S"]]


@pytest.mark.parametrize(
    ("suffix", "decompress"),
    [
        (".gz", gzip.decompress),
        (".xz", lzma.decompress),
        (".zst", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ],
)
def test_compression_by_name(suffix: str, decompress, dmf, treebank: Path, tmp_path: Path) -> None:
    packed = tmp_path / f"a.conllu{suffix}"
    assert dmf("data", "convert", treebank, packed).status == 0
    assert decompress(packed.read_bytes()) == treebank.read_bytes()
    assert dmf("data", "convert", packed, "-", "--to", "conllu").stdout == treebank.read_bytes()


def test_a_file_can_be_converted_in_place(dmf, treebank: Path) -> None:
    assert dmf("data", "convert", treebank, treebank, "--to", "jsonl").status == 0
    assert len(treebank.read_text().splitlines()) == 2


@pytest.mark.corpora
def test_real_treebanks_are_copied_byte_for_byte(dmf, corpora: Path, tmp_path: Path) -> None:
    for name in ("UD_Dutch-LassySmall/nl_lassysmall-ud-dev.conllu", "UD_Chinese-GSDSimp/zh_gsdsimp-ud-test.conllu"):
        source = corpora / "ud-2.15" / name
        assert dmf("data", "convert", source, tmp_path / "copy.conllu").status == 0
        assert (tmp_path / "copy.conllu").read_bytes() == source.read_bytes()


@pytest.mark.corpora
def test_real_entities_survive_every_scheme(dmf, corpora: Path, tmp_path: Path) -> None:
    paths = [corpora / "conll2003" / "test.txt"]
    for scheme in ("iob1", "bmes", "bio2", "bilou", "iobes", "iob1"):
        paths.append(tmp_path / f"{len(paths)}.tsv")
        dmf("data", "convert", paths[-2], paths[-1], "--from", "columns", "--to-scheme", scheme)
    assert paths[1].read_bytes() == paths[-1].read_bytes()
    assert paths[1].read_bytes() != paths[2].read_bytes()


def test_rows_with_two_kinds_of_tags_are_asked_about(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "in.jsonl"
    path.write_text('{"tokens": ["Ada", "is"], "ner_tags": ["B-PER", "O"], "pos_tags": ["NNP", "VBZ"]}\n')
    arguments = ("data", "convert", path, "-", "--from", "hugging-face", "--to", "columns")
    outcome = dmf(*arguments)
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert "line 1: tags for both entities and parts of speech (ner_tags, pos_tags); choose" in outcome.stderr
    for key, first in (("ner_tags", "B-PER"), ("pos_tags", "NNP")):
        outcome = dmf(*arguments, "--tag-column", key)
        assert outcome.stdout.decode().startswith(f"Ada\t{first}\n"), outcome.stderr
