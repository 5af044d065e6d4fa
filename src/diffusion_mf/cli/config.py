"""``dmf config``: the settings of a configuration, and where each comes from."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from diffusion_mf.evaluation.terminal import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diffusion_mf.config import Config
    from diffusion_mf.config.errors import Key
    from diffusion_mf.config.files import SettingSource

app = typer.Typer(name="config", help="Look at configurations.", no_args_is_help=True)

_WIDEST_ALIGNED = 32
"""maximum width of the settings column; longer settings (paths) push their source to the right"""


class _Setting(NamedTuple):
    section: str
    name: str
    value: Any
    origin: str
    """file, plugin, size, default, or what `SettingSource.option` names"""
    source: str
    """the origin with its details, for people"""
    file: str | None = None
    line: int | None = None


@app.callback()
def _group() -> None:
    # A group of one command needs a callback to stay a group.
    pass


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A configuration file (TOML), or a name such as ner/diffusion-mf.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as in dmf train; may be repeated."),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Omit settings that have their default value.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a list of settings.")] = False,
) -> None:
    """Print every setting of a run and where it comes from, as TOML that can be used as a configuration."""
    from diffusion_mf.config import load_with_sources

    config, sources = load_with_sources(name, overrides or ())
    settings = [each for each in _settings(config, sources) if not changed or each.origin != "default"]
    if as_json:
        print_json([_as_json(each) for each in settings])
    else:
        _print(settings)


def print_settings(config: "Config", sources: "Mapping[Key, SettingSource]") -> None:
    """Print every setting and where it comes from, as TOML that can be used as a configuration."""
    _print(_settings(config, sources))


def _settings(config: "Config", sources: "Mapping[Key, SettingSource]") -> list[_Setting]:
    from diffusion_mf.config.sections import preset

    sized = {} if config.size is None else preset(config.size, is_diffusion=config.system_entry.is_diffusion)
    found = []
    for section, values in _by_section(config).items():
        for name, value in values.items():
            source = sources.get((section, name) if section else (name,))
            if source is not None:
                path = None if source.path is None else _short(source.path)
                shown = str(source._replace(path=path))
                found.append(_Setting(section, name, value, source.option or "file", shown, path, source.line))
            elif name == "plugins" and value:
                found.append(_Setting(section, name, value, "plugin", "the plugins that define what the run uses"))
            elif name in sized.get(section, {}):
                found.append(_Setting(section, name, value, "size", f"size {config.size}"))
            else:
                found.append(_Setting(section, name, value, "default", "default"))
    return found


def _by_section(config: "Config") -> dict[str, dict[str, Any]]:
    """All settings grouped by section; those outside any section come first."""
    values = config.model_dump(mode="json")
    sections = {name: value for name, value in values.items() if isinstance(value, dict)}
    return {"": {name: value for name, value in values.items() if name not in sections}, **sections}


def _short(path: str) -> str:
    """The path relative to the working directory, if that is shorter."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _as_json(setting: _Setting) -> dict[str, Any]:
    key = f"{setting.section}.{setting.name}" if setting.section else setting.name
    return {"key": key, "value": setting.value, "origin": setting.origin, "file": setting.file, "line": setting.line}


def _print(settings: list[_Setting]) -> None:
    names = max(len(each.name) for each in settings)
    shown = [f"{each.name:<{names}} = {json.dumps(each.value, ensure_ascii=False)}" for each in settings]
    # TOML has no null value.
    shown = [
        f"# {each.name} is not set" if each.value is None else text for each, text in zip(settings, shown, strict=True)
    ]
    width = max((len(text) for text in shown if len(text) <= names + _WIDEST_ALIGNED), default=0)
    section = ""
    for each, text in zip(settings, shown, strict=True):
        if each.section != section:
            section = each.section
            print(f"\n[{section}]")
        print(f"{text:<{width}}  # {each.source}")
