"""Read configuration files into settings: names, ``extends``, and tables for particular tasks, systems or encoders.

Settings are applied in layers, and later layers win: the base files in the order given, the file itself, its tables for the
current task and system (tables for one of them before tables for both), then overrides. See docs/training.md.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from diffusion_mf.config.errors import Key, line_of, parse_override, read_toml
from diffusion_mf.config.sections import AUTO, SIZES, preset
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError
from diffusion_mf.plugins import import_named, import_plugins, installed_names
from diffusion_mf.systems import SYSTEMS

_TABLES = {"encoders": "encoder", "tasks": "task", "systems": "system"}
"""sections that hold settings for some runs only, in the order in which they are applied"""
_NOT_FOR_TRAINING = ("base", "plans")
"""folders whose files are not configurations of runs: base files and plans"""


class SettingSource(NamedTuple):
    """Where a setting was made: in a line of a file or, without a file, by what ``option`` names."""

    path: str | None
    line: int | None = None
    option: Literal["name", "--set", "--minutes", "recipe", "corpus", "--from"] | None = None

    def __str__(self) -> str:
        if self.option is not None:
            return {"name": "the configuration's name", "recipe": "the recipe", "corpus": "the corpus"}.get(
                self.option, self.option
            )
        return f"{self.path}" if self.line is None else f"{self.path}:{self.line}"


class Settings(NamedTuple):
    """The settings of a configuration, not yet validated, and the source of each."""

    path: str
    values: dict[str, Any]
    sources: dict[Key, SettingSource]


class _Found(NamedTuple):
    """A configuration file, and the task, system or encoder that the name selects among the file's tables."""

    path: Path
    chosen: Mapping[str, str]


class _File(NamedTuple):
    path: str
    text: str
    values: dict[str, Any]
    chosen: Mapping[str, str]


def package_folder() -> Path:
    """The folder of the configurations that come with the package: inside the installed package, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    folders = [root / "configs" for root in (package, package.parent.parent)]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def locate_config(name: StrPath, folder: StrPath = "") -> Path | None:
    """The path of the configuration ``name``: relative to ``folder``, or else in the folder of the package.

    A name may end in an encoder, a task and a system: ``ours/ner/lcrf`` is found in ``ours.toml``. Where there is no folder
    ``configs``, paths as in the checkout also name the configurations of the package.
    """
    candidates = (Path(folder, name), package_folder() / _package_name(name))
    return next((path for path in candidates if _found(path) is not None), None)


def _find(name: StrPath, folder: StrPath = "") -> _Found | None:
    path = locate_config(name, folder)
    return None if path is None else _found(path)


def _package_name(name: StrPath) -> str:
    return Path(name).as_posix().removeprefix("configs/").removesuffix(".toml")


def _found(path: Path) -> _Found | None:
    if os.path.isfile(path):  # unlike Path.is_file, also answers for names that no file can have
        return _Found(path, {})
    rest = path.with_suffix("") if path.suffix == ".toml" else path
    chosen: dict[str, str] = {}
    systems = [*SYSTEMS, *installed_names()]
    for kind, known in (("system", systems), ("task", [task.value for task in Task]), ("encoder", None)):
        if os.path.isfile(file := rest.parent / f"{rest.name}.toml"):
            return _Found(file, chosen)
        if known is None or rest.name in known:
            chosen[kind], rest = rest.name, rest.parent
    if not os.path.isfile(file := rest.parent / f"{rest.name}.toml"):
        return None
    encoders = read_toml(file)[0].get("encoders")
    return _Found(file, chosen) if isinstance(encoders, dict) and chosen["encoder"] in encoders else None


def config_names() -> list[str]:
    """The names of the configurations that come with the package."""
    folder = package_folder()
    return [
        name
        for path in sorted(folder.rglob("*.toml"))
        if path.relative_to(folder).parts[0] not in _NOT_FOR_TRAINING
        for name in _names(path.relative_to(folder).with_suffix("").as_posix(), read_toml(path)[0])
    ]


def _names(stem: str, values: Mapping[str, Any]) -> list[str]:
    if "systems" not in values:
        return [stem]
    encoders = [f"{stem}/{encoder}" for encoder in values.get("encoders", ())] or [stem]
    return [f"{prefix}/{task.value}/{system}" for prefix in encoders for task in Task for system in SYSTEMS]


def _nearest_name(name: StrPath) -> str | None:
    close = difflib.get_close_matches(_package_name(name), config_names(), n=1)
    return close[0] if close else None


def read_settings(name: StrPath, overrides: Sequence[str] = ()) -> Settings:
    """The settings of a configuration and of all files it extends, with ``overrides`` on top; mistakes are `InputError`."""
    given = nested_overrides(overrides)
    files = _files(name)
    chosen = {kind: _chosen(kind, given, files) for kind in _TABLES.values()}
    _import_plugins(given, files, chosen["system"])
    settings = Settings(files[-1].path, {}, {})
    for file in files:
        for prefix, table in _tables(file, chosen):
            _lay_over(settings, table, functools.partial(_source_in_file, file, prefix))
        named = {kind: file.chosen[kind] for kind in ("task", "system") if kind in file.chosen}
        _lay_over(settings, named, lambda _: SettingSource(None, option="name"))
    _lay_over(settings, given, lambda _: SettingSource(None, option="--set"))
    encoder = settings.values.get("encoder")
    import_named([encoder.get("kind")] if isinstance(encoder, dict) else ())
    return settings


def _import_plugins(given: Mapping[str, Any], files: Sequence[_File], system: str | None) -> None:
    """Import the plugins that the overrides or else the last file name, before anything is looked up that they may add."""
    import_listed(given.get("plugins"))
    last = next((file for file in reversed(files) if "plugins" in file.values), None)
    if last is not None and "plugins" not in given:
        import_listed(last.values["plugins"], path=last.path, text=last.text)
    import_named([system] if system not in SYSTEMS else ())


def import_listed(plugins: object, *, path: str | None = None, text: str = "") -> None:
    """Import the plugins that the key ``plugins`` of a file lists; anything but a list of names is left to validation."""
    if isinstance(plugins, list) and all(isinstance(plugin, str) for plugin in plugins):
        import_plugins(plugins, path=path, line=line_of(("plugins",), text))


def layered_settings(layers: Iterable[tuple[SettingSource, Mapping[str, Any]]]) -> Settings:
    """The settings of nested tables that are not from files, later ones above earlier ones."""
    settings = Settings("--set", {}, {})
    for source, layer in layers:
        _lay_over(settings, layer, lambda _, source=source: source)  # type: ignore[misc]
    return settings


def _source_in_file(file: _File, prefix: Key, key: Key) -> SettingSource:
    return SettingSource(file.path, line_of((*prefix, *key), file.text))


def nested_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Settings such as ``training.epochs=3`` as nested tables."""
    return nested(map(parse_override, overrides))


def nested(settings: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Keys and values as nested tables."""
    values: dict[str, Any] = {}
    for key, value in settings:
        place = values
        for name in key[:-1]:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        place[key[-1]] = value
    return values


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables by dotted keys: the inverse of `nested`.

    >>> flat({"training": {"epochs": 3}, "denoiser.layers": 2})
    {'training.epochs': 3, 'denoiser.layers': 2}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _files(name: StrPath) -> list[_File]:
    """The file named ``name`` and all files it extends, base files first, each once."""
    found = _Found(Path(name), {}) if os.fspath(name) == "-" else _find(name)
    if found is None:
        nearest = _nearest_name(name)
        remedy = "check the path" if nearest is None else f"the nearest name is {nearest}"
        raise InputError("no such file or configuration", path=name, remedy=remedy)
    files: dict[Path, _File] = {}
    _collect(found, os.fspath(found.path), files, ())
    return list(files.values())


def _collect(found: _Found, shown: str, files: dict[Path, _File], above: tuple[Path, ...]) -> None:
    values, text = read_toml(found.path)
    identity = found.path.resolve()
    bases = values.pop("extends", [])
    line = line_of(("extends",), text)
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise InputError(
            f"extends must be the name of a configuration or a list of names, found {bases!r}",
            path=shown,
            line=line,
            remedy='write extends = "base.toml"',
        )
    for base in bases:
        target = _find(base, found.path.parent)
        if target is None:
            nearest = _nearest_name(base)
            remedy = f"paths are relative to this file's folder{'' if nearest is None else f'; the nearest name is {nearest}'}"
            raise InputError(f"there is no configuration {base!r} to extend", path=shown, line=line, remedy=remedy)
        if target.path.resolve() in (*above, identity):
            raise InputError(
                f"extends {base!r}, which extends this file", path=shown, line=line, remedy="remove one of the two"
            )
        if target.path.resolve() not in files:
            _collect(target, os.path.normpath(target.path), files, (*above, identity))
    files[identity] = _File(shown, text, values, found.chosen)


def _chosen(kind: str, given: Mapping[str, Any], files: Sequence[_File]) -> str | None:
    """The task, system or encoder of the run, for which tables are looked up."""
    layers: list[Mapping[str, Any]] = [
        given,
        *(layer for file in reversed(files) for layer in (file.chosen, file.values)),
    ]
    return next((layer[kind] for layer in layers if isinstance(layer.get(kind), str)), None)


def _tables(file: _File, chosen: Mapping[str, str | None]) -> list[tuple[Key, dict[str, Any]]]:
    """The settings of the file that apply to the run: those for all runs, for its task or system, and then for both."""
    found = list(_matching(file, (), file.values, chosen))
    return sorted(found, key=lambda item: len(item[0]))


def _matching(
    file: _File, prefix: Key, values: Mapping[str, Any], chosen: Mapping[str, str | None]
) -> Iterator[tuple[Key, dict[str, Any]]]:
    def mistake(key: Key, problem: str, remedy: str) -> InputError:
        return InputError(problem, path=file.path, line=line_of((*prefix, *key), file.text), remedy=remedy)

    for kind in ("task", "system"):
        if prefix and kind in values:
            raise mistake(
                (kind,), f"[{'.'.join(prefix)}] sets the {kind}, which selects tables", f"set {kind} outside them"
            )
    yield prefix, {name: value for name, value in values.items() if name not in _TABLES}
    for tables, kind in _TABLES.items():
        entries = values.get(tables, {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise mistake((tables,), f"{tables} must hold one table per {kind}", f"write [{tables}.NAME]")
        for pattern, entry in entries.items():
            known = {"task": [task.value for task in Task], "system": [*SYSTEMS, *installed_names()]}.get(kind)
            if known is not None and not fnmatch.filter(known, pattern):
                close = difflib.get_close_matches(pattern, known, n=1)
                remedy = f"the nearest is {close[0]}" if close else f"choose from {', '.join(known)}"
                raise mistake((tables, pattern), f"{pattern} is not a {kind}", remedy)
            inner = list(_matching(file, (*prefix, tables, pattern), entry, chosen))
            name = chosen[kind]
            if name is not None and fnmatch.fnmatchcase(name, pattern):
                yield from inner


def _lay_over(settings: Settings, layer: Mapping[str, Any], source_of: Callable[[Key], SettingSource]) -> None:
    """Apply ``layer`` on top of the settings so far.

    A size replaces dimensions set in layers below it, not in its own layer, and so does a base a number of calls to be chosen.
    """
    size = layer.get("size")
    if size in SIZES:
        # Any system will do: both kinds of preset cover sections that the other kind may also set.
        for is_diffusion in (False, True):
            for section, dimensions in preset(size, is_diffusion=is_diffusion).items():
                for name in dimensions:
                    if isinstance(settings.values.get(section), dict):
                        settings.values[section].pop(name, None)
                    settings.sources.pop((section, name), None)
    inference, below = layer.get("inference"), settings.values.get("inference")
    has_base = isinstance(inference, Mapping) and "base" in inference
    if has_base and isinstance(below, dict) and below.get("num_calls") == AUTO:
        del below["num_calls"]
        settings.sources.pop(("inference", "num_calls"), None)
    _merge(settings.values, layer, (), settings.sources, source_of)


def _merge(
    values: dict[str, Any],
    layer: Mapping[str, Any],
    prefix: Key,
    sources: dict[Key, SettingSource],
    source_of: Callable[[Key], SettingSource],
) -> None:
    for name, value in layer.items():
        key = (*prefix, name)
        source = source_of(key)
        # An override of one setting must not be recorded as the source of a whole section.
        if not isinstance(value, dict) or source.path is not None:
            sources[key] = source
        if isinstance(value, dict):
            sources.setdefault(key, source)
            if not isinstance(values.get(name), dict):
                values[name] = {}
            _merge(values[name], value, key, sources, source_of)
        else:
            values[name] = value
