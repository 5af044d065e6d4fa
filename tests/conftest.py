"""Shared test settings: shapes are enforced, the corpora are found, slow and GPU tests are asked for."""

from __future__ import annotations

import os
import pathlib
from collections import Counter

import hypothesis
import pytest
import shape_checks

shape_checks.install()

hypothesis.settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    # A file goes to one process: the slow ones first, which have one test each, then those with many tests.
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: ("triton_interpreter" not in item.path.name, -sizes[item.path]))
    has_gpu = torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--run-slow"):
            item.add_marker(pytest.mark.skip(reason="slow: ask for it with --run-slow"))
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
        if item.get_closest_marker("corpora") and not os.environ.get("DIFFUSION_MF_DATA"):
            item.add_marker(pytest.mark.skip(reason="DIFFUSION_MF_DATA does not name the folder of the corpora"))


@pytest.fixture(scope="session")
def corpora() -> pathlib.Path:
    """The folder of the real corpora; tests that use it carry the mark `corpora`."""
    return pathlib.Path(os.environ["DIFFUSION_MF_DATA"])
