from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError

TEXTS = ["Ada Byron sings in Oslo. Eve sings.", "", "For the royal choir."]


def test_texts_are_split_and_tagged_together() -> None:
    tagger = small_tagger("lcrf")
    frame = pd.DataFrame({"id": [7, 8, 9], "text": TEXTS}, index=[3, 3, 1])
    found = tagger.tag_frame(frame, "text")
    assert list(found.columns) == ["id", "text", "units", "labels", "scores", "spans"]
    assert list(found.index) == [3, 3, 1]
    assert list(frame.columns) == ["id", "text"]
    for text, row in zip(TEXTS, found.itertuples(), strict=True):
        results = tagger.tag_text(text)
        assert row.units == [unit for result in results for unit in result.units]
        assert row.labels == [label for result in results for label in result.labels]
        assert row.scores == [score for result in results for score in result.scores]
        assert [text[span["start_char"] : span["end_char"]] for span in row.spans] == [
            span["text"] for result in results for span in result.to_dict()["spans"]
        ]
        assert [" ".join(row.units[span["start"] : span["end"]]) for span in row.spans] == [
            " ".join(result.units[span.start : span.end]) for result in results for span in result.spans
        ]
    long = found.explode(["units", "labels", "scores"])
    assert len(long) == sum(max(1, len(units)) for units in found["units"])


def test_lists_of_words_and_missing_values() -> None:
    tagger = small_tagger("unigram", Task.POS)
    words = ["mira", "sel", "da"]
    cells = [words, np.array(words[:2], dtype=object), None, float("nan"), pd.NA, pd.NaT, (), "mira sel"]
    found = tagger.tag_frame(pd.DataFrame({"words": pd.Series(cells, dtype=object)}), "words", calls=None)
    assert list(found.columns) == ["words", "units", "labels", "scores"]
    assert [len(labels) for labels in found["labels"]] == [3, 2, 0, 0, 0, 0, 0, 2]
    assert found["labels"][0] == tagger.tag([words])[0].labels


def test_what_cannot_be_tagged_is_said() -> None:
    tagger = small_tagger()
    with pytest.raises(InputError, match="the frame has no column 'txt'; choose one of text, n"):
        tagger.tag_frame(pd.DataFrame({"text": TEXTS, "n": [1, 2, 3]}), "txt")
    with pytest.raises(InputError, match="row 0 of the column 'n' is 1; give texts, or lists of words"):
        tagger.tag_frame(pd.DataFrame({"n": [1, 2, 3]}), "n")


def test_columns_of_the_frame_are_kept_and_options_are_named() -> None:
    tagger, frame = small_tagger(), pd.DataFrame({"text": TEXTS})
    with pytest.raises(InputError, match="the frame already has labels; rename these columns first"):
        tagger.tag_frame(frame.assign(labels="gold"), "text")
    for option in ("clamp", "documents", "marginals", "k_best", "trajectory"):
        with pytest.raises(TypeError, match=option):
            tagger.tag_frame(frame, "text", **{option: None})
    found = tagger.tag_frame(frame, "text", scheme="bio2", language="en", calls=1, decoder="viterbi", batch_tokens=100)
    assert {label[0] for labels in found["labels"] for label in labels} <= set("BIO")


def test_columns_of_the_same_name_are_refused() -> None:
    frame = pd.DataFrame([["Ada", "Eve"]], columns=["text", "text"])
    with pytest.raises(InputError, match="the frame has 2 columns 'text'; give each a name of its own"):
        small_tagger().tag_frame(frame, "text")
