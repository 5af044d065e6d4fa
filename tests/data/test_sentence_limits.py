"""Input that never comes to the end of a line or a sentence is refused, whoever reads it, in memory that does not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from diffusion_mf.data.conllu import read_conllu_blocks
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import LIMIT_VARIABLE, SentenceLimits, read_lines
from diffusion_mf.data.formats import FileFormat, FormatOptions, format_of, read_source, read_task
from diffusion_mf.errors import InputError

WORD = "1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n"
MIB = 1 << 20


def write_repeated(path: Path, piece: str | bytes, *, begin: str = "", mebibytes: int) -> Path:
    """A small file that unpacks to a lot."""
    content = piece if isinstance(piece, bytes) else piece.encode()
    content *= MIB // len(content)
    compressor = zstandard.ZstdCompressor().compressobj()
    with path.open("wb") as stream:
        stream.write(compressor.compress(begin.encode()))
        for _ in range(mebibytes):
            stream.write(compressor.compress(content))
        stream.write(compressor.flush())
    return path


# name, how it begins, what is repeated, line, what the sentence says (of a limit of 1 MiB)
ENDLESS = [
    ("a.tok", "fine\n", "a", 2, "a line of more than 1 MiB"),
    ("a.tok", "fine\n", "a ", 2, "a line of more than 1 MiB"),
    ("a.jsonl", '{"units": ["a"]}\n', '{"units": [', 2, "a line of more than 1 MiB"),
    ("a.tsv", "a\tO\n\n", "a", 3, "a line of more than 1 MiB"),
    ("a.conllu", f"{WORD}\n", "a", 3, "a line of more than 1 MiB"),
    ("a.tok", "fine\n", "\n", None, "more than 1 MiB of consecutive blank lines"),
    ("a.jsonl", '{"units": ["a"]}\n', "\r\n", None, "more than 1 MiB of consecutive blank lines"),
    ("a.tsv", "a\tO\n\n", " \n", None, "more than 1 MiB of consecutive blank lines"),
    ("a.tsv", "", "\n", 65537, "no unit in 65,537 lines"),
    ("a.tsv", "", "-DOCSTART- O\n", 65537, "no unit in 65,537 lines"),
    ("a.conllu", f"{WORD}\n", "\n", None, "more than 1 MiB of consecutive blank lines"),
    ("a.conllu", f"{WORD}\n\n", "# c\n", 4, "a sentence of more than 65,536 lines begins here"),
    ("a.conllu", f"{WORD}\n", f"# {'c' * 60_000}\n", 3, "a sentence of more than 1 MiB begins here"),
    ("a.conllu", "", WORD, 1, "a sentence of more than"),
    ("a.tsv", "a\tO\n\n", "b\tO\n", 3, "a sentence of more than 65,536 lines begins here"),
    ("a.tsv", "a\tO\n\n", f"{'b' * 900}\tO\n", 3, "a sentence of more than 1 MiB begins here"),
]


@pytest.mark.parametrize(("name", "begin", "piece", "line", "problem"), ENDLESS)
def test_every_reader_refuses_what_does_not_end(
    name: str, begin: str, piece: str, line: int | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusion_mf.tagger.files import read_source_sentences

    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    path = write_repeated(tmp_path / f"{name}.zst", piece, begin=begin, mebibytes=8)
    file_format = format_of(path)
    readers: list[Callable[[], object]] = [
        lambda: list(read_source(path, file_format, FormatOptions()).sentences),
        lambda: list(read_source_sentences(path, file_format, Task.POS)),
    ]
    if file_format is FileFormat.CONLLU:
        readers.append(lambda: list(read_conllu_blocks(path)))
    if file_format in (FileFormat.CONLLU, FileFormat.COLUMNS):
        readers.append(lambda: read_task(path, Task.POS))
    for read in readers:
        with pytest.raises(InputError) as caught:
            read()
        message = str(caught.value)
        assert problem in message
        assert message.endswith(f", or raise the limit with {LIMIT_VARIABLE}=2.")
        assert caught.value.path == str(path)
        if line is not None:
            assert caught.value.line == line


@pytest.mark.parametrize("name", ["a.conllu", "a.tsv", "a.jsonl", "a.tok"])
def test_units_are_limited_in_number_and_length(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    limits = SentenceLimits.from_environment()
    path = tmp_path / name

    def read(units: list[str]) -> int:
        text = {
            "a.conllu": "".join(f"{i}\t{unit}{WORD[3:]}" for i, unit in enumerate(units, 1)) + "\n",
            "a.tsv": "".join(f"{unit}\tO\n" for unit in units) + "\n",
            "a.jsonl": json.dumps({"units": units}) + "\n",
            "a.tok": " ".join(units) + "\n",
        }[name]
        path.write_text(text)
        (sentence,) = read_source(path, format_of(path), FormatOptions()).sentences
        return len(sentence.units)

    assert read(["a", "b" * limits.unit_size]) == 2
    with pytest.raises(InputError, match=r"line 1: unit 2 of the sentence has 5,000 characters, more than 4,096; "):
        read(["a", "b" * 5000])
    # The lines of 65,536 words take CoNLL-U more than 1 MiB.
    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    assert read(["a"] * (1 << 16)) == 1 << 16
    if name in ("a.jsonl", "a.tok"):
        with pytest.raises(InputError, match=r"a sentence of 300,000 units, more than 131,072; .*_MIB=5\."):
            read(["a"] * 300_000)


def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    path = tmp_path / "a.jsonl"
    for end in ("\n", "", "\nmore\n"):
        path.write_text("short\n" + "a" * MIB + end)
        assert [len(line) for line in read_lines(path)][:2] == [5, MIB]
        path.write_text("short\n" + "a" * (MIB + 1) + end)
        with pytest.raises(InputError, match=r"line 2: a line of more than 1 MiB"):
            list(read_lines(path))


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "٣"])
def test_a_limit_that_is_none(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tok"
    path.write_text("a\n")
    monkeypatch.setenv(LIMIT_VARIABLE, value)
    with pytest.raises(InputError, match=f"{LIMIT_VARIABLE} is '{value}', not a number of MiB; set "):
        list(read_lines(path))


def test_a_column_file_of_bare_carriage_returns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a O\rb O\r\rc O\r")
    with pytest.raises(InputError, match="line 1: a carriage return within the line"):
        read_source(path, FileFormat.COLUMNS)


def test_comments_of_conllu_may_hold_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_bytes(b"# text = a\rb\r\n" + WORD.encode())
    assert [sentence.units for sentence in read_source(path, FileFormat.CONLLU).sentences] == [("a",)]


CONVERT = """
import re, resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from diffusion_mf.cli import main
try:
    main()
finally:
    # Not getrusage, where a process begins with its parent's peak.
    print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.parametrize(
    ("name", "piece", "target"),
    [
        ("a.tok", b"\0", "b.jsonl"),
        ("a.tok", "word ", "b.jsonl"),
        ("a.jsonl", '"a", ', "b.tok"),
        ("a.conllu", "# c\n", "b.jsonl"),
        ("a.conllu", "# c\n", "b.conllu"),
        ("a.tsv", "\n", "b.jsonl"),
    ],
)
def test_memory_does_not_grow_with_what_a_file_unpacks_to(
    name: str, piece: str | bytes, target: str, tmp_path: Path
) -> None:
    path = write_repeated(tmp_path / f"{name}.zst", piece, mebibytes=2048)
    assert path.stat().st_size < MIB
    command = [sys.executable, "-c", CONVERT, "data", "convert", str(path), str(tmp_path / target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"dmf: {path}, line ")
    assert int(done.stdout) < 400 * 1024


def test_a_device_without_end_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="/dev/zero, line 1: this is a binary file"):
        list(read_lines("/dev/zero"))


def test_a_configuration_is_no_device(tmp_path: Path) -> None:
    from diffusion_mf.config.errors import read_toml

    with pytest.raises(InputError, match="/dev/zero: the file is too large for a configuration"):
        read_toml("/dev/zero")


def test_standard_input_that_is_closed() -> None:
    program = "import sys; from diffusion_mf.cli import main; sys.stdin = None; main()"
    command = [sys.executable, "-c", program, "data", "convert", "-", os.devnull, "--from", "text", "--to", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "dmf: standard input: is closed; give a file, or redirect one with < FILE.\n",
    )
