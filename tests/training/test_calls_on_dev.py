"""``inference.num_calls = "auto"``: dev chooses the number of denoiser calls, and the model keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_runs

from diffusion_mf.config import load_config, with_overrides
from diffusion_mf.lab.experiments.scores import score_model
from diffusion_mf.model.storage import read_config
from diffusion_mf.tagger import Tagger, load_model
from diffusion_mf.training import loop
from diffusion_mf.training.automatic import choose_config
from diffusion_mf.training.evaluation import candidate_calls, fewest_calls, num_calls
from diffusion_mf.training.loop import train

CHOSEN = 3


def _config(corpus: Path, *changes: dict[str, Any]) -> Any:
    test = {"data": {"test": str(corpus / "test.txt")}, "inference": {"num_calls": "auto"}}
    return small_runs.small_config(corpus, test, *changes)


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose dev data are made to choose three calls, which no setting names."""
    folder = tmp_path_factory.mktemp("calls") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fewest_calls", lambda scores, metric: CHOSEN)
        train(_config(corpus), output=folder, device="cpu")
    return folder


def test_the_fewest_calls_that_are_as_good() -> None:
    def chosen(**rows: tuple[float, float]) -> int:
        return fewest_calls(
            {int(name[1:]): {"f1": f1, "exact_match": exact} for name, (f1, exact) in rows.items()}, "f1"
        )

    assert chosen(c1=(89.97, 80), c2=(89.98, 79.9), c10=(90, 80)) == 2
    assert chosen(c1=(90, 79.8), c2=(89.9, 80), c10=(90, 80)) == 10
    # None is good in both.
    assert chosen(c1=(90, 79.8), c2=(89.9, 80)) == 1


def test_the_model_keeps_the_number_and_what_was_measured_with_it(run: Path) -> None:
    (event,) = small_runs.read_log(run, "calls")
    assert [row["calls"] for row in event["scores"]] == [1, 2, 3, 5, 10]
    assert event["chosen"] == CHOSEN
    model = load_model(run / "model")
    assert (model.chosen_calls, model.config.inference.num_calls) == (CHOSEN, CHOSEN)
    row = event["scores"][2]
    assert model.metrics["dev"]["f1"] == row["f1"]
    assert model.metrics["dev"]["exact_match"] == row["exact_match"]
    assert model.metrics["calls"] == event["scores"]
    assert model.decoder == row["decoder"]
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert f"| denoiser calls | {CHOSEN}: " in card
    assert f"| 10 | {event['scores'][4]['f1']:.2f} | {event['scores'][4]['exact_match']:.2f} |" in card
    # Whoever trains again from its settings chooses again.
    assert read_config(run / "model").inference.num_calls == "auto"


def test_tagging_uses_it_and_trajectories_use_ten(run: Path, tmp_path: Path) -> None:
    tagger = Tagger.load(run / "model", device="cpu")
    units = [("Mira", "saw", "Oda", "again")]
    assert tagger.tag(units, marginals=True)[0].marginals.tolist() == (  # type: ignore[union-attr]
        tagger.tag(units, marginals=True, calls=CHOSEN)[0].marginals.tolist()  # type: ignore[union-attr]
    )
    for calls, expected in ((None, 10), (2, 2)):
        assert len(tagger.tag(units, trajectory=True, calls=calls)[0].trajectory or ()) == expected
    tagger.save(tmp_path / "copy")
    assert load_model(tmp_path / "copy").chosen_calls == CHOSEN


def test_test_data_are_scored_with_it(run: Path, corpus: Path) -> None:
    scores = score_model(run / "model", _config(corpus), {"calls": [1], "analysis": False}, device="cpu")
    model = load_model(run / "model")
    assert scores["chosen_calls"] == CHOSEN
    assert scores["dev"] == model.metrics["dev"]
    assert {name: scores["test"][name] for name in model.metrics["test"]} == model.metrics["test"]
    other = score_model(
        run / "model", with_overrides(_config(corpus), ["inference.base=2"]), {"analysis": False}, device="cpu"
    )
    quality = "negative_log_likelihood"
    assert scores["test"][quality] != other["test"][quality]


def test_a_run_that_ended_before_the_choice_is_resumed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_choose_calls", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(_config(corpus), output=tmp_path / "run", device="cpu", checkpoint_every=0)
    model = load_model(tmp_path / "run" / "model")
    # Until the choice, the base decides.
    assert (model.chosen_calls, model.config.inference.num_calls) == (None, None)
    for _ in range(2):
        train(_config(corpus), output=tmp_path / "run", device="cpu", resume=True)
        (event,) = small_runs.read_log(tmp_path / "run", "calls")
        model = load_model(tmp_path / "run" / "model")
        assert model.chosen_calls == event["chosen"]
        assert len(small_runs.read_log(tmp_path / "run", "test")) == 1


def test_a_run_of_the_base_may_be_resumed_to_choose(corpus: Path, tmp_path: Path) -> None:
    """Earlier versions of the recipe did not name a number, and trained the same."""
    base = _config(corpus, {"data": {"test": None}, "inference": {"num_calls": None}})
    train(base, output=tmp_path / "run", device="cpu")
    assert load_model(tmp_path / "run" / "model").chosen_calls is None
    train(_config(corpus, {"data": {"test": None}}), output=tmp_path / "run", device="cpu", resume=True)
    assert load_model(tmp_path / "run" / "model").chosen_calls is not None


def test_without_dev_data_the_base_decides(corpus: Path, tmp_path: Path) -> None:
    train(_config(corpus, {"data": {"dev": None, "test": None}}), output=tmp_path / "run", device="cpu")
    model = load_model(tmp_path / "run" / "model")
    assert (model.chosen_calls, model.config.inference.num_calls) == (None, None)


@pytest.mark.parametrize(
    "name", ["ours/ner/diffusion-mf", "ours/pos/diffusionsl", "pretrained/ours/mpnet/ner/diffusion-mf"]
)
def test_our_recipe_lets_dev_choose_unless_a_file_decides(name: str, tmp_path: Path) -> None:
    assert candidate_calls(load_config(name)) == [1, 2, 3, 5, 10]
    assert candidate_calls(load_config(name, ["diffusion.num_steps=4"])) == [1, 2, 3]
    assert load_config(name, ["inference.num_calls=4"]).inference.num_calls == 4
    assert load_config(name, ["inference.base=4"]).inference.calls_and_base() == (None, 4)
    assert candidate_calls(load_config(name, ["inference.base=2"])) == []
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "{name}"\n[inference]\nbase = 2\n', encoding="utf-8")
    assert load_config(path).inference.num_calls is None
    assert with_overrides(load_config(name), ["inference.base=4"]).inference.num_calls is None
    assert with_overrides(load_config(name), ["training.epochs=4"]).inference.num_calls == "auto"


def test_the_paper_keeps_its_ten_calls() -> None:
    for name in ("ner/diffusion-mf", "pos/diffusionsl"):
        assert candidate_calls(load_config(name)) == []


def test_on_a_cpu_few_calls_are_made_until_dev_chooses(corpus: Path, tmp_path: Path) -> None:
    chosen = choose_config(corpus / "train.txt", device_type="cpu").config
    assert (chosen.inference.num_calls, num_calls(chosen)) == ("auto", 2)
    characters = tmp_path / "characters.txt"
    characters.write_text("李 B-PER\n白 E-PER\n在 O\n\n" * 20, encoding="utf-8")
    without_features = choose_config(characters, device_type="cpu").config
    assert (without_features.inference.num_calls, num_calls(without_features)) == ("auto", 5)
    other = choose_config(corpus / "train.txt", ["inference.base=2"], device_type="cpu").config
    assert (other.inference.num_calls, num_calls(other)) == (None, 10)
    # What --print-config writes has both, and means the same.
    path = tmp_path / "printed.toml"
    path.write_text(
        'extends = "ours/ner/diffusion-mf"\n[inference]\nbase = 4.0\nnum_calls = "auto"\n', encoding="utf-8"
    )
    assert (load_config(path).inference.num_calls, num_calls(load_config(path))) == ("auto", 5)
