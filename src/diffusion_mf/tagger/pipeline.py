"""A tagger with the interface of a token-classification pipeline of transformers: text in, dictionaries out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.raw_text import Offsets, characters_of, joined_offsets, tokenize
from diffusion_mf.errors import InputError
from diffusion_mf.tagger.results import TaggedSentence
from diffusion_mf.tagger.tagger import Tagger

Entity = dict[str, Any]
AggregationStrategy = Literal["none", "simple", "first", "average", "max"]


class TokenClassificationPipeline:
    """``pipeline("John lives in Paris")`` gives ``[{"entity_group": "PER", "score": …, "word": "John", …}, …]``.

    A text gives a list of entities, a list of texts a list of lists. A text is one sentence, whose words are found as by
    `Tagger.tag_text` (for segmentation, characters); a sentence may also be given as a list of its words. ``start`` and ``end``
    count characters of the text, or of the words joined by spaces.

    | aggregation_strategy | an entity is |
    |---|---|
    | none | a unit: ``entity``, ``score``, ``index`` (from 1), ``word``, ``start``, ``end`` |
    | simple | a span, or a unit where labels have no boundaries: ``entity_group``, ``score``, ``word``, ``start``, ``end`` |
    | first, average, max | the same: in transformers they combine the labels of subwords, but here whole words are labelled |
    """

    task = "token-classification"

    def __init__(
        self,
        tagger: Tagger,
        *,
        aggregation_strategy: AggregationStrategy = "none",
        ignore_labels: Sequence[str] = ("O",),
    ) -> None:
        if aggregation_strategy not in get_args(AggregationStrategy):
            raise InputError(
                f"no aggregation strategy is called {aggregation_strategy!r}",
                remedy=f"choose {', '.join(get_args(AggregationStrategy))}",
            )
        self.tagger = tagger
        self.aggregation_strategy = aggregation_strategy
        self.ignore_labels = frozenset(ignore_labels)

    @classmethod
    def from_pretrained(
        cls,
        name: StrPath,
        *,
        device: str = "auto",
        plugins: Sequence[str] = (),
        aggregation_strategy: AggregationStrategy = "none",
    ) -> TokenClassificationPipeline:
        """Load the pipeline from a model folder or from the hub; ``plugins`` as for `Tagger.load`."""
        tagger = Tagger.from_pretrained(name, device=device, plugins=plugins)
        return cls(tagger, aggregation_strategy=aggregation_strategy)

    @overload
    def __call__(self, inputs: str) -> list[Entity]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, inputs: Sequence[str] | Sequence[Sequence[str]]) -> list[list[Entity]]: ...

    def __call__(self, inputs: str | Sequence[str] | Sequence[Sequence[str]]) -> list[Entity] | list[list[Entity]]:
        """The entities of a text, or of every text or sentence of a list."""
        sentences = [inputs] if isinstance(inputs, str) else list(inputs)
        texts = [sentence if isinstance(sentence, str) else " ".join(sentence) for sentence in sentences]
        offsets = [
            self._find_units(sentence) if isinstance(sentence, str) else joined_offsets(sentence)
            for sentence in sentences
        ]
        units = [[text[start:end] for start, end in places] for text, places in zip(texts, offsets, strict=True)]
        found = [
            self._entities(result, text, places)
            for result, text, places in zip(self.tagger.tag(units), texts, offsets, strict=True)
        ]
        return found[0] if isinstance(inputs, str) else found

    def _find_units(self, text: str) -> list[Offsets]:
        if self.tagger.task is Task.SEG_POS:
            return characters_of(text)
        return tokenize(text, language=self.tagger.model.config.data.language)

    def _entities(self, result: TaggedSentence, text: str, places: list[Offsets]) -> list[Entity]:
        has_groups = self.aggregation_strategy != "none"
        if has_groups and self.tagger.scheme is not LabelScheme.PLAIN:
            return [
                _entity("entity_group", label, confidence, text, places[start][0], places[end - 1][1])
                for start, end, label, confidence in result.spans
                if label not in self.ignore_labels
            ]
        name = "entity_group" if has_groups else "entity"
        entities = []
        for index, (label, score, (start, end)) in enumerate(zip(result.labels, result.scores, places, strict=True), 1):
            if label not in self.ignore_labels:
                entity = _entity(name, label, score, text, start, end)
                entities.append(entity if name == "entity_group" else {**entity, "index": index})
        return entities


def _entity(name: str, label: str, score: float, text: str, start: int, end: int) -> Entity:
    return {name: label, "score": float(score), "word": text[start:end], "start": start, "end": end}
