"""What clients send and get, as pydantic models; the OpenAPI description is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Self

import pydantic

from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme

MAX_BEST = 10

# How much is taken at once is for the settings of a server to say: `ServedModel` refuses what is more than they allow.
Unit = Annotated[str, pydantic.Field(min_length=1)]
Clamp = dict[str, Any] | list[dict[str, Any]]
DocumentName = Annotated[str, pydantic.Field(max_length=1_000)] | int

SENTENCES_EXAMPLE = {"sentences": [["John", "lives", "in", "Paris"]], "scores": True}
CLAMP_EXAMPLE = {
    "sentences": [["John", "lives", "in", "Paris"]],
    "clamps": [[{"units": [0, 1], "type": "PER"}, {"3": ["O", "B-LOC"]}]],
}
WRITE_EXAMPLE = {
    "format": "conllu",
    "scheme": "bmes",
    "sentences": [{"units": ["John", "sings"], "labels": ["S-PER", "O"], "scores": [0.97, 0.99]}],
}
TEXTS_EXAMPLE = {"texts": ["Angela Merkel visited Paris. She left on Friday."]}
DETAILS_EXAMPLE = {"sentences": [["John", "lives", "in", "Paris"]], "scores": True, "k_best": 3, "trajectory": True}
DOCUMENTS_EXAMPLE = {"sentences": [["John", "sings"], ["We", "met", "John"]], "documents": ["letter", "letter"]}
STREAM_EXAMPLE = '{"sentences": [["John", "sings"]]}\n{"texts": ["Angela Merkel visited Paris."]}\n'
FILE_EXAMPLE = "Angela Merkel visited Paris. She left on Friday."
ANSWER_EXAMPLE = {
    "model": "en-ner",
    "sentences": [
        {
            "units": ["John", "lives", "in", "Paris"],
            "labels": ["B-PER", "O", "O", "B-LOC"],
            "spans": [
                {"start": 0, "end": 1, "label": "PER", "confidence": 0.97},
                {"start": 3, "end": 4, "label": "LOC", "confidence": 0.99},
            ],
            "scores": [0.97, 0.999, 0.998, 0.99],
        }
    ],
}


class _Input(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")


class TagRequest(_Input):
    """Raw texts or sentences to label, and what the answer is to have."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [name], "properties": {name: {"type": "array"}}} for name in ("texts", "sentences")]
        }
    )

    model: Annotated[str, pydantic.Field(max_length=200)] | None = pydantic.Field(
        None, description="The name of a model (GET /models); may be left out where only one is served."
    )
    texts: Annotated[list[str], pydantic.Field(min_length=1)] | None = pydantic.Field(
        None, description="Raw texts, which are split into sentences and tokens; each is a document."
    )
    sentences: Annotated[list[list[Unit]], pydantic.Field(min_length=1)] | None = pydantic.Field(
        None, description="Sentences of units: words, or characters for models of Chinese words."
    )
    documents: list[DocumentName | None] | None = pydantic.Field(
        None,
        description="For every text or sentence null or the name of its document; a model with recall labels neighbours of one "
        "document together.",
    )
    clamps: list[Clamp | None] | None = pydantic.Field(
        None,
        description='For every sentence null or what is known of it: labels by position ({"0": "B-PER", "3": ["O", "B-LOC"]}), '
        'spans ({"units": [0, 2], "type": "PER"}, the end is exclusive), or a list of them. Always honoured, or refused with 422.',
    )
    scheme: LabelScheme | None = pydantic.Field(
        None, description="How labels mark spans, if not as in the training data."
    )
    calls: int | None = pydantic.Field(None, ge=1, description="Denoising steps of a diffusion system.")
    scores: bool = pydantic.Field(False, description="Whether the answer has the probability of every label.")
    k_best: int | None = pydantic.Field(
        None, ge=1, le=MAX_BEST, description="How many of the best sequences of labels the answer is to have."
    )
    trajectory: bool = pydantic.Field(
        False, description="Whether the answer has the beliefs after every denoising step."
    )
    marginals: bool = pydantic.Field(
        False, description="Whether the answer has the calibrated probability of every label for every unit."
    )

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if (self.texts is None) == (self.sentences is None):
            raise ValueError('give either "texts" or "sentences"')
        items = self.texts if self.sentences is None else self.sentences
        if self.clamps is not None and self.sentences is None:
            raise ValueError('clamps are for "sentences"; take the units of an answer without clamps')
        for name, given in (("documents", self.documents), ("clamps", self.clamps)):
            if given is not None and len(given) != len(items or ()):
                raise ValueError(
                    f"there are {len(given)} {name} for {len(items or ())} item(s); give null where there is none"
                )
        return self


Offsets = Annotated[list[int], pydantic.Field(min_length=2, max_length=2)]
Probability = Annotated[float, pydantic.Field(ge=0, le=1)]


class LabelledSpanInput(_Input):
    """A span as ``/tag`` answers it."""

    start: int
    end: int
    label: str
    confidence: Probability
    characters: Offsets | None = None


class LabelledSentence(_Input):
    """A sentence with labels, to be written to a file."""

    units: list[Unit]
    labels: list[str]
    scores: list[Probability] | None = pydantic.Field(None, description="Needed where scores are written.")
    spans: list[LabelledSpanInput] | None = pydantic.Field(
        None, description="The answer's spans, for their confidence; without them it is the least of the scores."
    )
    text: Annotated[int, pydantic.Field(ge=0)] | None = pydantic.Field(
        None, description="The text it belongs to, counted from 0; sentences of a text follow each other."
    )
    offsets: list[Offsets] | None = pydantic.Field(None, description="Where each unit begins and ends in that text.")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        for name, given in (("labels", self.labels), ("scores", self.scores), ("offsets", self.offsets)):
            if given is not None and len(given) != len(self.units):
                raise ValueError(f"there are {len(given)} {name} for {len(self.units)} units")
        if (self.text is None) != (self.offsets is None):
            raise ValueError('"text" and "offsets" belong together')
        return self


class WriteRequest(_Input):
    """Labelled sentences, and the file format they are wanted in."""

    model: Annotated[str, pydantic.Field(max_length=200)] | None = pydantic.Field(
        None, description="The model whose labels they are; may be left out where only one is served."
    )
    format: FileFormat = pydantic.Field(description="The format of the file.")
    texts: list[str] = pydantic.Field([], description="The texts that sentences with offsets belong to.")
    sentences: Annotated[list[LabelledSentence], pydantic.Field(min_length=1)]
    scheme: LabelScheme | None = pydantic.Field(None, description="The scheme of the labels, if not the model's.")
    scores: bool = pydantic.Field(False, description="Whether scores are written.")


class _Output(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class ReadSentence(_Output):
    """A sentence of a file, without labels."""

    units: list[str]
    document: int | None = pydantic.Field(None, description="The number of its document, if the file tells.")
    text: int | None = pydantic.Field(None, description="The text it belongs to, if the file has texts.")
    offsets: list[Offsets] | None = pydantic.Field(None, description="Where each unit begins and ends in that text.")


class ReadAnswer(_Output):
    """The sentences of a file, and the texts they come from in formats that have texts."""

    format: str
    texts: list[str]
    sentences: list[ReadSentence]
    note: str | None = pydantic.Field(None, description="What was repaired in the file.")


class SpanAnswer(_Output):
    """A labelled stretch of units; ends are exclusive."""

    start: int
    end: int
    label: str
    confidence: Probability = pydantic.Field(description="The probability that it is right.")
    characters: Offsets | None = pydantic.Field(None, description="Where it begins and ends in the text (texts only).")


class AlternativeAnswer(_Output):
    """One of the best sequences of labels."""

    labels: list[str]
    log_ratio: float = pydantic.Field(description="The logarithm of its score relative to the best one's.")


class StepAnswer(_Output):
    """The beliefs after a call of the denoiser."""

    t: int = pydantic.Field(description="The noise step reached, 0 at the end.")
    beliefs: list[list[float]] = pydantic.Field(description="For every unit the probability of every label.")


class SentenceAnswer(_Output):
    """The labels of a sentence; what was not asked for is left out."""

    units: list[str]
    labels: list[str]
    spans: list[SpanAnswer]
    scores: list[Probability] | None = None
    offsets: list[Offsets] | None = pydantic.Field(
        None, description="Where each unit begins and ends in its text, in characters (Unicode code points)."
    )
    alternatives: list[AlternativeAnswer] | None = None
    marginals: list[list[float]] | None = pydantic.Field(
        None, description="For every unit the calibrated probability of every label."
    )
    trajectory: list[StepAnswer] | None = None


class TextAnswer(_Output):
    """The sentences found in a text."""

    sentences: list[SentenceAnswer]


class TagAnswer(_Output):
    """An answer for every text, or every sentence, in the order of the request."""

    model: str
    texts: list[TextAnswer] | None = None
    sentences: list[SentenceAnswer] | None = None
    labels: list[str] | None = pydantic.Field(
        None, description="The columns of beliefs and marginals, if these were asked for."
    )


class ErrorAnswer(_Output):
    """What is wrong, and what to do, in one sentence."""

    error: str


class ModelAnswer(_Output):
    """A model that is served."""

    name: str
    task: str
    system: str
    scheme: str
    labels: list[str]
    decoder: str
    device: str
    recall: bool = pydantic.Field(description="Whether it labels the sentences of a document together.")


class ModelsAnswer(_Output):
    """The models that are served."""

    models: list[ModelAnswer]


class HealthAnswer(_Output):
    """That the process answers."""

    status: str
    model_class: str
    version: str


class ReadyAnswer(_Output):
    """Whether requests are taken."""

    ready: bool


def validation_sentence(error: pydantic.ValidationError) -> str:
    """The first thing that is wrong, where, and nothing of what was sent."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    problem = first["msg"].removeprefix("Value error, ").rstrip(".")
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {problem}." if place else f"{problem}."
