"""The corpus on disk and ``dmf data synth``: files that parse back, a manifest that agrees, bad input refused."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from diffusion_mf.cli import main
from diffusion_mf.lab.synthetic import FLAVOURS, generate, write_corpus

SIZES = {"train": 30, "dev": 8, "test": 9}
FILES = ["manifest.json"] + [
    f"{flavour}/{split}.{'txt' if flavour == 'ner' else 'conllu'}" for flavour in FLAVOURS for split in SIZES
]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["dmf", "data", "synth", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def blocks(path: pathlib.Path) -> list[list[str]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n\n")
    return [block.split("\n") for block in text[:-2].split("\n\n")]


def files_under(folder: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_hold_the_generated_sentences(tmp_path: pathlib.Path) -> None:
    write_corpus(tmp_path, flavours=list(FLAVOURS), sizes=SIZES, seed=5)
    assert files_under(tmp_path) == sorted(FILES)
    for split, size in SIZES.items():
        for flavour in FLAVOURS:
            sentences = list(generate(flavour, size, 5, split=split))
            suffix = "txt" if flavour == "ner" else "conllu"
            read = blocks(tmp_path / flavour / f"{split}.{suffix}")
            assert len(read) == size
            for lines, sentence in zip(read, sentences, strict=True):
                if flavour == "ner":
                    assert [tuple(line.split(" ")) for line in lines] == list(
                        zip(sentence.units, sentence.labels, strict=True)
                    )
                    continue
                rows = [line.split("\t") for line in lines if not line.startswith("#")]
                assert all(len(row) == 10 for row in rows)
                assert [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
                if flavour == "pos":
                    assert [(row[1], row[3]) for row in rows] == list(zip(sentence.units, sentence.labels, strict=True))
                else:
                    characters = []
                    for row in rows:
                        last = len(row[1]) - 1
                        letters = "S" if last == 0 else "B" + "M" * (last - 1) + "E"
                        characters += [(c, f"{b}-{row[4]}") for c, b in zip(row[1], letters, strict=True)]
                    assert characters == list(zip(sentence.units, sentence.labels, strict=True))


def test_the_same_seed_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_corpus(tmp_path / folder, flavours=list(FLAVOURS), sizes=SIZES, seed=seed)
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "c" / file).read_bytes()


def test_the_command_prints_the_manifest_it_wrote(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--sentences", 40, "--seed", 2, "--flavour", "ner", "--distant", 0, "--json") == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest == json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert files_under(tmp_path) == ["manifest.json", "ner/dev.txt", "ner/test.txt", "ner/train.txt"]
    assert (manifest["seed"], manifest["adjacent"], manifest["distant"]) == (2, 0.5, 0)
    splits = manifest["flavours"]["ner"]["splits"]
    assert {split: about["sentences"] for split, about in splits.items()} == {"train": 40, "dev": 10, "test": 10}
    for about in splits.values():
        lines = (tmp_path / about["file"]).read_text(encoding="utf-8").split("\n")
        assert about["units"] == sum(bool(line) for line in lines)
        assert about["groups"]["distant"] == 0
        assert about["expected"]["joint"]["consistency_distant"] is None
        assert set(about["expected"]) == {*about["realised"], "bound"}


def test_the_command_prints_tables(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--sentences", 10, "--test-sentences", 7, "--adjacent", 1, "--distant", 0) == 0
    lines = capsys.readouterr().out.split("\n")
    chain = next(line.split() for line in lines if "first-order chain" in line)
    # Accuracy varies with the lengths; exact match and consistency do not.
    assert chain[-3:] == ["40.0", "100.0", "–"]
    assert sum("seg-pos/test.conllu" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentences", "-3"], "--sentences must be at least 1, found -3"),
        (["--sentences", "0"], "--sentences must be at least 1, found 0"),
        (["--test-sentences", "-1"], "the test split must have at least 1 sentence, found -1"),
        (["--sentences", "9" * 20], "the train split cannot have more than 1,000,000 sentences, found 999"),
        (["--adjacent", "1.2"], "adjacent must be a share of sentences, found 1.2"),
        (["--distant", "-0.5"], "distant must be a share of sentences, found -0.5"),
        (["--distant", "nan"], "distant must be a share of sentences, found nan"),
        (["--flavour", "morse"], "morse"),
    ],
)
def test_bad_settings_write_nothing(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, tmp_path / "corpus", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "corpus").exists()


def test_a_file_where_the_folder_should_be(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").write_text("in the way")
    assert run(monkeypatch, tmp_path / "corpus", "--sentences", 5) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "corpus") in error
    assert "the folder cannot be created (Not a directory); choose another folder" in error
    assert (tmp_path / "corpus").read_text() == "in the way"


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Not even root can make folders there.
    assert run(monkeypatch, "/proc/corpus", "--sentences", 5) == 2
    assert "/proc/corpus" in capsys.readouterr().err
