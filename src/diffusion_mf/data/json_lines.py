"""JSON Lines: ``{"units": ["…"], "labels": ["…"], "document": "…"}``, one sentence a line; labels and document are optional.

Sentences of a document stand one after the other and have the same value there, a string or a whole number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, NoReturn

from diffusion_mf.data.documents import DocumentNumbers
from diffusion_mf.data.repair import Repairs, refuse
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.text_lines import SentenceLimits, read_lines
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath


def read_json_lines(path: StrPath, *, repairs: Repairs | None = None) -> Iterator[Sentence]:
    """Stream the sentences of ``path``; keys other than ``units``, ``labels`` and ``document`` are ignored, blank lines skipped.

    An empty unit is refused, or with ``repairs`` keeps its place as a placeholder.
    """
    number_of = DocumentNumbers()
    limits = SentenceLimits.from_environment()
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                sentence, document = _parse_line(line, number, path, repairs)
                if len(line) > limits.unit_size:
                    limits.check_units(sentence, path)
            except InputError as error:
                refuse(repairs, error)
                continue
            yield sentence._replace(document=number_of(document))


def write_json_lines(sentences: Iterable[Sentence], stream: IO[bytes]) -> None:
    """Write one object per sentence, text unescaped; unlabelled sentences have no ``labels``."""
    for sentence in sentences:
        row: dict[str, tuple[str, ...] | int] = {"units": sentence.units}
        if sentence.labels is not None:
            row["labels"] = sentence.labels
        if sentence.document:
            row["document"] = sentence.document
        stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


def _parse_line(line: str, number: int, path: StrPath, repairs: Repairs | None) -> tuple[Sentence, str | int | None]:
    """The sentence, and the name of its document."""

    def fail(problem: str, remedy: str) -> NoReturn:
        raise InputError(problem, path=path, line=number, remedy=remedy)

    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits is a ValueError without a message of its own.
        other = "nested too deeply" if isinstance(error, RecursionError) else "too long a number"
        reason = error.msg if isinstance(error, json.JSONDecodeError) else other
        fail(f"not JSON ({reason})", 'write one object a line, such as {"units": ["a"], "labels": ["X"]}')
    if not isinstance(row, dict) or "units" not in row:
        fail('no object with the key "units"', 'write {"units": ["a", "b"], "labels": ["X", "Y"]}')
    units, labels, document = row["units"], row.get("labels"), row.get("document")
    if document is not None and (isinstance(document, bool) or not isinstance(document, str | int)):
        fail('"document" is neither a string nor a whole number', "give the sentences of a document the same name")
    if repairs is not None and isinstance(units, list) and "" in units and labels is not None:
        units = [repairs.add_form(number) if unit == "" else unit for unit in units]
    for name, values in (("units", units), ("labels", labels)):
        if name == "labels" and values is None:
            continue
        if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
            fail(f'"{name}" is not a list of non-empty strings', "quote every value and leave none empty")
        # Only an escape can smuggle in half a surrogate pair, which no output could hold.
        if "\\u" in line and not all(_is_encodable(value) for value in values):
            fail(f'"{name}" holds half a surrogate pair', "write the characters unescaped")
    if not units:
        fail("an empty sentence", "remove the line")
    if labels is not None and len(labels) != len(units):
        fail(f"{len(units)} units but {len(labels)} labels", "give every unit one label")
    return Sentence(tuple(units), None if labels is None else tuple(labels), number), document


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
