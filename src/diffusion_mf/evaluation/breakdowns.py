"""The same metrics for parts of a file: known and unknown forms, short and long sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from diffusion_mf.data.label_schemes import Span
from diffusion_mf.evaluation.reconstruction import Reconstruction

# Upper ends of the sentence-length bins, inclusive; longer sentences share the last bin.
LENGTH_BINS = (10, 20, 30, 40, 60)


@dataclasses.dataclass(frozen=True)
class BreakdownRow:
    """One part of a file: its name, how many sentences or forms it holds, and the task's metrics there."""

    name: str
    size: int
    metrics: Mapping[str, float]


def length_bin_names(upper_ends: Sequence[int]) -> list[str]:
    """The names of the bins that ``upper_ends`` part.

    >>> length_bin_names([10, 20])
    ['1-10', '11-20', '21+']
    """
    first = [1, *(end + 1 for end in upper_ends)]
    return [*(f"{low}-{high}" for low, high in zip(first, upper_ends, strict=False)), f"{first[-1]}+"]


def split_by_unit(sentence: Reconstruction, vocabulary: Collection[str]) -> Iterator[tuple[bool, int, Reconstruction]]:
    """The known and the unknown part of a sentence, as (is known, units in it, part), units being forms of the corpus.

    A span is known if all of its units are. A right span has the units of its gold span, so both fall in the same part, and
    precision, recall and F1 of a part are sound.
    """
    is_known = [unit in vocabulary for unit in sentence.units]

    def is_known_span(span: Span) -> bool:
        return all(is_known[span.start : span.end])

    for wanted in (True, False):
        chosen = [index for index, known in enumerate(is_known) if known is wanted]
        yield (
            wanted,
            len(chosen),
            Reconstruction(
                [sentence.units[index] for index in chosen],
                [sentence.gold[index] for index in chosen],
                [sentence.predicted[index] for index in chosen],
                [span for span in sentence.gold_spans if is_known_span(span) is wanted],
                [span for span in sentence.predicted_spans if is_known_span(span) is wanted],
            ),
        )


def split_by_word(sentence: Reconstruction, vocabulary: Collection[str]) -> Iterator[tuple[bool, int, Reconstruction]]:
    """The same for characters that spell words: the forms are words, of which each part holds its own.

    Labels are compared over the characters of the gold words of the part.
    """

    def is_known_word(span: Span) -> bool:
        return "".join(sentence.units[span.start : span.end]) in vocabulary

    for wanted in (True, False):
        words = [index for index, span in enumerate(sentence.gold_spans) if is_known_word(span) is wanted]
        gold_spans = [sentence.gold_spans[index] for index in words]
        chosen = [unit for span in gold_spans for unit in range(span.start, span.end)]
        yield (
            wanted,
            len(words),
            Reconstruction(
                [sentence.units[index] for index in chosen],
                [sentence.gold[index] for index in chosen],
                [sentence.predicted[index] for index in chosen],
                gold_spans,
                [span for span in sentence.predicted_spans if is_known_word(span) is wanted],
                [span for span in sentence.segments if is_known_word(span) is wanted],
                [sentence.votes[index] for index in words],
            ),
        )
