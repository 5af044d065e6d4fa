"""Decoding: line ends, byte order marks, chunks, and bad bytes at the right line."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import threading
import zlib
from pathlib import Path

import hypothesis.strategies as st
import pytest
import zstandard
from hypothesis import given

from diffusion_mf.data import files as text_lines
from diffusion_mf.data.files import Rereadable, read_lines, read_raw_lines
from diffusion_mf.errors import InputError

# Everything that str.splitlines would part at, but a file format does not.
ODD_TEXT = st.text(st.sampled_from("ab\n\r\t \x0b\x0c\x1c\x85\u2028\u2029\u00a0é😀\ufeff"), max_size=60)


@given(text=ODD_TEXT, chunk=st.integers(1, 7))
def test_raw_lines_are_the_file_whatever_the_chunks(
    text: str, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "_CHUNK_BYTES", chunk)
        raw = list(read_raw_lines(path))
        lines = list(read_lines(path, allow_returns=True))
    assert "".join(raw) == text
    assert all(line.find("\n") in (-1, len(line) - 1) for line in raw)
    expected = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    # A carriage return at the very end is half a line end.
    expected[-1] = expected[-1].removesuffix("\r")
    if not text.removeprefix("\ufeff").endswith("\r") and not expected[-1]:
        expected.pop()
    assert lines == expected


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.ZstdCompressor().compress)],
)
def test_compressed_files_read_alike(suffix: str, compress, tmp_path: Path) -> None:
    content = "".join(f"line {number} é\n" for number in range(200_000))
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(compress(content.encode()))
    assert list(read_lines(path)) == content.splitlines()


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
def test_wrong_encoding_names_the_line(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "_CHUNK_BYTES", chunk)
    path = tmp_path / "latin.txt"
    path.write_bytes("one\ntwo\ncafé au lait\nfour\n".encode("latin-1"))
    with pytest.raises(InputError) as caught:
        list(read_lines(path))
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert "0xe9" in str(caught.value)


def test_binary_and_utf16_files_are_told_apart(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"fine\n\x7fELF\0\0")
    with pytest.raises(InputError, match="binary file") as caught:
        list(read_lines(binary))
    assert caught.value.line == 2
    wide = tmp_path / "wide"
    wide.write_bytes("ab\n".encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        list(read_lines(wide))


@pytest.mark.parametrize(("mark", "encoding"), [(b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")])
def test_utf16_without_a_single_nul_byte_is_recognised(mark: bytes, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    path.write_bytes(mark + "\u4e2d\u6587".encode(encoding))
    with pytest.raises(InputError, match="this is UTF-16, not UTF-8 text; convert it with iconv -f UTF-16"):
        list(read_lines(path))


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_a_lone_carriage_return_is_refused_by_its_line(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "_CHUNK_BYTES", chunk)
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tO\r\nb\tO\r\nc\tO\rd\tO\r\n")
    with pytest.raises(InputError) as caught:
        list(read_lines(path))
    assert str(caught.value) == (
        f"{path}, line 3: a carriage return within the line; "
        "remove it or, if lines end in it, convert the file with tr '\\r' '\\n'."
    )


def test_lines_of_a_named_pipe_come_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe.tok.gz"
    os.mkfifo(path)
    is_read = threading.Event()
    compressed = zlib.compressobj(wbits=31)

    def write() -> None:
        with path.open("wb", buffering=0) as stream:
            stream.write(compressed.compress(b"first\nsec") + compressed.flush(zlib.Z_SYNC_FLUSH))
            assert is_read.wait(10)
            stream.write(compressed.compress(b"ond\n") + compressed.flush())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    lines = read_lines(path)
    assert next(lines) == "first"
    is_read.set()
    assert list(lines) == ["second"]
    writer.join()


def test_lines_of_a_pipe_come_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(os.fdopen(reading, "rb")))
    lines = read_lines("-")
    os.write(writing, b"first\nsec")
    result: list[str] = []
    reader = threading.Thread(target=lambda: result.append(next(lines)), daemon=True)
    reader.start()
    reader.join(10)
    assert result == ["first"]
    os.write(writing, b"ond\n")
    os.close(writing)
    assert list(lines) == ["second"]


def test_rereadable_reads_files_again_and_keeps_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("x\ny\n")
    calls = []

    def read(name):
        calls.append(name)
        return read_lines(name)

    lines = Rereadable(path, read)
    assert list(lines) == list(lines) == ["x", "y"]
    assert len(calls) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\ny\n")))
    piped = Rereadable("-", read)
    assert list(piped) == list(piped) == ["x", "y"]
    assert len(calls) == 3
