"""Plugins: modules that add systems, structures, encoders or decoders to the package's tables.

A plugin is imported only if the user names it: on the command line (``--plugin``), in a configuration or plan (``plugins``), in
the environment (`VARIABLE`), in Python (``Tagger.load(…, plugins=…)``), or, if an installed package has an entry point for it, by
the name of the system or encoder that it adds. Saved models only *name* the plugins they need. See `docs/systems.md`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections import UserDict
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TypeVar

from diffusion_mf.errors import InputError

GROUP = "diffusion_mf.plugins"
"""the group of entry points, whose names are systems or encoders and whose values are modules"""
VARIABLE = "DIFFUSION_MF_PLUGINS"
"""the environment variable that names plugins, separated as in PATH"""

Entry = TypeVar("Entry")

_imported: dict[str, str] = {}
"""for each module's name, what imports the plugin from anywhere: that name, or the absolute path of its file"""
_owners: dict[tuple[str, str], str] = {}
"""the plugin that added an entry, by kind and name of the entry"""
_importing: list[str] = []
"""the plugins being imported; more than one while a plugin imports another"""


class Table(UserDict[str, Entry]):
    """A table that plugins extend: it records which plugin added an entry, and no plugin can replace another's entry."""

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        super().__init__()
        self.kind = kind
        # Added without ownership: a plugin that is the first to import a table did not add its entries.
        self.data.update(entries)

    def __setitem__(self, name: str, entry: Entry) -> None:
        key = (self.kind, name)
        if _importing:
            plugin = _importing[-1]
            if name in self.data and _owners.get(key) != plugin:
                owner = f", from the plugin {_owners[key]}" if key in _owners else ""
                raise InputError(
                    f"the plugin {plugin} adds the {self.kind} {name!r}, which exists already{owner}",
                    remedy="give it another name",
                )
            _owners[key] = plugin
        else:
            _owners.pop(key, None)
        super().__setitem__(name, entry)


def short_name(plugin: str) -> str:
    """The name of a plugin in configurations and models: its module, or its file name without the folder.

    >>> short_name("folder/cautious.py"), short_name("package.cautious")
    ('cautious.py', 'package.cautious')
    """
    return os.path.basename(plugin) if plugin.endswith(".py") else plugin


def owners(names: Iterable[tuple[str, str | None]]) -> list[str]:
    """The plugins that added the entries of these kinds and names, each once."""
    return list(dict.fromkeys(_owners[kind, name] for kind, name in names if name and (kind, name) in _owners))


def import_plugins(plugins: Iterable[str], *, path: str | None = None, line: int | None = None) -> None:
    """Import modules by name or by the path of their file; ``path`` and ``line`` say where they were named."""
    for plugin in plugins:
        try:
            _import(os.path.expanduser(os.path.expandvars(plugin)))
        except InputError as error:
            raise InputError(error.problem, path=path, line=line, remedy=error.remedy) from error.__cause__


def import_named(names: Iterable[object]) -> None:
    """Import the plugins of installed packages that add a system or encoder of one of these names, if any."""
    for name in names:
        modules = sorted({point.module for point in _entry_points() if point.name == name})
        if len(modules) > 1:
            raise InputError(
                f"several installed packages add {name!r} ({', '.join(modules)})",
                remedy=f"uninstall all but one, or choose with --plugin {modules[0]}",
            )
        if modules and modules[0] not in sys.modules:
            import_plugins(modules)
            if not any(owner == modules[0] and owned == name for (_, owned), owner in _owners.items()):
                raise InputError(
                    f"the plugin {modules[0]} is installed for {name!r}, but adds nothing of that name",
                    remedy="install another version of its package",
                )


def installed_names() -> list[str]:
    """The names of systems and encoders that plugins of installed packages add, without importing them."""
    return sorted({point.name for point in _entry_points()})


@functools.lru_cache(maxsize=1)
def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=GROUP))


def check_imported(plugins: Iterable[str], *, path: str | os.PathLike[str] | None = None) -> None:
    """Raise `InputError` if a plugin that a saved model or run needs has not been imported."""
    missing = [plugin for plugin in plugins if _module_name(plugin) not in sys.modules]
    if missing:
        several = len(missing) > 1
        options = " ".join(f"--plugin {plugin}" for plugin in missing)
        raise InputError(
            f"needs the plugin{'s' if several else ''} {', '.join(missing)}, and code is imported only on request",
            path=path,
            remedy=f"if you trust {'them' if several else 'it'}, add {options}, or in Python plugins={missing}",
        )


def from_environment() -> list[str]:
    """The plugins that the environment names."""
    return [plugin for plugin in os.environ.get(VARIABLE, "").split(os.pathsep) if plugin]


def environment() -> dict[str, str]:
    """The environment variables with which another process imports the plugins of this one."""
    return {VARIABLE: os.pathsep.join(_imported.values())} if _imported else {}


def _module_name(plugin: str) -> str:
    return os.path.basename(plugin).removesuffix(".py") if plugin.endswith(".py") else plugin


def _import(plugin: str) -> None:
    is_file = plugin.endswith(".py")
    if not is_file and not all(part.isidentifier() for part in plugin.split(".")):
        raise InputError(
            f"{plugin!r} cannot be a plugin",
            remedy="give the dotted name of a module, or the path of a file that ends in .py",
        )
    name = _module_name(plugin)
    if name in _imported and not (is_file and os.path.exists(plugin)):
        return
    if is_file:
        if not os.path.isfile(plugin):
            raise InputError(f"there is no plugin file {plugin}", remedy="check the path")
        plugin = os.path.realpath(plugin)
        if _is_there_already(name, plugin):
            _imported.setdefault(name, plugin)
            return
    _importing.append(short_name(plugin))
    try:
        if is_file:
            _import_file(name, plugin)
        else:
            importlib.import_module(name)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        if is_file or error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(plugin, error) from error
        raise InputError(
            f"there is no module called {name!r}",
            remedy="install it, add its folder to PYTHONPATH, or give the path of its file, as in --plugin folder/module.py",
        ) from None
    except (Exception, SystemExit) as error:
        raise _broken(plugin, error) from error
    finally:
        _importing.pop()
    _imported[name] = plugin


def _is_there_already(name: str, path: str) -> bool:
    """Whether the file has been imported; `InputError` if its module's name belongs to another module."""
    module = sys.modules.get(name)
    try:
        spec = None if module is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if module is None and spec is None:
        return False
    other = spec.origin if spec is not None else getattr(module, "__file__", None)
    if other is None or os.path.realpath(other) != path:
        raise InputError(
            f"the plugin {path} would hide another module called {name!r} ({other or 'built in'})",
            remedy="rename the file",
        )
    return module is not None


def _import_file(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Like `import`: in sys.modules while it runs, and removed if it fails.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _broken(plugin: str, error: BaseException) -> InputError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(
        f"the plugin {plugin} cannot be imported ({reason})", remedy="correct it; --debug shows the traceback"
    )
