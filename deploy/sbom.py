"""The software bill of materials as CycloneDX JSON: what `requirements.lock` installs with the package; `make sbom`.

    python deploy/sbom.py dist/sbom.json

Licences are those that the packages of this environment declare. The checksums of all files are in `requirements.lock`.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def canonical(name: str) -> str:
    """The name as the index of Python packages compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_packages() -> dict[str, str]:
    """The version of every package in the lock."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def _address(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _component(name: str, version: str) -> dict[str, object]:
    component: dict[str, object] = {"type": "library", "bom-ref": _address(name, version), "name": name}
    component |= {"version": version, "purl": _address(name, version)}
    try:
        licence = importlib.metadata.metadata(name)["License-Expression"]
    except importlib.metadata.PackageNotFoundError:
        licence = None
    return component | ({"licenses": [{"expression": licence}]} if licence else {})


def bill_of_materials() -> dict[str, object]:
    """The package, what it is installed with, and which of that it needs itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/diffusion_mf/__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    own = _address(project["name"], version[1])
    packages = locked_packages()
    needed = [canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in project["dependencies"]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": project["name"],
                "version": version[1],
                "purl": own,
                "licenses": [{"expression": project["license"]}],
            }
        },
        "components": [_component(name, version) for name, version in sorted(packages.items())],
        "dependencies": [{"ref": own, "dependsOn": [_address(name, packages[name]) for name in sorted(needed)]}],
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", encoding="utf-8")
