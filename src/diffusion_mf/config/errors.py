"""Read TOML files, and turn validation errors into one sentence: file, line, key, and the nearest valid name."""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pydantic

from diffusion_mf.config.sections import REMOVED
from diffusion_mf.data.files import StrPath, open_input
from diffusion_mf.errors import InputError, quoted

Key = tuple[str, ...]
Place = TypeVar("Place")

MAX_BYTES = 1 << 20
MAX_DEPTH = 32


def read_toml(path: StrPath) -> tuple[dict[str, Any], str]:
    """A TOML file's values, and its text."""
    with open_input(path) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError("the file is too large for a configuration (over 1 MiB)", path=path, remedy="give a TOML file")
    try:
        text = content.decode("utf-8")
        values = tomllib.loads(text)
        _check_depth(values)
        return values, text
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        problem = str(error) if place is None else str(error)[: place.start()]
        line = None if place is None else int(place[1])
        remedy = "correct it"
        if str(path) == "-":
            remedy += ", or save training data to a file first, since resuming reads it again"
        raise InputError(f"not valid TOML ({problem})", path=path, line=line, remedy=remedy) from None
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"
        raise InputError(f"not usable TOML ({problem})", path=path, remedy="correct it") from None


def _check_depth(values: object) -> None:
    """`RecursionError` if values are nested more deeply than any setting."""
    level = [values]
    for _ in range(MAX_DEPTH):
        level = [
            value
            for each in level
            if isinstance(each, dict | list)
            for value in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise RecursionError


def override(key: str, value: Any) -> str:
    """A setting as `parse_override` reads it.

    >>> override("data.label_names", ["O", "B-PER"])
    'data.label_names=["O", "B-PER"]'
    """
    return f"{key}={toml_value(value)}"


def toml_value(value: Any) -> str:
    """A value as TOML writes it; NumPy's numbers are numbers."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    try:
        # Strings, numbers, lists and booleans are the same in JSON and TOML.
        return json.dumps(value, ensure_ascii=False, default=lambda other: other.item())
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{quoted(repr(value))} is no value of a setting", remedy="use a string, a number, a list, true or false"
        ) from None


def parse_override(override: str) -> tuple[Key, Any]:
    """The key and value of ``a.b=value``; the value is parsed as TOML, or else taken as a string.

    >>> parse_override("training.epochs=3"), parse_override("system=lcrf")
    ((('training', 'epochs'), 3), (('system',), 'lcrf'))
    """
    name, equals, text = override.partition("=")
    key = tuple(part.strip() for part in name.split("."))
    if not equals or not all(key) or len(key) > MAX_DEPTH:
        raise InputError(f"{quoted(override)} is not a setting", remedy="write key=value, as in training.epochs=3")
    try:
        values = tomllib.loads(f"value = {text}")
        _check_depth(values)
        return key, values["value"]
    except (ValueError, RecursionError):
        return key, text.strip()


def explained(
    error: pydantic.ValidationError,
    model: type[pydantic.BaseModel],
    *,
    path: StrPath | None = None,
    text: str = "",
    places: Mapping[Key, tuple[StrPath | None, int | None]] | None = None,
) -> InputError:
    """The first problem of ``error`` as a sentence; ``places`` gives file and line of keys that come from several files."""
    first, key, problem = _first_problem(error)
    name = ".".join(key)
    base = path
    if places is None:
        line = None if path is None else line_of(key, text)
    else:
        path, line = _longest(key, places) or (path, None)
    if first["type"] == "extra_forbidden" and name in REMOVED:
        return InputError(f"{name} was removed: {REMOVED[name].note}", path=path, line=line, remedy="delete it")
    if first["type"] == "extra_forbidden":
        nearest = _nearest(key, model)
        siblings = [".".join(known) for known in _fields(model) if known[:-1] == key[:-1]]
        remedy = f"the nearest name is {nearest}" if nearest else f"the valid names are {', '.join(siblings)}"
        return InputError(f"unknown key {name}", path=path, line=line, remedy=remedy)
    if first["type"] == "missing":
        return InputError(
            f"the key {name} is missing",
            path=base,
            remedy=f"add it{'' if places is None else f', or use --set {name}=VALUE'}",
        )
    if first["type"] == "model_type":
        return InputError(
            f"{name} must be a section, found {quoted(first['input'])}", path=path, line=line, remedy=f"write [{name}]"
        )
    found = first["input"]
    shown = "" if isinstance(found, dict) else f", found {quoted(found)}"
    choices = re.findall(r"'([^']+)'", problem) or re.findall(r"[\w-]+", problem.partition("one of ")[2])
    close = difflib.get_close_matches(found[:100], choices, n=1) if isinstance(found, str) else []
    remedy = f"the nearest is {close[0]}" if close else "correct it"
    if key[:1] in (("system",), ("systems",)):
        remedy += ", or add --plugin MODULE for one of your own"
    return InputError(f"{name} {problem}{shown}".strip(), path=path, line=line, remedy=remedy)


def _first_problem(error: pydantic.ValidationError) -> tuple[Any, Key, str]:
    """The first problem, its key and a message; if a value may have several types, the type that matched furthest."""
    problems = error.errors(include_url=False)
    first = problems[0]
    if any(_is_alternative(part) for part in first["loc"]):
        rivals = [each for each in problems if each["loc"][:1] == first["loc"][:1]]
        first = max(rivals, key=lambda each: len(each["loc"]))
    *above, last = first["loc"] or ("",)
    messages = [first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")]
    if _is_alternative(last):
        others = [each["msg"] for each in problems if [*each["loc"][:-1]] == above and each is not first]
        messages += [message.removeprefix("Input should be ") for message in others]
    is_key = first["type"] == "extra_forbidden"  # whatever it looks like
    parts = (*above, last)
    key = tuple(str(part) for part in parts if (is_key and part is last) or not _is_alternative(part))
    return first, key, " or ".join(messages)


def _is_alternative(part: int | str) -> bool:
    """Whether a part of a location is pydantic's name for a type, such as ``dict[str,Entry]``, and not a key."""
    return isinstance(part, str) and ("[" in part or part in ("str", "constrained-int"))


def _fields(model: type[pydantic.BaseModel], prefix: Key = ()) -> Iterator[Key]:
    """Every key of ``model``, sections included."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, pydantic.BaseModel):
            yield from _fields(field.annotation, (*prefix, name))


def _nearest(key: Key, model: type[pydantic.BaseModel]) -> str | None:
    """The most similar key: in the same section if there is one, otherwise the same name in another section."""
    known = list(_fields(model))
    same = {field[-1]: field for field in known if field[:-1] == key[:-1]}
    close = difflib.get_close_matches(key[-1], same, n=1)
    if close:
        return ".".join(same[close[0]])
    elsewhere = {field[-1]: field for field in known}
    close = difflib.get_close_matches(key[-1], elsewhere, n=1, cutoff=0.8)
    return ".".join(elsewhere[close[0]]) if close else None


def line_of(key: Key, text: str) -> int | None:
    """The line of TOML that sets ``key``, or the list, inline table or section that it is part of.

    >>> line_of(("seeds", "1"), "seeds = [1, -2]"), line_of(("stages", "0", "space", "a"), "[[stages]]\\n[stages.space]\\na = 1")
    (1, 3)
    """
    return _longest(key, _lines(text))


def _longest(key: Key, places: Mapping[Key, Place]) -> Place | None:
    """The entry of ``places`` for ``key`` or, without one, for the longest part of it that has an entry."""
    return next((places[key[:end]] for end in range(len(key), 0, -1) if key[:end] in places), None)


@functools.lru_cache(maxsize=64)
def _lines(text: str) -> dict[Key, int]:
    """The line of every key of TOML, sections included."""
    lines: dict[Key, int] = {}
    section: Key = ()
    numbers: dict[Key, int] = {}  # of the tables so far, by the name of an array of tables
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([\w.\-*?\"' ]+?)\s*\]", line)
        setting = re.match(r"\s*([\w.\-*?\"']+)\s*=", line)
        if header:
            section = ()
            parts = _parts(header[2])
            for place, part in enumerate(parts):
                section = (*section, part)
                if header[1] == "[[" and place == len(parts) - 1:
                    numbers[section] = numbers.get(section, -1) + 1
                if section in numbers:
                    section = (*section, str(numbers[section]))
            lines.setdefault(section, number)
        elif setting:
            parts = _parts(setting[1])
            for end in range(1, len(parts) + 1):
                lines.setdefault((*section, *parts[:end]), number)
    return lines


def _parts(name: str) -> Key:
    return tuple(part.strip(" \"'") for part in name.split("."))
