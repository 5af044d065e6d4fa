"""A model that begins with the weights of another: what both know is the same, what is new is fresh."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model
from tiny_encoders import write_encoder

from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import with_overrides
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.model import Labeller
from diffusion_mf.model.transfer import start_from
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import StoredModel, Tagger

SIZES = {"word_width": 8, "character_width": 4, "character_hidden": 4, "width": 16, "heads": 2, "layers": 1}
WITH_PAIRS = {"encoder": {**SIZES, "pair_width": 4, "min_pair_count": 1}}
WITH_AFFIXES = {"encoder": {**SIZES, "kind": "window", "affix_width": 4}}
WITH_FEATURES = {"encoder": {**SIZES, "kind": "window", "features": True}}
LOCAL = {"structure": {"scorer_width": 16, "transitions": "local"}, "objective": {"encoder_auxiliary": 0.5}}
STATE_SCORES = {"denoiser": {"width": 16, "heads": 2, "layers": 1, "state_scores": True}}
SENTENCES = [["Ada", "sings", "in", "Oslo"], ["the", "royal", "choir"], ["Eve"]]


def other_vocabulary(*labels: str) -> Vocabulary:
    """Frequent new forms come before those of the small models, so that ids change."""
    units = ("AAA", "Oslo", "!") * 3 + ("Eve",) * (len(labels) % 3)
    filled = (labels * len(units))[: len(units)]
    vocabulary = Vocabulary.build([Sentence(units, filled)], min_pair_count=1)
    return dataclasses.replace(vocabulary, labels=tuple(sorted(labels)))


def transferred(start: StoredModel, *labels: str) -> StoredModel:
    vocabulary = other_vocabulary(*labels).extended(start.vocabulary)
    if not start.vocabulary.pairs:
        vocabulary = dataclasses.replace(vocabulary, pairs=())
    torch.manual_seed(5)
    labeller = Labeller(start.config, vocabulary, LabelScheme.BMES).eval()
    start_from(labeller, vocabulary, start, path="old")
    return start._replace(labeller=labeller, vocabulary=vocabulary)


@pytest.mark.parametrize("settings", [WITH_PAIRS, LOCAL, WITH_AFFIXES, WITH_FEATURES])
@pytest.mark.parametrize("system", SYSTEMS)
def test_with_the_same_labels_the_same_is_said_of_known_words(system: str, settings: dict[str, Any]) -> None:
    start = small_model(system, settings=settings)
    if settings is WITH_AFFIXES:
        # What has no embedding of its own adds nothing, in trained models; these have random numbers everywhere.
        torch.nn.init.zeros_(start.labeller.encoder.affixes.embedding.weight[0])
    if settings is WITH_FEATURES:
        for table in start.labeller.encoder.features.tables:
            torch.nn.init.zeros_(table.weight[0])
    new = transferred(start, *start.vocabulary.labels)
    assert new.vocabulary.form_ids["Ada"] != start.vocabulary.form_ids["Ada"]
    if system == "diffusionsl":
        # The noise it starts from is keyed by the ids of forms.
        olds, news = start.labeller.state_dict(), new.labeller.state_dict()
        assert all(torch.equal(olds[name], news[name]) for name in olds if name.startswith("core."))
        return
    before, after = (Tagger(model, device="cpu").tag(SENTENCES) for model in (start, new))
    assert [result.labels for result in before] == [result.labels for result in after]
    for one, other in zip(before, after, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-5)


@pytest.mark.parametrize("settings", [WITH_PAIRS, LOCAL, STATE_SCORES])
@pytest.mark.parametrize("system", SYSTEMS)
def test_known_labels_keep_what_belongs_to_them(system: str, settings: dict[str, Any]) -> None:
    start = small_model(system, settings=settings)
    labels = ("O", "S-PER", "B-AAA", "E-AAA", "B-PER")
    new = transferred(start, *labels)
    torch.manual_seed(5)
    fresh = Labeller(start.config, new.vocabulary, LabelScheme.BMES)
    old_ids, new_ids = start.vocabulary.label_ids, new.vocabulary.label_ids
    num_old, num_new = len(old_ids), len(new_ids)
    olds, news, untouched = (model.state_dict() for model in (start.labeller, new.labeller, fresh))
    num_of_labels = 0
    for name, old in olds.items():
        value, drawn = news[name], untouched[name]
        for a in labels:
            if name.endswith(("unary.3.weight", "unary.3.bias")) or name.startswith(
                ("auxiliary.3.", "core.denoiser.state_scorer.3.")
            ):
                expected = old[old_ids[a]] if a in old_ids else drawn[new_ids[a]]
                assert torch.equal(value[new_ids[a]], expected)
            elif name.endswith("denoiser.labels.weight"):
                expected = old[:, old_ids[a]] if a in old_ids else drawn[:, new_ids[a]]
                assert torch.equal(value[:, new_ids[a]], expected)
            elif "transitions" in name and ".0." not in name:
                for b in labels:
                    is_known = a in old_ids and b in old_ids
                    if "global" in name:
                        expected = old[old_ids[a], old_ids[b]] if is_known else drawn[new_ids[a], new_ids[b]]
                        assert torch.equal(value[new_ids[a], new_ids[b]], expected)
                    else:
                        row = new_ids[a] * num_new + new_ids[b]
                        expected = old[old_ids[a] * num_old + old_ids[b]] if is_known else drawn[row]
                        assert torch.equal(value[row], expected)
            else:
                continue
            num_of_labels += 1
    if system == "diffusionsl":
        assert torch.equal(news["core.denoiser.bits.weight"], untouched["core.denoiser.bits.weight"])
    else:
        assert num_of_labels >= 2 * len(labels)
    words, drawn_words = news["encoder.words.weight"], untouched["encoder.words.weight"]
    for form, index in new.vocabulary.form_ids.items():
        is_known = form in start.vocabulary.form_ids
        expected = olds["encoder.words.weight"][start.vocabulary.form_ids[form]] if is_known else drawn_words[index]
        assert torch.equal(words[index], expected)


def test_it_is_said_how_much_is_kept() -> None:
    start = small_model("unigram")
    vocabulary = other_vocabulary("O", "S-PER", "S-AAA").extended(start.vocabulary)
    labeller = Labeller(start.config, dataclasses.replace(vocabulary, pairs=()), LabelScheme.BMES)
    kept = start_from(labeller, vocabulary, start, path="runs/old/model")
    assert kept.describe("runs/old/model") == (
        "training starts from the weights of runs/old/model: 10 forms are shared and 2 are new; "
        "2 labels are shared, 1 are new and 6 are dropped"
    )


@pytest.mark.parametrize(
    "override", ["structure.scorer_width=8", "system=diffusion-uni", "encoder.layers=1", "encoder.layers=3"]
)
def test_another_network_is_refused(override: str) -> None:
    start = small_model("unigram", settings={"encoder": {**SIZES, "layers": 2}})
    config = with_overrides(start.config, [override])
    labeller = Labeller(config, start.vocabulary, LabelScheme.BMES)
    with pytest.raises(InputError, match=r"^old: its network differs .* settings of its config\.json \(system unigram"):
        start_from(labeller, start.vocabulary, start, path="old")


def test_a_pretrained_encoder_comes_with_its_weights(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "bert")
    start = small_model("lcrf", settings={"encoder": {"kind": "pretrained", "model": str(folder)}})
    new = transferred(start, *start.vocabulary.labels)
    before, after = (Tagger(model, device="cpu").tag(SENTENCES) for model in (start, new))
    assert [result.labels for result in before] == [result.labels for result in after]
    names = [name for name in start.labeller.state_dict() if name.startswith("encoder.model.")]
    assert names
    for name in names:
        assert torch.equal(new.labeller.state_dict()[name], start.labeller.state_dict()[name])
