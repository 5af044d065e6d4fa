"""Bytes in and out: plain, gzip, xz or zstd by file name, ``-`` for the standard streams, atomic outputs."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from diffusion_mf.errors import InputError

StrPath = str | os.PathLike[str]

COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")

_COMPRESSED_BYTES = 1 << 18
_UNPACKED_BYTES = 1 << 20
# zstd cannot be told to stop after so many bytes, and a kilobyte of it may unpack to 32 MiB.
_ZSTD_BYTES = 1 << 10
# What unpacking may need; xz -9 needs 65 MiB. The zstd library itself refuses windows beyond 128 MiB.
_XZ_MEMORY_BYTES = 256 << 20
_FETCH_AGAIN = "fetch or compress the file again"


def uncompressed_suffix(path: StrPath) -> str:
    """The suffix that tells the format, compression stripped.

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
            raise InputError("is closed", path=name, remedy="name a file, or open it with < FILE")
        yield sys.stdin.buffer
        return
    if os.path.isdir(name):
        raise InputError("this is a directory", path=name, remedy="name a file")
    try:
        raw = open(name, "rb")  # noqa: SIM115 (closed by the stack below)
    except FileNotFoundError:
        raise InputError("no such file", path=name, remedy="check the path") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=name, remedy="check its permissions") from None
    suffix = os.path.splitext(name)[1]
    with raw:
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


def _unpacking(name: str, suffix: str) -> tuple[Callable[[], Any], type[BaseException]]:
    """What begins to unpack a frame (gzip: member, xz: stream), and what it raises for damaged ones.

    The file objects of these libraries do not do: ``lzma.open`` ends without a word where a second stream is damaged and
    takes no limit on memory, and zstandard's takes the end of a file for the end of a frame.
    """
    if suffix == ".gz":
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), zlib.error
    if suffix == ".xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES), lzma.LZMAError
    zstandard = _zstandard(name)
    decompressor = zstandard.ZstdDecompressor()
    return lambda: _ZstdFrame(decompressor.decompressobj()), zstandard.ZstdError


def _unpack(raw: IO[bytes], begin: Callable[[], Any], name: str, suffix: str) -> Iterator[bytes]:
    """The content of one frame after the other; a file that ends inside one is an `InputError`."""
    read = cast("io.BufferedReader", raw).read1
    # Files of gzip and xz may be padded; stripping nothing leaves zstd's as they are.
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
            # What is still to be unpacked is handed back, but xz keeps it and goes on when given nothing.
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
        """Unpack until there are ``max_length`` bytes, and at most so many more as a small piece of ``data`` gives."""
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


@contextlib.contextmanager
def open_output(path: StrPath) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing; the file appears whole, by atomic rename, only when the block ends without an error.

    Devices and pipes are written to as they are: a rename would put a file in their place. A link stays a link.
    """
    name = os.fspath(path)
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.isdir(name):
        raise InputError("this is a directory", path=name, remedy="name a file to write")
    if _is_special(name):
        try:
            # Appending, for /dev/stdout may lead to a file that has something in it.
            special = open(name, "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})", path=name, remedy="name a file to write"
            ) from None
        with special:
            yield special
        return
    final = os.path.realpath(name)
    folder = os.path.dirname(final)
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(name)}.", suffix=".tmp")
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", path=name, remedy="check that the folder exists and is writable"
        ) from None
    try:
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(os.fdopen(handle, "wb"))
            os.chmod(temporary, 0o666 & ~current_umask())
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


def _is_special(name: str) -> bool:
    """Whether ``name`` is there and no regular file; /dev/stdout is one even where it leads to a regular file."""
    try:
        is_regular = stat.S_ISREG(os.stat(name).st_mode)
    except OSError:
        return False
    return not is_regular or os.path.dirname(os.path.abspath(name)) in ("/dev", "/dev/fd")


def current_umask() -> int:
    """The permissions that new files of this process go without (it can only be read by setting it)."""
    current = os.umask(0o077)
    os.umask(current)
    return current


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
