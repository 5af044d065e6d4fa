"""Streams of requests: order, errors among the lines, back-pressure, clients that go away, stopping."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

pytest.importorskip("fastapi")

from served_models import Call, application, client_of, gated_application, started, until
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError

LINES = "application/x-ndjson"


def line(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def test_answers_come_in_the_order_of_the_lines() -> None:
    generator = random.Random(1)
    words = [f"word{number}" for number in range(120)]
    # Some want more, so that they are tagged in other batches; some are long.
    rows = [line(sentences=[[word] * generator.choice([1, 1, 30])], **generator.choice([{}, {"k_best": 2}])) for word in words]  # fmt: skip
    taggers = {"pos": small_tagger("mean-field", Task.POS)}
    with client_of(taggers, waiting_units=50, batch_units=20) as client:
        response = client.post("/tag/stream", content=b"".join(rows), headers={"Content-Type": LINES})
    found = [json.loads(row) for row in response.text.splitlines()]
    assert [row["sentences"][0]["units"][0] for row in found] == words
    assert response.headers["Content-Type"] == LINES


def test_a_bad_line_is_answered_in_its_place() -> None:
    rows = [line(texts=["a b"]), b"\n", b"{\n", line(sentences=[["c"]], model="x"), line(sentences=[["d"]]).rstrip()]
    with client_of({"pos": small_tagger("mean-field", Task.POS)}) as client:
        response = client.post("/tag/stream", content=b"".join(rows), headers={"Content-Type": LINES})
        wrong = client.post("/tag/stream", content=b"".join(rows), headers={"Content-Type": "application/json"})
    found = [json.loads(row) for row in response.text.splitlines()]
    assert found[0]["texts"][0]["sentences"][0]["units"] == ["a", "b"]
    assert found[1] == {"line": 3, "error": "The body is not JSON; send a JSON object."}
    assert found[2] == {"line": 4, "error": "no model is called 'x'; choose pos."}
    assert found[3]["sentences"][0]["units"] == ["d"]
    assert len(found) == 4
    assert wrong.status_code == 415


def test_an_answer_comes_while_the_stream_is_open_and_too_long_a_line_ends_it() -> None:
    app = application({"pos": small_tagger("mean-field", Task.POS)}, body_bytes=1_000)

    async def run() -> None:
        async with started(app):
            call = Call(app, "/tag/stream", content_type=LINES)
            for word in ("a", "b"):
                row = line(sentences=[[word]])
                call.feed(row[:9])
                call.feed(row[9:])
                assert (await call.next_line())["sentences"][0]["units"] == [word]
            call.feed(b"x" * 1_001)
            assert await call.next_line() == {"error": "Line 3 has more than 1,000 bytes; divide it."}
            await call.finish()

    asyncio.run(run())


def test_no_more_is_read_than_may_wait() -> None:
    gate, app = gated_application(stream_lines=4)

    async def run() -> None:
        async with started(app):
            call = Call(app, "/tag/stream", content_type=LINES)
            for number in range(50):
                call.feed(line(sentences=[[str(number)]]), is_last=number == 49)
            await asyncio.to_thread(gate.wait_for_a_batch)
            await asyncio.sleep(0.05)
            # Those in the queue, the one that is awaited, and the one that waits for room.
            assert call.num_received <= 4 + 2
            gate.open.set()
            found = [(await call.next_line())["sentences"][0]["units"][0] for _ in range(50)]
            assert found == [str(number) for number in range(50)]
            await call.finish()

    asyncio.run(run())


def test_a_client_that_goes_away_ends_its_stream() -> None:
    gate, app = gated_application()

    async def run() -> None:
        async with started(app):
            batcher = app.state.server.models["pos"].batcher
            # While this one is computed, all others wait.
            first = Call(app, "/tag")
            first.feed(line(sentences=[["first"]]), is_last=True)
            await asyncio.to_thread(gate.wait_for_a_batch)
            for is_complete in (False, True):
                call = Call(app, "/tag/stream", content_type=LINES)
                for number in range(9):
                    call.feed(line(sentences=[["gone"]]), is_last=is_complete and number == 8)
                await until(lambda: batcher.num_waiting_units == 9)
                call.disconnect()
                await call.finish()
                await until(lambda: batcher.num_waiting_units == 0)
                assert app.state.server.num_open == 1
            gate.open.set()
            await first.finish()
            assert app.state.server.num_open == 0

    asyncio.run(run())


def test_stopping_ends_a_stream_after_the_lines_that_were_read() -> None:
    gate, app = gated_application()

    async def run() -> None:
        async with started(app):
            call = Call(app, "/tag/stream", content_type=LINES)
            for number in range(3):
                call.feed(line(sentences=[[str(number)]]))
            await asyncio.to_thread(gate.wait_for_a_batch)
            await until(lambda: call.num_received == 3)
            app.state.server.stop()
            gate.open.set()
            rows = [await call.next_line() for _ in range(4)]
            assert [row["sentences"][0]["units"] for row in rows[:3]] == [["0"], ["1"], ["2"]]
            assert "stopping" in rows[3]["error"]
            await call.finish()

    asyncio.run(run())


def test_a_stream_whose_answers_cannot_be_sent_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    app = application({"pos": small_tagger("mean-field", Task.POS)})

    async def run() -> None:
        async with started(app):
            before = asyncio.all_tasks()
            call = Call(app, "/tag/stream", content_type=LINES)

            def broken(body: bytes) -> None:
                raise OSError("the client is gone")

            monkeypatch.setattr(call.pieces, "put_nowait", broken)
            call.feed(line(sentences=[["a"]]))
            with pytest.raises(OSError, match="the client is gone"):
                await call.finish()
            await until(lambda: asyncio.all_tasks() <= before)

    asyncio.run(run())


def test_a_server_without_models_is_refused() -> None:
    with pytest.raises(InputError, match="there is no model to serve; name the folder of one"):
        application({})
