"""Every global name that a function reads exists: linters cannot tell, since shapes in annotations look like names to them."""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import importlib.util
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffusion_mf

MODULES = sorted(module.name for module in pkgutil.walk_packages(diffusion_mf.__path__, "diffusion_mf."))


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


def missing_names(source: str, known: set[str]) -> set[str]:
    """Names that functions of ``source`` read as globals, but that neither it nor Python defines."""
    code = compile(source, "module", "exec", dont_inherit=True, flags=0)
    known = known | set(dir(builtins)) | {"__annotations__"}
    reads = (instruction for part in _code_objects(code) for instruction in dis.get_instructions(part))
    return {i.argval for i in reads if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")} - known


def _names_of_classes(source: str) -> set[str]:
    """What class bodies define: they read it as names, too."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    found: set[str] = set()
    for node in classes:
        code = compile(ast.Module([node], []), "class", "exec")
        for part in _code_objects(code):
            found.update(i.argval for i in dis.get_instructions(part) if i.opname == "STORE_NAME")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_all_globals_exist(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("importing it would run it")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs {error.name}")
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert missing_names(source, set(vars(module)) | _names_of_classes(source)) == set()


def test_a_missing_name_is_found() -> None:
    assert missing_names("def f(x):\n    return [g(y) for y in x]\n", {"f"}) == {"g"}
