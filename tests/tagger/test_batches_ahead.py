"""Batches that are begun before the results of earlier ones are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.tagger import tagger as tagger_module
from diffusion_mf.tagger.tagger import in_order

WORDS = ["mira", "sel", "da", "toro", "vi", "unseen"]


@pytest.mark.parametrize(
    ("num_ahead", "expected"),
    [(0, "b0 a0 b1 a1 b2 a2"), (1, "b0 b1 a0 b2 a1 a2"), (5, "b0 b1 b2 a0 a1 a2")],
)
def test_order_of_beginning_and_answering(num_ahead: int, expected: str) -> None:
    events: list[str] = []

    def begin(items: Sequence[int]) -> Callable[[], list[int]]:
        number = sum(event.startswith("b") for event in events)
        events.append(f"b{number}")

        def answers() -> list[int]:
            events.append(f"a{number}")
            return [10 * item for item in items]

        return answers

    window = [3, 1, 2, 1, 2, 1]
    found = in_order(window, window, begin, budget=4, num_ahead=num_ahead)
    assert found == [10 * item for item in window]
    assert " ".join(events) == expected


@pytest.mark.parametrize("system", ["unigram", "diffusion-mf", "diffusionsl"])
def test_results_do_not_depend_on_it(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = small_tagger(system, Task.NER)
    sentences = [WORDS[: 1 + index % 6] for index in range(20)] + [[]]
    expected = tagger.tag(sentences, batch_tokens=12)
    original = in_order

    def ahead(*arguments, **settings):  # type: ignore[no-untyped-def]
        return original(*arguments, **{**settings, "num_ahead": 3})

    monkeypatch.setattr(tagger_module, "in_order", ahead)
    assert tagger.tag(sentences, batch_tokens=12) == expected


def test_what_does_not_fit_in_memory_is_begun_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = small_tagger("unigram", Task.NER)
    sentences = [WORDS[: 1 + index % 6] for index in range(9)]
    expected = [result.labels for result in tagger.tag(sentences)]
    inner = tagger._begin_full_batch

    def tight(window, indices, options):  # type: ignore[no-untyped-def]
        if len(indices) > 2:
            raise MemoryError
        return inner(window, indices, options)

    monkeypatch.setattr(tagger, "_begin_full_batch", tight)
    assert [result.labels for result in tagger.tag(sentences)] == expected
