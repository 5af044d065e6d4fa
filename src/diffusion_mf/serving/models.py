"""A model that is served: from the body of a request to what its tagger is asked, and from results to the body of an answer."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from diffusion_mf.errors import InputError, quoted
from diffusion_mf.prediction.cpu import CPU_BATCH_UNITS
from diffusion_mf.serving.batching import Batcher, BatchOptions
from diffusion_mf.serving.schemas import ModelAnswer, TagRequest
from diffusion_mf.serving.settings import Settings
from diffusion_mf.tagger import TaggedSentence, Tagger
from diffusion_mf.tagger.files import SourceSentence, json_clamp, split_text
from diffusion_mf.tagger.requests import Request

CHARACTERS_PER_UNIT = 10
"""of raw texts, white space counted, at most on average"""


class TooLargeError(InputError):
    """A request of more than the server allows."""


class UnknownModelError(InputError):
    """A name that no model has."""


class Job(NamedTuple):
    """What a request asks of a tagger, and how its sentences belong to its texts."""

    requests: list[Request]
    options: BatchOptions
    offsets: list[tuple[tuple[int, int], ...]] | None
    """of the units of every sentence, for texts"""
    sizes: list[int] | None
    """how many sentences every text has"""
    num_units: int


class ServedModel:
    """A tagger with a name; `start` gives it a thread of its own."""

    batcher: Batcher

    def __init__(self, name: str, tagger: Tagger, settings: Settings) -> None:
        self.name = name
        self.tagger = tagger
        self._settings = settings

    def start(self, report: Any) -> None:
        """Begin to tag, in the running event loop."""
        settings = self._settings
        budget = self.tagger.model.config.inference.budget
        on_cpu = self.tagger.device.type == "cpu"
        self.batcher = Batcher(
            self.tagger,
            batch_units=settings.batch_units or (min(budget, CPU_BATCH_UNITS) if on_cpu else budget),
            batch_seconds=settings.batch_seconds,
            waiting_units=settings.waiting_units,
            is_batching=settings.is_batching,
            report=report,
        )

    def warm_up(self) -> None:
        """Do once what the first requests would have to wait for."""
        # The vectors of unseen words take longer than the rest of a short sentence.
        self.tagger.keep_words()
        self.tagger.tag_text("The first request waits for nothing.")

    def describe(self) -> ModelAnswer:
        """What `GET /models` says."""
        model = self.tagger.model
        return ModelAnswer(
            name=self.name,
            task=str(self.tagger.task),
            system=model.config.system,
            scheme=str(self.tagger.scheme),
            labels=list(self.tagger.labels),
            decoder=self.tagger.decoder,
            device=str(self.tagger.device),
            recall=bool(model.config.recall),
        )

    def prepare(self, body: TagRequest) -> Job:
        """Split texts and check sentences, options and clamps; `InputError` for what cannot be tagged."""
        # The tagger checks all of them before it looks at a sentence.
        options = BatchOptions(body.scheme, body.calls, body.trajectory, body.k_best, body.marginals)
        self.tagger.tag_requests([], **options._asdict())
        if body.texts is not None:
            return self.prepare_texts(body.texts, options, documents=body.documents)
        sentences = body.sentences or []
        self.check_sizes(map(len, sentences), options)
        requests = self.tagger.read_requests(
            sentences,
            clamp=None if body.clamps is None else [json_clamp(clamp) for clamp in body.clamps],
            scheme=body.scheme,
            documents=body.documents,
        )
        return Job(requests, options, None, None, sum(map(len, sentences)))

    def prepare_texts(
        self, texts: Sequence[str], options: BatchOptions, *, documents: Sequence[str | int | None] | None = None
    ) -> Job:
        """Split texts, which are a document each unless ``documents`` says otherwise."""
        names: Sequence[Any] = range(len(texts)) if documents is None else documents
        # Before they are split: that takes its time, too.
        self._check_number("texts", len(texts))
        num_characters, most = sum(map(len, texts)), CHARACTERS_PER_UNIT * self._settings.request_units
        if num_characters > most:
            raise TooLargeError(
                f"the texts have {num_characters:,} characters, more than {most:,}",
                remedy="send them in several requests",
            )
        found = [split_text(self.tagger, text) for text in texts]
        parts = [part for text in found for part in text]
        self.check_sizes((len(offsets) for _, offsets in parts), options)
        requests = self.tagger.read_requests(
            [sentence for sentence, _ in parts],
            scheme=options.scheme,
            documents=[name for name, text in zip(names, found, strict=True) for _ in text],
        )
        offsets = [offsets for _, offsets in parts]
        return Job(requests, options, offsets, [len(text) for text in found], sum(map(len, offsets)))

    def limited(self, sentences: Iterable[SourceSentence]) -> Iterator[SourceSentence]:
        """The sentences of a file, up to the limits of a request."""
        total = 0
        for number, item in enumerate(sentences, 1):
            total += len(item.sentence.units)
            if max(total, number) > self._settings.request_units:
                raise TooLargeError(
                    f"the file has more than {self._settings.request_units:,} {'units' if total >= number else 'sentences'}",
                    remedy="send it in parts, or use dmf tag",
                )
            self.check_sizes([len(item.sentence.units)], BatchOptions())
            yield item

    def _check_number(self, things: str, number: int) -> None:
        # Empty ones take their time, too.
        limit = self._settings.request_units
        if number > limit:
            raise TooLargeError(
                f"there are {number:,} {things}, more than {limit:,} in a request",
                remedy="send them in several requests",
            )

    def check_sizes(self, sizes: Iterable[int], options: BatchOptions) -> None:
        """Refuse more than the settings allow; ``sizes`` are the numbers of units of sentences."""
        total = number = 0
        for number, size in enumerate(sizes, 1):
            total += size
            if size > self._settings.sentence_units:
                raise TooLargeError(
                    f"sentence {number} has {size:,} units, more than {self._settings.sentence_units:,}",
                    remedy="divide it",
                )
        has_details = options.trajectory or options.marginals or options.k_best is not None
        limit = self._settings.detail_units if has_details else self._settings.request_units
        if total > limit:
            kind = "a request for trajectories, marginals or alternatives" if has_details else "a request"
            raise TooLargeError(
                f"there are {total:,} units, more than {limit:,} in {kind}", remedy="send them in several requests"
            )
        self._check_number("sentences", number)

    def render(self, body: TagRequest, job: Job, results: Sequence[TaggedSentence]) -> bytes:
        """The body of the answer."""
        answer: dict[str, Any] = {"model": self.name}
        if body.trajectory or body.marginals:
            answer["labels"] = self.tagger.labels if body.scheme is None else self.tagger.labels_in(body.scheme)
        sentences = [
            _sentence(result, None if job.offsets is None else job.offsets[index], use_scores=body.scores)
            for index, result in enumerate(results)
        ]
        if job.sizes is None:
            answer["sentences"] = sentences
        else:
            remaining = iter(sentences)
            answer["texts"] = [{"sentences": [next(remaining) for _ in range(size)]} for size in job.sizes]
        return encode(answer)


def _sentence(
    result: TaggedSentence, offsets: tuple[tuple[int, int], ...] | None, *, use_scores: bool
) -> dict[str, Any]:
    spans: list[dict[str, Any]] = [
        {"start": start, "end": end, "label": label, "confidence": round(confidence, 6)}
        for start, end, label, confidence in result.spans
    ]
    found: dict[str, Any] = {"units": result.units, "labels": result.labels, "spans": spans}
    if use_scores:
        found["scores"] = [round(score, 6) for score in result.scores]
    if offsets is not None:
        found["offsets"] = offsets
        for span in spans:
            span["characters"] = [offsets[span["start"]][0], offsets[span["end"] - 1][1]]
    if result.alternatives is not None:
        found["alternatives"] = [
            {"labels": each.labels, "log_ratio": round(each.log_ratio, 6)} for each in result.alternatives
        ]
    if result.marginals is not None:
        found["marginals"] = [[round(value, 6) for value in row] for row in result.marginals.tolist()]
    if result.trajectory is not None:
        found["trajectory"] = [
            {"t": t, "beliefs": [[round(belief, 6) for belief in row] for row in beliefs.tolist()]}
            for t, beliefs in result.trajectory
        ]
    return found


def encode(answer: Mapping[str, Any]) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def find_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """The model of that name; without a name, the only one."""
    if name is None:
        if len(models) > 1:
            raise InputError("several models are served", remedy=f"name one of them: {', '.join(models)}")
        return next(iter(models.values()))
    if name not in models:
        near = difflib.get_close_matches(name, models, n=1)
        remedy = f"use {near[0]}" if near else f"choose {', '.join(models)}"
        raise UnknownModelError(f"no model is called {quoted(name)}", remedy=remedy)
    return models[name]


def load_models(names: Sequence[str], settings: Settings, *, device: str) -> dict[str, ServedModel]:
    """The models of folders or, as ``hf:OWNER/NAME``, of the hub; a name may be given as ``NAME=MODEL``.

    Without one it is that of the folder, or of the folder it is in if it is called ``model``, as ``dmf train`` calls it.
    """
    models: dict[str, ServedModel] = {}
    for given in names:
        name, _, source = given.partition("=")
        if not source or os.path.exists(given):
            source = given
            path = os.path.abspath(given) if os.path.exists(given) else given
            name = os.path.basename(path)
            if name == "model":
                name = os.path.basename(os.path.dirname(path)) or name
        if name in models:
            raise InputError(f"two models are called {quoted(name)}", remedy=f"write {name}-2={source}, say")
        models[name] = ServedModel(name, Tagger.load(source, device=device), settings)
    return models
