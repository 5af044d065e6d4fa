from __future__ import annotations

import doctest
import pathlib

from diffusion_mf.structures import STRUCTURES

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "structures.md"


def test_the_examples_of_the_document_hold() -> None:
    known = dict(STRUCTURES)
    try:
        result = doctest.testfile(str(DOCUMENT), module_relative=False, encoding="utf-8")
        assert result.failed == 0
        assert result.attempted >= 30
        assert "sharpened" in STRUCTURES
    finally:
        STRUCTURES.clear()
        STRUCTURES.update(known)
