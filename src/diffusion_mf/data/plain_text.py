"""Pre-tokenised plain text: one sentence a line, blanks between units, no labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import IO

from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.text_lines import BYTE_ORDER_MARK, SentenceLimits, check_fields, read_lines
from diffusion_mf.files import StrPath

# Only space and tab part units: a no-break or ideographic space may stand inside one.
_BLANKS = re.compile(r"[ \t]+")
_FIELD = re.compile(r"[^ \t\n\r\0]+")


def read_plain_text(path: StrPath) -> Iterator[Sentence]:
    """Stream the unlabelled sentences of ``path``, one a line; blank lines part paragraphs and are no sentences."""
    limits = SentenceLimits.from_environment()
    for number, line in enumerate(read_lines(path), 1):
        units = _BLANKS.split(line.strip(" \t"))
        if units != [""]:
            sentence = Sentence(tuple(units), None, number)
            if len(line) > limits.unit_size:
                limits.check_units(sentence, path)
            yield sentence


def write_plain_text(sentences: Iterable[Sentence], stream: IO[bytes]) -> None:
    """Write the units with single spaces between them; labels are dropped."""
    is_first = True
    for sentence in sentences:
        check_fields(Sentence(sentence.units, None, sentence.line), _FIELD, "a line of units parted by blanks")
        # A reader takes a mark at the very beginning for the file's own, so a unit's needs another before it.
        mark = BYTE_ORDER_MARK if is_first and sentence.units[0].startswith(BYTE_ORDER_MARK) else ""
        stream.write((mark + " ".join(sentence.units) + "\n").encode())
        is_first = False
