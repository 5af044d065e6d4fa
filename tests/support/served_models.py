"""Servers of small models for tests: in this process with a client, or as bare ASGI calls under full control."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import FastAPI
from small_models import small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.serving.application import make_application
from diffusion_mf.serving.models import ServedModel
from diffusion_mf.serving.settings import Settings
from diffusion_mf.tagger import TaggedSentence, Tagger


def application(taggers: dict[str, Tagger], **settings: Any) -> FastAPI:
    chosen = Settings(**settings)
    return make_application({name: ServedModel(name, tagger, chosen) for name, tagger in taggers.items()}, chosen)


@contextlib.contextmanager
def client_of(taggers: dict[str, Tagger], **settings: Any) -> Iterator[TestClient]:
    app = application(taggers, **settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


class Gate:
    """Makes a tagger wait: every batch is noted when it begins, and goes on when `open` is set."""

    def __init__(self, tagger: Tagger) -> None:
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)
        self.batches: list[list[tuple[str, ...]]] = []
        inner = tagger.tag_requests

        def tag_requests(requests: Any, **options: Any) -> list[TaggedSentence]:
            requests = list(requests)
            if requests:
                self.batches.append([request.units for request in requests])
                self.begun.release()
                assert self.open.wait(60)
            return inner(requests, **options)

        tagger.tag_requests = tag_requests  # type: ignore[method-assign]

    def wait_for_a_batch(self) -> None:
        assert self.begun.acquire(timeout=60)


def gated_application(**settings: Any) -> tuple[Gate, FastAPI]:
    """A server of the small model pos, whose batches wait for the gate."""
    tagger = small_tagger("mean-field", Task.POS)
    return Gate(tagger), application({"pos": tagger}, **settings)


class Call:
    """One ASGI call whose body is fed, and whose answer is read, piece by piece."""

    def __init__(self, app: FastAPI, path: str, *, content_type: str = "application/json") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.num_received = 0
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", content_type.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        message = await self._incoming.get()
        self.num_received += 1
        return message

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body"):
            self.pieces.put_nowait(message["body"])

    def feed(self, body: bytes, *, is_last: bool = False) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": not is_last})

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def next_line(self) -> Any:
        return json.loads(await asyncio.wait_for(self.pieces.get(), 60))

    async def finish(self) -> Any:
        """The whole answer, as JSON."""
        await asyncio.wait_for(self.task, 60)
        return json.loads(b"".join(self.pieces.get_nowait() for _ in range(self.pieces.qsize())) or b"null")


@contextlib.asynccontextmanager
async def started(app: FastAPI) -> AsyncIterator[FastAPI]:
    async with app.router.lifespan_context(app):
        yield app


async def until(condition: Any) -> None:
    """Wait for something that happens soon."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)
