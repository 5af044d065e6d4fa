"""Every system behind the tagger, with random weights: what must hold whatever a model has learnt."""

from __future__ import annotations

import random
import traceback

import numpy as np
import pytest
from small_models import small_tagger, vocabulary_of

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import check_sequence
from diffusion_mf.decoding import DECODERS
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import Tagger

TIE = 1e-5
"""what docs/tagging.md promises"""


def random_sentences(task: Task, count: int, *, seed: int, longest: int = 14) -> list[tuple[str, ...]]:
    generator = random.Random(seed)
    forms = [*vocabulary_of(task).form_counts, "unseen", "☃", "Ωmega"]
    return [tuple(generator.choices(forms, k=generator.randint(1, longest))) for _ in range(count)]


def assert_same_labels(tagger: Tagger, one: list, other: list) -> None:
    """Labels agree, save where the two best beliefs are closer than a tie."""
    for left, right in zip(one, other, strict=True):
        best_two = np.sort(left.trajectory[-1].beliefs, axis=-1)[:, -2:]
        if (np.diff(best_two) > TIE).all():
            assert left.labels == right.labels
        np.testing.assert_allclose(left.scores, right.scores, atol=TIE)


# Clipped bits make whole sequences equally good: there Mask-Viterbi has ties that no unit shows.
@pytest.mark.parametrize(("system", "decoder"), [
    (name, decoder) for name, system in SYSTEMS.items() for decoder in system.constrained_decoders
    if (name, decoder) != ("diffusionsl", "mask-viterbi")
])  # fmt: skip
def test_batch_size_and_order_change_no_label(system: str, decoder: str) -> None:
    tagger = small_tagger(system)
    sentences = random_sentences(Task.NER, 30, seed=5)
    expected = tagger.tag(sentences, decoder=decoder, trajectory=True)
    assert len({tuple(result.labels) for result in expected}) > 5
    for batch_tokens in (1, 33, 10_000):
        assert_same_labels(tagger, expected, tagger.tag(sentences, decoder=decoder, batch_tokens=batch_tokens))
    order = random.Random(1).sample(range(30), 30)
    shuffled = tagger.tag([sentences[index] for index in order], decoder=decoder, batch_tokens=50)
    assert_same_labels(tagger, [expected[index] for index in order], shuffled)


@pytest.mark.parametrize("kind", ["scratch", "window"])
def test_scores_do_not_depend_on_which_words_were_new_together(kind: str) -> None:
    """A tagger that meets sentences one by one, and one that meets them all at once."""
    encoder = {
        "kind": kind, "width": 16, "heads": 2, "layers": 1, "word_width": 8, "character_width": 4, "character_hidden": 4,
    }  # fmt: skip
    sentences = random_sentences(Task.NER, 15, seed=8, longest=6)
    sentences = [tuple(f"{unit}{index % 4}" for unit in units) for index, units in enumerate(sentences)]
    together = small_tagger(settings={"encoder": encoder}).tag(sentences)
    other = small_tagger(settings={"encoder": encoder})
    for expected, units in zip(together, sentences, strict=True):
        np.testing.assert_allclose(other.tag([units])[0].scores, expected.scores, atol=TIE)


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("system", SYSTEMS)
def test_scores_are_probabilities_and_trajectories_distributions(system: str, task: Task) -> None:
    tagger = small_tagger(system, task)
    sentences = random_sentences(task, 5, seed=2)
    for result in tagger.tag(sentences, trajectory=True):
        assert len(result.scores) == len(result.labels) == len(result.units)
        assert all(0 <= score <= 1 for score in result.scores)
        assert all(0 <= span.confidence <= 1 for span in result.spans)
        assert len(result.trajectory) == (10 if SYSTEMS[system].is_diffusion else 1)
        assert result.trajectory[-1].t == 0
        for step in result.trajectory:
            np.testing.assert_allclose(step.beliefs.sum(-1), 1, atol=1e-4)
        if tagger.decoder in ("mask-viterbi", "viterbi"):
            check_sequence(result.labels, tagger.scheme)


@pytest.mark.parametrize("system", [name for name, system in SYSTEMS.items() if system.is_diffusion])
def test_the_number_of_calls(system: str) -> None:
    tagger = small_tagger(system)
    for calls in (1, 3, 20):
        result = tagger.tag([("Ada", "sings")], calls=calls, trajectory=True)[0]
        assert len(result.trajectory) == calls


@pytest.mark.parametrize("system", SYSTEMS)
def test_clamps_hold_with_every_decoder(system: str) -> None:
    tagger = small_tagger(system)
    generator = random.Random(9)
    sentences = random_sentences(Task.NER, 30, seed=9, longest=8)
    clamps = [
        {i: "O" if generator.random() < 0.5 else {"O", *generator.sample(tagger.labels, 3)}
         for i in range(len(units)) if generator.random() < 0.5}
        for units in sentences
    ]  # fmt: skip
    for decoder in sorted(set(SYSTEMS[system].constrained_decoders) | {"argmax"}):
        assert decoder in DECODERS
        results = tagger.tag(sentences, clamp=clamps, decoder=decoder, batch_tokens=60)
        for result, clamp in zip(results, clamps, strict=True):
            for position, wanted in clamp.items():
                assert result.labels[position] in ([wanted] if isinstance(wanted, str) else wanted)
                if isinstance(wanted, str):
                    assert result.scores[position] == 1.0


def test_a_very_long_sentence_and_a_very_long_word() -> None:
    tagger = small_tagger()
    long_sentence = random.Random(0).choices(["Ada", "Byron", "sings", "Oslo"], k=3000)
    results = tagger.tag([long_sentence, ["x" * 100_000, "Oslo"]])
    assert len(results[0].labels) == len(results[0].scores) == 3000
    check_sequence(results[0].labels, tagger.scheme)
    assert len(results[1].labels) == 2


def test_the_number_of_units_in_a_batch_is_bounded_by_the_configuration() -> None:
    tagger = small_tagger(settings={"inference": {"budget": 10}})
    shapes = []
    predict = tagger.model.labeller.predict
    tagger.model.labeller.predict = lambda batch, **options: (
        shapes.append(batch.form_ids.shape),
        predict(batch, **options),
    )[1]  # type: ignore[method-assign]
    tagger.tag([["Ada"]] * 25)
    assert sorted(rows for rows, _ in shapes) == [5, 10, 10]


def test_memory_that_runs_out_is_met_with_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = small_tagger()
    sentences = random_sentences(Task.NER, 9, seed=3)
    expected = [result.labels for result in tagger.tag(sentences)]
    predict = tagger.model.labeller.predict

    def fails_for_more_than_two(batch, **options):
        if len(batch.lengths) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return predict(batch, **options)

    monkeypatch.setattr(tagger.model.labeller, "predict", fails_for_more_than_two)
    assert [result.labels for result in tagger.tag(sentences)] == expected


@pytest.mark.parametrize("has_clamp", [False, True])
def test_the_way_from_the_tagger_to_the_model_is_short(has_clamp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = small_tagger()
    predict = tagger.model.labeller.predict
    frames: list[str] = []

    def noted(batch, **options):
        stack = traceback.extract_stack()[:-1]
        frames.extend(frame.name for frame in stack if "/diffusion_mf/" in frame.filename)
        return predict(batch, **options)

    monkeypatch.setattr(tagger.model.labeller, "predict", noted)
    tagger.tag([["Ada", "sings"]], clamp=[{1: "O"}] if has_clamp else None)
    assert frames == ["tag", "_stream", "_tag_window", "predict_sentences", "predict"]
