"""Lines of UTF-8 text from any input, streaming; every problem names the file and the line."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from typing import IO, Generic, TypeVar, cast

from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath, open_input

BYTE_ORDER_MARK = "\ufeff"
_CHUNK_BYTES = 1 << 20

Item = TypeVar("Item")


class Rereadable(Generic[Item]):
    """What ``read(path)`` yields, as often as wanted: files are read again, pipes and standard input kept in memory."""

    def __init__(self, path: StrPath, read: Callable[[StrPath], Iterator[Item]]) -> None:
        self._path = path
        self._read = read
        self._kept: list[Item] | None = None

    def __iter__(self) -> Iterator[Item]:
        name = os.fspath(self._path)
        # What does not exist is left to the reader, which says so.
        if name != "-" and (os.path.isfile(name) or not os.path.exists(name)):
            return self._read(self._path)
        if self._kept is None:
            self._kept = list(self._read(self._path))
        return iter(self._kept)


def read_lines(path: StrPath) -> Iterator[str]:
    """The lines of ``path`` without line ends (LF or CRLF) and without a byte order mark."""
    is_first = True
    for text in _read_chunks(path):
        if is_first:
            text = text.removeprefix(BYTE_ORDER_MARK)
            is_first = False
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        if "\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
        yield from lines


def read_raw_lines(path: StrPath) -> Iterator[str]:
    """The lines of ``path`` with everything that belongs to them; joined and encoded they are the file, byte for byte."""
    for text in _read_chunks(path):
        *lines, rest = text.split("\n")
        for line in lines:
            yield line + "\n"
        if rest:
            yield rest


def _read_chunks(path: StrPath) -> Iterator[str]:
    """Decoded stretches of whole lines; only the last may lack its line end."""
    with open_input(path) as stream:
        line = 1
        for chunk in _whole_lines(stream):
            if b"\0" in chunk:
                _refuse_null(path, chunk, line)
            try:
                text = chunk.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"not UTF-8 text (byte 0x{chunk[error.start]:02x})",
                    path=path,
                    line=line + chunk.count(b"\n", 0, error.start),
                    remedy="convert it with iconv -t UTF-8",
                ) from None
            yield text
            line += chunk.count(b"\n")


def _whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Bytes as they arrive, cut after the last line end; read1 does not wait for more than there is on a pipe."""
    read = cast("io.BufferedIOBase", stream).read1
    pending: list[bytes] = []
    while chunk := read(_CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*pending, chunk[:end]])
            pending.clear()
        if end < len(chunk):
            pending.append(chunk[end:])
    if pending:
        yield b"".join(pending)


def _refuse_null(path: StrPath, chunk: bytes, line: int) -> None:
    if line == 1 and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(
            "this is UTF-16, not UTF-8 text", path=path, line=1, remedy="convert it with iconv -f UTF-16 -t UTF-8"
        )
    raise InputError(
        "this is a binary file, not text (it holds a NUL byte)",
        path=path,
        line=line + chunk.count(b"\n", 0, chunk.index(b"\0")),
        remedy="name a text file; compressed ones must end in .gz, .xz or .zst",
    )


def check_fields(sentence: Sentence, allowed: re.Pattern[str], place: str) -> None:
    """Refuse a sentence with a unit or label that ``place`` could not hold, or not hold so that it is read back."""
    for text in (*sentence.units, *(sentence.labels or ())):
        if not allowed.fullmatch(text):
            raise InputError(
                f"{text!r} does not fit {place}", line=sentence.line, remedy="use JSON Lines, which can hold any text"
            )
