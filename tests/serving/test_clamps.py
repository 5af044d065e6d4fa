"""Whatever clients know beforehand is in the answer, or the request is refused as the tagger would refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from hypothesis import given, settings
from hypothesis import strategies as st
from served_models import client_of
from small_models import small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import json_clamp

WORDS = st.sampled_from(["Ada", "Byron", "sings", "in", "Oslo", "choir", "☃"])


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return small_tagger("diffusion-mf", Task.NER, has_complete_labels=True)


@pytest.fixture(scope="module")
def client(tagger: Tagger) -> Iterator[TestClient]:
    with client_of({"ner": tagger}) as client:
        yield client


LABELS = ("O", "B-PER", "M-PER", "E-PER", "S-PER", "S-LOC", "B-ORG", "E-ORG", "X")


@st.composite
def clamped_sentences(draw: st.DrawFn) -> tuple[list[str], Any]:
    sentence = draw(st.lists(WORDS, min_size=1, max_size=6))
    positions = st.integers(0, len(sentence)).map(str)
    wanted = st.sampled_from(LABELS) | st.lists(st.sampled_from(LABELS), min_size=1, max_size=4)
    labels = st.dictionaries(positions, wanted, max_size=3)
    ends = st.tuples(st.integers(0, len(sentence)), st.integers(0, len(sentence))).map(sorted)
    span = st.fixed_dictionaries({"units": ends, "type": st.sampled_from(["PER", "LOC", "ORG"])})
    return sentence, draw(st.none() | labels | span | st.lists(labels | span, max_size=2))


def check_honoured(answer: dict[str, Any], clamp: Any) -> None:
    spans = {(span["start"], span["end"], span["label"]) for span in answer["spans"]}
    for part in [clamp] if isinstance(clamp, dict) else clamp or []:
        if "units" in part:
            assert (*part["units"], part["type"]) in spans
        else:
            for position, wanted in part.items():
                assert answer["labels"][int(position)] in ([wanted] if isinstance(wanted, str) else wanted)


@settings(max_examples=25)
@given(st.lists(clamped_sentences(), min_size=1, max_size=3))
def test_every_clamp_is_honoured(client: TestClient, tagger: Tagger, pairs: list[tuple[list[str], Any]]) -> None:
    sentences, clamps = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    response = client.post("/tag", json={"sentences": sentences, "clamps": clamps, "k_best": 2})
    known = [json_clamp(clamp) for clamp in clamps]
    if response.status_code != 200:
        with pytest.raises(InputError) as refusal:
            tagger.tag(sentences, clamp=known)
        assert (response.status_code, response.json()) == (422, {"error": str(refusal.value)})
        return
    expected = tagger.tag(sentences, clamp=known)
    for answer, clamp, result in zip(response.json()["sentences"], clamps, expected, strict=True):
        assert answer["labels"] == result.labels
        check_honoured(answer, clamp)
