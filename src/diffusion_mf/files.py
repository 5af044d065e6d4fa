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
from collections.abc import Iterator
from typing import IO, cast

from diffusion_mf.errors import InputError

StrPath = str | os.PathLike[str]

COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")


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
    with contextlib.ExitStack() as stack:
        stack.enter_context(raw)
        stream: IO[bytes] = raw
        damage: tuple[type[BaseException], ...] = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)
        if name.endswith(".gz"):
            stream = stack.enter_context(cast("IO[bytes]", gzip.open(raw, "rb")))  # noqa: SIM115
        elif name.endswith(".xz"):
            stream = stack.enter_context(lzma.open(raw, "rb"))
        elif name.endswith(".zst"):
            zstandard = _zstandard(name)
            damage += (zstandard.ZstdError,)
            reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            stream = stack.enter_context(io.BufferedReader(reader, 1 << 20))
        try:
            yield stream
        except damage as error:
            raise InputError(
                f"damaged or not {os.path.splitext(name)[1][1:]} data ({error})",
                path=name,
                remedy="fetch or compress the file again",
            ) from None


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
