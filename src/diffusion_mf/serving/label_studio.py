"""Label Studio's protocol for machine-learning backends: what it sends, and predictions as it wants them.

It asks ``/health``, and sends ``/setup`` with the labelling configuration, ``/predict`` with tasks, ``/versions``, and ``/webhook`` with
events. Nothing is remembered between requests: every ``/predict`` brings the configuration again.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from xml.etree import ElementTree

import pydantic

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import split_label
from diffusion_mf.errors import InputError
from diffusion_mf.serving.models import Job, ServedModel, encode
from diffusion_mf.tagger import TaggedSentence

CONFIG_EXAMPLE = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)
SETUP_EXAMPLE = {"project": "1.1700000000", "schema": CONFIG_EXAMPLE, "hostname": "", "access_token": ""}
PREDICT_EXAMPLE = {
    "tasks": [{"id": 1, "data": {"text": "Angela Merkel visited Paris."}}],
    "label_config": CONFIG_EXAMPLE,
    "project": "1.1700000000",
}

MAX_CONFIG = 1_000_000
"""characters"""
LabelConfig = Annotated[str, pydantic.Field(max_length=MAX_CONFIG)]


class _Input(pydantic.BaseModel):
    # Other versions of Label Studio send other fields, too.
    model_config = pydantic.ConfigDict(extra="ignore", populate_by_name=True)


class SetupRequest(_Input):
    """What Label Studio sends when a project is connected."""

    schema_: LabelConfig = pydantic.Field(alias="schema", description="The labelling configuration, in XML.")


class LabellingTask(_Input):
    """A text to annotate."""

    data: dict[str, Any]


class PredictRequest(_Input):
    """Tasks that want predictions."""

    tasks: Annotated[list[LabellingTask], pydantic.Field(max_length=1_000)]
    label_config: LabelConfig
    model_version: str | None = None


class WebhookRequest(_Input):
    """An event of a project."""

    action: str


class SetupAnswer(pydantic.BaseModel):
    """The model that answers for the project."""

    model_version: str


class PredictAnswer(pydantic.BaseModel):
    """A prediction for every task."""

    results: list[dict[str, Any]]


class VersionsAnswer(pydantic.BaseModel):
    """The names of the models."""

    versions: list[str]


class WebhookAnswer(pydantic.BaseModel):
    """That the event was heard of."""

    status: str


class LabellingConfig(NamedTuple):
    """The first ``Labels`` tag of a configuration with the ``Text`` it belongs to."""

    from_name: str
    to_name: str
    key: str
    """of the text in a task's data"""
    labels: Mapping[str, str]
    """by what a model may call them: their value, and the names in ``predicted_values``"""

    def find(self, name: str) -> str | None:
        """The label of the configuration that a model's label stands for."""
        return self.labels.get(name) or self.labels.get(name.casefold())


def read_config(text: str) -> LabellingConfig:
    """Read a labelling configuration with ``Labels`` and ``Text``."""
    remedy = (
        'use a labelling configuration with <Labels name="label" toName="text"> and <Text name="text" value="$text"/>'
    )
    # A configuration has no use for entities, which can grow without bounds.
    if "<!" in text.replace("<!--", ""):
        raise InputError("the labelling configuration has a document type or entities", remedy="remove them")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        raise InputError("the labelling configuration is not XML", remedy=remedy) from None
    texts = {tag.get("name"): tag.get("value", "") for tag in root.iter("Text")}
    for tag in root.iter("Labels"):
        name, to_name = tag.get("name"), tag.get("toName")
        if not name or not to_name or not texts.get(to_name, "").startswith("$"):
            continue
        labels: dict[str, str] = {}
        for label in tag.iter("Label"):
            value = label.get("value", "")
            names = [value, *(each.strip() for each in label.get("predicted_values", "").split(","))]
            for each in filter(None, names):
                labels.setdefault(each, value)
                labels.setdefault(each.casefold(), value)
        return LabellingConfig(name, to_name, texts[to_name][1:], labels)
    raise InputError("the labelling configuration has no Labels for a Text", remedy=remedy)


def choose_model(models: Mapping[str, ServedModel], config: str, version: str | None) -> ServedModel:
    """The model that the version names, or the one with the most labels of the configuration."""
    if version is not None and version in models:
        return models[version]
    labelling = read_config(config)

    def num_shared(model: ServedModel) -> int:
        names = {name for label in model.tagger.labels for name in {label, split_label(label)[1]} if name}
        return len({labelling.find(name) for name in names} - {None})

    best = max(models.values(), key=num_shared)
    if not num_shared(best):
        raise InputError(
            "no model has any label of the labelling configuration",
            remedy='name labels as the models do (GET /models), or add them as predicted_values="…"',
        )
    return best


def texts_of(body: PredictRequest, config: LabellingConfig) -> list[str]:
    """The texts of the tasks."""
    texts = [task.data.get(config.key) for task in body.tasks]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        number = next(number for number, text in enumerate(texts, 1) if not isinstance(text, str))
        raise InputError(
            f"task {number} has no text at data.{config.key}", remedy="check the Text tag of the configuration"
        )
    return found


def render(
    model: ServedModel, config: LabellingConfig, texts: Sequence[str], job: Job, results: Sequence[TaggedSentence]
) -> bytes:
    """The predictions, a list of regions for every text; labels that the configuration does not have are left out."""
    remaining = iter(zip(results, job.offsets or (), strict=True))
    predictions = []
    for text, size in zip(texts, job.sizes or (), strict=True):
        regions = []
        for result, offsets in itertools.islice(remaining, size):
            spans: Sequence[tuple[int, int, str, float]] = result.spans
            if model.tagger.task is Task.POS:
                rows = zip(result.labels, result.scores, strict=True)
                spans = [(index, index + 1, label, score) for index, (label, score) in enumerate(rows)]
            for start, end, name, score in spans:
                label = config.find(name)
                if label is not None:
                    regions.append(_region(text, offsets[start][0], offsets[end - 1][1], label, score, config))
        scores = [region["score"] for region in regions]
        predictions.append({"result": regions, "score": min(scores, default=0.0), "model_version": model.name})
    return encode({"results": predictions})


def _region(text: str, start: int, end: int, label: str, score: float, config: LabellingConfig) -> dict[str, Any]:
    return {
        "id": uuid.uuid4().hex[:10],
        "from_name": config.from_name,
        "to_name": config.to_name,
        "type": "labels",
        "value": {"start": start, "end": end, "text": text[start:end], "labels": [label]},
        "score": round(score, 6),
    }
