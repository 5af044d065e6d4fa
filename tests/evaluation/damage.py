"""Random sentences and random damage, for comparing scores with oracles."""

from __future__ import annotations

import random

from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, encode_spans


def random_spans(generator: random.Random, length: int, types: list[str], *, has_gaps: bool) -> list[LabelledSpan]:
    """Disjoint spans of up to four units; without gaps they cover the sentence."""
    spans, position = [], 0
    while position < length:
        end = min(length, position + generator.randint(1, 4))
        if not has_gaps or generator.random() < 0.5:
            spans.append(LabelledSpan(position, end, generator.choice(types)))
        position = end
    return spans


def random_corpus(seed: int, *, has_gaps: bool, num_sentences: int = 30) -> list[list[str]]:
    """Legal BMES sequences."""
    generator = random.Random(seed)
    lengths = [generator.randint(1, 25) for _ in range(num_sentences)]
    types = ["NN", "VV", "P-U"]
    return [
        encode_spans(random_spans(generator, length, types, has_gaps=has_gaps), length, LabelScheme.BMES)
        for length in lengths
    ]


def damaged(corpus: list[list[str]], seed: int, *, rate: float, extra: tuple[str, ...] = ()) -> list[list[str]]:
    """The corpus with labels replaced, each with probability ``rate``, by random ones of it or of ``extra``."""
    generator = random.Random(seed)
    labels = sorted({label for sentence in corpus for label in sentence}) + list(extra)
    return [
        [generator.choice(labels) if generator.random() < rate else label for label in sentence] for sentence in corpus
    ]
