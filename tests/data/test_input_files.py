"""Compressed inputs: whole frames are read, everything else is refused with one sentence; unpacking takes little memory."""

from __future__ import annotations

import gzip
import lzma
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from diffusion_mf.data.files import open_input
from diffusion_mf.errors import InputError

Compress = Callable[[bytes], bytes]


def zstd_with_checksum(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def zstd_of_unknown_size(content: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return (
        compressor.compress(content[:20])
        + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + (compressor.compress(content[20:]) + compressor.flush())
    )


FORMATS = [
    pytest.param(".gz", lambda content: gzip.compress(content, mtime=0), id="gz"),
    pytest.param(".xz", lzma.compress, id="xz"),
    pytest.param(".zst", zstandard.ZstdCompressor().compress, id="zst"),
    pytest.param(".zst", zstd_with_checksum, id="zst-checksum"),
    pytest.param(".zst", zstd_of_unknown_size, id="zst-unknown-size"),
]
every_format = pytest.mark.parametrize(("suffix", "compress"), FORMATS)


def read(path: Path) -> bytes:
    with open_input(path) as stream:
        return stream.read()


@every_format
def test_a_file_cut_anywhere_is_refused_or_ends_between_frames(suffix: str, compress: Compress, tmp_path: Path) -> None:
    path = tmp_path / f"a.tok{suffix}"
    letters = random.Random(1)
    contents = [bytes(letters.choices(b"abcdefgh\n", k=60)), b"", b"the third frame\n"]
    frames = [compress(content) for content in contents]
    whole = b"".join(frames)
    ends = {len(b"".join(frames[:count])): b"".join(contents[:count]) for count in range(1, 4)}
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        if cut in ends:
            assert read(path) == ends[cut]
            continue
        with pytest.raises(InputError) as caught:
            read(path)
        problem = (
            "ends in the middle of its compressed data" if cut else f"this is an empty file, not {suffix[1:]} data"
        )
        assert str(caught.value) == f"{path}: {problem}; download or compress the file again."


@every_format
def test_a_long_file_cut_in_the_middle_is_refused(suffix: str, compress: Compress, tmp_path: Path) -> None:
    path = tmp_path / f"a.tok{suffix}"
    letters = random.Random(1)
    whole = compress(b"".join(b"%d words\n" % letters.randrange(1 << 30) for _ in range(200_000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="ends in the middle"):
        read(path)


@every_format
def test_what_follows_the_last_frame_is_not_passed_over(suffix: str, compress: Compress, tmp_path: Path) -> None:
    path = tmp_path / f"a.tok{suffix}"
    frame = compress(b"words\n")
    for garbage in (b"garbage that is no frame", b"]\0\0\0\4" + bytes(8) + b"\1garbage"):
        path.write_bytes(frame + garbage)
        with pytest.raises(InputError, match=f"damaged or not {suffix[1:]} data"):
            read(path)
    # As xz and gzip themselves: zeros fill up a tape or a sector.
    path.write_bytes(frame + bytes(100_000) + frame + bytes(8))
    if suffix == ".zst":
        with pytest.raises(InputError, match="damaged or not zst data"):
            read(path)
    else:
        assert read(path) == b"words\n" * 2


@every_format
def test_a_damaged_second_frame_is_not_passed_over(suffix: str, compress: Compress, tmp_path: Path) -> None:
    path = tmp_path / f"a.tok{suffix}"
    frame = compress(b"words\n" * 9)
    path.write_bytes(frame + b"?" + frame[1:])
    with pytest.raises(InputError, match=f"damaged or not {suffix[1:]} data"):
        read(path)


def test_skippable_frames_of_zstd_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.tok.zst"
    skipped = b"\x5e\x2a\x4d\x18" + (5000).to_bytes(4, "little") + bytes(5000)
    frame = zstandard.ZstdCompressor().compress(b"words\n")
    path.write_bytes(skipped + frame + skipped + frame + skipped)
    assert read(path) == b"words\n" * 2
    path.write_bytes((skipped + frame + skipped)[:-1])
    with pytest.raises(InputError, match="ends in the middle"):
        read(path)


def test_what_needs_too_much_memory_to_unpack_is_refused(tmp_path: Path) -> None:
    content = b"words\n"
    big = tmp_path / "a.tok.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    frame = lzma.compress(content, filters=filters)
    # The size of the dictionary is a byte of the block's header, with a checksum of its own.
    header = bytearray(frame[12:24])
    place = header.index(b"\x21\x01") + 2
    header[place] = 38  # 2 GiB
    header[8:] = zlib.crc32(header[:8]).to_bytes(4, "little")
    big.write_bytes(frame[:12] + header + frame[24:])
    with pytest.raises(InputError, match=r"needs too much memory to unpack .* compress it again with the default"):
        read(big)
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    wide = tmp_path / "a.tok.zst"
    wide.write_bytes(compressor.compress(content) + compressor.flush())
    with pytest.raises(InputError, match="needs too much memory to unpack"):
        read(wide)
