"""The corpora of a run and what they fix: vocabulary, labels, and a fingerprint by which a resumed run knows them again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from diffusion_mf.batches.vocabulary import Vocabulary, describe_unknown_labels
from diffusion_mf.config import Config, EncoderConfig
from diffusion_mf.data.corpus import Corpus, Task, check_labels
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import LabelScheme, complete_labels
from diffusion_mf.data.sentence import Sentence, cut_documents
from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import StoredModel, load_model


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Sentences as the model is to see them; ``dev`` and ``test`` are None where the configuration names none."""

    train: tuple[Sentence, ...]
    dev: tuple[Sentence, ...] | None
    test: tuple[Sentence, ...] | None
    vocabulary: Vocabulary
    scheme: LabelScheme
    fingerprint: str
    """of the sentences and labels that training and selection depend on"""
    start: StoredModel | None = None
    """the model whose weights training begins with"""
    notes: tuple[str, ...] = ()
    """for the user: what was repaired, and labels of dev and test that no model can predict"""


def read_training_data(config: Config, *, has_complete_labels: bool = True) -> TrainingData:
    """Read what ``config.data`` names.

    Of entities, every type has all of its boundary labels, though some may occur in dev or test only; without
    ``has_complete_labels`` the labels are those that occur in training, as in runs of earlier versions. For Seg-POS they always
    are, as in the paper: most tags have no long words.
    """
    settings = config.data
    if settings.train is None:
        raise InputError(
            "the configuration names no training data", remedy="set data.train, as in --set data.train=FILE"
        )
    for split, path in (("train", settings.train), ("dev", settings.dev), ("test", settings.test)):
        _check_variables(split, path)
    train = _read(settings.train, config)
    # Test files are read first of all, too: hours later would be a bad moment to find them missing.
    dev, test = (None if path is None else _read(path, config) for path in (settings.dev, settings.test))
    prepared = _prepared(train, config)
    if config.recall and not any(sentence.document for sentence in prepared):
        raise InputError(
            "no documents are marked, so that there is nothing to recall",
            path=settings.train,
            remedy="mark them (-DOCSTART-, # newdoc or a key), or leave out denoiser.recall",
        )
    vocabulary = Vocabulary.build(
        prepared, min_count=settings.min_count, min_pair_count=_min_pair_count(config.encoder)
    )
    start = None if settings.start is None else load_model(settings.start)
    if start is not None:
        vocabulary = vocabulary.extended(start.vocabulary)
    if config.task is Task.NER and has_complete_labels:
        vocabulary = dataclasses.replace(vocabulary, labels=tuple(complete_labels(vocabulary.labels, train.scheme)))
    notes = [corpus.repaired for corpus in (train, dev, test) if corpus is not None]
    for corpus in (dev, test):
        if corpus is not None:
            owner = f"{settings.train} does not have"
            notes.append(describe_unknown_labels(corpus, vocabulary.labels, owner=owner))
    prepared_dev = None if dev is None else _prepared(dev, config)
    return TrainingData(
        train=prepared,
        dev=prepared_dev,
        test=None if test is None else _prepared(test, config),
        vocabulary=vocabulary,
        scheme=train.scheme,
        fingerprint=_fingerprint(prepared, prepared_dev or (), with_documents=config.recall > 0),
        start=start,
        notes=tuple(note for note in notes if note is not None),
    )


def _min_pair_count(encoder: EncoderConfig) -> int | None:
    # That one does not look at pairs, whatever width a recipe has for them.
    has_pairs = encoder.pair_width > 0 and encoder.kind != "pretrained"
    return encoder.min_pair_count if has_pairs else None


def _check_variables(split: str, path: str | None) -> None:
    """`InputError` at a variable that is not set: in a configuration of ours, the corpora it was made for."""
    variable = re.search(r"\$\{?\w+\}?", path or "")
    if path is not None and variable and not os.path.exists(path):
        own = f"a file of yours with --set data.{split}=FILE"
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


def _prepared(corpus: Corpus, config: Config) -> tuple[Sentence, ...]:
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
