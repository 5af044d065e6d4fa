"""The corpora of a run and what they determine: vocabulary, labels, and a fingerprint by which a resumed run recognises them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diffusion_mf.batches.vocabulary import Vocabulary, describe_unknown_labels
from diffusion_mf.config import Config, EncoderConfig
from diffusion_mf.data.columns import ColumnLayout
from diffusion_mf.data.corpus import Corpus, Task, check_labels
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import LabelScheme, complete_labels, extract_spans, split_label
from diffusion_mf.data.sentence import Sentence, cut_documents, grouped
from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import StoredModel, load_model


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Sentences as the model sees them; ``dev`` and ``test`` are None if the configuration names none."""

    train: tuple[Sentence, ...]
    dev: tuple[Sentence, ...] | None
    test: tuple[Sentence, ...] | None
    vocabulary: Vocabulary
    scheme: LabelScheme
    source_scheme: LabelScheme
    """of the training file, in which users will read labels"""
    fingerprint: str
    """of the sentences and labels that training and selection depend on"""
    source_columns: tuple[int, int] | None = None
    """of form and tag in the training file, from 1, if it is a column file with others, too"""
    start: StoredModel | None = None
    """the model whose weights training starts from"""
    notes: tuple[str, ...] = ()
    """for the user: repairs, and labels of dev and test that no model can predict"""


class Corpora(NamedTuple):
    """The files of a run as read, with the dev sentences held out."""

    train: Corpus
    dev: Corpus | None
    test: Corpus | None


def read_corpora(config: Config) -> Corpora:
    """Read the files named in ``config.data``."""
    settings = config.data
    if settings.train is None:
        raise InputError(
            "the configuration names no training data", remedy="set data.train, as in --set data.train=FILE"
        )
    for split, path in (("train", settings.train), ("dev", settings.dev), ("test", settings.test)):
        if path == "-":
            raise InputError(
                f"data.{split} cannot be standard input, since resuming reads it again",
                remedy="save it to a file first",
            )
        _check_variables(split, path)
    train = _read(settings.train, config)
    # Test files are read at the start, too, so that a missing one is not found only after hours of training.
    dev, test = (None if path is None else _read(path, config) for path in (settings.dev, settings.test))
    if dev is None and settings.held_out:
        train, dev = hold_out(train, settings.held_out, seed=config.seed)
    return Corpora(train, dev, test)


def read_training_data(config: Config, *, corpora: Corpora | None = None) -> TrainingData:
    """Read the files named in ``config.data``, unless ``corpora`` has them already, and prepare them for training.

    For entities, every type gets all of its boundary labels, even if some occur only in dev or test. For Seg-POS, the labels are
    those that occur in training, as in the paper: most tags have no long words.
    """
    settings = config.data
    train, dev, test = corpora or read_corpora(config)
    prepared = prepared_sentences(train, config)
    lacks_documents = config.recall > 0 and not any(sentence.document for sentence in prepared)
    if lacks_documents and settings.start is None:
        raise InputError(
            "no documents are marked, so recall has no effect",
            path=settings.train,
            remedy="mark them (-DOCSTART-, # newdoc or a key), or leave out denoiser.recall and encoder.recall",
        )
    vocabulary = Vocabulary.build(
        prepared, min_count=settings.min_count, min_pair_count=_min_pair_count(config.encoder)
    )
    start = None if settings.start is None else load_model(settings.start)
    if start is not None:
        vocabulary = vocabulary.extended(start.vocabulary)
    if config.task is Task.NER:
        vocabulary = dataclasses.replace(vocabulary, labels=tuple(complete_labels(vocabulary.labels, train.scheme)))
    by_path = {corpus.path: corpus for corpus in (train, dev, test) if corpus is not None}
    notes = [corpus.repaired for corpus in by_path.values()]
    if lacks_documents:
        notes.append(f"{settings.train} marks no documents, so there is nothing to recall in training")
    for corpus in (dev, test):
        if corpus is not None:
            owner = f"{settings.train} does not have"
            notes.append(describe_unknown_labels(corpus, vocabulary.labels, owner=owner))
    prepared_dev = None if dev is None else prepared_sentences(dev, config)
    return TrainingData(
        train=prepared,
        dev=prepared_dev,
        test=None if test is None else prepared_sentences(test, config),
        vocabulary=vocabulary,
        scheme=train.scheme,
        # A file with only O has none.
        source_scheme=train.scheme if train.source_scheme is LabelScheme.PLAIN else train.source_scheme,
        source_columns=_source_columns(train.layout),
        fingerprint=_fingerprint(prepared, prepared_dev or (), with_documents=config.recall > 0),
        start=start,
        notes=tuple(note for note in notes if note is not None),
    )


def _source_columns(layout: ColumnLayout | None) -> tuple[int, int] | None:
    """`TrainingData.source_columns`."""
    if layout is None or layout.tag_column is None or layout.num_columns < 3:
        return None
    return layout.form_column + 1, layout.tag_column + 1


def hold_out(corpus: Corpus, number: int, *, seed: int) -> tuple[Corpus, Corpus]:
    """Split a corpus into training and dev sentences: about ``number`` for dev, drawn by ``seed``, both in the original order.

    If documents are marked, whole documents are held out, except those of more than twice ``number`` sentences that are also more
    than a fifth of the corpus. Otherwise, or if no document can be held out, sentences with the same words stay together; they are
    divided only if nothing could be held out without. Every label stays in training, or, where nothing could be held out otherwise,
    every type of entity: a model knows all boundaries of a type (`complete_labels`). `InputError` if nothing can be held out.
    """
    longest = max(2 * number, len(corpus) // 5)
    marks = [sentence.document for sentence in corpus]
    documents = [group for group in grouped(marks) if len(group) <= longest] if any(marks) else []
    repeats: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, sentence in enumerate(corpus):
        repeats[sentence.units].append(index)
    alone = [[index] for index in range(len(corpus))]
    kinds: list[Callable[[str], str]] = [str]
    if corpus.task is Task.NER:
        kinds.append(lambda label: split_label(label)[1])
    for groups, kind in itertools.product((documents, list(repeats.values()), alone), kinds):
        chosen = _drawn(corpus, groups, number, seed, kind, is_close=groups is not documents)
        if chosen:
            break
    else:
        raise InputError(
            f"no sentences can be held out as dev: each of the {len(corpus):,} has a label that no other has",
            path=corpus.path,
            remedy="give dev data with --dev (data.dev), or train without: --set data.held_out=0",
        )
    parts: tuple[list[Sentence], list[Sentence]] = ([], [])
    for index, sentence in enumerate(corpus):
        parts[index in chosen].append(sentence)
    train, dev = (dataclasses.replace(corpus, sentences=tuple(part)) for part in parts)
    return train, dev


def _drawn(
    corpus: Corpus, groups: list[list[int]], number: int, seed: int, kind: Callable[[str], str], *, is_close: bool
) -> set[int]:
    """Sentences of ``groups`` in an order determined by the seed, up to ``number``; every ``kind`` of label stays among the others.

    With ``is_close``, a group that would lead further away from ``number`` is passed over.
    """
    left = Counter(kind(label) for sentence in corpus for label in sentence.labels or ())
    chosen: set[int] = set()
    # A digest, because it is the same in every version of Python.
    for group in sorted(groups, key=lambda group: hashlib.sha256(f"{seed} {group[0]}".encode()).digest()):
        missing = number - len(chosen)
        if missing <= 0:
            break
        if is_close and len(group) >= 2 * missing:
            continue
        kinds = Counter(kind(label) for index in group for label in corpus.sentences[index].labels or ())
        if all(left[each] > count for each, count in kinds.items()):
            chosen.update(group)
            left -= kinds
    return chosen


SMALLEST_DEV = 500
"""units, or spans if these are scored: with fewer, scores are uncertain by more than two points"""
LARGEST_OVERLAP = 0.1
"""share of dev or test sentences; short ones (“Thank you .”) occur in any two files"""
_REMOVE = "remove them from one of the two"


def data_warnings(data: TrainingData, config: Config) -> Iterator[str]:
    """Warnings about data that make scores unreliable."""
    if data.dev:
        yield from _size_warnings(data, config.task)
        remedy = _REMOVE
        if config.data.dev is None:
            remedy = "the training file repeats sentences: leave out the repeats, or give other dev data with --dev"
        yield from _overlap_warnings("dev", data.dev, "training", data.train, remedy=remedy)
    if data.test:
        yield from _overlap_warnings("test", data.test, "training", data.train)
        yield from _overlap_warnings("test", data.test, "dev", data.dev or ())


def num_scored(data: TrainingData, task: Task) -> int:
    """How many labels or spans of the dev data are scored."""
    gold = (sentence.labels or () for sentence in data.dev or ())
    return sum(len(labels) if task is Task.POS else len(extract_spans(labels, data.scheme)) for labels in gold)


def _size_warnings(data: TrainingData, task: Task) -> Iterator[str]:
    one, many = {Task.POS: ("label", "labels"), Task.NER: ("entity", "entities"), Task.SEG_POS: ("word", "words")}[task]
    number = num_scored(data, task)
    if number < SMALLEST_DEV:
        # Two standard errors of a share of 90 %.
        points = 100 * 2 * math.sqrt(0.9 * 0.1 / max(number, 1))
        yield (
            f"dev has only {number:,} {many if number > 1 else one} to choose the best epoch by: a score of 90 is uncertain "
            f"by ±{points:.1f} points; more dev data would help"
            if number
            else f"dev has no {many}, so every model scores 0 on it; give other dev data with --dev"
        )


def _overlap_warnings(
    name: str, sentences: Sequence[Sentence], other: str, others: Iterable[Sentence], *, remedy: str = _REMOVE
) -> Iterator[str]:
    known = {sentence.units for sentence in others}
    num_known, total = sum(sentence.units in known for sentence in sentences), len(sentences)
    if num_known > LARGEST_OVERLAP * total:
        yield (
            f"{100 * num_known / total:.0f} % of the {name} sentences ({num_known:,} of {total:,}) are also in the {other} data: "
            f"their scores say little about new text; {remedy}"
        )


def _min_pair_count(encoder: EncoderConfig) -> int | None:
    # A pretrained encoder uses no pairs, whatever width a recipe sets for it.
    has_pairs = (encoder.pair_width > 0 or encoder.features) and encoder.kind != "pretrained"
    return encoder.min_pair_count if has_pairs else None


def _check_variables(split: str, path: str | None) -> None:
    """`InputError` for an unset variable: in our configurations, these name the corpora they were made for."""
    variable = re.search(r"\$\{?\w+\}?", path or "")
    if path is not None and variable and not os.path.exists(path):
        own = f"your own file with --set data.{split}=FILE"
        raise InputError(
            f"data.{split} names {path}, but {variable[0]} is not set",
            remedy=f"set it, or name {own if split == 'train' else f'none with --set data.{split}= or {own}'}",
        )


def _read(path: str, config: Config) -> Corpus:
    settings = config.data
    corpus = read_task(
        path,
        config.task,
        column=settings.column,
        scheme=settings.scheme,
        file_format=settings.format,
        fields=settings.fields,
        strict=settings.strict,
    )
    check_labels(corpus)
    return corpus


def prepared_sentences(corpus: Corpus, config: Config) -> tuple[Sentence, ...]:
    """The sentences of a corpus as the model sees them."""
    prepared = (config.data.prepare(sentence) for sentence in corpus)
    return tuple(cut_documents(prepared) if config.recall else prepared)


def _fingerprint(*corpora: Iterable[Sentence], with_documents: bool) -> str:
    digest = hashlib.sha256()
    for sentences in corpora:
        for sentence in sentences:
            row = [sentence.units, sentence.labels, *([sentence.document] if with_documents else [])]
            digest.update(json.dumps(row).encode())
        digest.update(b"\n")
    return digest.hexdigest()
