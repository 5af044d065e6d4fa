"""The models that come with the package: each loads, tags, is small, and says where it comes from."""

from __future__ import annotations

import pathlib

import pytest

from diffusion_mf import Tagger
from diffusion_mf.config import load_config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.evaluation import PRIMARY_METRICS
from diffusion_mf.model.storage import read_config, read_metrics
from diffusion_mf.tagger.files import evaluate_corpus
from diffusion_mf.tagger.shipped import DEFAULT_MODEL, shipped_models

NAMES = ("en-ner", "en-pos", "en-pos-fast", "fr-pos", "zh-seg-pos")
MOST_BYTES = 8_000_000


def test_all_of_them_are_there() -> None:
    assert tuple(shipped_models()) == NAMES
    assert DEFAULT_MODEL in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_small_and_says_where_it_comes_from(name: str) -> None:
    folder = shipped_models()[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    config, metrics = read_config(folder), read_metrics(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for value in (config.card.attribution, config.card.licence, config.card.command):
        assert value
        assert value in card
    for split in ("dev", "test"):
        assert f"{metrics[split][PRIMARY_METRICS[config.task]]:.2f}" in card
    assert f"{metrics['speed']['words_per_second']:,} words a second on one core" in card


@pytest.mark.parametrize("name", NAMES)
def test_its_command_trains_the_same_configuration(name: str) -> None:
    stored, made = read_config(shipped_models()[name]), load_config(f"box/{name}")
    small = f" && dmf export DIR/model {name} --to {made.training.storage} --measure {stored.data.test}"
    command = made.card.command or ""
    assert f"dmf train box/{name} --output DIR" in command
    assert command.endswith(small)
    own = {"train", "dev", "test", "teacher"}
    assert stored.model_copy(update={"data": made.data}) == made
    assert stored.data.model_dump(exclude=own) == made.data.model_dump(exclude=own)
    for path in (stored.data.train, stored.data.dev, stored.data.test):
        assert path is not None
        assert path.startswith("$DIFFUSION_MF_DATA/")


def labelled(name: str, text: str) -> list[tuple[str, str]]:
    (result,) = Tagger.load(name, device="cpu").tag_text(text)
    if result.spans:
        return [(result.text_of(span), span.label) for span in result.spans]
    return list(zip(result.units, result.labels, strict=True))


@pytest.mark.parametrize("name", ["en-pos", "en-pos-fast"])
def test_english_words(name: str) -> None:
    assert labelled(name, "She doesn't live in Paris.") == [
        ("She", "PRON"), ("does", "AUX"), ("n't", "PART"), ("live", "VERB"), ("in", "ADP"), ("Paris", "PROPN"), (".", "PUNCT"),
    ]  # fmt: skip


def test_french_words() -> None:
    assert labelled("fr-pos", "Elle habite à Paris.") == [
        ("Elle", "PRON"), ("habite", "VERB"), ("à", "ADP"), ("Paris", "PROPN"), (".", "PUNCT"),
    ]  # fmt: skip


def test_chinese_words() -> None:
    assert [word for word, _ in labelled("zh-seg-pos", "他在北京工作。")] == ["他", "在", "北京", "工作", "。"]


def test_english_entities() -> None:
    found = labelled("en-ner", "Angela Merkel visited Paris.")
    assert ("Angela Merkel", "PER") in found
    assert ("Paris", "LOC") in found


def test_no_handle_and_no_link_is_in_a_vocabulary() -> None:
    forms = Tagger.load("en-ner", device="cpu").model.vocabulary.form_counts
    assert not [form for form in forms if form.startswith("@") and form not in ("@", "@USER") and form[1:].isalnum()]
    assert not [form for form in forms if form.lower().startswith(("http://", "https://", "www."))]


@pytest.mark.parametrize("name", ["en-ner", "en-pos"])
def test_a_known_label_is_taken_into_account(name: str) -> None:
    tagger = Tagger.load(name, device="cpu")
    assert tagger.model.config.system == "diffusion-mf"
    assert tagger.model.config.diffusion.clamp_share > 0
    words = ["Washington", "called", "Lincoln", "."]
    (free,) = tagger.tag([words])
    other = next(label for label in tagger.labels if label != free.labels[0] and not label.startswith("I-"))
    (clamped,) = tagger.tag([words], clamp=[{0: other}])
    assert clamped.labels[0] == other
    assert clamped.scores[2] != free.scores[2]


def test_trajectories_show_ten_calls_of_models_that_make_two() -> None:
    tagger = Tagger.load("en-pos", device="cpu")
    assert tagger.model.config.inference.num_calls == 2
    for calls, expected in ((None, 10), (3, 3)):
        assert len(tagger.tag([["Ada", "sings"]], trajectory=True, calls=calls)[0].trajectory or ()) == expected


@pytest.mark.corpora
@pytest.mark.parametrize(("name", "path"), [
    ("en-ner", "small/btc/dev.txt"),
    ("zh-seg-pos", "ud-2.15/UD_Chinese-GSDSimp/zh_gsdsimp-ud-dev.conllu"),
    ("en-pos", "ud-2.15/UD_English-EWT/en_ewt-ud-dev.conllu"),
])  # fmt: skip
def test_scores_are_those_of_the_card_and_calibrated(corpora: pathlib.Path, name: str, path: str) -> None:
    tagger = Tagger.load(name, device="cpu")
    task = tagger.task
    found = evaluate_corpus(tagger, read_task(corpora / path, task))
    metric = PRIMARY_METRICS[task]
    assert found.report.metrics[metric] == pytest.approx(tagger.metrics["dev"][metric], abs=0.05)
    assert found.calibration_error < 0.03
    # Handles, two thirds of the spans of the tweets, are right more often than their scores say, and other spans less often.
    assert task is Task.POS or (found.span_calibration_error or 0) < (0.08 if task is Task.NER else 0.03)
