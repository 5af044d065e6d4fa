"""Every dependency has a version and checksums, and the bill of materials lists it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_is_locked_with_checksums() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert entries.pop(0).startswith("# ")
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ;[^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry.split(
            "\n"
        )[0]
    assert not re.search(r"://|--(extra-)?index|--find-links", LOCK), "where packages come from is up to the user"


def test_the_lock_has_the_versions_that_are_tested() -> None:
    locked = {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", LOCK, re.MULTILINE)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    tested = {canonical(name): version for name, version in (line.split("==") for line in lines)}
    assert {name: locked[name] for name in tested.keys() & locked.keys()} == {
        name: tested[name] for name in tested.keys() & locked.keys()
    }
    # A CPU build of PyTorch, on which the tests run, does without NVIDIA's packages; pip does not list setuptools.
    others = locked.keys() - tested.keys() - {"setuptools"}
    missing = {name for name in others if not name.startswith(("nvidia-", "cuda-"))}
    assert not {name for name in missing if re.search(rf"^{name}==[^\n;]+ \\$", LOCK, re.MULTILINE)}, (
        "run make constraints"
    )


def test_the_bill_of_materials(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    subprocess.run([sys.executable, str(ROOT / "deploy" / "sbom.py"), str(path)], check=True)
    bill = json.loads(path.read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "diffusion-mf")
    names = {component["name"] for component in bill["components"]}
    assert {"torch", "numpy", "safetensors", "zstandard"} <= names
    assert len(names) == len(bill["components"]) == len(re.findall(r"^[\w.-]+==", LOCK, re.MULTILINE))
    assert all(component["purl"].startswith("pkg:pypi/") for component in bill["components"])
    references = {component["bom-ref"] for component in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) <= references
