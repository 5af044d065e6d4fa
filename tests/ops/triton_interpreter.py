"""Runs a file of Triton cases in Triton's interpreter, which must be chosen before Triton is first imported."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the triton package")


def run_cases(file_name):
    """Fails with the report of the cases unless all of them passed."""
    here = pathlib.Path(__file__).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    # The interpreter says at every log of 0 that it divides by zero.
    options = ["-v", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", str(here / file_name), *options],
        cwd=here.parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    report = finished.stdout + finished.stderr
    counts = {outcome: int(number) for number, outcome in re.findall(r"(\d+) ([a-z]+)", report.splitlines()[-1])}
    assert finished.returncode == 0, report
    assert counts.get("passed", 0) > 0, report
    assert not {"skipped", "xfailed", "deselected"} & counts.keys(), report
