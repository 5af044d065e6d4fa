from __future__ import annotations

import pytest

from diffusion_mf.config import Config, load_config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.training.evaluation import num_calls
from diffusion_mf.training.recipe import CorpusSize, corpus_size, recipe_settings

SIZES = (1, 10, 100, 1000, 4000, 10_000, 100_000, 3_000_000)


def of_size(num_sentences: int, *, mean_length: float = 16.0, mean_form_length: float = 4.5) -> CorpusSize:
    return CorpusSize(
        num_sentences=num_sentences,
        num_units=round(num_sentences * mean_length),
        mean_form_length=mean_form_length,
    )


def config_of(settings: dict[str, object], *, task: Task, system: str) -> Config:
    values: dict[str, dict[str, object]] = {}
    for key, value in settings.items():
        section, name = key.split(".")
        values.setdefault(section, {})[name] = value
    if values["encoder"].get("kind") == "pretrained":
        values["encoder"]["model"] = "a-model"
    return Config.model_validate({"task": task, "system": system, **values})


def in_documents(number: int, size: int) -> list[Sentence]:
    return [Sentence(("Ada",), ("S-PER",), document=1 + index // size) for index in range(number * size)]


@pytest.mark.parametrize(
    ("train", "dev", "expected"),
    [
        (in_documents(100, 2), None, True),
        (in_documents(100, 2), in_documents(1, 2), True),
        (in_documents(99, 8), None, False),
        (in_documents(200, 1), None, False),
        (in_documents(100, 2), in_documents(4, 1), False),
        (in_documents(100, 2), [Sentence(("Ada",), ("S-PER",))] * 4, False),
        ([Sentence(("Ada",), ("S-PER",))] * 200, in_documents(1, 2), False),
    ],
)
def test_names_are_recalled_where_train_and_dev_have_documents(train, dev, expected) -> None:
    size = corpus_size(train, dev)
    assert size.has_documents is expected
    for system in SYSTEMS:
        settings = {
            task: recipe_settings(size, task=task, system=system, device_type="cpu") for task in (Task.NER, Task.POS)
        }
        assert config_of(settings[Task.NER], task=Task.NER, system=system).encoder.recall == 8 * expected
        assert "encoder.recall" not in settings[Task.POS]


def test_the_size_of_a_corpus() -> None:
    sentences = [Sentence(("Ada", "sleeps"), ("N", "V")), Sentence(("Ada", "a", "b", "c"), ("N",) * 4, document=1)]
    assert corpus_size(sentences) == CorpusSize(num_sentences=2, num_units=6, mean_form_length=2.5)
    with pytest.raises(ValueError, match="no units"):
        corpus_size([])


def test_pretrained_encoders_learn_slowly() -> None:
    settings = recipe_settings(of_size(500), task=Task.NER, system="lcrf", device_type="cuda", is_pretrained=True)
    assert settings["training.encoder_learning_rate"] == 5e-5


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("task", list(Task))
def test_large_corpora_have_the_settings_that_they_were_measured_with(task: Task, system: str) -> None:
    for size in (of_size(10_000), of_size(4_000, mean_length=39.1)):
        settings = recipe_settings(size, task=task, system=system, device_type="cuda")
        found = config_of(settings, task=task, system=system)
        assert found == load_config(f"ours/{task}/{system}").model_copy(update={"data": found.data})


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_settings_are_valid_whatever_the_corpus(system: str, device_type: str) -> None:
    for task in Task:
        for num_sentences in SIZES:
            for is_pretrained in (False, True):
                for minutes in (None, 0.5):
                    settings = recipe_settings(
                        of_size(num_sentences),
                        task=task,
                        system=system,
                        device_type=device_type,
                        is_pretrained=is_pretrained,
                        minutes=minutes,
                    )
                    config_of(settings, task=task, system=system)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_little_data_has_as_many_updates_and_ends_its_warm_up(device_type: str) -> None:
    for num_sentences in SIZES:
        size = of_size(num_sentences)
        settings = recipe_settings(size, task=Task.POS, system="unigram", device_type=device_type)
        whole = config_of(settings, task=Task.POS, system="unigram")
        config = whole.training
        # A batch has at least one sentence.
        updates = config.epochs * max(1, size.num_units // config.budget)
        assert updates >= (300 if whole.encoder.features else 500)
        assert config.warmup_steps < 0.6 * updates
        assert 1 / (1 - config.ema_decay) < 1.1 * updates
        assert config.epochs / config.evaluate_every <= (10 if device_type == "cpu" else 40)


def test_units_of_one_character_have_no_spelling_to_look_at() -> None:
    of_characters = of_size(500, mean_length=40, mean_form_length=1.02)
    for device_type in ("cpu", "cuda"):
        settings = recipe_settings(of_characters, task=Task.NER, system="lcrf", device_type=device_type)
        encoder = config_of(settings, task=Task.NER, system="lcrf").encoder
        assert encoder.character_hidden == encoder.affix_width == 0
        assert not encoder.features


def test_little_data_is_seen_through_a_window() -> None:
    for num_sentences, device_type, kind in (
        (1000, "cuda", "window"),
        (1000, "cpu", "window"),
        (20_000, "cpu", "window"),
        (20_000, "cuda", "scratch"),
    ):
        settings = recipe_settings(of_size(num_sentences), task=Task.NER, system="unigram", device_type=device_type)
        encoder = config_of(settings, task=Task.NER, system="unigram").encoder
        assert encoder.kind == kind
        assert (encoder.affix_width > 0) == (kind == "window")
        # Features of all of a large corpus would fill the memory.
        assert encoder.features == (num_sentences == 1000)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_where_there_are_features_the_denoiser_sees_labels_alone(system: str, device_type: str) -> None:
    for size, is_little in (
        (of_size(100), True),
        (of_size(1000), True),
        (of_size(20_000), False),
        (of_size(500, mean_length=40, mean_form_length=1.02), False),  # characters have no features
    ):
        settings = recipe_settings(size, task=Task.POS, system=system, device_type=device_type)
        config = config_of(settings, task=Task.POS, system=system)
        assert config.has_state_scores == (is_little and SYSTEMS[system].process == "categorical")
        # As many calls in training as on dev: two.
        if config.has_state_scores:
            assert config.diffusion.own_trajectory_calls + 1 == num_calls(config)


def test_long_runs_on_a_gpu_are_compiled() -> None:
    for num_sentences, is_compiled in ((1000, False), (15_000, False), (1_000_000, True)):
        settings = recipe_settings(of_size(num_sentences), task=Task.POS, system="lcrf", device_type="cuda")
        assert settings.get("training.compile", False) == is_compiled


def test_little_time_means_fewer_epochs() -> None:
    for device_type in ("cpu", "cuda"):
        epochs = [
            recipe_settings(
                of_size(20_000), task=Task.NER, system="diffusion-mf", device_type=device_type, minutes=minutes
            )["training.epochs"]
            for minutes in (0.1, 1.0, None)
        ]
        assert 1 <= epochs[0] < epochs[2]
        assert epochs == sorted(epochs)
