"""The values in the document are those of the default settings."""

from __future__ import annotations

import pathlib

import pytest

from diffusion_mf.evaluation.terminal import half_up
from diffusion_mf.lab.synthetic import FLAVOURS, collect_facts, expected_scores, generate, realised_scores

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "synthetic-corpus.md"
TITLES = {
    "position_wise": "position-wise argmax",
    "chain": "first-order chain",
    "joint": "joint mode",
    "bound": "best possible",
}


def cells(*values: object) -> str:
    return (
        "| "
        + " | ".join("–" if v is None else half_up(v, 1) if isinstance(v, float) else str(v) for v in values)
        + " |"
    )


@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_tables_hold_what_the_command_prints(flavour: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    sentences = list(generate(flavour, 500, 0, split="test"))
    expected = expected_scores(collect_facts(sentences, flavour=FLAVOURS[flavour]), flavour=FLAVOURS[flavour])
    realised = realised_scores(sentences, flavour=FLAVOURS[flavour])
    section = text[text.index(f"| `{flavour}` | accuracy") :].split("\n\n")[0]
    rows = [cells(TITLES[name], *scores.values()) for name, scores in expected.items()]
    rows += [cells(f"{TITLES[name]}, on these labels", *scores.values()) for name, scores in realised.items()]
    assert section.split("\n")[2:] == rows


@pytest.mark.parametrize("flavour", list(FLAVOURS))
@pytest.mark.parametrize(("kind", "adjacent", "distant"), [("adjacent", 1, 0), ("distant", 0, 1)])
def test_each_knob_alone(flavour: str, kind: str, adjacent: float, distant: float) -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").split("\n")
    sentences = list(generate(flavour, 500, 0, split="test", adjacent=adjacent, distant=distant))
    metrics = FLAVOURS[flavour].span_metrics
    values = expected_scores(collect_facts(sentences, flavour=FLAVOURS[flavour]), flavour=FLAVOURS[flavour])
    for name, scores in values.items():
        spans = " / ".join(half_up(scores[metric] or 0, 1) for metric in metrics) or None
        row = (f"`{flavour}`", kind, TITLES[name], scores["exact_match"], scores[f"consistency_{kind}"], spans)
        assert cells(*row) in lines


def test_every_pattern_is_named() -> None:
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    for flavour in FLAVOURS.values():
        for template in flavour.templates.values():
            for pattern in template.patterns:
                slots = (" ".join(pattern.labels[start:end]) for start, end in template.slot_bounds)
                assert " ⋯ ".join(slots) in text
