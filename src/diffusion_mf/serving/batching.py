"""Dynamic batching: requests of many clients share the batches of one tagger, in one thread.

A request is cut into parts, each a sentence, or a document where the model recalls. A batch takes parts of all waiting requests
in turn, so that a large one does not keep small ones waiting for long; the tagger sorts what it is given by length.

While a batch is computed, others gather for the next one, which begins at once. There is only one reason to wait: clients that
have just been answered are likely to ask again. So a batch waits until it has as many requests as the one before, but no longer
than ``batch_seconds`` after that one has ended. A client that is alone never waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.tagger import TaggedSentence, Tagger
from diffusion_mf.tagger.requests import Request

TURNS_PER_BATCH = 4
"""a request takes at most this fraction of a batch before it is another one's turn"""


class QueueFullError(DiffusionMFError):
    """More units are waiting than the server allows."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("too many requests are waiting")
        self.retry_after = retry_after
        """seconds after which there should be room"""


class ClosedError(DiffusionMFError):
    """The server is stopping and takes no more requests."""


class BatchOptions(NamedTuple):
    """What sentences of one batch have in common."""

    scheme: str | None = None
    calls: int | None = None
    trajectory: bool = False
    k_best: int | None = None
    marginals: bool = False


class BatchReport(NamedTuple):
    """What became of a batch, for metrics."""

    num_requests: int
    num_sentences: int
    num_units: int
    seconds: float


@dataclasses.dataclass(eq=False)
class _Job:
    """A request of a client: its parts, how many sentences are still to be answered, and who waits for them."""

    parts: deque[_Part]
    options: BatchOptions
    future: asyncio.Future[list[TaggedSentence]]
    results: list[TaggedSentence | None]
    num_unanswered: int
    num_waiting_units: int


class _Part(NamedTuple):
    """Sentences that are tagged together; ``first`` is the index of the first one in its request."""

    first: int
    requests: list[Request]
    num_units: int


class _Taken(NamedTuple):
    job: _Job
    part: _Part


class Batcher:
    """Tags the requests of many clients with one tagger, in a thread of its own; made and used in one event loop."""

    def __init__(
        self,
        tagger: Tagger,
        *,
        batch_units: int,
        batch_seconds: float,
        waiting_units: int,
        is_batching: bool = True,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self._tagger = tagger
        self._recall = bool(tagger.model.config.recall)
        self._batch_units = batch_units
        self._batch_seconds = batch_seconds
        self._max_waiting_units = waiting_units
        self._is_batching = is_batching
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        # All below is guarded by the condition.
        self._jobs: deque[_Job] = deque()
        self._num_waiting_units = 0
        self._is_closing = False
        # These are the worker's.
        self._last_size = 0
        self._last_end = -math.inf
        self._seconds_per_unit = 1e-4
        self._thread = threading.Thread(target=self._run, name="dmf-tagging", daemon=True)
        self._thread.start()

    @property
    def num_waiting_units(self) -> int:
        """Units that no batch has taken yet."""
        return self._num_waiting_units

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests and answers them."""
        return self._thread.is_alive() and not self._is_closing

    def submit(self, requests: Sequence[Request], options: BatchOptions) -> asyncio.Future[list[TaggedSentence]]:
        """Have ``requests`` tagged; whoever cancels the future gives up what has not been begun.

        Raises `QueueFullError` where too much is waiting, unless nothing is.
        """
        future: asyncio.Future[list[TaggedSentence]] = self._loop.create_future()
        if not requests:
            future.set_result([])
            return future
        num_units = sum(request.num_units for request in requests)
        parts = deque(_parts(requests, recall=self._recall))
        job = _Job(parts, options, future, [None] * len(requests), len(requests), num_units)
        with self._changed:
            if self._is_closing:
                raise ClosedError("the server is stopping; send the request to another one")
            if self._num_waiting_units and self._num_waiting_units + num_units > self._max_waiting_units:
                seconds = self._num_waiting_units * self._seconds_per_unit
                raise QueueFullError(min(60, max(1, math.ceil(seconds))))
            self._jobs.append(job)
            self._num_waiting_units += num_units
            self._changed.notify()
        future.add_done_callback(lambda _: self._leave(job))
        return future

    def _leave(self, job: _Job) -> None:
        """Forget what is left of a job that was answered or given up."""
        with self._changed:
            if job.parts:
                job.parts.clear()
                self._num_waiting_units -= job.num_waiting_units
                job.num_waiting_units = 0
                if job in self._jobs:
                    self._jobs.remove(job)

    async def close(self) -> None:
        """Take no more requests, finish those that wait, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        while self._thread.is_alive():
            await asyncio.sleep(0.005)
        # What the thread has delivered last is on its way through the event loop.
        await asyncio.sleep(0)

    def _run(self) -> None:
        while batch := self._next_batch():
            start = time.perf_counter()
            self._answer(batch)
            self._last_end = time.perf_counter()
            num_units = sum(part.num_units for _, part in batch)
            seconds = self._last_end - start
            self._last_size = len({id(job) for job, _ in batch})
            self._seconds_per_unit += 0.1 * (seconds / max(1, num_units) - self._seconds_per_unit)
            self._report(BatchReport(self._last_size, sum(len(part.requests) for _, part in batch), num_units, seconds))

    def _next_batch(self) -> list[_Taken]:
        """What is to be tagged next; nothing once the batcher is closed."""
        with self._changed:
            while True:
                while not self._jobs:
                    if self._is_closing:
                        return []
                    self._changed.wait()
                while self._is_worth_waiting():
                    left = self._last_end + self._batch_seconds - time.perf_counter()
                    if left <= 0 or not self._changed.wait(left):
                        break
                # All may have been given up meanwhile.
                if self._jobs:
                    return self._take()

    def _is_worth_waiting(self) -> bool:
        is_full = self._num_waiting_units >= self._batch_units
        return self._is_batching and not is_full and not self._is_closing and len(self._jobs) < self._last_size

    def _take(self) -> list[_Taken]:
        """Parts of the jobs that want the same as the first one, in turns."""
        options = self._jobs[0].options
        turns = deque(job for job in self._jobs if job.options == options)
        others = [job for job in self._jobs if job.options != options]
        if not self._is_batching:
            others = [*itertools.islice(self._jobs, 1, None)]
            turns = deque([self._jobs[0]])
        batch: list[_Taken] = []
        room = self._batch_units
        share = max(1, self._batch_units // TURNS_PER_BATCH)
        while turns and room > 0:
            job = turns.popleft()
            turn = min(share, room)
            while job.parts and (turn >= job.parts[0].num_units or not batch):
                part = job.parts.popleft()
                job.num_waiting_units -= part.num_units
                self._num_waiting_units -= part.num_units
                turn -= part.num_units
                room -= part.num_units
                batch.append(_Taken(job, part))
            if job.parts:
                if turn == min(share, room):
                    # Its next part is larger than a turn: it waits for a batch of its own.
                    others.insert(0, job)
                else:
                    turns.append(job)
        self._jobs = deque([*others, *turns])
        return batch

    def _answer(self, batch: Sequence[_Taken]) -> None:
        requests = [request for number, (_, part) in enumerate(batch, 1) for request in self._numbered(part, number)]
        try:
            results = self._tagger.tag_requests(requests, **batch[0].job.options._asdict())
        except Exception as error:
            if len(batch) > 1:
                # Only whoever asked for it is to hear of what went wrong.
                for taken in batch:
                    self._answer([taken])
                return
            self._deliver(self._fail, batch[0].job, error)
            return
        self._deliver(self._give, batch, results)

    def _numbered(self, part: _Part, number: int) -> list[Request]:
        """The requests of a part, whose document no other part of the batch has."""
        if not self._recall or not part.requests[0].document:
            return part.requests
        return [request._replace(prepared=request.prepared._replace(document=number)) for request in part.requests]

    def _deliver(self, function: Callable[..., None], *arguments: object) -> None:
        # Nobody is waiting any more where the loop has been closed.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _give(self, batch: Sequence[_Taken], results: Sequence[TaggedSentence]) -> None:
        remaining = iter(results)
        for job, part in batch:
            size = len(part.requests)
            job.results[part.first : part.first + size] = itertools.islice(remaining, size)
            job.num_unanswered -= size
            if not job.num_unanswered and not job.future.done():
                job.future.set_result([result for result in job.results if result is not None])

    def _fail(self, job: _Job, error: Exception) -> None:
        if not job.future.done():
            job.future.set_exception(error)


def _parts(requests: Sequence[Request], *, recall: bool) -> list[_Part]:
    parts: list[_Part] = []
    first = 0
    for document, group in itertools.groupby(requests, key=lambda request: request.document if recall else 0):
        members = list(group)
        for part in [members] if document else [[each] for each in members]:
            parts.append(_Part(first, part, sum(request.num_units for request in part)))
            first += len(part)
    return parts
