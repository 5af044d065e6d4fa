"""``dmf train`` from the outside: results, refusals in one sentence, exit statuses."""

from __future__ import annotations

import errno
import json
import re
import shutil
import traceback
from pathlib import Path

import pytest
import small_runs

import diffusion_mf
from diffusion_mf.ops.mean_field import pytorch as mean_field_operation


@pytest.fixture(scope="module")
def config(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = small_runs.settings(corpus, {"training": {"epochs": 1, "budget": 2000}})
    return small_runs.write_config(tmp_path_factory.mktemp("config") / "small.toml", values)


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from diffusion_mf.config import load_config
    from diffusion_mf.training.loop import train

    folder = tmp_path_factory.mktemp("trained") / "run"
    train(load_config(config), output=folder, device="cpu")
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


def _assert_refused(outcome, *fragments: str) -> None:  # type: ignore[no-untyped-def]
    """Exit 2 and one sentence, without a traceback."""
    assert outcome.status == 2, outcome.stderr
    lines = outcome.stderr.strip().splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("dmf: ")
    assert lines[0].endswith(".")
    for fragment in fragments:
        assert fragment in lines[0]


def test_a_run_prints_its_scores(dmf, config: Path, corpus: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ("train", config, "--output", tmp_path / "run", "--device", "cpu")
    outcome = dmf(*arguments, "--set", f"data.test={corpus / 'test.txt'}", "--set", "system=unigram")
    assert outcome.status == 0, outcome.stderr
    lines = [line.split() for line in outcome.stdout.decode().splitlines()]
    metrics = json.loads((tmp_path / "run/model/metrics.json").read_text())
    assert ["unigram", "dev", "test"] in lines
    assert ["f1", *(f"{metrics[split]['f1']:.2f}" for split in ("dev", "test"))] in lines
    assert f"the model is in {tmp_path / 'run' / 'model'}" in outcome.stderr
    stored = json.loads((tmp_path / "run/model/config.json").read_text())
    assert stored["config"]["system"] == "unigram"
    assert all(json.loads(line)["event"] for line in (tmp_path / "run/log.jsonl").read_text().splitlines())


def test_resuming_a_finished_run_prints_json(dmf, config: Path, copy: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("train", config, "--output", copy, "--device", "cpu", "--resume", "--json")
    assert outcome.status == 0, outcome.stderr
    values = json.loads(outcome.stdout)
    assert values["model"] == str(copy / "model")
    assert set(values["dev"]) == {"accuracy", "precision", "recall", "f1", "exact_match"}
    assert "the run is complete" in outcome.stderr


def test_scores_that_were_not_kept_are_a_note(dmf, config: Path, copy: Path) -> None:  # type: ignore[no-untyped-def]
    (copy / "model/metrics.json").unlink()
    outcome = dmf("train", config, "--output", copy, "--device", "cpu", "--resume")
    assert outcome.status == 0, outcome.stderr
    assert "metrics.json is missing, so the dev scores are unknown; dmf evaluate computes them" in outcome.stderr


def test_a_run_is_recorded_once(dmf, config: Path, copy: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Two recordings of the same run are one row, with the scores of the model folder."""
    arguments = ("train", config, "--output", copy, "--device", "cpu", "--resume", "--record", tmp_path / "runs.json")
    assert [dmf(*arguments).status for _ in range(2)] == [0, 0]
    (row,) = json.loads((tmp_path / "runs.json").read_text())
    metrics = json.loads((copy / "model/metrics.json").read_text())
    assert row["dev"] == metrics["dev"]
    assert row["config"] == str(config)
    assert {"system", "seed", "seconds", "command", "commit", "hardware", "versions", "date"} <= set(row)


def test_what_is_no_result_file_is_refused_before_training(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "runs.json").write_text("scores: none\n")
    outcome = dmf("train", config, "--output", tmp_path / "run", "--device", "cpu", "--record", tmp_path / "runs.json")
    _assert_refused(outcome, "runs.json", "not JSON")
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "runs.json").read_text() == "scores: none\n"


def test_count(dmf, config: Path, trained: Path) -> None:  # type: ignore[no-untyped-def]
    from safetensors.torch import load_file

    expected = sum(tensor.numel() for tensor in load_file(trained / "model/model.safetensors").values())
    assert dmf("train", config, "--count").stdout.decode() == f"{expected:,} parameters\n"
    assert json.loads(dmf("train", config, "--count", "--json").stdout) == {"parameters": expected}
    larger = dmf("train", config, "--count", "--json", "--set", "size=XS")
    assert json.loads(larger.stdout)["parameters"] > 100 * expected


def test_an_output_is_needed(dmf, config: Path) -> None:  # type: ignore[no-untyped-def]
    _assert_refused(dmf("train", config), "--output")


def test_a_misspelt_setting(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = dmf("train", config, "--output", tmp_path / "run", "--set", "training.epoch=3")
    _assert_refused(outcome, "training.epoch", "epochs")
    assert not (tmp_path / "run").exists()


def test_no_configuration(dmf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _assert_refused(dmf("train", tmp_path / "none.toml", "--output", tmp_path / "run"), "none.toml", "no such file")


def test_no_training_data(dmf, corpus: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    values = small_runs.settings(corpus)
    del values["data"]["train"]
    config = small_runs.write_config(tmp_path / "config.toml", values)
    _assert_refused(dmf("train", config, "--output", tmp_path / "run"), "names no training data", "data.train")


def test_empty_training_data(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "empty.txt").write_text("\n\n")
    outcome = dmf("train", config, "--output", tmp_path / "run", "--set", f"data.train={tmp_path / 'empty.txt'}")
    _assert_refused(outcome, "empty.txt")
    assert not (tmp_path / "run").exists()


def test_a_dev_label_that_training_never_saw(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "dev.txt").write_text("ba O\nbu S-NEVER\n\n")
    outcome = dmf("train", config, "--output", tmp_path / "run", "--set", f"data.dev={tmp_path / 'dev.txt'}")
    assert outcome.status == 0
    assert "dev.txt: 1 of 2 units have labels that" in outcome.stderr
    assert "train.txt does not have (S-NEVER), first on line 2: they count as wrong" in outcome.stderr


def test_irregular_tags_are_repaired_unless_strict(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "dev.txt").write_text("ba O\nbu M-PER\n\n")
    arguments = ["train", config, "--count", "--set", f"data.dev={tmp_path / 'dev.txt'}"]
    outcome = dmf(*arguments)
    assert outcome.status == 0
    assert "dev.txt: 1 span with irregular tags repaired, first on line 2 (M-PER read as S-PER)" in outcome.stderr
    _assert_refused(dmf(*arguments, "--strict"), "dev.txt, line 2", "'M-PER' cannot follow 'O'")
    _assert_refused(dmf(*arguments, "--set", "data.strict=true"), "dev.txt, line 2", "'M-PER' cannot follow 'O'")


def test_a_folder_in_use(dmf, config: Path, copy: Path) -> None:  # type: ignore[no-untyped-def]
    _assert_refused(dmf("train", config, "--output", copy, "--device", "cpu"), "another run was started", "--resume")


def test_an_output_that_cannot_be_written(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("")
    outcome = dmf("train", config, "--output", tmp_path / "file" / "run", "--device", "cpu")
    _assert_refused(outcome, "cannot be written", "--output")


def _truncate(folder: Path) -> None:
    path = next((folder / "checkpoint").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:1000])


def _replace(folder: Path) -> None:
    (folder / "checkpoint/state.json").write_text('{"epoch": 7, "optimizer": "sgd"}')


@pytest.mark.parametrize(
    ("damage", "message"), [(_truncate, "the checkpoint is damaged"), (_replace, "not a checkpoint of diffusion-mf")]
)
def test_a_bad_checkpoint(dmf, config: Path, copy: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    damage(copy)
    _assert_refused(dmf("train", config, "--output", copy, "--device", "cpu", "--resume"), message)


def test_another_configuration(dmf, config: Path, copy: Path) -> None:  # type: ignore[no-untyped-def]
    for named in ([config], []):
        arguments = ["train", *named, "--output", copy, "--device", "cpu", "--resume"]
        _assert_refused(dmf(*arguments, "--set", "seed=2"), "seed = 1, not 2")
        _assert_refused(dmf(*arguments, "--set", "training.epoch=2"), "training.epoch", "epochs")
    changed = small_runs.write_config(copy.parent / "changed.toml", {"extends": str(config), "seed": 2})
    _assert_refused(dmf("train", changed, "--output", copy, "--device", "cpu", "--resume"), "seed = 1, not 2")


def test_resuming_needs_no_settings(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--output", tmp_path / "run", "--device", "cpu")
    _assert_refused(dmf("train", *arguments, "--resume"), "nothing to train on", "ner/diffusion-mf")
    assert dmf("train", config, *arguments, "--set", "system=unigram", "--set", "training.epochs=2").status == 0
    for named in ([config], []):
        outcome = dmf("train", *named, *arguments, "--resume")
        assert outcome.status == 0, outcome.stderr
        assert "the run is complete" in outcome.stderr
    outcome = dmf("train", *arguments, "--resume", "--set", "training.epochs=3")
    assert outcome.status == 0, outcome.stderr
    assert "in epoch 3" in outcome.stderr
    _assert_refused(dmf("train", config, *arguments, "--resume", "--set", "training.epochs=2"), "epochs = 3, not 2")
    assert "the run is complete" in dmf("train", config, *arguments, "--resume").stderr
    outcome = dmf("train", *arguments, "--resume", "--record", tmp_path / "rows.json")
    _assert_refused(outcome, "give CONFIG together with --record")


def test_beginning_with_a_finished_model(dmf, config: Path, trained: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "train.txt").write_text("quaxo B-NEW\nlori E-NEW\nba O\n\n" * 3)
    arguments = ("--output", tmp_path / "run", "--device", "cpu")
    data = ("--set", f"data.train={tmp_path / 'train.txt'}", "--set", f"data.dev={tmp_path / 'train.txt'}")
    outcome = dmf("train", config, "--from", trained / "model", *arguments, *data)
    assert outcome.status == 0, outcome.stderr
    assert f"training starts from the weights of {trained / 'model'}: " in outcome.stderr
    assert re.search(
        r" forms are shared and [1-3] are new; 1 labels are shared, 4 are new and \d+ are dropped", outcome.stderr
    )
    old, new = (json.loads((path / "model/vocabulary.json").read_text()) for path in (trained, tmp_path / "run"))
    assert {form for form, _ in old["forms"]} | {"quaxo", "lori"} <= {form for form, _ in new["forms"]}
    assert new["labels"] == ["B-NEW", "E-NEW", "M-NEW", "O", "S-NEW"]
    assert "the run is complete" in dmf("train", *arguments, "--resume").stderr
    _assert_refused(
        dmf("train", config, "--from", tmp_path / "none", "--output", tmp_path / "b"), "no such model folder"
    )


def test_a_full_disk(dmf, config: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from diffusion_mf.training import checkpoint

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = checkpoint.read_checkpoint(copy / "checkpoint")
    monkeypatch.setattr(checkpoint, "write_tensors", full)
    outcome = dmf("train", config, "--output", copy, "--device", "cpu", "--resume")
    assert outcome.status == 2
    assert "No space left on device" in outcome.stderr.splitlines()[-1]
    after = checkpoint.read_checkpoint(copy / "checkpoint")
    assert before is not None
    assert after is not None
    assert before.state == after.state


def test_a_device_that_is_not_there(dmf, config: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _assert_refused(dmf("train", config, "--output", tmp_path / "run", "--device", "cuda:99"), "GPU")


def test_nothing_here_is_pickled() -> None:
    """Checkpoints and models are data: no code of training loads or saves objects that could run code."""
    import diffusion_mf

    package = Path(diffusion_mf.__file__).parent
    sources = [*(package / "training").glob("*.py"), package / "cli" / "train.py"]
    assert len(sources) > 10
    for path in sources:
        text = path.read_text(encoding="utf-8")
        found = re.search(r"pickle|(?<!safetensors\.)torch\.(save|load)\b|_object\(|_object_list\(", text)
        assert found is None, f"{path.name}: {found}"


def test_corpora_of_a_configuration_that_are_not_here(dmf, config: Path, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("MY_CORPORA", raising=False)
    arguments = ("train", config, "--output", tmp_path / "run", "--device", "cpu", "--set", "system=unigram")
    named = (*arguments, "--set", "data.test=$MY_CORPORA/test.txt")
    remedy = "set it, or name none with --set data.test= or your own file with --set data.test=FILE"
    _assert_refused(dmf(*named), "data.test names $MY_CORPORA/test.txt, but $MY_CORPORA is not set", remedy)
    assert not (tmp_path / "run").exists()
    outcome = dmf(*named, "--set", "data.test=")
    assert outcome.status == 0, outcome.stderr
    assert "test" not in outcome.stdout.decode()


def test_from_the_command_to_the_mean_field_operation_there_are_few_calls(  # type: ignore[no-untyped-def]
    dmf, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a debugger shows of a training step has to fit on a screen."""
    package, depths = Path(diffusion_mf.__file__).parent, []
    operation = mean_field_operation.iterate

    def iterate(*arguments, **options):  # type: ignore[no-untyped-def]
        own = [frame.name for frame in traceback.extract_stack() if package in Path(frame.filename).parents]
        if "loss_sums" in own:
            depths.append(len(own) + 1)
        return operation(*arguments, **options)

    monkeypatch.setattr(mean_field_operation, "iterate", iterate)
    outcome = dmf("train", config, "--output", tmp_path / "run", "--device", "cpu")
    assert outcome.status == 0, outcome.stderr
    assert depths
    assert max(depths) <= 15
