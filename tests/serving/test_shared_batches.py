"""Requests that share batches: the same labels, fair turns, limits, and clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import Any

import pytest

pytest.importorskip("fastapi")

from served_models import Call, Gate, application, gated_application, started, until
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.serving.application import Server
from diffusion_mf.serving.batching import Batcher, BatchOptions, BatchReport
from diffusion_mf.tagger import TaggedSentence, Tagger

WORDS = ["Ada", "Byron", "sings", "in", "Oslo", "for", "the", "royal", "choir", "Eve", "unseen"]


def random_sentences(count: int, *, seed: int = 0, longest: int = 12) -> list[list[str]]:
    generator = random.Random(seed)
    return [generator.choices(WORDS, k=generator.randint(1, longest)) for _ in range(count)]


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()


def post(app: Any, path: str = "/tag", **values: Any) -> Call:
    call = Call(app, path)
    call.feed(body(**values), is_last=True)
    return call


@pytest.mark.parametrize("system", ["diffusion-mf", "lcrf"])
def test_shared_batches_give_the_labels_of_sentences_one_by_one(system: str) -> None:
    tagger = small_tagger(system, Task.NER)
    sentences = random_sentences(30)
    expected = [tagger.tag([sentence])[0].labels for sentence in sentences]
    gate = Gate(tagger)
    app = application({"ner": tagger}, batch_units=100)

    async def run() -> list[list[str]]:
        async with started(app):
            calls = [post(app, sentences=sentences[i : i + 3]) for i in range(0, 30, 3)]
            await asyncio.to_thread(gate.wait_for_a_batch)
            batcher = app.state.server.models["ner"].batcher
            total = sum(map(len, sentences))
            await until(lambda: batcher.num_waiting_units + sum(map(len, gate.batches[0])) == total)
            gate.open.set()
            answers = [await call.finish() for call in calls]
        return [sentence["labels"] for answer in answers for sentence in answer["sentences"]]

    assert asyncio.run(run()) == expected
    # After warming up: all sentences once, most of them in company.
    assert len(gate.batches) < 8
    assert all(sum(map(len, batch)) <= 100 for batch in gate.batches)


def test_requests_that_want_different_things_do_not_share() -> None:
    tagger = small_tagger("diffusion-mf", Task.NER)
    gate = Gate(tagger)
    app = application({"ner": tagger})

    async def run() -> list[Any]:
        async with started(app):
            first = post(app, sentences=[["Ada"]])
            await asyncio.to_thread(gate.wait_for_a_batch)
            kinds: list[dict[str, Any]] = [{}, {"k_best": 2}, {"scheme": "bio2"}, {}, {"k_best": 2}]
            calls = [post(app, sentences=[["Eve"]], **kind) for kind in kinds]
            server: Server = app.state.server
            await until(lambda: server.models["ner"].batcher.num_waiting_units == 5)
            gate.open.set()
            return [await call.finish() for call in (first, *calls)]

    answers = asyncio.run(run())
    assert ["alternatives" in answer["sentences"][0] for answer in answers] == [False, False, True, False, False, True]
    assert list(map(len, gate.batches)) == [1, 2, 2, 1]


def test_documents_of_different_requests_are_kept_apart() -> None:
    tagger = small_tagger("diffusion-mf", Task.NER, settings={"denoiser": {"width": 16, "heads": 2, "layers": 1, "time_width": 8, "recall": 1}})  # fmt: skip
    assert tagger.model.config.recall
    documents = [random_sentences(4, seed=seed) for seed in range(4)]
    expected = [tagger.tag(sentences, documents=[0] * 4) for sentences in documents]
    alone = [tagger.tag(sentences) for sentences in documents]
    assert [[each.scores for each in one] for one in expected] != [[each.scores for each in one] for one in alone]
    gate = Gate(tagger)
    app = application({"ner": tagger})

    async def run() -> list[Any]:
        async with started(app):
            calls = [post(app, sentences=each, documents=["same name"] * 4, scores=True) for each in documents]
            await asyncio.to_thread(gate.wait_for_a_batch)
            gate.open.set()
            return [await call.finish() for call in calls]

    for answer, results in zip(asyncio.run(run()), expected, strict=True):
        for sentence, result in zip(answer["sentences"], results, strict=True):
            assert sentence["scores"] == pytest.approx(result.scores, abs=1e-4)


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    gate, app = gated_application(batch_units=40)

    async def run() -> None:
        async with started(app):
            large = post(app, sentences=[["large"] * 5] * 100)
            await asyncio.to_thread(gate.wait_for_a_batch)
            small = post(app, sentences=[["small"]])
            await until(lambda: app.state.server.models["pos"].batcher.num_waiting_units == 461)
            gate.open.set()
            await small.finish()
            await large.finish()

    asyncio.run(run())
    batches = [{unit for sentence in batch for unit in sentence} for batch in gate.batches]
    assert batches.index({"large", "small"}) == 1
    assert len(batches) == 13


def test_an_error_of_one_request_is_not_the_others() -> None:
    tagger = small_tagger("mean-field", Task.POS)
    inner = tagger.tag_requests

    def tag_requests(requests: Any, **options: Any) -> Any:
        requests = list(requests)
        if any("bad" in request.units for request in requests):
            raise InputError("a bad word", remedy="leave it out")
        return inner(requests, **options)

    tagger.tag_requests = tag_requests  # type: ignore[method-assign]
    gate = Gate(tagger)
    app = application({"pos": tagger})

    async def run() -> list[int]:
        async with started(app):
            calls = [post(app, sentences=[[word]]) for word in ("first", "good", "bad", "fine")]
            await asyncio.to_thread(gate.wait_for_a_batch)
            await until(lambda: app.state.server.models["pos"].batcher.num_waiting_units + len(gate.batches[0]) == 4)
            gate.open.set()
            answers = [await call.finish() for call in calls]
            assert answers[2] == {"error": "a bad word; leave it out."}
            return [call.status for call in calls]

    assert asyncio.run(run()) == [200, 200, 422, 200]
    assert max(map(len, gate.batches)) > 1


def test_too_much_waiting_is_refused_with_a_time_to_come_back() -> None:
    gate, app = gated_application(waiting_units=10)

    async def run() -> None:
        async with started(app):
            calls = [post(app, sentences=[["a"] * 6])]
            await asyncio.to_thread(gate.wait_for_a_batch)
            calls.append(post(app, sentences=[["b"] * 6]))
            refused = post(app, sentences=[["c"] * 6])
            assert (await refused.finish()) == {"error": "Too many requests are waiting; try again in 1 s."}
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            gate.open.set()
            for call in calls:
                await call.finish()
                assert call.status == 200

    asyncio.run(run())


def test_too_many_open_requests_are_refused_before_they_are_read() -> None:
    app = application({"pos": small_tagger("mean-field", Task.POS)}, open_requests=2)

    async def run() -> None:
        async with started(app):
            calls = [Call(app, "/tag"), Call(app, "/tag/stream", content_type="application/x-ndjson")]
            await until(lambda: app.state.server.num_open == 2)
            for path, kind in (("/tag", "application/json"), ("/tag/stream", "application/x-ndjson")):
                refused = Call(app, path, content_type=kind)
                await refused.finish()
                assert (refused.status, refused.headers["retry-after"], refused.num_received) == (429, "1", 0)
            for call in calls:
                call.disconnect()
                await call.finish()
            assert app.state.server.num_open == 0

    asyncio.run(run())


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    tagger = small_tagger("mean-field", Task.POS)
    gate = Gate(tagger)
    app = application({"pos": tagger}, request_seconds=2)

    async def run() -> None:
        async with started(app):
            calls = [post(app, sentences=[["a"]])]
            await asyncio.to_thread(gate.wait_for_a_batch)
            calls.append(post(app, sentences=[["b"]]))
            for call in calls:
                assert "took too long" in (await call.finish())["error"]
                assert call.status == 504
            batcher: Batcher = app.state.server.models["pos"].batcher
            await until(lambda: batcher.num_waiting_units == 0)
            gate.open.set()
            await batcher.submit(tagger.read_requests([["c"]]), BatchOptions())

    asyncio.run(run())
    # Nobody computed what nobody waited for.
    assert gate.batches == [[("a",)], [("c",)]]


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    app = application({"pos": small_tagger("mean-field", Task.POS)}, body_seconds=0.5)

    async def run() -> None:
        async with started(app):
            call = Call(app, "/tag")
            call.feed(b'{"sentences"')
            assert "did not arrive in time" in (await call.finish())["error"]
            assert (call.status, call.headers["connection"]) == (408, "close")
            stream = Call(app, "/tag/stream", content_type="application/x-ndjson")
            stream.feed(body(sentences=[["a"]]) + b"\n")
            assert "sentences" in await stream.next_line()
            assert "No line came" in (await stream.next_line())["error"]
            await stream.finish()

    asyncio.run(run())


def test_a_body_without_a_length_is_cut_off_at_the_limit() -> None:
    app = application({"pos": small_tagger("mean-field", Task.POS)}, body_bytes=2_000)

    async def run() -> None:
        async with started(app):
            call = Call(app, "/tag")
            for _ in range(10):
                call.feed(b" " * 500)
            await call.finish()
            assert (call.status, call.num_received) == (413, 5)

    asyncio.run(run())


def test_what_a_client_that_goes_away_has_asked_for_is_not_computed() -> None:
    gate, app = gated_application()

    async def run() -> None:
        async with started(app):
            batcher = app.state.server.models["pos"].batcher
            first = post(app, sentences=[["a"]])
            await asyncio.to_thread(gate.wait_for_a_batch)
            gone = post(app, sentences=[["gone"]])
            await until(lambda: batcher.num_waiting_units == 1)
            gone.disconnect()
            await gone.finish()
            await until(lambda: batcher.num_waiting_units == 0)
            # Also one whose batch has been begun.
            first.disconnect()
            await first.finish()
            gate.open.set()
            await post(app, sentences=[["c"]]).finish()
            assert app.state.server.num_open == 0

    asyncio.run(run())
    assert [("gone",)] not in gate.batches


def test_stopping_finishes_what_has_been_begun() -> None:
    gate, app = gated_application(batch_units=10)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(started(app))
            calls = [post(app, sentences=[["a"] * 5] * 10), post(app, sentences=[["b"]])]
            await asyncio.to_thread(gate.wait_for_a_batch)
            batcher = app.state.server.models["pos"].batcher
            await until(lambda: batcher.num_waiting_units + sum(map(len, gate.batches[0])) == 51)
            stopping = asyncio.create_task(stack.aclose())
            await until(lambda: not app.state.server.is_ready)
            late = post(app, sentences=[["late"]])
            await late.finish()
            assert late.status == 503
            gate.open.set()
            for call in calls:
                await call.finish()
                assert call.status == 200
            await stopping

    asyncio.run(run())


def tag_alone(
    tagger: Tagger, *, pauses: list[float], clients: int, batch_seconds: float, asked: list[int]
) -> list[BatchReport]:
    """The batches of clients that ask again as soon as they are answered, after a pause each; ``asked`` notes who has asked."""
    reports: list[BatchReport] = []

    async def run() -> None:
        batcher = Batcher(
            tagger, batch_units=1000, batch_seconds=batch_seconds, waiting_units=1000, report=reports.append
        )
        requests = tagger.read_requests([["a", "b"]])

        async def client(number: int) -> None:
            for pause in pauses:
                await asyncio.sleep(pause * number)
                future = batcher.submit(requests, BatchOptions())
                asked.append(number)
                await future

        await asyncio.gather(*(client(number) for number in range(clients)))
        await batcher.close()

    asyncio.run(run())
    return reports


def test_a_lone_client_never_waits_and_several_wait_for_each_other() -> None:
    tagger = small_tagger("mean-field", Task.POS)
    tagger.tag([["a", "b"]])
    start = time.monotonic()
    reports = tag_alone(tagger, pauses=[0] * 5, clients=1, batch_seconds=60, asked=[])
    assert time.monotonic() - start < 60
    assert [report.num_requests for report in reports] == [1] * 5
    # Batches take no time here, so that nobody comes while one is computed; only the first lasts until all have come.
    (result,) = tagger.tag([["a", "b"]])
    asked: list[int] = []

    def tag_requests(requests: Any, **_: Any) -> list[TaggedSentence]:
        while len(asked) < 4:
            time.sleep(0.001)
        return [result for _ in requests]

    tagger.tag_requests = tag_requests  # type: ignore[method-assign]
    # They come back one after the other, 10 ms apart, and still share their batches.
    reports = tag_alone(tagger, pauses=[0, *[0.01] * 5], clients=4, batch_seconds=2, asked=asked)
    together = [report.num_requests for report in reports if report.num_requests > 1]
    assert sum(together) >= 20


def test_what_is_submitted_is_answered_in_full_whatever_the_sizes() -> None:
    tagger = small_tagger("mean-field", Task.POS)
    sizes = [0, 1, 7, 30, 0, 3, 12]

    async def run() -> None:
        for batch_units in (1, 5, 1000):
            batcher = Batcher(tagger, batch_units=batch_units, batch_seconds=0.001, waiting_units=10_000)
            jobs = [tagger.read_requests(random_sentences(size, seed=size)) for size in sizes]
            futures = [batcher.submit(job, BatchOptions()) for job in jobs]
            for job, future in zip(jobs, futures, strict=True):
                assert [result.units for result in await future] == [request.units for request in job]
            assert batcher.num_waiting_units == 0
            await batcher.close()
            assert not batcher.is_alive

    asyncio.run(run())
