"""Recognises tables as spreadsheets write them, whose values are separated by commas or are in quotation marks."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence

from diffusion_mf.data.columns import names_a_column
from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError

TAG = re.compile(r"[BIESMLU]-\S+|[A-Z][^a-z]*|\W+")
"""what most tags look like, and few words"""
_SEPARATORS = {",": "commas", ";": "semicolons"}
_QUOTED = re.compile(r'".+"')


def check_rows(lines: Iterable[str], path: StrPath, *, needs_tags: bool = True) -> None:
    """`InputError` if the first lines of a file are rows of a table with commas, semicolons or quotation marks.

    Text may have as many commas in every line: with ``needs_tags``, the last values must look like tags, or the first row like names
    of columns.
    """
    # Empty values stand for a blank line.
    lines = [line for line in lines if line.strip(' \t,;"') and line[0] != "#"]
    problem, remedy = None, ""
    for separator, name in _SEPARATORS.items():
        rows = [_values(line, separator) for line in lines]
        if {len(row) for row in rows} in ({2}, {3}, {4}, {5}) and (
            not needs_tags or (_have_tags(rows) and not _are_columns(lines))
        ):
            problem = f"the columns are separated by {name}"
            remedy = "save the table with tabs between columns and without quotation marks, and put a blank line after every sentence"
    rows = [line.split("\t" if "\t" in line else " ") for line in lines]
    if all(_QUOTED.fullmatch(value) for row in rows for value in row) and _have_tags(
        [[value[1:-1] for value in row] for row in rows]
    ):
        problem, remedy = f"the values are in quotation marks ({rows[-1][-1]})", "write the columns without them"
    if problem is not None:
        raise InputError(problem, path=path, remedy=remedy)


def _values(line: str, separator: str) -> list[str]:
    """The values of one row; a quotation mark that is not closed ends with its line."""
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error:  # such as a line that is longer than any row
        return []


def _are_columns(lines: Sequence[str]) -> bool:
    """Whether tabs or spaces separate columns, whose values may contain commas."""
    return any("\t" in line for line in lines) or ({len(line.split()) for line in lines} in ({2}, {3}, {4}, {5}))


def _have_tags(rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows end in tags, or the first names a column of words and one of tags."""
    if len(rows) < 2 or len(rows[0]) < 2:
        return False
    last = [row[-1] for row in rows[1:]]
    are_tags = all(TAG.fullmatch(value) and " " not in value for value in last) and any(map(str.isalpha, "".join(last)))
    return are_tags or sum(map(names_a_column, rows[0])) > 1
