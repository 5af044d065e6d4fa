"""One tagger in several hands: threads, streams that take turns, copies."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.networks import known_words
from diffusion_mf.tagger import Tagger

ONE = [["mira", "sel", "da"], ["toro", "vi"], ["Lanu", "sel", "da", "toro"]]
OTHER = [["vi", "Lanu", "."], ["unseen", "mira", "☃"], ["toro", "toro"]]


@pytest.fixture
def tagger(monkeypatch: pytest.MonkeyPatch) -> Tagger:
    # Every window forgets the words of the one before, and puts its own into their rows.
    monkeypatch.setattr(known_words, "MAX_OTHER_WORDS", 0)
    return small_tagger("mean-field", Task.POS)


def scores(tagger: Tagger, sentences: list[list[str]]) -> list[list[float]]:
    return [result.scores for result in tagger.tag(sentences)]


def test_threads_do_not_disturb_each_other(tagger: Tagger, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, other = scores(tagger, ONE), scores(tagger, OTHER)
    assert expected != other
    found: list[list[list[float]]] = []
    thread = threading.Thread(target=lambda: found.append(scores(tagger, OTHER)))
    inner = tagger._predictor.predict

    def with_an_interruption(*arguments: Any, **options: Any) -> Any:
        """The other thread begins while this one is between looking words up and using what it found."""
        if threading.current_thread() is not thread and not thread.ident:
            thread.start()
            thread.join(0.5)
        return inner(*arguments, **options)

    monkeypatch.setattr(tagger._predictor, "predict", with_an_interruption)
    assert scores(tagger, ONE) == expected
    thread.join(30)
    assert found == [other]


def test_streams_may_take_turns_and_feed_each_other(tagger: Tagger) -> None:
    expected, other = scores(tagger, ONE), scores(tagger, OTHER)
    pairs = list(zip(tagger.stream(ONE, batch_tokens=1), tagger.stream(OTHER, batch_tokens=1), strict=True))
    assert [left.scores for left, _ in pairs] == [pytest.approx(row, abs=1e-5) for row in expected]
    assert [right.scores for _, right in pairs] == [pytest.approx(row, abs=1e-5) for row in other]
    fed = tagger.stream(result.units for result in tagger.stream(ONE))
    assert [result.scores for result in fed] == expected


def test_a_copy_tags_like_the_original(tagger: Tagger) -> None:
    expected = scores(tagger, ONE)
    assert scores(pickle.loads(pickle.dumps(tagger)), ONE) == expected
    assert scores(copy.deepcopy(tagger), ONE) == expected
