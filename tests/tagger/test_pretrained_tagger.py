"""Taggers with a pretrained encoder: trained, saved, loaded where nothing else is left, shared, called like a pipeline."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model, small_tagger

pytest.importorskip("transformers")
from tiny_encoders import byte_level, write_encoder
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.config import Config
from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.networks.pretrained.hugging_face import load_architecture
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import Tagger, TokenClassificationPipeline, load_model, save_model
from diffusion_mf.training.loop import train

SENTENCES = [["mira", "torosel", "Lanu"], ["vi"], ["mira", "\u3000", "selto", "vi", "."], ["vi"] * 50]
LABELS = {"mira": "S-PER", "Lanu": "S-LOC"}


def write_corpus(path: Path) -> Path:
    sentences = [*SENTENCES[:2], ["mira", "Lanu"], ["torosel", "vi", "mira"]] * 4
    lines = ["".join(f"{unit} {LABELS.get(unit, 'O')}\n" for unit in units) for units in sentences]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def config_of(folder: Path, corpus: Path, *, system: str = "unigram", **encoder: Any) -> Config:
    return Config.model_validate(
        {
            "task": "ner",
            "system": system,
            "data": {"train": str(corpus), "dev": str(corpus), "scheme": "bmes"},
            "encoder": {"kind": "pretrained", "model": str(folder), "dropout": 0.1, **encoder},
            "denoiser": {"width": 16, "heads": 2, "layers": 1, "time_width": 8},
            "structure": {"scorer_width": 16},
            "training": {
                "epochs": 1, "budget": 30, "learning_rate": 1e-2, "encoder_learning_rate": 1e-3, "warmup_steps": 2,
                "encoder_layer_decay": 0.9, "log_every": 1,
            },
            "inference": {"num_calls": 2},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoders") / "tiny", "bert")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose encoder's own folder is gone."""
    root = tmp_path_factory.mktemp("trained")
    encoder = write_encoder(root / "tiny", "bert")
    model = train(config_of(encoder, write_corpus(root / "train.txt")), output=root / "run", device="cpu")
    shutil.rmtree(encoder)
    return model


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_trains_on_a_pretrained_encoder(system: str, encoder_folder: Path, tmp_path: Path) -> None:
    config = config_of(encoder_folder, write_corpus(tmp_path / "train.txt"), system=system)
    folder = train(config, output=tmp_path / "run", device="cpu")
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert len(losses) >= 2
    assert all(map(math.isfinite, losses))
    results = Tagger.load(folder, device="cpu").tag(SENTENCES)
    assert [len(result.labels) for result in results] == [3, 1, 5, 50]


def test_a_saved_tagger_needs_nothing_else(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: pytest.fail("the network was asked for"))
    tagger = Tagger.load(model_folder, device="cpu")
    expected = tagger.tag(SENTENCES)
    names = {path.name for path in (model_folder / "encoder").iterdir()}
    assert names >= {"config.json", "tokenizer.json"}
    assert all(name.endswith(".json") for name in names)
    tagger.save(tmp_path / "again")
    again = Tagger.load(tmp_path / "again", device="cpu")
    for first, second in zip(expected, again.tag(SENTENCES), strict=True):
        assert first == second
    weights, copies = tagger.model.labeller.state_dict(), again.model.labeller.state_dict()
    assert weights.keys() == copies.keys()
    assert all(torch.equal(weights[name], copies[name]) for name in weights)


def test_results_do_not_depend_on_the_batch(model_folder: Path) -> None:
    tagger = Tagger.load(model_folder, device="cpu")
    together = tagger.tag(SENTENCES)
    for sentence, expected in zip(SENTENCES, together, strict=True):
        (alone,) = tagger.tag([sentence])
        assert alone.labels == expected.labels
        assert alone.scores == pytest.approx(expected.scores, abs=1e-5)


def test_a_changed_tokenizer_is_noticed(model_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    file = folder / "encoder" / "tokenizer.json"
    file.write_text(file.read_text().replace("mira", "myra"))
    with pytest.raises(InputError, match="damaged or changed since it was saved"):
        load_model(folder)
    file.unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("settings", [{"lora_rank": 2}, {"freeze": "all", "cache": "states"}])
def test_adapters_and_cached_states_are_saved_and_resumed(
    settings: dict, encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "lora_rank" in settings:
        pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    config = config_of(encoder_folder, write_corpus(tmp_path / "train.txt"), system="diffusion-mf", **settings)
    folder = train(config, output=tmp_path / "run", device="cpu")
    shutil.rmtree(tmp_path / "states", ignore_errors=True)
    monkeypatch.chdir("/")
    found = Tagger.load(folder, device="cpu").tag(SENTENCES)
    assert [len(result.labels) for result in found] == [3, 1, 5, 50]
    # A run that is over resumes to the same end.
    monkeypatch.chdir(tmp_path)
    before = (folder / "model.safetensors").read_bytes()
    train(config, output=tmp_path / "run", device="cpu", resume=True)
    assert (folder / "model.safetensors").read_bytes() == before


def test_long_sentences_on_the_command_line(model_folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "in.txt"
    text.write_text("vi " * 50 + "\nmira\n")
    run = CliRunner().invoke
    result = run(app, ["tag", str(model_folder), str(text), "--format", "text", "--device", "cpu"])
    assert result.exit_code == 0
    assert (
        "1 sentence was longer than the encoder takes at once: it were split into overlapping windows" in result.stderr
    )
    windows = result.stdout
    truncated = run(
        app,
        [
            "tag",
            str(model_folder),
            str(text),
            "--format",
            "text",
            "--device",
            "cpu",
            "--on-long",
            "truncate",
            "--scores",
        ],
    )
    scores = [line.split("\t")[1] for line in truncated.stdout.splitlines() if line.startswith("vi")]
    # What is not encoded all looks the same.
    assert len(set(scores[22:])) == 1
    assert len(set(scores[:22])) > 1
    assert len(windows.splitlines()) == len(truncated.stdout.splitlines())
    assert "takes at once: it was truncated" in truncated.stderr
    refused = run(
        app, ["tag", str(model_folder), str(text), "--format", "text", "--device", "cpu", "--on-long", "error"]
    )
    assert isinstance(refused.exception, InputError)
    assert "a sentence of 50 units (vi vi vi vi …) has 50 subwords" in str(refused.exception)
    with pytest.raises(InputError, match="choose window, error or truncate"):
        small_tagger().set_on_long("windows")  # type: ignore[arg-type]


# The hub.


@pytest.mark.parametrize("is_pretrained", [False, True])
def test_what_is_uploaded_is_what_save_writes(
    is_pretrained: bool, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    uploaded: dict[str, bytes] = {}

    class Commit:
        commit_url = "https://hub/commit"

    def create_repo(self: object, repo_id: str, **options: Any) -> None:
        calls.append(("create", {"repo_id": repo_id, **options}))

    def upload_folder(self: object, **options: Any) -> Commit:
        calls.append(("upload", options))
        folder = Path(options["folder_path"])
        uploaded.update({str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
        return Commit()

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create_repo)
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload_folder)
    tagger = Tagger.load(model_folder, device="cpu") if is_pretrained else small_tagger()
    assert tagger.push_to_hub("somebody/tagger", private=True) == "https://hub/commit"
    assert [name for name, _ in calls] == ["create", "upload"]
    assert calls[0][1]["repo_id"] == calls[1][1]["repo_id"] == "somebody/tagger"
    assert calls[0][1]["private"] is True
    assert "allow_patterns" not in calls[1][1]
    tagger.save(tmp_path / "saved")
    saved = {str(p.relative_to(tmp_path / "saved")): p for p in (tmp_path / "saved").rglob("*") if p.is_file()}
    assert uploaded == {name: path.read_bytes() for name, path in saved.items()}
    assert ("encoder/tokenizer.json" in saved) == is_pretrained


def test_what_is_downloaded_holds_the_encoder(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(
        name: str,
        *,
        revision: str | None,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        local_files_only: bool,
    ) -> str:
        assert name == "somebody/tagger"
        assert ignore_patterns == ["*.py"]
        assert not local_files_only
        files = [path for path in model_folder.rglob("*") if path.is_file()]
        for path in files:
            assert any(path.relative_to(model_folder).match(pattern) for pattern in allow_patterns)
        return str(model_folder)

    monkeypatch.setattr("diffusion_mf.model.hub.hub_answers", lambda name, revision: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert Tagger.from_pretrained("somebody/tagger", device="cpu").tag(SENTENCES)[1].labels


def test_a_hub_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="the hub refused the model"):
        small_tagger().push_to_hub("somebody/tagger")


@pytest.mark.parametrize("client", ["httpx", "requests"])
def test_a_hub_that_cannot_be_reached(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors of some HTTP clients are nothing but exceptions; a mistake of ours is no fault of the hub's."""
    error = type("ConnectError", (Exception,), {"__module__": client})("no route")

    def create_repo(self: object, repo_id: str, **options: Any) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create_repo)
    with pytest.raises(InputError, match=r"the hub refused the model \(no route\)"):
        small_tagger().push_to_hub("somebody/tagger")
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        small_tagger().push_to_hub("somebody/tagger")


def test_the_model_card_names_the_encoder(model_folder: Path, tmp_path: Path) -> None:
    card = (model_folder / "README.md").read_text(encoding="utf-8")
    assert "| encoder | pretrained: tiny, first subword |" in card
    assert re.search(r"\n\| trained for \| \d+ steps, \d+ epochs \|\n", card)
    # All of every type, whether or not they occur.
    shown = re.search(r"\n\| labels \| 9: (.*) \|\n", card)
    assert shown is not None
    assert set(shown[1].split(", ")) == {"O", *(f"{letter}-{kind}" for letter in "BMES" for kind in ("LOC", "PER"))}
    assert "base_model" not in card
    assert str(model_folder.parents[1]) not in card
    stored = load_model(model_folder)
    # One slash does not make a folder's name one of the hub.
    encoder = stored.config.encoder.model_copy(update={"model": "somewhere/tiny"})
    save_model(tmp_path / "moved", stored._replace(config=stored.config.model_copy(update={"encoder": encoder})))
    assert "base_model" not in (tmp_path / "moved" / "README.md").read_text(encoding="utf-8")
    stored.labeller.encoder.model.config.hub_name = "hfl/some-encoder"
    save_model(tmp_path / "model", stored)
    for folder in ("model", "again"):
        assert "\nbase_model: hfl/some-encoder\n" in (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        save_model(tmp_path / "again", load_model(tmp_path / "model"))


def test_code_that_comes_with_a_tagger_is_never_run(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    shutil.copytree(model_folder, folder)
    path = folder / "encoder" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
    path.write_text(json.dumps(config), encoding="utf-8")
    (folder / "encoder" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    with pytest.raises(InputError, match="its own code"):
        load_architecture(folder / "encoder")
    assert not (tmp_path / "ran").exists()


def test_a_folder_whose_name_is_not_utf8_is_refused_in_one_sentence(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        save_model(tmp_path / os.fsdecode(b"n\xe9"), load_model(model_folder))


def test_a_run_resumes_where_its_encoder_has_moved_but_not_with_another_tokenizer(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "train.txt")
    encoder = write_encoder(tmp_path / "before", "bert")
    train(config_of(encoder, corpus), output=tmp_path / "run", device="cpu")
    encoder.rename(tmp_path / "after")
    config = config_of(tmp_path / "after", corpus)
    train(config, output=tmp_path / "run", device="cpu", resume=True)
    other = tmp_path / "other.txt"
    other.write_text(corpus.read_text(encoding="utf-8").replace("Lanu", "selto"), encoding="utf-8")
    with pytest.raises(InputError, match="started with other training or dev data"):
        train(config_of(tmp_path / "after", other), output=tmp_path / "run", device="cpu", resume=True)
    write_encoder(tmp_path / "after", "bert", tokenizer=byte_level())
    with pytest.raises(InputError, match="started with another tokenizer"):
        train(config, output=tmp_path / "run", device="cpu", resume=True)
    shutil.copytree(tmp_path / "after", tmp_path / "other")
    with pytest.raises(InputError, match=r"started with encoder\.model = "):
        train(config_of(tmp_path / "other", corpus), output=tmp_path / "run", device="cpu", resume=True)


# The pipeline.


def test_a_pipeline_gives_what_transformers_gives() -> None:
    tagger = small_tagger(seed=3)
    text = "Ada Byron sings  in Oslo."
    words = ["Ada", "Byron", "sings", "in", "Oslo", "."]
    result = tagger.tag([words])[0]
    pipeline = TokenClassificationPipeline(tagger, ignore_labels=())
    entities = pipeline(text)
    assert [entity["entity"] for entity in entities] == result.labels
    assert [entity["score"] for entity in entities] == result.scores
    assert [entity["index"] for entity in entities] == [1, 2, 3, 4, 5, 6]
    assert [text[entity["start"] : entity["end"]] for entity in entities] == words
    assert [entity["word"] for entity in entities] == words
    kept = TokenClassificationPipeline(tagger)(text)
    assert kept == [entity for entity in entities if entity["entity"] != "O"]
    both = pipeline([text, "Oslo"])
    assert [[entity["word"] for entity in each] for each in both] == [words, ["Oslo"]]
    assert [entity["entity"] for entity in both[0]] == result.labels


def test_a_pipeline_groups_spans() -> None:
    words = ["Ada", "Byron", "sings", "in", "Oslo"]
    # Random weights have opinions, but not all of them find a span.
    taggers = (small_tagger(seed=seed) for seed in range(50))
    tagger, spans = next((tagger, found) for tagger in taggers if (found := tagger.tag([words])[0].spans))
    ((*groups,),) = TokenClassificationPipeline(tagger, aggregation_strategy="simple")([words])
    text = " ".join(words)
    assert [(group["entity_group"], group["word"], group["score"]) for group in groups] == [
        (label, " ".join(words[start:end]), score) for start, end, label, score in spans
    ]
    assert all(text[group["start"] : group["end"]] == group["word"] for group in groups)
    for strategy in ("first", "average", "max"):
        pipeline = TokenClassificationPipeline(tagger, aggregation_strategy=strategy)
        assert pipeline([words]) == [groups]
        pipeline.aggregation_strategy = "none"
        assert all("entity_group" not in entity for entity in pipeline([words])[0])


def test_a_pipeline_of_characters_and_of_plain_labels() -> None:
    characters = TokenClassificationPipeline(small_tagger(task=Task.SEG_POS), ignore_labels=())("ab c")
    assert [(entity["word"], entity["start"]) for entity in characters] == [("a", 0), ("b", 1), ("c", 3)]
    words = TokenClassificationPipeline(small_tagger(task=Task.POS), aggregation_strategy="simple")("mira sel.")
    assert [entity["word"] for entity in words] == ["mira", "sel", "."]
    pipeline = TokenClassificationPipeline(small_tagger(task=Task.POS))
    assert [entity["word"] for entity in pipeline("I don't.")] == ["I", "do", "n't", "."]
    assert "entity_group" in words[0]
    with pytest.raises(InputError, match="no aggregation strategy is called 'min'; choose none, simple, first"):
        TokenClassificationPipeline(small_tagger(), aggregation_strategy="min")  # type: ignore[arg-type]


def test_a_pipeline_from_a_folder(tmp_path: Path) -> None:
    save_model(tmp_path / "model", small_model())
    pipeline = TokenClassificationPipeline.from_pretrained(tmp_path / "model", device="cpu")
    assert pipeline.task == "token-classification"
    assert pipeline("") == []


class StoppedError(Exception):
    """Ends a run."""


class StoppingDisplay:
    """Ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def note(self, text: str) -> None:
        pass

    def update(self, progress: Any, *, at_once: bool = False) -> None:
        if progress.step == self.step:
            raise StoppedError


def test_a_run_taken_up_again_ends_the_same(encoder_folder: Path, tmp_path: Path) -> None:
    config = config_of(encoder_folder, write_corpus(tmp_path / "train.txt"), system="diffusion-mf")
    whole = train(config, output=tmp_path / "whole", device="cpu")
    options: dict[str, Any] = {"output": tmp_path / "stopped", "device": "cpu", "checkpoint_every": 0}
    with pytest.raises(StoppedError):
        train(config, **options, display=StoppingDisplay(2))
    resumed = train(config, **options, resume=True)
    assert (whole / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()
