"""What MkDocs does beyond the pages in this folder: generated reference pages, pages from the root, links to result files."""

from __future__ import annotations

import ast
import enum
import inspect
import posixpath
import re
import typing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Files of the root that are pages of the site.
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, those of the root, and the result files that pages link to."""
    from mkdocs.structure.files import File

    pages = {"reference/configuration.md": configuration_page(), "reference/commands.md": commands_page()}
    pages |= {name: (ROOT / source).read_text(encoding="utf-8") for source, name in ROOT_PAGES.items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "results").glob("*.json")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at the places that files of the repository have in the site; what the site does not have is no link."""
    page_in_repository = next(
        (source for source, name in ROOT_PAGES.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}"
    )
    return site_links(markdown, page_in_repository, page.file.src_uri, {file.src_uri for file in files})


def site_links(markdown: str, source: str, page: str, known: set[str]) -> str:
    """The text of ``source``, a path in the repository, with its relative links as ``page`` of the site needs them."""

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = ROOT_PAGES.get(path, path.removeprefix("docs/"))
        if place == path and place not in known:
            return text
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(link, markdown)


def configuration_page() -> str:
    """All settings of a configuration: types, limits, defaults and meanings."""
    from diffusion_mf.config import Config
    from diffusion_mf.config.sections import Section

    sections = {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    parts = [
        "# Configuration",
        "Every setting of a TOML configuration, generated from the code. [Training](../training.md#configurations) explains how"
        " configurations are named, extended and overridden; `dmf config show NAME` prints one with the source of each setting.",
        "## Top level",
        _settings_table(Config, leave_out=set(sections)),
    ]
    for name, section in sections.items():
        parts += [f"## `[{name}]`", _text(inspect.getdoc(section) or ""), _settings_table(section)]
    return "\n\n".join(parts) + "\n"


def descriptions(section: type) -> dict[str, str]:
    """The docstring below each field of a class, by the name of the field."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    name = None
    for node in definition.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name is not None:
            found[name] = " ".join(str(node.value.value).split())
        name = node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None
    return found


def _settings_table(section: Any, *, leave_out: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    schema = section.model_json_schema()
    texts = descriptions(section)
    rows = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        if name in leave_out:
            continue
        default = "–" if field.is_required() else "none" if field.default in (None, ()) else f"`{_toml(field.default)}`"
        values = _values(schema["properties"][name], schema.get("$defs", {}))
        rows.append(f"| `{name}` | {values} | {default} | {_text(texts.get(name, ''))} |")
    return "\n".join(rows)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _values(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return ", or ".join(_values(each, definitions) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{_toml(value)}`" for value in schema["enum"])
    kind = {"integer": "integer", "number": "number", "boolean": "`true`, `false`", "array": "list of texts"}
    bounds = [("from", "minimum"), ("above", "exclusiveMinimum"), ("to", "maximum"), ("below", "exclusiveMaximum")]
    limits = [f"{word} {schema[key]:,}" for word, key in bounds if abs(schema.get(key, 10**9)) < 10**9]
    return " ".join([kind.get(schema["type"], "text"), *limits])


def commands_page() -> str:
    """All commands of ``dmf`` with their arguments and options."""
    from typer.main import get_command

    from diffusion_mf.cli import app

    parts = [
        "# Commands",
        "Every command of `dmf` and its options, generated from the code. Progress goes to stderr and results to stdout; the exit"
        " status is 0 after success, 2 after bad input or usage, and 1 after any other failure. `--debug` shows the traceback of an"
        " error, and `--plugin MODULE` [imports a plugin](../systems.md#plugins); both work with every command.",
    ]
    for name, command in _leaves("dmf", get_command(app)):
        parts += [f"## `{name}`", _text(command.help or ""), _usage(name, command), _options_table(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _leaves(name: str, command: Any) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [leaf for each, child in command.commands.items() for leaf in _leaves(f"{name} {each}", child)]


def _usage(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    words = [_word(each, command) if each.required else f"[{_word(each, command)}]" for each in arguments]
    return f"    {' '.join([name, *words, '[OPTIONS]'])}"


def _kind(parameter: Any, command: Any) -> type:
    """The type of an argument or option; of a list, that of its items."""
    annotation = typing.get_type_hints(inspect.unwrap(command.callback))[parameter.name]
    kinds = (kind if isinstance(kind, type) else type(kind) for kind in (*typing.get_args(annotation), annotation))
    return next(kinds)


def _word(parameter: Any, command: Any) -> str:
    """What stands for the value of an argument or option."""
    if parameter.metavar:
        return parameter.metavar.strip("[]").replace("|", " or ")
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(_kind(parameter, command), "NAME")


def _options_table(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if "--help" in parameter.opts:
            continue
        is_option = parameter.param_type_name == "option"
        shown = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else ""
        shown = shown if is_option and parameter.is_flag else f"{shown} {_word(parameter, command)}".strip()
        meaning = _text(parameter.help or "")
        kind = _kind(parameter, command)
        if issubclass(kind, enum.Enum) and not parameter.metavar:
            meaning += f" One of {', '.join(f'`{value}`' for value in kind)}."
        default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
        if is_option and isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
            meaning += f" Default: {default}."
        rows.append(f"| `{shown}` | {meaning} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> str:
    """A docstring as Markdown: one kind of quotation for code."""
    paragraphs = [" ".join(part.split()) for part in text.replace("``", "`").split("\n\n")]
    return _cell("\n\n".join(paragraphs))
