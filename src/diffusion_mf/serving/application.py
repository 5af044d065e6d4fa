"""The ASGI application: paths, limits, authorisation, errors.

Bodies are read, checked and answered here by hand, so that large ones are handled in threads and the event loop never waits.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import prometheus_client
import pydantic
from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from diffusion_mf import __version__
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.serving import files, label_studio, schemas
from diffusion_mf.serving.batching import BatchOptions, ClosedError, QueueFullError
from diffusion_mf.serving.hosts import HostCheck
from diffusion_mf.serving.models import Job, ServedModel, TooLargeError, UnknownModelError, encode, find_model
from diffusion_mf.serving.observation import FAILURE, Metrics, Observer, log, log_fields
from diffusion_mf.serving.settings import Settings
from diffusion_mf.tagger import TaggedSentence

SMALL_BODY = 1024
"""bytes: what is no larger is handled at once, for handing it to a thread would take longer"""
SMALL_ANSWER = 256
"""units"""
JSON_LINES = "application/x-ndjson"
BYTES = "application/octet-stream"
_RETRY_SECONDS = 0.02

Result = TypeVar("Result")
Body = TypeVar("Body", bound=pydantic.BaseModel)


class ApiError(Exception):
    """An answer other than the one that was asked for: a status and a sentence."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def api_error(error: Exception) -> ApiError:
    """The answer to what went wrong; what nobody foresaw is raised again."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TooLargeError):
        return ApiError(413, str(error))
    if isinstance(error, UnknownModelError):
        return ApiError(404, str(error))
    if isinstance(error, InputError):
        return ApiError(422, str(error))
    if isinstance(error, QueueFullError):
        return ApiError(
            429,
            f"Too many requests are waiting; try again in {error.retry_after} s.",
            Retry_After=str(error.retry_after),
        )
    if isinstance(error, ClosedError):
        return ApiError(503, "The server is stopping; send the request to another one.", Retry_After="1")
    if isinstance(error, TimeoutError):
        return ApiError(504, "The answer took too long; send less at once, or try again later.")
    raise error


def parse(kind: type[Body], data: bytes) -> Body:
    """The checked body of a request; the sentence of an error has nothing of what was sent."""
    try:
        return kind.model_validate_json(data)
    except pydantic.ValidationError as error:
        is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        sentence = schemas.validation_sentence(error) if is_json else "The body is not JSON; send a JSON object."
        raise ApiError(422 if is_json else 400, sentence) from None


class Server:
    """The models and what all requests share."""

    def __init__(self, models: Mapping[str, ServedModel], settings: Settings) -> None:
        self.models = models
        self.settings = settings
        self.metrics = Metrics()
        self.num_open = 0
        self.stopping = asyncio.Event()
        self.is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dmf-bodies")

    def stop(self) -> None:
        """Say that the server is about to stop; from any thread or a signal handler."""
        self.is_stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stopping.set)

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken and answered."""
        has_started = self._loop is not None and not self.is_stopping
        return has_started and all(model.batcher.is_alive for model in self.models.values())

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the models' threads; at the end, finish what they have begun."""
        for model in self.models.values():
            await self.in_thread(model.warm_up)
            model.start(self.metrics.batch_reporter(model.name))
            waiting = functools.partial(getattr, model.batcher, "num_waiting_units")
            self.metrics.waiting_units.labels(model.name).set_function(waiting)
        self.metrics.open_requests.set_function(lambda: self.num_open)
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self.stop()
            for model in self.models.values():
                await model.batcher.close()
            self._threads.shutdown(wait=False)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function where it does not keep the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def when_small(self, is_small: bool, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function at once, or in a thread if it may take long."""
        return function(*arguments) if is_small else await self.in_thread(function, *arguments)

    def check_room(self) -> None:
        """Refuse a request where too many are open."""
        if self.num_open >= self.settings.open_requests:
            raise ApiError(429, "Too many requests are open; try again in 1 s.", Retry_After="1", Connection="close")

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request while it is open; refuse it where there are too many."""
        self.check_room()
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1

    async def read(
        self, request: Request, content_type: str = "application/json", *, limit: int | None = None
    ) -> bytes:
        """The body of a request, within the limits of size and time."""
        _check_content_type(request, content_type)
        limit = limit or self.settings.body_bytes
        too_large = ApiError(413, f"The body has more than {limit:,} bytes; send it in parts.", Connection="close")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > limit:
            raise too_large
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for chunk in request.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, "The body did not arrive in time; send it at once.", Connection="close") from None
        return b"".join(chunks)

    def prepare(self, data: bytes) -> tuple[schemas.TagRequest, ServedModel, Job]:
        """Everything that can be said of a request without tagging."""
        body = parse(schemas.TagRequest, data)
        model = find_model(self.models, body.model)
        return body, model, model.prepare(body)

    async def answer(self, data: bytes, fields: dict[str, object], *, is_patient: bool = False) -> bytes:
        """The body of the answer to a request for tags.

        Whoever is patient waits for room in the queue instead of being refused.
        """
        body, model, job = await self.when_small(len(data) <= SMALL_BODY, self.prepare, data)
        fields |= {"model": model.name, "sentences": len(job.requests), "units": job.num_units}
        results = await self.tag(model, job, is_patient=is_patient)
        is_small = job.num_units <= SMALL_ANSWER and not (body.trajectory or body.marginals or body.k_best)
        return await self.when_small(is_small, model.render, body, job, results)

    async def tag(self, model: ServedModel, job: Job, *, is_patient: bool = False) -> list[TaggedSentence]:
        """The results of a job; given up when time is over, or when whoever waits is cancelled."""
        while True:
            try:
                future = model.batcher.submit(job.requests, job.options)
                break
            except QueueFullError:
                if not is_patient:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
        return await asyncio.wait_for(future, self.settings.request_seconds)

    async def while_connected(self, request: Request, work: Awaitable[Result]) -> Result:
        """The result of ``work``, which is cancelled when the client goes away or time is over."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_until_disconnected(request))
        try:
            seconds = self.settings.request_seconds
            await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientDisconnect if gone.done() else TimeoutError
        finally:
            gone.cancel()
            task.cancel()

    async def stream(self, request: Request, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the answers to a stream in order, until all are sent or the client goes away."""
        # As long as the lines that may be read ahead: whoever puts in another one waits, and so does the client.
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(self.settings.stream_lines)
        begun: set[asyncio.Task[Any]] = set()

        def begin(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
            task = asyncio.create_task(work)
            begun.add(task)
            task.add_done_callback(begun.discard)
            return task

        async def read() -> None:
            try:
                async for number, line in self._lines(request):
                    await answers.put(begin(self._answer_line(number, line, log_fields(request.scope["state"]))))
            except ApiError as error:
                await answers.put(begin(_error_line(None, error.sentence)))
            except ClientDisconnect:
                return
            await answers.put(None)
            await _until_disconnected(request)

        async def write() -> None:
            while (answer := await answers.get()) is not None:
                await send(await answer)

        try:
            # Whichever ends first: all answers are sent, or nobody waits for them any more.
            writer = begin(write())
            await asyncio.wait({begin(read()), writer}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            for task in begun:
                task.cancel()

    async def _answer_line(self, number: int, line: bytes, totals: dict[str, Any]) -> bytes:
        fields: dict[str, Any] = {}
        try:
            answer = await self.answer(line, fields, is_patient=True)
            for name, count in (("lines", 1), ("sentences", fields["sentences"]), ("units", fields["units"])):
                totals[name] = totals.get(name, 0) + count
            return answer + b"\n"
        except Exception as error:
            try:
                sentence = api_error(error).sentence
            except Exception:
                log("failure", {"path": "/tag/stream"}, level=logging.ERROR, error=error)
                sentence = FAILURE
            return await _error_line(number, sentence)

    async def _lines(self, request: Request) -> AsyncIterator[tuple[int, bytes]]:
        """The lines of a body with their numbers, counted from 1; blank ones are left out."""
        chunks = aiter(request.stream())
        number, rest = 0, b""
        stopping = asyncio.ensure_future(self.stopping.wait())
        chunk: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                chunk = asyncio.ensure_future(anext(chunks, None))
                done, _ = await asyncio.wait(
                    {chunk, stopping}, timeout=self.settings.body_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if chunk not in done:
                    if done:
                        raise ApiError(503, "The server is stopping; send the other lines to another one.")
                    raise ApiError(408, "No line came for too long; open another stream.")
                piece = chunk.result()
                *complete, rest = (rest + (piece or b"")).split(b"\n") if piece is not None else (rest, b"")
                for line in complete:
                    number += 1
                    if line.strip():
                        yield number, line
                if piece is None:
                    return
                if len(rest) > self.settings.body_bytes:
                    raise ApiError(
                        413, f"Line {number + 1} has more than {self.settings.body_bytes:,} bytes; divide it."
                    )
        finally:
            stopping.cancel()
            if chunk is not None:
                chunk.cancel()


class _LinesResponse(Response):
    """Answers line by line while the body is still being read."""

    media_type = JSON_LINES

    def __init__(self, server: Server, request: Request) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._server = server
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answers."""

        async def send_line(line: bytes) -> None:
            await send({"type": "http.response.body", "body": line, "more_body": True})

        with self._server.admitted():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._server.stream(self._request, send_line)
            await send({"type": "http.response.body", "body": b""})


async def _error_line(number: int | None, sentence: str) -> bytes:
    line = {} if number is None else {"line": number}
    return encode({**line, "error": sentence}) + b"\n"


async def _until_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_content_type(request: Request, *wanted: str) -> None:
    # A web page cannot send these to other sites without asking first (CORS).
    given = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if given not in wanted:
        raise ApiError(415, f"The content type is {quoted(given)}; send {wanted[0]}.", Connection="close")


def _file_format(name: str | None) -> FileFormat | None:
    if name is None:
        return None
    if name not in list(FileFormat):
        raise InputError(f"there is no format {quoted(name)}", remedy=f"choose {', '.join(FileFormat)}")
    return FileFormat(name)


def _authorisation(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency that asks for the token, as a bearer token or as the password of basic authentication."""
    expected = None if token is None else token.encode()

    async def check(request: Request) -> None:
        if expected is None:
            return
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        given = value.strip().encode()
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                given = b""
        # Compared in constant time: how long it takes must not tell how much of it is right.
        if not hmac.compare_digest(given, expected) or kind.lower() not in ("bearer", "basic"):
            raise ApiError(401, "A token is needed; send it as Authorization: Bearer TOKEN.", WWW_Authenticate="Bearer")

    return check


def _responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    meanings = {
        400: "not JSON",
        401: "no token, or a wrong one",
        404: "no such model",
        408: "the body did not arrive in time",
        413: "too large",
        415: "not of the right content type",
        422: "something is wrong with the request",
        429: "too many requests; Retry-After says when to try again",
        503: "the server is stopping",
        504: "the answer took too long",
    }
    return {status: {"model": schemas.ErrorAnswer, "description": meanings[status]} for status in statuses}


_BODY_ERRORS = (400, 401, 404, 408, 413, 415, 422, 429, 503, 504)


def _json_body(kind: type[pydantic.BaseModel], **examples: object) -> dict[str, Any]:
    named = {name: {"summary": name.replace("_", " "), "value": value} for name, value in examples.items()}
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
    if named:
        content["examples"] = named
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


class Application(FastAPI):
    """FastAPI whose description has the bodies that are read by hand, and the token."""

    openapi_schema: dict[str, Any] | None

    def openapi(self) -> dict[str, Any]:
        """The description of the API."""
        if self.openapi_schema is None:
            found = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            bodies: list[type[pydantic.BaseModel]] = [
                schemas.TagRequest,
                schemas.WriteRequest,
                label_studio.SetupRequest,
                label_studio.PredictRequest,
                label_studio.WebhookRequest,
            ]
            _, defined = models_json_schema(
                [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
            )
            # Each model has its own number of steps.
            models = self.state.server.models.values()
            calls = defined["$defs"]["TagRequest"]["properties"]["calls"]["anyOf"][0]
            calls["maximum"] = max(model.tagger.model.config.diffusion.num_steps for model in models)
            found["components"]["schemas"] |= defined["$defs"]
            if self.state.server.settings.token is not None:
                found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                found["security"] = [{"token": []}]
            self.openapi_schema = found
        return self.openapi_schema


def make_application(models: Mapping[str, ServedModel], settings: Settings) -> FastAPI:
    """The ASGI application that serves ``models``; ``app.state.server`` is the `Server` behind it."""
    if not models:
        raise InputError("there is no model to serve", remedy="name the folder of one")
    server = Server(models, settings)
    metrics = server.metrics
    router = APIRouter(dependencies=[Depends(_authorisation(settings.token))])
    open_router = APIRouter()

    @router.post(
        "/tag",
        summary="Label texts or sentences",
        response_model=schemas.TagAnswer,
        responses={
            200: {"content": {"application/json": {"example": schemas.ANSWER_EXAMPLE}}},
            **_responses(*_BODY_ERRORS),
        },
        openapi_extra=_json_body(
            schemas.TagRequest,
            sentences=schemas.SENTENCES_EXAMPLE,
            raw_texts=schemas.TEXTS_EXAMPLE,
            labels_known_beforehand=schemas.CLAMP_EXAMPLE,
            sentences_of_a_document=schemas.DOCUMENTS_EXAMPLE,
            scores_alternatives_and_beliefs=schemas.DETAILS_EXAMPLE,
        ),
    )
    async def tag(request: Request) -> Response:
        with server.admitted():
            data = await server.read(request)
            answer = await server.while_connected(request, server.answer(data, log_fields(request.scope["state"])))
        return Response(answer, media_type="application/json")

    @router.post(
        "/tag/stream",
        summary="Label a stream of requests, line by line",
        description="Every line is a body of POST /tag; the answers come in the order of the lines, a line each. A line that "
        'cannot be answered gets {"line": …, "error": …}, and the stream goes on.',
        response_class=Response,
        responses={200: {"content": {JSON_LINES: {"schema": {"type": "string"}}}}, **_responses(401, 415, 429)},
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {JSON_LINES: {"schema": {"type": "string"}, "example": schemas.STREAM_EXAMPLE}},
            },
        },
    )
    async def tag_stream(request: Request) -> Response:
        _check_content_type(request, JSON_LINES, "application/jsonl", "application/json-lines")

        server.check_room()
        return _LinesResponse(server, request)

    @router.post(
        "/read",
        summary="The sentences of a file",
        description="The body is the file, in any format that dmf tag reads; it may be compressed.",
        response_model=schemas.ReadAnswer,
        responses=_responses(*_BODY_ERRORS),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {BYTES: {"schema": {"type": "string", "format": "binary"}, "example": schemas.FILE_EXAMPLE}},
            },
            "parameters": [
                {"name": name, "in": "query", "schema": {"type": "string"} | limits, "description": meaning}
                for name, meaning, limits in (
                    ("model", "The name of the model that is to read it.", {}),
                    ("name", "The name of the file, which may tell its format.", {}),
                    ("format", "Its format, if it is not to be detected.", {"enum": list(FileFormat)}),
                )
            ],
        },
    )
    async def read_file(request: Request) -> Response:
        async def answer() -> bytes:
            query = request.query_params
            model = find_model(models, query.get("model"))
            found = await server.in_thread(
                functools.partial(
                    files.read_file,
                    model,
                    query.get("name", ""),
                    data,
                    file_format=_file_format(query.get("format")),
                    max_bytes=settings.body_bytes,
                )
            )
            log_fields(request.scope["state"])["sentences"] = len(found["sentences"])
            return await server.in_thread(encode, found)

        with server.admitted():
            data = await server.read(request, BYTES)
            return Response(await server.while_connected(request, answer()), media_type="application/json")

    @router.post(
        "/write",
        summary="Labelled sentences as a file",
        response_class=Response,
        responses={
            200: {
                "content": {
                    "text/plain": {"schema": {"type": "string"}},
                    JSON_LINES: {"schema": {"type": "string"}},
                    "application/json": {"schema": {"type": "array"}},
                }
            },
            **_responses(*_BODY_ERRORS),
        },
        openapi_extra=_json_body(schemas.WriteRequest, conllu=schemas.WRITE_EXAMPLE),
    )
    async def write_file(request: Request) -> Response:
        with server.admitted():
            body = await read_body(request, schemas.WriteRequest, limit=settings.write_bytes)
            model = find_model(models, body.model)
            work = server.in_thread(files.write_file, model, body)
            found = await server.while_connected(request, work)
        media_type, suffix = files.MEDIA_TYPES.get(body.format, files.JSON_LINES_FILE)
        return Response(
            found, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="labelled{suffix}"'}
        )

    @router.get("/models", summary="The models that are served", responses=_responses(401))
    async def list_models() -> schemas.ModelsAnswer:
        return schemas.ModelsAnswer(models=[model.describe() for model in models.values()])

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_responses(401)},
    )
    async def show_metrics() -> Response:
        text = await server.in_thread(prometheus_client.generate_latest, metrics.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @open_router.get("/health", summary="Whether the process answers")
    async def health() -> schemas.HealthAnswer:
        return schemas.HealthAnswer(status="UP", model_class="diffusion_mf", version=__version__)

    @open_router.get(
        "/ready",
        summary="Whether requests are taken",
        response_model=schemas.ReadyAnswer,
        responses={503: {"model": schemas.ReadyAnswer, "description": "not yet, or no longer"}},
    )
    async def ready() -> Response:
        return JSONResponse({"ready": server.is_ready}, 200 if server.is_ready else 503)

    async def read_body(request: Request, kind: type[Body], *, limit: int | None = None) -> Body:
        data = await server.read(request, limit=limit)
        return await server.when_small(len(data) <= SMALL_BODY, parse, kind, data)

    @router.post(
        "/setup",
        tags=["Label Studio"],
        summary="Connect a labelling project",
        response_model=label_studio.SetupAnswer,
        responses=_responses(*_BODY_ERRORS),
        openapi_extra=_json_body(label_studio.SetupRequest, entities=label_studio.SETUP_EXAMPLE),
    )
    async def setup(request: Request) -> Response:
        with server.admitted():
            body = await read_body(request, label_studio.SetupRequest)
        model = label_studio.choose_model(models, body.schema_, None)
        return Response(encode({"model_version": model.name}), media_type="application/json")

    @router.post(
        "/predict",
        tags=["Label Studio"],
        summary="Predictions for labelling tasks",
        response_model=label_studio.PredictAnswer,
        responses=_responses(*_BODY_ERRORS),
        openapi_extra=_json_body(label_studio.PredictRequest, entities=label_studio.PREDICT_EXAMPLE),
    )
    async def predict(request: Request) -> Response:
        async def answer() -> bytes:
            config = await server.in_thread(label_studio.read_config, body.label_config)
            model = label_studio.choose_model(models, body.label_config, body.model_version)
            texts = label_studio.texts_of(body, config)
            job = await server.in_thread(model.prepare_texts, texts, BatchOptions())
            fields = log_fields(request.scope["state"])
            fields |= {"model": model.name, "sentences": len(job.requests), "units": job.num_units}
            results = await server.tag(model, job)
            return await server.in_thread(label_studio.render, model, config, texts, job, results)

        with server.admitted():
            body = await read_body(request, label_studio.PredictRequest)
            found = await server.while_connected(request, answer())
        return Response(found, media_type="application/json")

    @router.get(
        "/versions",
        tags=["Label Studio"],
        summary="The models to choose from in a labelling project",
        responses=_responses(401),
    )
    async def versions() -> label_studio.VersionsAnswer:
        return label_studio.VersionsAnswer(versions=list(models))

    @router.post(
        "/webhook",
        tags=["Label Studio"],
        summary="Hear of events in a labelling project",
        description="Models do not learn from annotations while they are served: every event is acknowledged and nothing else.",
        response_model=label_studio.WebhookAnswer,
        responses=_responses(*_BODY_ERRORS),
        openapi_extra=_json_body(label_studio.WebhookRequest, created={"action": "ANNOTATION_CREATED"}),
    )
    async def webhook(request: Request) -> Response:
        with server.admitted():
            await read_body(request, label_studio.WebhookRequest)
        return Response(encode({"status": "ignored"}), media_type="application/json")

    # Interactive pages of FastAPI's would load scripts from other sites.
    app = Application(
        title="Diffusion-MF",
        description="Sequence labelling by structured discrete diffusion.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=server.lifespan,
        middleware=_middleware(server),
    )
    app.state.server = server
    app.include_router(open_router)
    app.include_router(router)
    for kind in (ApiError, InputError, QueueFullError, ClosedError, TimeoutError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    if (settings.page / "index.html").is_file():
        # A route each: a mounted folder would answer for the other paths, too, where they are called by another method.
        for file in settings.page.iterdir():
            path = "/" if file.name == "index.html" else f"/{file.name}"
            app.add_route(path, functools.partial(_send_file, file), methods=["GET"], include_in_schema=False)
    return app


async def _send_file(file: Path, _: Request) -> Response:
    return FileResponse(file)


PATHS = frozenset(
    ("/", "/tag", "/tag/stream", "/read", "/write", "/models", "/metrics", "/health", "/ready", "/setup", "/predict", "/versions", "/webhook", "/openapi.json")
)  # fmt: skip


def _middleware(server: Server) -> list[Middleware]:
    found = [Middleware(Observer, metrics=server.metrics, paths=PATHS, is_stopping=lambda: server.is_stopping)]
    if server.settings.hosts is not None:
        found.append(Middleware(HostCheck, hosts=server.settings.hosts))
    if server.settings.origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(server.settings.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
                expose_headers=["X-Request-ID", "Retry-After"],
            )
        )
    return found


async def _answer_error(_: Request, error: Exception) -> Response:
    answer = api_error(error)
    return JSONResponse({"error": answer.sentence}, answer.status, headers=answer.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "There is nothing at this path; GET /openapi.json describes what there is.",
        405: "This path takes other methods; GET /openapi.json describes what there is.",
    }
    return JSONResponse(
        {"error": sentences.get(error.status_code, f"{error.detail}.")}, error.status_code, headers=error.headers
    )


async def _answer_nobody(_: Request, error: Exception) -> Response:
    return Response(status_code=499)
