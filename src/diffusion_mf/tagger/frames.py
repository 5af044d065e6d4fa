"""Columns of a pandas frame, labelled."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.tagger.files import tag_texts
from diffusion_mf.tagger.results import TaggedSentence
from diffusion_mf.tagger.tagger import Tagger

if TYPE_CHECKING:
    from pandas import DataFrame


def tag_frame(tagger: Tagger, frame: DataFrame, column: Hashable, *, language: str | None, **options: Any) -> DataFrame:
    """The work of `Tagger.tag_frame`."""
    import pandas as pd

    if column not in frame.columns:
        known = ", ".join(map(str, frame.columns))
        raise InputError(f"the frame has no column {column!r}", remedy=f"choose one of {known}")
    chosen = frame[column]
    if chosen.ndim > 1:
        raise InputError(f"the frame has {chosen.shape[1]} columns {column!r}", remedy="give each a name of its own")
    cells = list(chosen)
    texts = {row: cell for row, cell in enumerate(cells) if isinstance(cell, str)}
    words: dict[int, list[str]] = {}
    for row, cell in enumerate(cells):
        if row in texts or (pd.api.types.is_scalar(cell) and pd.isna(cell)):
            continue
        if not isinstance(cell, Iterable):
            raise InputError(f"row {row} of the column {column!r} is {cell!r}", remedy="give texts, or lists of words")
        words[row] = list(cell)
    names = ["units", "labels", "scores"] + (["spans"] if tagger.scheme is not LabelScheme.PLAIN else [])
    taken = [name for name in names if name in frame.columns]
    if taken:
        raise InputError(f"the frame already has {', '.join(taken)}", remedy="rename these columns first")
    found: dict[int, list[TaggedSentence]] = {}
    found.update(zip(texts, tag_texts(tagger, list(texts.values()), language=language, **options), strict=True))
    found.update(
        (row, [result]) for row, result in zip(words, tagger.tag(list(words.values()), **options), strict=True)
    )
    rows = [_joined(found.get(row, [])) for row in range(len(cells))]
    columns = {name: pd.Series([row[name] for row in rows], index=frame.index, dtype=object) for name in names}
    return frame.assign(**columns)


def _joined(results: Sequence[TaggedSentence]) -> dict[str, list[Any]]:
    """The sentences of a cell as one; spans count its units from the first."""
    joined: dict[str, list[Any]] = {"units": [], "labels": [], "scores": [], "spans": []}
    for result in results:
        values, first = result.to_dict(), len(joined["units"])
        for span in values["spans"]:
            joined["spans"].append(span | {"start": span["start"] + first, "end": span["end"] + first})
        for name in ("units", "labels", "scores"):
            joined[name] += values[name]
    return joined
