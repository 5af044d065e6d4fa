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
import uvicorn
from served_models import application
from small_models import small_tagger, write_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.serving import run
from diffusion_mf.serving.models import load_models
from diffusion_mf.serving.settings import Settings
from diffusion_mf.tagger import Tagger

TOKEN = "0123456789abcdef"


class Process:
    """``dmf serve`` and the lines that it has logged."""

    def __init__(self, *arguments: object, port: int = 0, **environment: str) -> None:
        command = [sys.executable, "-m", "diffusion_mf.cli", "serve", *map(str, arguments), "--port", str(port)]
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
        assert client.get("/ready", headers={"Host": f"localhost:{listening['port']}"}).status_code == 200
        assert client.get("/ready", headers={"Host": f"evil.example:{listening['port']}"}).status_code == 403
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


def test_a_client_of_a_killed_server_hears_of_it_and_the_next_one_serves_at_its_port(
    server: Process, folder: Path
) -> None:
    port = server.wait_for("listening")["port"]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
        body = {"sentences": [["mira", "sel"]]}
        before = client.post("/tag", json=body).json()

        def lines() -> Iterator[bytes]:
            yield json.dumps(body).encode() + b"\n"
            server.process.kill()
            server.process.wait(60)
            yield b"\n"

        with pytest.raises((httpx2.RemoteProtocolError, httpx2.NetworkError)):
            client.post("/tag/stream", content=lines(), headers={"Content-Type": "application/x-ndjson"})
        second = Process(folder, "--device", "cpu", port=port, DIFFUSION_MF_TOKEN=TOKEN)
        try:
            second.wait_for("listening")
            assert client.post("/tag", json=body).json() == before
        finally:
            second.process.kill()
            second.process.communicate()


def test_a_request_on_its_way_when_the_server_is_told_to_stop_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECONDS_TO_ARRIVE", 3.0)
    app = application({"pos": small_tagger("mean-field", Task.POS)})
    server = run._UvicornServer(uvicorn.Config(app, port=0, log_config=None, lifespan="on"), app.state.server)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        assert "connection" not in client.get("/health").headers
        server.handle_exit(signal.SIGTERM, None)
        # uvicorn looks every 0.1 s whether it is to stop, and then closes idle connections.
        time.sleep(0.3)
        answer = client.post("/tag", json={"sentences": [["mira"]]})
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    thread.join(60)
    assert not thread.is_alive()


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
