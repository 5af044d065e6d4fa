"""What operators see of a server: a line of JSON for every request, metrics for Prometheus; never what users have sent."""

from __future__ import annotations

import datetime
import json
import logging
import re
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffusion_mf.serving.batching import BatchReport

FAILURE = "The server has failed; its log says where."
LOGGER = logging.getLogger("diffusion_mf.serving")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


class JsonFormatter(logging.Formatter):
    """A record as a line of JSON.

    Of an exception, its kind and where it was raised: its message may quote what a user has sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time_ = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time_, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)
            line["exception"] = type(error).__name__
            line["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False)


def log(
    event: str,
    fields: Mapping[str, object] | None = None,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
) -> None:
    """Write a line."""
    LOGGER.log(level, event, extra={"fields": fields or {}}, exc_info=error)


class Metrics:
    """The numbers that ``GET /metrics`` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("dmf_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        self.request_seconds = Histogram(
            "dmf_request_seconds", "From arrival to answer.", ["path"], buckets=_SECONDS, registry=self.registry
        )
        self.open_requests = Gauge(
            "dmf_open_requests", "Tagging requests being read, waiting or answered.", registry=self.registry
        )
        self.waiting_units = Gauge(
            "dmf_waiting_units", "Units that no batch has taken yet.", ["model"], registry=self.registry
        )
        self.sentences = Counter("dmf_sentences", "Sentences tagged.", ["model"], registry=self.registry)
        self.units = Counter("dmf_units", "Units tagged.", ["model"], registry=self.registry)
        self.batch_requests = Histogram(
            "dmf_batch_requests",
            "Requests that shared a batch.",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "dmf_batch_seconds", "Of computing a batch.", ["model"], buckets=_SECONDS, registry=self.registry
        )

    def batch_reporter(self, model: str) -> Callable[[BatchReport], None]:
        """What a batcher calls after every batch."""
        sentences, units = self.sentences.labels(model), self.units.labels(model)
        batch_requests, batch_seconds = self.batch_requests.labels(model), self.batch_seconds.labels(model)

        def report(batch: BatchReport) -> None:
            sentences.inc(batch.num_sentences)
            units.inc(batch.num_units)
            batch_requests.observe(batch.num_requests)
            batch_seconds.observe(batch.seconds)

        return report


class Observer:
    """The outermost layer: identifies, times, logs and counts requests, and turns bugs into answers without tracebacks."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, paths: frozenset[str], is_stopping: Callable[[], bool]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        fields: dict[str, object] = {}
        scope.setdefault("state", {})["log_fields"] = fields
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_stopping():
                    headers["Connection"] = "close"
            await send(message)

        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            log("failure", {"request_id": request_id, "path": path}, level=logging.ERROR, error=error)
            if status:
                # Closing the connection is all that can still be said.
                raise
            await _send_failure(send_with_headers)
        finally:
            seconds = time.perf_counter() - start
            self._metrics.requests.labels(path, str(status or 499)).inc()
            self._metrics.request_seconds.labels(path).observe(seconds)
            line = {
                "request_id": request_id,
                "method": scope["method"],
                "path": path,
                "status": status or 499,
                "milliseconds": round(1000 * seconds, 2),
            }
            log("request", line | fields)


async def _send_failure(send: Send) -> None:
    body = json.dumps({"error": FAILURE}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def log_fields(state: Mapping[str, Any]) -> dict[str, object]:
    """What the log is to say of the request at hand, to be added to."""
    fields: dict[str, object] = state["log_fields"]
    return fields
