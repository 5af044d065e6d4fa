"""A server under load: latency and where it comes from, throughput with and without shared batches, memory, SIGKILL, SIGTERM, generated requests.

    python benchmarks/serve_load.py [MODEL] [--clients 200] [--seconds 60] [--requests 50000] [--phases latency load memory stop generated]

MODEL is a folder or a model of the package. Clients send a sentence each, and the next one as soon as they are answered with the units and
labels that `Tagger.tag` gives for it; they share the machine with the server. The latency of one client is that of a text of twenty words, for each model of --latency-models.
Generated requests come from Schemathesis, which need not be in this environment (--schemathesis PATH); without it they are left out.
Prints a table and writes results/serving.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from diffusion_mf.evaluation.terminal import half_up, note, print_table
from diffusion_mf.lab.results import provenance, write_rows
from diffusion_mf.serving.application import parse
from diffusion_mf.serving.models import ServedModel, encode
from diffusion_mf.serving.schemas import TagRequest
from diffusion_mf.serving.settings import Settings
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import split_text

ROOT = Path(__file__).resolve().parent.parent
WORDS = [f"word{number}" for number in range(5000)]
NUM_SENTENCES = 5000
WARM_UP = 1000
PHASES = ("latency", "load", "memory", "stop", "generated")
LATENCY_MODELS = ("en-pos", "en-ner", "en-pos-fast")
LARGEST_LIMIT = 1000
"""a generator of strings and lists up to a limit needs minutes for each beyond this one"""
HOOKS = """
import json
import schemathesis

@schemathesis.serializer("application/x-ndjson")
def write_lines(context, value):
    return "\\n".join(map(json.dumps, value if isinstance(value, list) else [value])).encode()
"""


class Question(NamedTuple):
    """The body of a request, and what its answer must have in it."""

    body: bytes
    expected: bytes = b""


Questions = Callable[[int], Iterator[Question]]
"""those of a client, by its number"""


@functools.cache
def sentences_of(model: str) -> Questions:
    """Sentences in random order, with the labels that the tagger gives them outside of the server."""
    generator = random.Random(0)
    sizes = (min(60, max(1, round(generator.gammavariate(2, 9)))) for _ in range(NUM_SENTENCES))
    sentences = [generator.choices(WORDS, k=size) for size in sizes]
    known = [
        Question(
            json.dumps({"sentences": [units]}).encode(), encode({"units": units, "labels": result.labels}).strip(b"{}")
        )
        for units, result in zip(sentences, Tagger.load(model, device="cpu").tag(sentences), strict=True)
    ]

    def questions(number: int) -> Iterator[Question]:
        chosen = random.Random(number)
        while True:
            yield chosen.choice(known)

    return questions


class Server:
    """``dmf serve`` at one port; its log goes to a file."""

    def __init__(self, model: str, log: Path, *options: str, port: int = 0) -> None:
        self._log = log.open("ab")
        start = log.stat().st_size
        command = [sys.executable, "-m", "diffusion_mf.cli", "serve", model, "--port", str(port), *options]
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

    def __init__(self, port: int, questions: Questions) -> None:
        self.port = port
        self._questions = questions
        self.times: list[float] = []
        self.failures = 0
        self.wrong_answers = 0
        self.is_over = False

    async def run(self, clients: int, *, seconds: float = math.inf, requests: float = math.inf) -> float:
        start = time.perf_counter()
        self._end, self._most = start + seconds, requests
        await asyncio.gather(*(self._client(number) for number in range(clients)))
        return time.perf_counter() - start

    async def _client(self, number: int) -> None:
        source = self._questions(number)
        writer: asyncio.StreamWriter | None = None
        while not self.is_over and time.perf_counter() < self._end and len(self.times) < self._most:
            begin = time.perf_counter()
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                body, expected = next(source)
                head = "POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
                labels = await reader.readexactly(int(length.split(b":")[1]))
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise ConnectionError
                self.wrong_answers += expected not in labels
                self.times.append(time.perf_counter() - begin)
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
        return result_row(clients, self.times, self.failures, seconds) | {"wrong_answers": self.wrong_answers}


def result_row(clients: int, times: list[float], failures: int, seconds: float) -> dict[str, Any]:
    return {
        "clients": clients,
        "requests": len(times),
        "failures": failures,
        **{f"p{share}_ms": percentile(times, share) for share in (50, 95, 99)},
        "requests_per_second": round(len(times) / seconds, 2),
    }


def percentile(times: list[float], share: int) -> float:
    """Nearest rank, in milliseconds."""
    return round(1000 * sorted(times)[max(0, math.ceil(share / 100 * len(times)) - 1)], 3) if times else math.nan


def mean_ms(seconds: float, number: float) -> float:
    return round(1000 * seconds / number, 3)


def read_metrics(port: int) -> dict[str, float]:
    """Every number of GET /metrics, by its name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def latency(model: str, log: Path, requests: int) -> dict[str, Any]:
    """A text of twenty words from one client, beside the same words given to `Tagger.tag`; and where the time goes."""
    tagger = Tagger.load(model, device="cpu")
    tagger.keep_words()
    words = [word for word in tagger.model.vocabulary.form_counts if word.isalpha()]

    def questions(number: int) -> Iterator[Question]:
        generator = random.Random(number)
        while True:
            yield Question(json.dumps({"texts": [" ".join(generator.choices(words, k=19)) + " ."]}).encode())

    server = Server(model, log, "--device", "cpu")
    try:
        asyncio.run(Load(server.port, questions).run(1, requests=20))
        before = read_metrics(server.port)
        load = Load(server.port, questions)
        seconds = asyncio.run(load.run(1, requests=requests))
        after = read_metrics(server.port)
    finally:
        server.stop()

    def spent(name: str, labels: str) -> float:
        total, number = (after[key] - before[key] for key in (f"{name}_sum{labels}", f"{name}_count{labels}"))
        return mean_ms(total, number)

    in_server, in_tagger = (
        spent("dmf_request_seconds", '{path="/tag"}'),
        spent("dmf_batch_seconds", f'{{model="{model}"}}'),
    )
    served = ServedModel(model, tagger, Settings())
    bare, split, prepare, render = [], 0.0, 0.0, 0.0
    for number, (data, _) in zip(range(-20, requests), questions(0), strict=False):
        (text,) = json.loads(data)["texts"]
        times = [time.perf_counter()]
        request = parse(TagRequest, data)
        job = served.prepare(request)
        times.append(time.perf_counter())
        results = tagger.tag([text.split()])
        times.append(time.perf_counter())
        served.render(request, job, results)
        times.append(time.perf_counter())
        split_text(tagger, text)
        times.append(time.perf_counter())
        if number >= 0:
            steps = [end - start for start, end in itertools.pairwise(times)]
            bare.append(steps[1])
            prepare, render, split = prepare + steps[0], render + steps[2], split + steps[3]
    json_ms = mean_ms(prepare + render - split, requests)
    means = {
        "split": mean_ms(split, requests),
        "tag": in_tagger,
        "json": json_ms,
        "wait": round(in_server - in_tagger - mean_ms(prepare + render, requests), 3),
        "http": round(mean_ms(sum(load.times), len(load.times)) - in_server, 3),
    }
    shares = {f"tagger_p{share}_ms": percentile(bare, share) for share in (50, 95)}
    return {"phase": "latency", "model": model, **load.row(1, seconds), **shares, "mean_ms": means}


def throughput(model: str, log: Path, clients: int, seconds: float, *, is_batching: bool) -> dict[str, Any]:
    questions = sentences_of(model)
    server = Server(model, log, *([] if is_batching else ["--no-batching"]))
    try:
        asyncio.run(Load(server.port, questions).run(clients, seconds=seconds / 10))
        load = Load(server.port, questions)
        elapsed = asyncio.run(load.run(clients, seconds=seconds))
    finally:
        server.stop()
    return {"phase": "batching" if is_batching else "no batching", **load.row(clients, elapsed)}


def memory(model: str, log: Path, clients: int, requests: int) -> dict[str, Any]:
    questions = sentences_of(model)
    server = Server(model, log)
    try:
        asyncio.run(Load(server.port, questions).run(clients, requests=min(WARM_UP, requests)))
        before = server.memory()
        load = Load(server.port, questions)
        seconds = asyncio.run(load.run(clients, requests=requests))
        after = server.memory()
    finally:
        server.stop()
    row = load.row(clients, seconds)
    return {"phase": "memory", **row, "memory_mb_before": round(before, 1), "memory_mb_after": round(after, 1)}


async def _kill_and_restart(model: str, log: Path, clients: int, seconds: float) -> dict[str, Any]:
    questions = sentences_of(model)
    server = Server(model, log)
    load = Load(server.port, questions)
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


async def _stop_under_load(model: str, log: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Every request that a client has sent on an open connection is to be answered before the server ends."""
    questions = sentences_of(model)
    server = Server(model, log)
    load = Load(server.port, questions)
    running = asyncio.create_task(load.run(clients, seconds=math.inf))
    await asyncio.sleep(seconds / 3)
    load.is_over = True  # after their answers, clients send nothing more
    status = await asyncio.to_thread(server.stop)
    elapsed = await running
    return {"phase": "stop", **load.row(clients, elapsed), "exit_status": status}


def without_large_limits(schema: Any) -> Any:
    """A part of the description of the API without the limits that no generator can reach in good time."""
    if isinstance(schema, list):
        return [without_large_limits(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    large = {
        key
        for key in ("maxLength", "maxItems", "maxProperties")
        if isinstance(schema.get(key), int) and schema[key] > LARGEST_LIMIT
    }
    return {key: without_large_limits(value) for key, value in schema.items() if key not in large}


def generated(model: str, folder: Path, command: str, requests: int) -> dict[str, Any]:
    """Requests made from the description of the API, right and wrong ones; the log of the server says what became of them."""
    log, report = folder / "generated.log", folder / "report.json"
    log.touch()
    server = Server(model, log)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/openapi.json") as answer:
            description = without_large_limits(json.load(answer))
        stream = description["paths"]["/tag/stream"]["post"]["requestBody"]["content"]["application/x-ndjson"]
        # Whatever else a stream has is answered line by line, with status 200.
        stream["schema"] = {"anyOf": [{"type": "array", "items": {"$ref": "#/components/schemas/TagRequest"}}, {}]}
        (folder / "openapi.json").write_text(json.dumps(description), encoding="utf-8")
        (folder / "hooks.py").write_text(HOOKS, encoding="utf-8")
        num_bodies = sum("post" in methods for methods in description["paths"].values())
        options = [
            "--phases",
            "examples,coverage,fuzzing",
            "--max-examples",
            # Half as many again: some descriptions allow fewer different requests.
            str(math.ceil(1.5 * requests / num_bodies)),
            "--continue-on-failure",
        ]
        # Much that a schema allows is refused with 422: labels that no model has, say.
        options += [
            "--checks",
            "all",
            "--exclude-checks",
            "positive_data_acceptance",
            "--max-response-time",
            "10",
            "--workers",
            "2",
        ]
        options += ["--seed", "1", "--report-json-path", str(report), "--url", f"http://127.0.0.1:{server.port}"]
        start = time.perf_counter()
        found = subprocess.run(
            [command, "run", *options, "openapi.json"], cwd=folder, env=os.environ | {"SCHEMATHESIS_HOOKS": "hooks"}, capture_output=True, text=True, check=False
        )  # fmt: skip
        seconds = time.perf_counter() - start
    finally:
        server.stop()
    if not report.exists():
        raise SystemExit(f"Schemathesis has ended: {found.stdout}{found.stderr}")
    summary = json.loads(report.read_text(encoding="utf-8"))
    failures = sum(each["count"] for kind in ("failures", "errors") for each in summary[kind])
    if failures:
        note(found.stdout)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    answered = [line for line in lines if line["event"] == "request"]
    statuses = Counter(str(line["status"]) for line in answered)
    row = result_row(2, [line["milliseconds"] / 1000 for line in answered], failures, seconds)
    others = {
        "server_errors": sum(count for status, count in statuses.items() if status >= "500"),
        "seconds": round(seconds, 1),
    }
    return {
        "phase": "generated",
        "model": model,
        **row,
        **others,
        "statuses": dict(sorted(statuses.items())),
        "schemathesis": summary["schemathesis_version"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="en-pos-fast")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--latency-models", nargs="+", default=LATENCY_MODELS)
    parser.add_argument("--schemathesis", default="st", help="the command of Schemathesis")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "serving.json")
    arguments = parser.parse_args()
    clients, seconds, requests = arguments.clients, arguments.seconds, arguments.requests
    model = arguments.model
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dmf-serve-")))
        log = folder / "log"
        log.touch()
        phases: dict[str, list[Callable[[], dict[str, Any]]]] = {
            "latency": [
                functools.partial(latency, name, log, max(20, requests // 100)) for name in arguments.latency_models
            ],
            "load": [
                lambda: throughput(model, log, clients, seconds, is_batching=True),
                lambda: throughput(model, log, clients, seconds, is_batching=False),
            ],
            "memory": [lambda: memory(model, log, clients, requests)],
            "stop": [
                lambda: asyncio.run(_kill_and_restart(model, log, clients, seconds)),
                lambda: asyncio.run(_stop_under_load(model, log, clients, seconds)),
            ],
            "generated": [lambda: generated("en-ner", folder, arguments.schemathesis, requests // 5)],
        }
        if "generated" in arguments.phases and shutil.which(arguments.schemathesis) is None:
            note("no generated requests: install Schemathesis anywhere, and name its command with --schemathesis")
            del phases["generated"]
        rows = []
        for phase in (phase for name, group in phases.items() if name in arguments.phases for phase in group):
            rows.append({"model": model} | phase())
            note(f"{rows[-1]['phase']}: {rows[-1]['requests']:,} requests")
    command = f"python benchmarks/serve_load.py --clients {clients} --seconds {seconds:g} --requests {requests}"
    command += f" --phases {' '.join(arguments.phases)}"
    measured = [Path(__file__).resolve(), "serving", "tagger", "prediction"]
    shared = provenance(command, packages=["fastapi", "uvicorn", "starlette"], measured=measured)
    rows = [row | shared for row in rows]
    columns = ("p50_ms", "p95_ms", "p99_ms", "requests_per_second")
    print_table(
        ["phase", "model", "clients", "requests", "failures", *columns],
        [
            [*(row[key] for key in ("phase", "model", "clients", "requests", "failures")), *(half_up(row[key], 1) for key in columns)]
            for row in rows
        ],
    )  # fmt: skip
    timed = [row for row in rows if "mean_ms" in row]
    if timed:
        parts = ("split", "tag", "json", "wait", "http")
        print_table(
            ["20 words, ms", "p50", "p95", "Tagger p50", "Tagger p95", *(f"{part}, mean" for part in parts)],
            [
                [row["model"], *(half_up(row[key], 1) for key in ("p50_ms", "p95_ms", "tagger_p50_ms", "tagger_p95_ms")), *(half_up(row["mean_ms"][part], 1) for part in parts)]
                for row in timed
            ],
        )  # fmt: skip
    write_rows(arguments.output, rows, replace_by=("model", "phase", "clients", "hardware"))


if __name__ == "__main__":
    main()
