"""A server as users start it: a process that listens on loopback, and stops on SIGTERM when it has finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import httpx2
from small_models import write_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.serving.models import load_models
from diffusion_mf.serving.settings import Settings
from diffusion_mf.tagger import Tagger

TOKEN = "0123456789abcdef"


class Process:
    """``dmf serve`` and the lines that it has logged."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-m", "diffusion_mf.cli", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
        )
        self.lines: list[dict[str, Any]] = []

    def wait_for(self, event: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(f"no {event} in {self.lines}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("runs") / "pos" / "model", "mean-field", Task.POS)


@pytest.fixture
def server(folder: Path) -> Iterator[Process]:
    process = Process(folder, "--device", "cpu", "--batch-units", 200, DIFFUSION_MF_TOKEN=TOKEN)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


def test_a_process_answers_and_finishes_what_it_has_begun(server: Process, folder: Path) -> None:
    listening = server.wait_for("listening")
    assert (listening["host"], listening["models"]) == ("127.0.0.1", ["pos"])
    address = f"http://127.0.0.1:{listening['port']}"
    sentences = [["mira", "sel", "da", "toro"]] * 1500
    expected = Tagger.load(folder, device="cpu").tag(sentences[:1])[0].labels
    with httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        assert client.get("/ready").json() == {"ready": True}
        assert httpx2.get(f"{address}/models", timeout=60).status_code == 401
        assert client.post("/tag", json={"sentences": sentences[:1]}).json()["sentences"][0]["labels"] == expected

        def lines() -> Iterator[bytes]:
            for _ in range(20):
                yield json.dumps({"sentences": sentences[:1]}).encode() + b"\n"

        with client.stream(
            "POST", "/tag/stream", content=lines(), headers={"Content-Type": "application/x-ndjson"}
        ) as found:
            assert [json.loads(row)["sentences"][0]["labels"] for row in found.iter_lines()] == [expected] * 20

        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/tag", json={"sentences": sentences})))
        asking.start()
        metrics = "waiting_units{model="
        # On a slow machine the answer may be there before it is seen to wait.
        while (
            asking.is_alive()
            and f'dmf_{metrics}"pos"}} 0.0'
            in httpx2.get(f"{address}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).text
        ):
            time.sleep(0.002)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("stopping")
        asking.join(60)
        assert [each["labels"] for each in answers[0].json()["sentences"]] == [expected] * 1500
    server.wait_for("stopped")
    assert server.process.wait(60) == 0
    assert server.process.stdout is not None
    assert server.process.stdout.read() == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{folder}", "{folder}"], "two models are called 'pos'"),
        (["{folder}", "--token-file", "{folder}/missing"], "the token cannot be read"),
        (["{folder}", "--token-file", "{empty}"], "holds no token of at least 16 ASCII characters"),
        (["{folder}", "--host", "192.0.2.1"], "cannot listen at 192.0.2.1"),
        (["a={folder}/missing"], "missing"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(
    folder: Path, tmp_path: Path, arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from diffusion_mf import cli

    empty = tmp_path / "token"
    empty.write_text("\n", encoding="utf-8")
    given = [argument.format(folder=folder, empty=empty) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["dmf", "serve", "--port", "0", *given])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    error = capsys.readouterr().err
    assert (stop.value.code, error.count("\n")) == (2, 1), error
    assert problem in error


def test_models_have_the_names_of_their_folders_or_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(Tagger, "load", lambda name, **_: loaded.append(str(name)))
    models = load_models([str(folder), "hf:owner/chinese", "a=hf:owner/b"], Settings(), device="cpu")
    assert list(models) == ["pos", "chinese", "a"]
    assert loaded == [str(folder), "hf:owner/chinese", "hf:owner/b"]


def test_a_missing_extra_is_said_in_a_sentence(folder: Path) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from diffusion_mf.cli import main; main()"
    found = subprocess.run([sys.executable, "-c", code, "serve", str(folder)], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr == (
        "dmf: the server needs FastAPI, uvicorn and prometheus-client; pip install 'diffusion-mf[server]'.\n"
    )
