"""Opening, reading and writing files: any supported compression, lines within size limits, atomic writes."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import operator
import os
import re
import reprlib
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Generic, NamedTuple, NoReturn, TypeVar, cast

from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError, quoted

StrPath = str | os.PathLike[str]


class FieldChoice(NamedTuple):
    """The user's choices about the fields of a file; None means detected.

    ``form_column`` and ``tag_column`` are columns of a column file, by number (from 1) or by name; in a Hugging Face dataset they
    are keys. ``label_names`` are the names of numbered tags. ``language`` determines how raw text is split. ``clamp_column``
    contains labels of some units known before tagging; None means that there is no such column.
    """

    form_column: str | None = None
    tag_column: str | None = None
    label_names: tuple[str, ...] | None = None
    language: str | None = None
    clamp_column: str | None = None


DETECTED = FieldChoice()
"""nothing is given"""


COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")
_OTHER_COMPRESSED_SUFFIXES = (".bz2", ".zip", ".7z", ".lzma", ".lz4", ".br", ".z", ".rar", ".tgz")

_COMPRESSED_BYTES = 1 << 18
_UNPACKED_BYTES = 1 << 20
# zstd cannot stop after a given number of bytes, and a kilobyte of input may unpack to 32 MiB.
_ZSTD_BYTES = 1 << 10
# Memory allowed for unpacking; xz -9 needs 65 MiB. The zstd library itself refuses windows beyond 128 MiB.
_XZ_MEMORY_BYTES = 256 << 20
_FETCH_AGAIN = "download or compress the file again"


def uncompressed_suffix(path: StrPath) -> str:
    """The suffix that indicates the format, without that of the compression.

    >>> uncompressed_suffix("train.conllu.gz"), uncompressed_suffix("-")
    ('.conllu', '')
    """
    stem, suffix = os.path.splitext(os.fspath(path))
    return os.path.splitext(stem)[1].lower() if suffix in COMPRESSED_SUFFIXES else suffix.lower()


def _zstandard(path: StrPath):  # type: ignore[no-untyped-def]
    try:
        import zstandard
    except ImportError:
        raise InputError(
            "reading or writing .zst needs the zstandard package", path=path, remedy="pip install zstandard"
        ) from None
    return zstandard


@contextlib.contextmanager
def open_input(path: StrPath) -> Iterator[IO[bytes]]:
    """Open ``path`` for streaming bytes; a missing file, a directory or damaged compression is an `InputError`."""
    name = os.fspath(path)
    if name == "-":
        if sys.stdin is None:
            raise InputError("is closed", path=name, remedy="give a file, or redirect one with < FILE")
        with _reading(name):
            yield sys.stdin.buffer
        return
    if os.path.isdir(name):
        raise InputError("this is a directory", path=name, remedy="give a file")
    try:
        raw = open(name, "rb")  # noqa: SIM115 (closed by the stack below)
    except (FileNotFoundError, ValueError):  # a ValueError if no file can have such a name
        raise InputError("no such file", path=name, remedy="check the path") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=name, remedy="check its permissions") from None
    suffix = os.path.splitext(name)[1]
    with raw, _reading(name):
        if suffix not in COMPRESSED_SUFFIXES:
            yield raw
            return
        begin, damage = _unpacking(name, suffix)
        try:
            yield cast("IO[bytes]", io.BufferedReader(_Unpacked(_unpack(raw, begin, name, suffix)), _UNPACKED_BYTES))
        except damage as error:
            if "memory" in str(error).lower():
                raise InputError(
                    f"needs too much memory to unpack ({error})",
                    path=name,
                    remedy="compress it again with the default settings",
                ) from None
            raise InputError(f"damaged or not {suffix[1:]} data ({error})", path=name, remedy=_FETCH_AGAIN) from None


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Errors of a disk, say, while a file is read."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path=name, remedy="check the disk") from None


def _unpacking(name: str, suffix: str) -> tuple[Callable[[], Any], type[BaseException]]:
    """A function that creates a decompressor for one frame (gzip: member, xz: stream), and the errors it raises.

    The libraries' own file objects are not safe enough: ``lzma.open`` silently stops at a damaged second stream and has no memory
    limit, and zstandard's treats the end of a truncated file as the end of a frame.
    """
    if suffix == ".gz":
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), zlib.error
    if suffix == ".xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES), lzma.LZMAError
    zstandard = _zstandard(name)
    decompressor = zstandard.ZstdDecompressor()
    return lambda: _ZstdFrame(decompressor.decompressobj()), zstandard.ZstdError


def _unpack(raw: IO[bytes], begin: Callable[[], Any], name: str, suffix: str) -> Iterator[bytes]:
    """The contents of all frames in order; a file that ends inside a frame is an `InputError`."""
    read = cast("io.BufferedReader", raw).read1
    # gzip and xz files may be padded; zstd files have no padding to strip.
    padding = b"" if suffix == ".zst" else b"\0"
    data = read(_COMPRESSED_BYTES)
    if not data:
        raise InputError(f"this is an empty file, not {suffix[1:]} data", path=name, remedy=_FETCH_AGAIN)
    while data:
        frame = begin()
        while True:
            unpacked = frame.decompress(data, _UNPACKED_BYTES)
            if unpacked:
                yield unpacked
            if frame.eof:
                break
            # The other decompressors return unprocessed input; xz keeps it and continues when given no more.
            data = getattr(frame, "unconsumed_tail", b"")
            if not data and getattr(frame, "needs_input", True):
                data = read(_COMPRESSED_BYTES)
                if not data:
                    raise InputError("ends in the middle of its compressed data", path=name, remedy=_FETCH_AGAIN)
        data = frame.unused_data.lstrip(padding)
        while not data and (more := read(_COMPRESSED_BYTES)):
            data = more.lstrip(padding)


class _ZstdFrame:
    """The interface of ``zlib.decompressobj`` for a frame of zstd."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.unconsumed_tail = b""

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Unpack at least ``max_length`` bytes if available, and at most the output of one small piece of ``data`` more."""
        parts: list[bytes] = []
        size = start = 0
        while size < max_length and start < len(data) and not self._frame.eof:
            parts.append(self._frame.decompress(data[start : start + _ZSTD_BYTES]))
            size += len(parts[-1])
            start += _ZSTD_BYTES
        self.unconsumed_tail = data[start:]
        return b"".join(parts)


class _Unpacked(io.RawIOBase):
    """A stream of the bytes that an iterator yields."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def first_existing(names: Sequence[str]) -> str:
    """Of several paths, the first that exists once its ``$NAME`` are replaced, as it is written; if none does, the first."""
    return next((name for name in names if os.path.exists(os.path.expandvars(name))), names[0])


def make_folder(path: StrPath) -> None:
    """Create a folder and those above it, unless it is there; `InputError` if it cannot be created."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder cannot be created ({error.strerror})", path=path, remedy="choose another folder"
        ) from None


@contextlib.contextmanager
def open_output(path: StrPath) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing; the file is created by atomic rename, and only if the block ends without an error.

    Devices and pipes are written to directly, since a rename would replace them by a file. A link stays a link.
    """
    name = os.fspath(path)
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.isdir(name):
        raise InputError("this is a directory", path=name, remedy="give another file")
    suffix = os.path.splitext(name)[1]
    if suffix not in COMPRESSED_SUFFIXES and suffix.lower() in (*COMPRESSED_SUFFIXES, *_OTHER_COMPRESSED_SUFFIXES):
        raise InputError(
            f"files ending in {suffix} cannot be written",
            path=name,
            remedy=f"choose a name ending in {' or '.join(COMPRESSED_SUFFIXES)}, or one without compression",
        )
    if _is_special(name):
        try:
            # Append, because /dev/stdout may be redirected to a file that is not empty.
            special = open(name, "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", path=name, remedy="give another file") from None
        try:
            with special:
                yield special
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", path=name, remedy="give another file") from error
        return
    try:
        final = os.path.realpath(name)
    except ValueError:
        raise InputError("no file can have this name", path=name, remedy="give another file") from None
    try:
        remove_leftovers(final)
        temporary, handle, lock = _new_temporary(final)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", path=name, remedy="check that the folder exists and is writable"
        ) from None
    try:
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(os.fdopen(handle, "wb"))
            stream: IO[bytes] = raw
            if name.endswith(".gz"):
                # No name or time in the header: the same content gives the same bytes.
                stream = stack.enter_context(cast("IO[bytes]", gzip.GzipFile("", "wb", fileobj=raw, mtime=0)))
            elif name.endswith(".xz"):
                stream = stack.enter_context(lzma.open(raw, "wb"))
            elif name.endswith(".zst"):
                stream = stack.enter_context(_zstandard(name).ZstdCompressor().stream_writer(raw, closefd=False))
            yield stream
        os.replace(temporary, final)
    except OSError as error:
        _remove(temporary)
        raise InputError(
            f"cannot be written ({error.strerror})", path=name, remedy="check the free space and permissions"
        ) from error
    except BaseException:
        _remove(temporary)
        raise
    finally:
        # Not before the rename: without its lock, the file could be taken for a leftover.
        os.close(lock)


def write_json(path: StrPath, value: object) -> None:
    """Write a value as JSON, with text unescaped; the file is replaced atomically."""
    with open_output(path) as stream:
        stream.write((json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode())


def try_lock(handle: int) -> bool | None:
    """Lock an open file until it is closed, by the kernel if the process is killed; False if another has it, None without locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        return None
    return True


def temporary_name(final: str) -> str:
    """A random name for what will be called ``final``.

    What `tempfile` makes is for its owner alone. To change that, one would have to know the umask, which a process can only read by
    setting it, for all of its threads.
    """
    return f".{final}.{secrets.token_hex(4)}.tmp"


def is_temporary(name: str, final: str) -> bool:
    """Whether ``name`` is one that `temporary_name`, or `tempfile` in earlier versions, makes for ``final``."""
    return re.fullmatch(re.escape(f".{final}.") + r"[a-z0-9_]{8}\.tmp", name) is not None


def remove_leftovers(final: str) -> None:
    """Remove what killed processes left of their attempts to write ``final``: temporary files that nobody holds the lock of."""
    folder, base = os.path.split(final)
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder may be writable, but not readable
        names = os.listdir(folder)
    for name in names:
        if is_temporary(name, base):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
                try:
                    if stat.S_ISREG(os.fstat(handle).st_mode) and try_lock(handle):
                        os.unlink(path)
                finally:
                    os.close(handle)


def _new_temporary(final: str) -> tuple[str, int, int]:
    """A new file beside ``final``, open for writing, and a second handle, which keeps its lock."""
    folder, base = os.path.split(final)
    while True:
        path = os.path.join(folder, temporary_name(base))
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except FileExistsError:
            continue
        # Another process may take it for a leftover before it is locked.
        if try_lock(handle) is not False and os.path.exists(path):
            return path, handle, os.dup(handle)
        os.close(handle)


def refuse_constant(name: str) -> NoReturn:
    """For ``parse_constant`` of Python's JSON reader, which otherwise takes NaN and Infinity, which are not JSON."""
    raise json.JSONDecodeError(f"{name} is not a number of JSON", "", 0)


def json_problem(error: ValueError | RecursionError) -> str:
    """Why Python's JSON reader refused a text."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"


def open_regular(path: StrPath, *, limit: int, remedy: str) -> io.BufferedReader:
    """Open a regular file of at most ``limit`` bytes; other kinds, which could block or never end, are an `InputError`.

    The file that is checked is the one that was opened, so that it cannot be exchanged in between.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path, remedy="check its permissions") from error
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return os.fdopen(handle, "rb")
    os.close(handle)
    if not stat.S_ISREG(status.st_mode):
        raise InputError("not a regular file", path=path, remedy=remedy)
    raise InputError(f"has {status.st_size:,} bytes, but may have {limit:,} at most", path=path, remedy=remedy)


def _is_special(name: str) -> bool:
    """Whether ``name`` exists and is not a regular file; /dev/stdout counts even if redirected to a regular file."""
    try:
        is_regular = stat.S_ISREG(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False
    return not is_regular or os.path.dirname(os.path.abspath(name)) in ("/dev", "/dev/fd")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


BYTE_ORDER_MARK = "\ufeff"
LIMIT_VARIABLE = "DIFFUSION_MF_MAX_SENTENCE_MIB"
DEFAULT_MEBIBYTES = 16
_CHUNK_BYTES = 1 << 20

Item = TypeVar("Item")


class SentenceLimits(NamedTuple):
    """How long a sentence may be; `LIMIT_VARIABLE` raises all limits."""

    mebibytes: int
    size: int
    """size of a sentence's lines, including comments, in bytes or characters; also of consecutive blank lines"""
    units: int
    """units of a sentence; also its lines, including comments"""
    unit_size: int
    """characters of a unit"""

    @classmethod
    def from_environment(cls) -> SentenceLimits:
        """The limits set by the environment."""
        text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_MEBIBYTES)
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
            raise InputError(
                f"{LIMIT_VARIABLE} is {quoted(text)}, not a number of MiB", remedy=f"set {LIMIT_VARIABLE}=64, say"
            )
        mebibytes = int(text)
        return cls(mebibytes, mebibytes << 20, mebibytes << 16, mebibytes << 12)

    def __str__(self) -> str:
        return f"{self.mebibytes} MiB"

    def refuse(self, problem: str, path: StrPath, line: int, remedy: str, *, needed: int = 0) -> NoReturn:
        """Raise an error for something too long that says how to raise the limit, to ``needed`` if that is known."""
        raised = f"{LIMIT_VARIABLE}={max(needed, 2 * self.mebibytes)}"
        raise InputError(problem, path=path, line=line, remedy=f"{remedy}, or raise the limit with {raised}")

    def check_units(self, sentence: Sentence, path: StrPath) -> None:
        """Raise an error for too many or too long units."""
        if len("".join(sentence.units)) <= self.unit_size:
            return  # at most that many units, each at most that long
        num_units = len(sentence.units)
        if num_units > self.units:
            problem = f"a sentence of {num_units:,} units, more than {self.units:,}"
            self.refuse(problem, path, sentence.line, "split it", needed=(num_units >> 16) + 1)
        for number, unit in enumerate(sentence.units, 1):
            if len(unit) > self.unit_size:
                problem = f"unit {number:,} of the sentence has {len(unit):,} characters, more than {self.unit_size:,}"
                self.refuse(problem, path, sentence.line, "shorten it", needed=(len(unit) >> 12) + 1)


class Rereadable(Generic[Item]):
    """An iterable over ``read(path)`` that can be repeated: files are read again, pipes and standard input kept in memory."""

    def __init__(self, path: StrPath, read: Callable[[StrPath], Iterator[Item]]) -> None:
        self._path = path
        self._read = read
        self._kept: list[Item] | None = None

    def __iter__(self) -> Iterator[Item]:
        name = os.fspath(self._path)
        # The reader reports a missing file.
        if name != "-" and (os.path.isfile(name) or not os.path.exists(name)):
            return self._read(self._path)
        if self._kept is None:
            self._kept = list(self._read(self._path))
        return iter(self._kept)


def read_lines(
    path: StrPath, *, is_end: Callable[[str], bool] | None = None, allow_returns: bool = False
) -> Iterator[str]:
    """The lines of ``path`` without line ends (LF or CRLF) and without a byte order mark.

    If sentences have several lines, ``is_end`` recognises the lines between them, and the text from one to the next is limited in
    size. A carriage return without LF is an error unless allowed: it may be an old line end that makes the whole file one line.
    """
    number = 1
    held = _HeldLines(path, is_end)
    for text in read_chunks(path):
        if number == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        if "\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
            if not allow_returns and "\r" in "".join(lines):
                refuse_returns(path, lines, number)
        held.add(lines)
        yield from lines
        number += len(lines)


def read_raw_lines(path: StrPath, *, is_end: Callable[[str], bool] = operator.not_) -> Iterator[str]:
    """The lines of ``path`` with their line ends; joined and encoded, they are the file byte for byte.

    The text between two lines that satisfy ``is_end`` (blank lines by default) is limited in size.
    """
    held = _HeldLines(path, lambda line: is_end(line.removesuffix("\r")))
    for text in read_chunks(path):
        *lines, rest = text.split("\n")
        held.add(lines)
        for line in lines:
            yield line + "\n"
        if rest:
            yield rest


def with_blank_line(text: str) -> str:
    """The lines of a sentence with a blank line after them, which the last of a file often lacks.

    >>> with_blank_line("a\\tX"), with_blank_line("a\\tX\\r\\n"), with_blank_line("a\\tX\\n\\n")
    ('a\\tX\\n\\n', 'a\\tX\\r\\n\\r\\n', 'a\\tX\\n\\n')
    """
    end = "\r\n" if "\r\n" in text else "\n"
    if not text.endswith("\n"):
        text += end
    return text if not text.split("\n")[-2].strip(" \t\r") else text + end


class _HeldLines:
    """Measures the unfinished sentence that a reader holds, many lines at once so that it takes no time."""

    def __init__(self, path: StrPath, is_end: Callable[[str], bool] | None) -> None:
        self._path = path
        self._is_end = is_end
        self._limits = SentenceLimits.from_environment()
        self._num_lines = self._first = self._size = 0

    def add(self, lines: list[str]) -> None:
        """Add the next lines; `InputError` if the unfinished sentence at their end has become too long."""
        if self._is_end is None:
            return
        self._num_lines += len(lines)
        size = 0
        for number, line in enumerate(reversed(lines)):
            if self._is_end(line):
                self._first, self._size = self._num_lines - number, 0
                break
            size += len(line)
        self._size += size
        limits = self._limits
        is_too_long = self._size > limits.size
        if is_too_long or self._num_lines - self._first > limits.units:
            amount = str(limits) if is_too_long else f"{limits.units:,} lines"
            remedy = "put a blank line after every sentence"
            limits.refuse(f"a sentence of more than {amount} begins here", self._path, self._first + 1, remedy)


def read_chunks(path: StrPath) -> Iterator[str]:
    """Decoded chunks of whole lines; only the last may lack its line end."""
    with open_input(path) as stream:
        for line, chunk in _whole_lines(stream, path):
            try:
                text = chunk.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"not UTF-8 text (byte 0x{chunk[error.start]:02x})",
                    path=path,
                    line=line + chunk.count(b"\n", 0, error.start),
                    remedy="convert it, for example with iconv -f LATIN1 -t UTF-8 FILE > NEW",
                ) from None
            yield text


def _whole_lines(stream: IO[bytes], path: StrPath) -> Iterator[tuple[int, bytes]]:
    """Chunks of bytes as they arrive, each ending with a line end, and the number of their first line.

    read1 does not wait for more than a pipe has ready.
    """
    read = cast("io.BufferedIOBase", stream).read1
    limits = SentenceLimits.from_environment()
    line = 1
    pending: list[bytes] = []
    num_pending = num_blank = 0
    while chunk := read(_CHUNK_BYTES):
        _check_is_text(chunk, line, path, is_first=line == 1 and not pending)
        num_blank = num_blank + len(chunk) if chunk.isspace() else 0
        if num_blank > limits.size:
            limits.refuse(
                f"more than {limits} of consecutive blank lines end here",
                path,
                line,
                "check that this is the right file",
            )
        end = chunk.find(b"\n")
        if num_pending + (len(chunk) if end < 0 else end) > limits.size:
            limits.refuse(f"a line of more than {limits}", path, line, "check that this is a text file with line ends")
        end = chunk.rfind(b"\n") + 1
        if end:
            yield line, b"".join([*pending, chunk[:end]])
            pending.clear()
            num_pending = 0
            line += chunk.count(b"\n")
        if end < len(chunk):
            pending.append(chunk[end:])
            num_pending += len(chunk) - end
    if pending:
        yield line, b"".join(pending)


def _check_is_text(chunk: bytes, line: int, path: StrPath, *, is_first: bool) -> None:
    if is_first and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(
            "this is UTF-16, not UTF-8 text",
            path=path,
            line=1,
            remedy="convert it with iconv -f UTF-16 -t UTF-8 FILE > NEW",
        )
    if b"\0" in chunk:
        raise InputError(
            "this is a binary file, not text (it contains a NUL byte)",
            path=path,
            line=line + chunk.count(b"\n", 0, chunk.index(b"\0")),
            remedy="use a text file; compressed ones must end in .gz, .xz or .zst",
        )


def refuse_returns(path: StrPath, lines: list[str], first: int) -> None:
    """Raise `InputError` at the first of ``lines`` that contains a carriage return; ``first`` numbers the first line."""
    for number, line in enumerate(lines, first):
        if "\r" in line:
            raise InputError(
                "a carriage return within the line",
                path=path,
                line=number,
                remedy="remove it or, if lines end in it, convert the file with tr '\\r' '\\n'",
            )


def check_fields(sentence: Sentence, allowed: re.Pattern[str], place: str) -> None:
    """Raise an error for a unit or label that cannot be written to ``place`` and read back unchanged."""
    for text in (*sentence.units, *(sentence.labels or ())):
        if not allowed.fullmatch(text):
            raise InputError(
                f"{reprlib.repr(text)} does not fit {place}",
                line=sentence.line,
                remedy="use JSON Lines, which can hold any text",
            )


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode ``text``: escapes in JSON may stand for an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_text(row: Mapping[str, object]) -> str:
    """JSON in one line, unescaped, unless the row passes on an unpaired surrogate, which only an escape can express."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return text if is_encodable(text) else json.dumps(row, allow_nan=False)


CHECKSUM = "checksum"
"""the entry of a manifest for the checksum of all its other entries"""


def checksum_of_entries(manifest: Mapping[str, object]) -> str:
    """A checksum of the values of a manifest, not of its text, so that it can be one of the entries."""
    entries = {name: value for name, value in manifest.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(entries, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
