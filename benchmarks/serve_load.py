"""A server under load: latency, throughput with and without shared batches, memory, SIGKILL and SIGTERM in the middle of it.

    python benchmarks/serve_load.py [MODEL] [--clients 200] [--seconds 60] [--requests 50000]

MODEL is a folder; without one, a Mean-Field model with random weights is made (they do not matter for speed). Clients send a
sentence each, and the next one as soon as they are answered; they share the machine with the server. Prints a table and writes
results/serving.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.evaluation.terminal import half_up, note, print_table
from diffusion_mf.lab.results import provenance, write_rows
from diffusion_mf.model import Labeller
from diffusion_mf.tagger import StoredModel, Tagger, save_model

ROOT = Path(__file__).resolve().parent.parent
WORDS = [f"word{number}" for number in range(5000)]
WARM_UP = 1000


def make_model(folder: Path) -> Path:
    labels = ("ADJ", "ADP", "ADV", "AUX", "DET", "NOUN", "PART", "PRON", "PROPN", "PUNCT", "VERB", "X")
    sentence = Sentence(tuple(WORDS), tuple(labels[number % len(labels)] for number in range(len(WORDS))))
    config = Config.model_validate({"task": "pos", "system": "mean-field"})
    vocabulary = Vocabulary.build([sentence])
    torch.manual_seed(0)
    labeller = Labeller(config, vocabulary, Task.POS.scheme).eval()
    save_model(folder, StoredModel(labeller, config, vocabulary, Task.POS.scheme, "argmax", 1.0, {}))
    return folder


def sentences(seed: int) -> Iterator[list[str]]:
    generator = random.Random(seed)
    while True:
        yield generator.choices(WORDS, k=min(60, max(1, round(generator.gammavariate(2, 9)))))


class Server:
    """``dmf serve`` at one port; its log goes to a file."""

    def __init__(self, model: Path, log: Path, *options: str, port: int = 0) -> None:
        self._log = log.open("ab")
        start = log.stat().st_size
        command = [sys.executable, "-m", "diffusion_mf.cli", "serve", str(model), "--port", str(port), *options]
        self.process = subprocess.Popen(command, stderr=self._log)
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"the server has ended: {log.read_text(encoding='utf-8')}")
            lines = log.read_bytes()[start:].decode().splitlines()
            listening = [line for line in lines if line.startswith("{") and '"event": "listening"' in line]
            if listening:
                self.port = json.loads(listening[0])["port"]
                return
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(120)
        self._log.close()
        return status

    def memory(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


class Load:
    """Clients that keep a connection each, and what they have seen."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.times: list[float] = []
        self.failures = 0
        self.is_over = False
        self.answered_at: list[float] = []

    async def run(self, clients: int, *, seconds: float = math.inf, requests: float = math.inf) -> float:
        start = time.perf_counter()
        self._end, self._most = start + seconds, requests
        await asyncio.gather(*(self._client(number) for number in range(clients)))
        return time.perf_counter() - start

    async def _client(self, number: int) -> None:
        source = sentences(number)
        writer: asyncio.StreamWriter | None = None
        while not self.is_over and time.perf_counter() < self._end and len(self.times) < self._most:
            begin = time.perf_counter()
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                body = json.dumps({"sentences": [next(source)]}).encode()
                head = "POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise ConnectionError
                self.times.append(time.perf_counter() - begin)
                self.answered_at.append(time.perf_counter())
                if b"connection: close" in answer.lower():
                    writer.close()
                    writer = None
            except (OSError, asyncio.IncompleteReadError):
                self.failures += 1
                if writer is not None:
                    writer.close()
                writer = None
                await asyncio.sleep(0.05)
        if writer is not None:
            writer.close()

    def row(self, clients: int, seconds: float) -> dict[str, Any]:
        return {
            "clients": clients,
            "requests": len(self.times),
            "failures": self.failures,
            **{f"p{share}_ms": percentile(self.times, share) for share in (50, 95, 99)},
            "requests_per_second": round(len(self.times) / seconds, 2),
        }


def percentile(times: list[float], share: int) -> float:
    """Nearest rank, in milliseconds."""
    return round(1000 * sorted(times)[max(0, math.ceil(share / 100 * len(times)) - 1)], 3) if times else math.nan


def one_client(model: Path, log: Path, requests: int) -> dict[str, Any]:
    """A client that is alone, beside the same sentences from Python."""
    tagger = Tagger.load(model, device="cpu")
    server = Server(model, log, "--device", "cpu")
    try:
        asyncio.run(Load(server.port).run(1, requests=20))
        load = Load(server.port)
        seconds = asyncio.run(load.run(1, requests=requests))
    finally:
        server.stop()
    bare = []
    for number, sentence in zip(range(requests + 20), sentences(0), strict=False):
        begin = time.perf_counter()
        tagger.tag([sentence])
        if number >= 20:
            bare.append(time.perf_counter() - begin)
    return {"phase": "one client", **load.row(1, seconds), "tagger_p50_ms": percentile(bare, 50)}


def throughput(model: Path, log: Path, clients: int, seconds: float, *, is_batching: bool) -> dict[str, Any]:
    server = Server(model, log, *([] if is_batching else ["--no-batching"]))
    try:
        asyncio.run(Load(server.port).run(clients, seconds=seconds / 10))
        load = Load(server.port)
        elapsed = asyncio.run(load.run(clients, seconds=seconds))
    finally:
        server.stop()
    return {"phase": "batching" if is_batching else "no batching", **load.row(clients, elapsed)}


def memory(model: Path, log: Path, clients: int, requests: int) -> dict[str, Any]:
    server = Server(model, log)
    try:
        asyncio.run(Load(server.port).run(clients, requests=min(WARM_UP, requests)))
        before = server.memory()
        load = Load(server.port)
        seconds = asyncio.run(load.run(clients, requests=requests))
        after = server.memory()
    finally:
        server.stop()
    row = load.row(clients, seconds)
    return {"phase": "memory", **row, "memory_mb_before": round(before, 1), "memory_mb_after": round(after, 1)}


async def _kill_and_restart(model: Path, log: Path, clients: int, seconds: float) -> dict[str, Any]:
    server = Server(model, log)
    load = Load(server.port)
    running = asyncio.create_task(load.run(clients, seconds=math.inf))
    await asyncio.sleep(seconds / 3)
    killed = time.perf_counter()
    await asyncio.to_thread(server.stop, signal.SIGKILL)
    server = await asyncio.to_thread(Server, model, log, port=server.port)
    begun = len(load.times)
    while len(load.times) == begun:
        await asyncio.sleep(0.01)
    recovery = time.perf_counter() - killed
    await asyncio.sleep(seconds / 3)
    load.is_over = True
    elapsed = await running
    server.stop()
    return {"phase": "kill and restart", **load.row(clients, elapsed), "seconds_to_recover": round(recovery, 2)}


async def _stop_under_load(model: Path, log: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Every request that a client has sent on an open connection is to be answered before the server ends."""
    server = Server(model, log)
    load = Load(server.port)
    running = asyncio.create_task(load.run(clients, seconds=math.inf))
    await asyncio.sleep(seconds / 3)
    load.is_over = True  # after their answers, clients send nothing more
    status = await asyncio.to_thread(server.stop)
    elapsed = await running
    return {"phase": "stop", **load.row(clients, elapsed), "exit_status": status}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "serving.json")
    arguments = parser.parse_args()
    clients, seconds, requests = arguments.clients, arguments.seconds, arguments.requests
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dmf-serve-")))
        model = arguments.model or make_model(folder / "random-mean-field")
        log = folder / "log"
        log.touch()
        phases: list[Callable[[], dict[str, Any]]] = [
            lambda: one_client(model, log, max(20, requests // 50)),
            lambda: throughput(model, log, clients, seconds, is_batching=True),
            lambda: throughput(model, log, clients, seconds, is_batching=False),
            lambda: memory(model, log, clients, requests),
            lambda: asyncio.run(_kill_and_restart(model, log, clients, seconds)),
            lambda: asyncio.run(_stop_under_load(model, log, clients, seconds)),
        ]
        rows = []
        for phase in phases:
            rows.append(phase())
            note(f"{rows[-1]['phase']}: {rows[-1]['requests']:,} requests")
        name = model.name
    command = f"python benchmarks/serve_load.py --clients {clients} --seconds {seconds:g} --requests {requests}"
    measured = [Path(__file__).resolve(), "serving", "tagger", "prediction"]
    shared = provenance(command, packages=["fastapi", "uvicorn", "starlette"], measured=measured)
    rows = [{"model": name, **row, **shared} for row in rows]
    columns = ("p50_ms", "p95_ms", "p99_ms", "requests_per_second")
    print_table(
        ["phase", "clients", "requests", "failures", *columns],
        [
            [*(row[key] for key in ("phase", "clients", "requests", "failures")), *(half_up(row[key], 1) for key in columns)]
            for row in rows
        ],
    )  # fmt: skip
    write_rows(arguments.output, rows, replace_by=("model", "phase", "clients", "hardware"))


if __name__ == "__main__":
    main()
