"""Nothing in the package runs code that comes from data: no pickles, no evaluation of text, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffusion_mf

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
ALLOWED = {"pickle.UnpicklingError"}
"""an exception, which torch.load raises for a file that is not plain tensors"""
EVALUATING = {"eval", "exec", "compile", "execfile"}
SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}


def findings(source: str) -> Iterator[str]:
    """What a source file does that could run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{name}" for name in imported]
            is_forbidden = [name.split(".")[0] in FORBIDDEN_MODULES and name not in ALLOWED for name in imported]
            yield from (f"imports {name}" for name, flag in zip(imported, is_forbidden, strict=True) if flag)
        if not isinstance(node, ast.Call):
            continue
        options = {option.arg: option.value for option in node.keywords}
        if isinstance(node.func, ast.Name) and node.func.id in EVALUATING:
            yield f"calls {node.func.id}"
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if (owner, node.func.attr) in SHELLS:
                yield f"calls {owner}.{node.func.attr}"
            if (owner, node.func.attr) == ("torch", "load") and not _is_true(options.get("weights_only")):
                yield "calls torch.load without weights_only=True"
        if "allow_pickle" in options and not _is_false(options["allow_pickle"]):
            yield "allows pickles"
        if "trust_remote_code" in options and not _is_false(options["trust_remote_code"]):
            yield "trusts remote code"
        if "shell" in options and not _is_false(options["shell"]):
            yield "starts a shell"


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_the_package_runs_no_code_from_data() -> None:
    root = Path(diffusion_mf.__file__).parent
    found = {
        str(path.relative_to(root)): problems
        for path in sorted(root.rglob("*.py"))
        if (problems := list(findings(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "numpy.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=flag)",
    ],
)
def test_the_check_finds(source: str) -> None:
    assert list(findings(source))


def test_the_check_allows_what_is_safe() -> None:
    assert not list(
        findings(
            "from pickle import UnpicklingError; torch.load(path, weights_only=True); model.eval(); subprocess.run([program])"
        )
    )
