"""Hugging Face datasets for token classification: JSON Lines with tokens, and tags as names or numbers."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple, NoReturn

from diffusion_mf.data.annotations import read_json_values
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import FieldChoice, SentenceLimits, StrPath, is_encodable
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError, quoted


class TokenRow(NamedTuple):
    """A row of a Hugging Face dataset for token classification, the key of its tags, and its sentence."""

    row: dict[str, Any]
    key: str | None
    sentence: Sentence


_NAME_KEYS = ("names", "label_names", "labels")
_SURE_NAME_KEYS = ("names", "label_names", "features")
_TAG_KEYS = {
    Task.NER: ("ner_tags", "ner", "tags", "labels"),
    Task.POS: ("pos_tags", "upos", "pos", "xpos", "tags", "labels"),
    Task.SEG_POS: ("tags", "labels"),
}


def read_token_rows(
    path: StrPath,
    fields: FieldChoice,
    *,
    task: Task | None = None,
    repairs: Repairs | None = None,
    needs_tags: bool = True,
) -> Iterator[TokenRow]:
    """Stream the rows of a Hugging Face dataset: tokens, and tags as names or numbers.

    The names of numbered tags come from ``fields``, from an object without tokens in the file (``label_names`` or ``features``),
    or from a ``dataset_info.json`` in the same folder. Of several keys with tags, the one given or the one that fits ``task`` is
    used, the same in all rows. Without ``needs_tags`` only their key is read, not what they are, and rows without tokens are kept.
    """
    limits = SentenceLimits.from_environment()
    names = fields.label_names
    known: str | None = None
    for line, row in read_json_values(path):

        def fail(problem: str, remedy: str, line: int = line) -> NoReturn:
            raise InputError(problem, path=path, line=line, remedy=remedy)

        if not isinstance(row, dict):
            fail("not a JSON object", 'write {"tokens": ["a"], "ner_tags": ["O"]}')
        tokens = row.get(fields.form_column or "tokens", row.get("words"))
        lists = _lists_of_words(row)
        # Beside words, "labels" are tags.
        may_be_names = tokens is None and (not lists or not row.keys().isdisjoint(_SURE_NAME_KEYS))
        if may_be_names and (found := _label_names(row, fields.tag_column)) is not None:
            names = names or found
            continue
        if not isinstance(tokens, list) or not all(isinstance(unit, str) for unit in tokens):
            fail(
                f'no list of words under the key "{fields.form_column or "tokens"}"',
                "choose another format with --format, or the key with --form-column"
                + (f", such as --form-column {shlex.quote(lists[0])}" if lists else ""),
            )
        if not tokens and needs_tags:
            continue
        key = _tag_key(row, tokens, fields.tag_column, known, task, fail)
        known = known or key
        tags = None if key is None or not needs_tags else row[key]
        if tags is not None and all(isinstance(tag, int) and not isinstance(tag, bool) for tag in tags):
            names = names or _names_beside(path, key)
            if names is None:
                fail(
                    f'"{key}" contains numbers whose label names are unknown',
                    "list the labels in order with --label-names (data.label_names), or put dataset_info.json into the file's folder",
                )
            if not all(0 <= tag < len(names) for tag in tags):
                fail(f'"{key}" contains numbers outside the {len(names)} label names', "check the names")
            tags = [names[tag] for tag in tags]
        if tags is not None and not all(isinstance(tag, str) and tag for tag in tags):
            fail(f'"{key}" is neither a list of names nor a list of numbers', "choose another key with --tag-column")
        if repairs is None and not all(tokens):
            fail("an empty word", "remove it or give it a form")
        units = tuple(unit if unit or repairs is None else repairs.add_form(line) for unit in tokens)
        if not all(is_encodable(text) for text in (*units, *(tags or ()))):
            fail("an unpaired surrogate", "write the characters unescaped")
        sentence = Sentence(units, None if tags is None else tuple(tags), line)
        limits.check_units(sentence, path)
        yield TokenRow(row, key, sentence)


def tasks_of_row(row: Mapping[str, Any]) -> list[Task]:
    """The tasks for which a row has tags, judging by its keys; a dataset may have both entities and parts of speech."""
    return [task for task in (Task.NER, Task.POS) if any(key in row for key in _TAG_KEYS[task][:-2])]


def dataset_sentences(dataset: Any, *, task: Task | None = None, name: str = "the dataset") -> Iterator[Sentence]:
    """The sentences of a ``datasets.Dataset``: tokens, and tags with their names from its features; errors call it ``name``."""
    tasks = tasks_of_row(dataset.features)
    if task is None and len(tasks) > 1:
        raise InputError("the dataset has tags for both entities and parts of speech", remedy="choose task ner or pos")
    known: str | None = None
    for number, row in enumerate(dataset, 1):

        def fail(problem: str, remedy: str, number: int = number) -> NoReturn:
            raise InputError(f"row {number} of {name}: {problem}", remedy=remedy)

        tokens = row.get("tokens", row.get("words"))
        if not isinstance(tokens, list):
            fail('no list of words under the key "tokens"', "rename the column of words")
        if not tokens:
            continue
        key = known = _tag_key(row, tokens, None, known, task or (tasks[0] if tasks else None), fail)
        if key is None:
            fail("the tags are missing or do not match the tokens", "choose a labelled dataset")
        tags = row[key]
        if any(isinstance(tag, int) for tag in tags):
            feature = dataset.features[key]
            names = getattr(getattr(feature, "feature", feature), "names", None)
            if names is None:
                fail(f'"{key}" contains numbers without names', "cast the column to a sequence of ClassLabel")
            if all(tag == -1 for tag in tags):
                # The library's own mark for what has no label, as in test splits of competitions.
                fail(f'the "{key}" are all -1, which stands for no label', "leave out rows and splits without labels")
            wrong = [tag for tag in tags if not isinstance(tag, int) or not 0 <= tag < len(names)]
            if wrong:
                remedy = "label every token"
                if wrong[0] == -100:
                    remedy = (
                        "give the dataset as it was before it was prepared for a model, with words and not subwords"
                    )
                fail(f'"{key}" contains {wrong[0]}, but its labels have the numbers 0 to {len(names) - 1}', remedy)
            tags = [names[tag] for tag in tags]
        if wrong := [tag for tag in tags if not isinstance(tag, str) or not tag]:
            fail(f'"{key}" contains {quoted(wrong[0])}, which is no label', "label every token")
        yield Sentence(tuple(tokens), tuple(tags))


def _tag_key(
    row: dict[str, Any],
    tokens: list[str],
    given: str | None,
    known: str | None,
    task: Task | None,
    fail: Callable[[str, str], NoReturn],
) -> str | None:
    """The key of the tags of a row: the one ``given``, that of earlier rows, a usual one, or the only list as long as the tokens."""
    others = ((key, value) for key, value in row.items() if isinstance(value, list) and value is not tokens)
    lists = {key: value for key, value in others if value or not tokens}
    if given is not None and given not in lists:
        fail(f'no tags under the key "{given}"', "choose another key with --tag-column")
    usual = next((key for key in _TAG_KEYS[task or Task.NER] if key in lists), None)
    if task is None and given is None and len(tasks_of_row(lists)) > 1:
        other = next(key for key in _TAG_KEYS[Task.POS] if key in lists)
        problem = f"tags for both entities and parts of speech ({usual}, {other})"
        fail(problem, "choose one with --tag-column (data.tag_column)")
    key = given or known or usual
    if key is not None:
        if key in lists and len(lists[key]) != len(tokens):
            fail(
                f'{len(tokens)} tokens but {len(lists[key])} tags under the key "{key}"',
                "give every token one tag, or choose another key with --tag-column",
            )
        return key if key in lists else None
    found = [key for key, value in lists.items() if value and len(value) == len(tokens)]
    if len(found) > 1:
        fail(f"several keys may hold the tags ({', '.join(found)})", "choose one with --tag-column (data.tag_column)")
    return found[0] if found else None


def _label_names(row: dict[str, Any], key: str | None) -> tuple[str, ...] | None:
    """The names in an object such as ``{"label_names": […]}`` or in a description of features; None if it has none."""
    for name in _NAME_KEYS:
        value = row.get(name)
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return tuple(value)
    features = row.get("features", row)
    if not isinstance(features, dict):
        return None
    keys = [key] if key is not None else [each for keys in _TAG_KEYS.values() for each in keys]
    for each in keys:
        feature = features.get(each)
        while isinstance(feature, dict):
            if "names" in feature:
                return _label_names({"names": feature["names"]}, None)
            feature = feature.get("feature")
        if isinstance(feature, list) and feature and isinstance(feature[0], dict):
            return _label_names({"names": feature[0].get("names")}, None)
    return None


def _lists_of_words(row: Mapping[str, Any]) -> list[str]:
    """The keys of lists of strings that are neither tags nor names of labels."""
    others = {*itertools.chain(_NAME_KEYS, *_TAG_KEYS.values())}
    return [
        key
        for key, value in row.items()
        if key not in others and isinstance(value, list) and value and all(isinstance(each, str) for each in value)
    ]


def _names_beside(path: StrPath, key: str | None) -> tuple[str, ...] | None:
    beside = os.path.join(os.path.dirname(os.fspath(path)), "dataset_info.json")
    if path == "-" or not os.path.isfile(beside):
        return None
    return next((_label_names(value, key) for _, value in read_json_values(beside) if isinstance(value, dict)), None)


def write_token_rows(sentences: Iterable[Sentence], stream: IO[bytes], *, key: str = "ner_tags") -> None:
    """Write one object per sentence with tokens and, under ``key``, the names of their tags."""
    for sentence in sentences:
        row: dict[str, tuple[str, ...]] = {"tokens": sentence.units}
        if sentence.labels is not None:
            row[key] = sentence.labels
        stream.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode())
