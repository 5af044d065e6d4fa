from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import correct_checksums, refusal, small_model, small_tagger, write_model

from diffusion_mf.config import _note_once
from diffusion_mf.config.sections import REMOVED, Removed
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import is_temporary, temporary_name, write_json
from diffusion_mf.errors import InputError
from diffusion_mf.model import storage as storage_module
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import Tagger, load_model, save_model

SENTENCES = [["Ada", "Byron", "sings"], ["Oslo"], ["unseen", "Ada", "in", "Oslo", "☃"], []]

FRESH_PROCESS = """
import json, sys
from diffusion_mf import load
results = load(sys.argv[1], device="cpu").tag(json.loads(sys.argv[2]), trajectory=True)
print(json.dumps([[r.labels, r.scores, [[s.t, s.beliefs.tolist()] for s in r.trajectory]] for r in results]))
"""


def rows(tagger: Tagger) -> list[Any]:
    results = tagger.tag(SENTENCES, trajectory=True)
    return [[r.labels, r.scores, [[s.t, s.beliefs.tolist()] for s in r.trajectory]] for r in results]


def change(folder: Path, **values: object) -> None:
    """Rewrite entries of config.json, on purpose: without its manifest a folder is like those of earlier versions."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    (folder / "manifest.json").unlink(missing_ok=True)


def test_a_folder_holds_what_it_should_and_nothing_that_runs(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "deep" / "model")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "manifest.json", "metrics.json", "model.safetensors", "vocabulary.json",
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert json.loads((folder / "metrics.json").read_text()) == {"dev": {"f1": 12.5}}
    card = (folder / "README.md").read_text()
    assert "# diffusion-mf for ner" in card
    assert "| % | dev |\n|---|---:|\n| f1 | 12.50 |\n" in card
    assert "recall" not in card


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_loaded_model_is_the_saved_one(tmp_path: Path, system: str) -> None:
    model = small_model(system)
    save_model(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model")
    assert loaded[1:] == model[1:]
    state, expected = loaded.labeller.state_dict(), model.labeller.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert not loaded.labeller.training
    assert rows(Tagger(loaded, device="cpu")) == rows(Tagger(model, device="cpu"))


@pytest.mark.parametrize(("storage", "largest_error"), [("float16", 2e-3), ("int8", 1e-2)])
def test_weights_are_stored_in_fewer_bytes(tmp_path: Path, storage: str, largest_error: float) -> None:
    model = small_model(settings={"training": {"storage": storage}})
    save_model(tmp_path / "model", model)
    plain = small_model()
    save_model(tmp_path / "plain", plain)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["format_version"] == 2
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["format_version"] == 1
    weights = load_file(tmp_path / "model" / "model.safetensors")
    matrices = {name for name, tensor in plain.labeller.state_dict().items() if tensor.dim() > 1}
    assert {str(weights[name].dtype) for name in matrices} == {f"torch.{storage}"}
    loaded = load_model(tmp_path / "model")
    for name, tensor in loaded.labeller.state_dict().items():
        expected = model.labeller.state_dict()[name]
        assert tensor.dtype is expected.dtype
        assert float((tensor - expected).abs().max()) <= largest_error * float(expected.abs().max().clamp(min=1e-6))
    # Saving it again changes nothing more.
    save_model(tmp_path / "again", loaded)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(again[name], weights[name]) for name in matrices)


def test_rows_of_zeros_are_stored_as_int8(tmp_path: Path) -> None:
    model = small_model(settings={"training": {"storage": "int8"}})
    with torch.no_grad():
        model.labeller.encoder.words.weight[0] = 0
    save_model(tmp_path / "model", model)
    assert not load_model(tmp_path / "model").labeller.encoder.words.weight[0].any()


def test_int8_weights_without_their_scales_are_refusal(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", settings={"training": {"storage": "int8"}})
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.words.weight:scale"]
    save_file(weights, folder / "model.safetensors")
    correct_checksums(folder)
    assert "the weights do not fit the model" in refusal(folder)


def test_pairs_of_neighbours_are_saved_and_older_models_have_none(tmp_path: Path) -> None:
    sizes = {"width": 16, "heads": 2, "layers": 1, "word_width": 8, "character_width": 4, "character_hidden": 4}
    model = small_model("unigram", settings={"encoder": {**sizes, "pair_width": 3}})
    save_model(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model")
    assert loaded.vocabulary.pairs == model.vocabulary.pairs
    assert len(loaded.vocabulary.pairs) == 11
    assert rows(Tagger(loaded, device="cpu")) == rows(Tagger(model, device="cpu"))

    older = write_model(tmp_path / "older", "unigram")
    expected = rows(Tagger.load(older, device="cpu"))
    assert "pairs" not in json.loads((older / "vocabulary.json").read_text())
    config = json.loads((older / "config.json").read_text())["config"]
    del config["encoder"]["pair_width"], config["encoder"]["min_pair_count"]
    change(older, config=config)
    assert rows(Tagger.load(older, device="cpu")) == expected


@pytest.mark.parametrize("value", [0.0, 0.2])
def test_a_model_made_with_a_setting_that_was_removed(
    tmp_path: Path, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path / "model")
    expected = rows(Tagger.load(folder, device="cpu"))
    config = json.loads((folder / "config.json").read_text())["config"]
    config["denoiser"]["state_dropout"] = value
    change(folder, config=config)
    _note_once.cache_clear()
    with caplog.at_level("INFO", "diffusion_mf"):
        for _ in range(2):
            assert rows(Tagger.load(folder, device="cpu")) == expected
    # It only mattered in training; said once, and loudly only if it had been used.
    (record,) = caplog.records
    assert record.getMessage().startswith("the setting denoiser.state_dropout is left out; it was removed: ")
    assert record.levelname == ("INFO" if value == 0 else "WARNING")


def test_a_removed_setting_that_the_model_depends_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model")
    monkeypatch.setitem(REMOVED, "structure.magic", Removed("nothing was magic about it", 1, is_for_training=False))
    config = json.loads((folder / "config.json").read_text())["config"]
    config["structure"]["magic"] = 1
    change(folder, config=config)
    Tagger.load(folder, device="cpu")
    config["structure"]["magic"] = 2
    change(folder, config=config)
    with pytest.raises(
        InputError, match=r"config\.json: was made with structure\.magic = 2, which was removed: nothing"
    ):
        Tagger.load(folder, device="cpu")


@pytest.mark.parametrize("system", ["diffusion-mf", "diffusionsl"])
def test_a_fresh_process_tags_identically(tmp_path: Path, system: str) -> None:
    folder = write_model(tmp_path / "model", system)
    here = rows(Tagger.load(folder, device="cpu"))
    command = [sys.executable, "-c", FRESH_PROCESS, str(folder), json.dumps(SENTENCES)]
    there = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(there.stdout) == here


def test_saving_what_was_loaded_changes_nothing(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "one")
    Tagger.load(folder, device="cpu").save(tmp_path / "two")
    for path in folder.iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    before = torch.random.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_newer_model_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    write_model(tmp_path / "model", seed=1)
    write_model(tmp_path / "model", seed=2)
    assert rows(Tagger.load(tmp_path / "model", device="cpu")) == rows(small_tagger(seed=2))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_permissions_are_those_of_any_new_file_in_every_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        # Whoever asks for the umask sets it, for all threads of the process.
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", None)
            folder = write_model(tmp_path / "model")
            write_json(tmp_path / "file.json", {})
    finally:
        assert os.umask(before) == 0o027
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in [*folder.parent.iterdir(), folder / "config.json"]
    }
    assert modes == {"model": 0o750, "file.json": 0o640, "config.json": 0o640}
    assert is_temporary(temporary_name("model"), "model")


def test_other_files_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="this folder contains other files; name a new folder"):
        write_model(tmp_path)
    with pytest.raises(InputError, match="this is a file"):
        write_model(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_full_disk_leaves_the_older_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model", seed=1)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage_module, "_write_json", fail)
    with pytest.raises(InputError, match=r"the model cannot be written \(No space left on device\); check the free"):
        write_model(folder, seed=2)
    assert rows(Tagger.load(folder, device="cpu")) == rows(small_tagger(seed=1))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_at_the_last_moment_brings_the_older_model_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", seed=1)
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(InputError, match="Input/output error"):
        write_model(folder, seed=2)
    assert rows(Tagger.load(folder, device="cpu")) == rows(small_tagger(seed=1))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_without_its_metrics_works(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    labels = [result.labels for result in Tagger.load(folder, device="cpu").tag([["Ada", "sings"]])]
    (folder / "metrics.json").unlink()
    tagger = Tagger.load(folder, device="cpu")
    assert tagger.metrics == {}
    assert [result.labels for result in tagger.tag([["Ada", "sings"]])] == labels


class TestRefused:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "model")

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "none") == f"{tmp_path / 'none'}: no such model folder; check the path."
        (tmp_path / "file").touch()
        assert "this is a file, not a model folder" in refusal(tmp_path / "file")
        assert "config.json, vocabulary.json, model.safetensors missing;" in refusal(tmp_path)

    def test_the_folder_of_a_run(self, folder: Path) -> None:
        assert refusal(folder.parent).endswith(f"; name {folder}.")

    @pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "model.safetensors"])
    def test_a_missing_file(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        assert f"not a model folder: {name} missing; name a folder that dmf train wrote." in refusal(folder)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"a": ' * 100_000])
    @pytest.mark.parametrize("name", ["config.json", "metrics.json"])
    def test_what_is_no_json(self, folder: Path, name: str, text: str) -> None:
        (folder / name).write_text(text)
        (folder / "manifest.json").unlink()
        assert f"{name}: damaged: not a JSON object; copy the model again." in refusal(folder)

    def test_a_model_of_another_program(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"architectures": ["BertForTokenClassification"]}')
        (folder / "manifest.json").unlink()
        assert "not a model of this program; name a folder that dmf train wrote." in refusal(folder)

    def test_a_newer_format(self, folder: Path) -> None:
        change(folder, format_version=3, written_by="9.1")
        message = refusal(folder)
        assert "the model has format version 3 (written by diffusion-mf 9.1)" in message
        assert "reads versions up to 2; upgrade diffusion-mf." in message

    @pytest.mark.parametrize("entry", [
        {"format_version": "1"}, {"format_version": True}, {"format_version": 0}, {"checksums": None}, {"config": []},
        {"scheme": "bmeso"}, {"decoder": "beam"}, {"temperature": 0}, {"temperature": "warm"}, {"decoder": None},
        {"span_calibration": [1]}, {"span_calibration": [1, None]}, {"span_calibration": "none"},
    ])  # fmt: skip
    def test_impossible_entries(self, folder: Path, entry: dict[str, Any]) -> None:
        change(folder, **entry)
        assert "config.json" in refusal(folder)

    def test_a_setting_that_does_not_exist(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())["config"]
        config["encoder"]["widht"] = 3
        change(folder, config=config)
        assert "has the setting encoder.widht, which diffusion-mf" in refusal(folder)

    @pytest.mark.parametrize("name", ["model.safetensors", "vocabulary.json"])
    def test_a_changed_byte(self, folder: Path, name: str) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        assert f"{name}: damaged or changed since it was saved; copy the model again." in refusal(folder)
        (folder / "manifest.json").unlink()
        assert f"{name}: damaged or changed since it was saved; copy the model again." in refusal(folder)

    def test_half_a_file(self, folder: Path) -> None:
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
        assert "damaged or changed" in refusal(folder)

    def test_weights_that_do_not_fit_although_their_checksum_does(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        name = next(iter(weights))
        for tampered in ({**weights, name: weights[name][:1].clone()}, {"other": weights[name]}):
            save_file(tampered, folder / "model.safetensors")
            correct_checksums(folder)
            assert "model.safetensors: the weights do not fit the model (" in refusal(folder)
        (folder / "model.safetensors").write_bytes(b"\xff" * 100)
        correct_checksums(folder)
        assert "the weights do not fit the model (" in refusal(folder)

    def test_a_vocabulary_that_is_none_although_its_checksum_fits(self, folder: Path) -> None:
        for text in ('{"forms": []}', '{"forms": 3, "characters": [], "labels": []}'):
            (folder / "vocabulary.json").write_text(text)
            correct_checksums(folder)
            assert "not a vocabulary" in refusal(folder)


def test_pickles_are_not_even_opened(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    assert "model.safetensors missing" in refusal(folder)


def test_impossible_settings_are_not_saved(tmp_path: Path) -> None:
    model = small_model()
    for changed in (model._replace(decoder="beam"), model._replace(temperature=float("nan"))):
        with pytest.raises(ValueError, match=r"no decoder|must be in 0.01"):
            save_model(tmp_path / "model", changed)
    assert list(tmp_path.iterdir()) == []


def test_from_pretrained_takes_folders_and_asks_the_hub_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", task=Task.POS)
    assert Tagger.from_pretrained(folder, device="cpu").task is Task.POS
    import huggingface_hub

    asked: list[tuple[str, str | None]] = []

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str], **options: object) -> str:
        asked.append((name, revision))
        assert "model.safetensors" in allow_patterns
        return str(folder)

    monkeypatch.setattr("diffusion_mf.model.hub.hub_answers", lambda name, revision: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert Tagger.from_pretrained("someone/some-model", revision="v1", device="cpu").labels
    assert asked == [("someone/some-model", "v1")]


def test_a_name_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no/such/model/anywhere: neither a model folder nor available from the hub"):
        Tagger.from_pretrained("no/such/model/anywhere")
