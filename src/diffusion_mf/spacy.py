"""A tagger as a component of spaCy (``pip install 'diffusion-mf[spacy]'``): ``nlp.add_pipe("diffusion_mf", config={"model": …})``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from diffusion_mf.api import load
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import split_label
from diffusion_mf.errors import InputError
from diffusion_mf.tagger import TaggedSentence, Tagger

try:
    from spacy.language import Language
    from spacy.parts_of_speech import IDS as UNIVERSAL_TAGS
    from spacy.pipeline import Pipe
    from spacy.scorer import Scorer, get_ner_prf
    from spacy.tokens import Doc, Span, Token
    from spacy.training import Example
    from spacy.util import minibatch
except ModuleNotFoundError:
    raise ImportError("diffusion_mf.spacy needs spaCy: pip install 'diffusion-mf[spacy]'") from None

BATCH_SIZE = 256
"""documents that are tagged together, unless ``nlp.pipe`` says otherwise"""


class _Place(NamedTuple):
    """A sentence of a document: the indices of its tokens, blanks left out."""

    document: int
    tokens: list[int]


class DiffusionMF(Pipe):
    """Sets tags (``token.pos_`` or ``token.tag_``) or entities (``doc.ents``), with ``._.confidence`` of tokens or entities.

    Sentences are those that an earlier component has marked; without one, a document is one sentence. Existing entities of the
    document are replaced. The model is read when it is first needed, since a saved pipeline has its own.
    """

    def __init__(
        self,
        name: str,
        *,
        model: StrPath | None = None,
        device: str = "auto",
        calls: int | None = None,
        decoder: str | None = None,
        attribute: str | None = None,
    ) -> None:
        if attribute not in (None, "pos", "tag"):
            raise InputError(f"attribute cannot be {attribute!r}", remedy="choose pos or tag")
        self.name = name
        self.model_name = model
        self.device = device
        self.calls = calls
        self.decoder = decoder
        self._attribute = attribute
        self._tagger: Tagger | None = None
        for kind in (Token, Span):
            if not kind.has_extension("confidence"):
                kind.set_extension("confidence", default=None)

    @property
    def tagger(self) -> Tagger:
        """The tagger at work."""
        if self._tagger is None:
            if self.model_name is None:
                raise InputError(f"the component {self.name} has no model", remedy='give one with config={"model": …}')
            self._use(load(self.model_name, device=self.device))
            assert self._tagger is not None
        return self._tagger

    @property
    def attribute(self) -> str:
        """What is set: ``pos``, ``tag`` or ``ents``."""
        if self.tagger.task is Task.NER:
            return "ents"
        if self._attribute is not None:
            return self._attribute
        is_universal = set(self.tagger.labels) <= set(UNIVERSAL_TAGS)
        return "pos" if is_universal and self.tagger.model.config.data.column is not ConlluColumn.XPOS else "tag"

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags, or the types of entities, once there is a model: spaCy asks before a pipeline has read its own."""
        if self._tagger is None:
            return ()
        labels = self.tagger.labels
        if self.attribute == "ents":
            return tuple(sorted({split_label(label)[1] for label in labels} - {""}))
        return labels

    def __call__(self, doc: Doc) -> Doc:
        """Set the annotations of one document."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = BATCH_SIZE) -> Iterator[Doc]:
        """Set the annotations of documents, ``batch_size`` of them at a time."""
        handle_error = self.get_error_handler()
        for docs in minibatch(stream, size=batch_size):
            try:
                self._annotate(docs)
            except Exception as error:
                handle_error(self.name, self, docs, error)
            else:
                yield from docs

    def score(self, examples: Iterable[Example], **_: Any) -> dict[str, Any]:
        """Accuracy of tags, or precision, recall and F1 of entities, for ``nlp.evaluate``."""
        if self.attribute == "ents":
            return get_ner_prf(examples)
        return Scorer.score_token_attr(examples, self.attribute)

    def to_bytes(self, *, exclude: Sequence[str] = ()) -> bytes:
        """The model."""
        return self.tagger.to_bytes()

    def from_bytes(self, bytes_data: bytes, *, exclude: Sequence[str] = ()) -> DiffusionMF:
        """Take the model that `to_bytes` gave."""
        self._use(Tagger.from_bytes(bytes_data, device=self.device))
        return self

    def to_disk(self, path: StrPath, *, exclude: Sequence[str] = ()) -> None:
        """Write a model folder."""
        self.tagger.save(path)

    def from_disk(self, path: StrPath, *, exclude: Sequence[str] = ()) -> DiffusionMF:
        """Read a model folder."""
        self._use(Tagger.load(path, device=self.device))
        return self

    def _use(self, tagger: Tagger) -> None:
        if tagger.task is Task.SEG_POS:
            raise InputError(
                "a model of the task seg-pos finds words, but spaCy's documents have theirs already",
                remedy="tag the text with Tagger.tag_text",
            )
        self._tagger = tagger

    def _annotate(self, docs: Sequence[Doc]) -> None:
        places = [place for index, doc in enumerate(docs) for place in _sentences(index, doc)]
        results = self.tagger.tag(
            [[docs[place.document][token].text for token in place.tokens] for place in places],
            calls=self.calls,
            decoder=self.decoder,
            documents=[place.document for place in places],
        )
        if self.attribute == "ents":
            self._set_entities(docs, places, results)
            return
        for place, result in zip(places, results, strict=True):
            doc = docs[place.document]
            for token, label, score in zip(place.tokens, result.labels, result.scores, strict=True):
                setattr(doc[token], f"{self.attribute}_", label)
                doc[token]._.confidence = score

    def _set_entities(self, docs: Sequence[Doc], places: Sequence[_Place], results: Sequence[TaggedSentence]) -> None:
        found: list[list[Span]] = [[] for _ in docs]
        for (document, tokens), result in zip(places, results, strict=True):
            for start, end, label, confidence in result.spans:
                entity = Span(docs[document], tokens[start], tokens[end - 1] + 1, label=label)
                entity._.confidence = confidence
                found[document].append(entity)
        for doc, entities in zip(docs, found, strict=True):
            doc.set_ents(entities)


def _sentences(document: int, doc: Doc) -> Iterator[_Place]:
    parts = doc.sents if doc.has_annotation("SENT_START") else [doc]
    for part in parts:
        # spaCy makes tokens of blanks, which no model has seen.
        yield _Place(document, [token.i for token in part if not token.is_space])


@Language.factory(
    "diffusion_mf",
    default_config={"model": None, "device": "auto", "calls": None, "decoder": None, "attribute": None},
    assigns=["doc.ents", "token.pos", "token.tag", "token._.confidence", "span._.confidence"],
)
def make_component(
    nlp: Language,
    name: str,
    model: str | None,
    device: str,
    calls: int | None,
    decoder: str | None,
    attribute: str | None,
) -> DiffusionMF:
    """The component that ``nlp.add_pipe("diffusion_mf", config=…)`` adds; ``model`` is a folder or a name, as for `diffusion_mf.load`."""
    return DiffusionMF(name, model=model, device=device, calls=calls, decoder=decoder, attribute=attribute)
