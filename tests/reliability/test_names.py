"""A name that is not marked as one of the hub is a folder here: a typing error never loads the model of a stranger."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from small_models import write_model

import diffusion_mf
from diffusion_mf.cli import main
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import Tagger


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What tried to use the network, which is cut off."""
    found: list[str] = []

    def refuse(*arguments: object, **options: object) -> None:
        found.append(str(arguments))
        raise OSError("the network is cut off")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for module in ("huggingface_hub.constants", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", False, raising=False)
    return found


@pytest.mark.parametrize("name", ["runs/typo", "typo", "./runs/typo", "somebody/some-model"])
def test_no_traffic_for_a_name_that_is_not_there(
    name: str, attempts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for load in (Tagger.load, diffusion_mf.load):
        with pytest.raises(InputError, match="no such model folder; check the path"):
            load(name)
    commands = (["tag", name, "-"], ["evaluate", name, "-"], ["errors", name, "-"], ["explain", name, "Ada sleeps."])
    for arguments in (*commands, ["serve", name]):
        monkeypatch.setattr(sys, "argv", ["dmf", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert "no such model folder; check the path" in capsys.readouterr().err
    assert not attempts


def test_the_message_says_how_the_hub_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        Tagger.load("runs/typo")
    assert str(caught.value) == (
        "runs/typo: no such model folder; check the path, or write hf:runs/typo for a model on the Hugging Face hub."
    )


def test_loading_and_tagging_need_no_network(attempts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tiny_encoders import write_encoder

    settings = {"encoder": {"kind": "pretrained", "model": str(write_encoder(tmp_path / "encoder"))}}
    for folder in (write_model(tmp_path / "one"), write_model(tmp_path / "two", settings=settings)):
        assert Tagger.load(folder, device="cpu").tag([["mira", "vi"]])[0].labels
    assert not attempts


def test_the_hub_is_asked_where_it_is_named(
    attempts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which also shows that the tests above would notice an attempt."""
    monkeypatch.chdir(tmp_path)
    for load, name in ((Tagger.load, "hf:somebody/m"), (Tagger.from_pretrained, "somebody/m")):
        attempts.clear()
        with pytest.raises(InputError, match="somebody/m: neither a model folder nor available from the hub"):
            load(name)
        assert attempts


def test_a_model_of_the_hub_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model")
    asked: list[str] = []

    def snapshot_download(name: str, **options: object) -> str:
        asked.append(name)
        assert "manifest.json" in options["allow_patterns"]  # type: ignore[operator]
        return str(folder)

    monkeypatch.setattr("diffusion_mf.model.hub.hub_answers", lambda name, revision: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    for load in (Tagger.load, Tagger.from_pretrained):
        assert load("hf:somebody/m", device="cpu").labels
    assert asked == ["somebody/m", "somebody/m"]
