from __future__ import annotations

import doctest
import pathlib
import re

from diffusion_mf.data.corpus import Task
from diffusion_mf.evaluation import PRIMARY_METRICS, score_sentences

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_examples_of_the_document_hold() -> None:
    result = doctest.testfile(str(DOCUMENT), module_relative=False, encoding="utf-8")
    assert result.attempted >= 9
    assert result.failed == 0


def test_the_table_of_the_document_names_the_metrics() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `([\w ]+)` \| `(\w+)` \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {task: primary for task, _, primary in rows} == PRIMARY_METRICS
    for task, names, _ in rows:
        assert names.split() == list(score_sentences(task, Task(task).scheme, [], []))
