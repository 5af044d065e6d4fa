"""The rooms of the package, and the one direction in which they import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import diffusion_mf

ROOT = Path(diffusion_mf.__file__).parent

# Each imports only what stands before it; also inside functions, and for annotations.
ROOMS = (
    "errors",
    "plugins",
    "systems",
    "data",
    "config",
    "ops",
    "structures",
    "batches",
    "networks",
    "diffusion",
    "decoding",
    "model",
    "prediction",
    "evaluation",
    "training",
    "tagger",
    "onnx",
    "serving",
    "api",
    "sklearn",
    "spacy",
    "lab",
    "cli",
)


def room_of(module: str) -> str | None:
    """The room of ``diffusion_mf.room.module``; None for the package itself, which loads what it exports when it is asked for."""
    parts = module.split(".")
    return parts[1] if parts[0] == "diffusion_mf" and len(parts) > 1 else None


def imports() -> Iterator[tuple[str, int, str]]:
    """(file, line, imported module) of all imports of the package's own modules."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    is_room = node.module == "diffusion_mf" and alias.name in ROOMS
                    yield (
                        str(path.relative_to(ROOT)),
                        node.lineno,
                        f"{node.module}.{alias.name}" if is_room else node.module,
                    )
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield str(path.relative_to(ROOT)), node.lineno, alias.name


def test_every_module_is_in_a_room() -> None:
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} == set(ROOMS)


def test_imports_point_one_way() -> None:
    against = []
    for file, line, module in imports():
        own, other = file.split("/")[0].removesuffix(".py"), room_of(module)
        if own != "__init__" and other is not None and ROOMS.index(other) > ROOMS.index(own):
            against.append(f"{file}:{line} imports {module}")
    assert not against


def test_readers_of_files_need_no_pytorch() -> None:
    assert not [
        f"{file}:{line}"
        for file, line, module in imports()
        if file.startswith(("data/", "config/")) and module.split(".")[0] == "torch"
    ]


def test_the_onnx_runtime_needs_readers_of_files_only() -> None:
    """Those that its own distribution packs (deploy/onnx/pyproject.toml)."""
    assert {
        module
        for file, _, module in imports()
        if file.startswith("onnx/") and file != "onnx/export.py" and not module.startswith("diffusion_mf.onnx")
    } & {"torch", *(f"diffusion_mf.{room}" for room in ROOMS)} <= {"diffusion_mf.errors"}


def test_only_the_command_line_imports_the_laboratory() -> None:
    assert not [
        file for file, _, module in imports() if room_of(module) == "lab" and not file.startswith(("lab/", "cli/"))
    ]


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by their name alone: of two that share one, only the first would run."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(names) == len(set(names))
