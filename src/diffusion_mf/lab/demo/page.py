"""Trajectories as one page of HTML that needs no other file, script or font."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from diffusion_mf.data.files import StrPath, open_output
from diffusion_mf.evaluation.metrics import half_up
from diffusion_mf.lab.demo.picture import decisions, trajectory_svg
from diffusion_mf.tagger import TaggedSentence
from diffusion_mf.tagger.rendering import OUTSIDE_COLOUR, label_colours, readable_on

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #22252B; background: #FCFBF8; margin: 2rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1rem; margin-top: 2.5rem; }
.picture { overflow-x: auto; } .picture svg { height: auto; max-height: 90vh; }
table { border-collapse: collapse; margin-top: 1rem; }
th, td { padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; border-bottom: 1px solid #DADCDF; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.label { border-radius: 0.4rem; padding: 0.1rem 0.5rem; font-weight: 600; }
"""


def write_page(
    path: StrPath, results: Sequence[TaggedSentence], labels: Sequence[str], *, first_step: int | None, title: str
) -> None:
    """Write a page with the picture of every sentence, and below it a table of labels, scores and second-best labels."""
    sections = [_section(number, result, labels, first_step) for number, result in enumerate(results, 1)]
    text = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n{''.join(sections)}</body>\n</html>\n"
    )
    with open_output(path) as stream:
        stream.write(text.encode("utf-8"))


def _section(number: int, result: TaggedSentence, labels: Sequence[str], first_step: int | None) -> str:
    sentence = html.escape(result.separator.join(result.units))
    # Names are unique on a page, and those of every picture are the same.
    picture = re.sub(
        r'(\bid="|href="#|url\(#)', rf"\g<1>s{number}-", trajectory_svg(result, labels, first_step=first_step)
    )
    has_calls = first_step is not None
    names = ["unit", "label", "probability", "second best", "probability", *(["settled by call"] if has_calls else [])]
    head = "".join(f"<th>{name}</th>" for name in names)
    colours = label_colours(labels)
    num_calls = len(result.trajectory or ())
    rows = []
    for index, (decision, second) in enumerate(zip(decisions(result, labels), result.second_best(labels), strict=True)):
        cells = [
            f"<td>{html.escape(result.units[index])}</td>",
            _label(decision.label, colours),
            _number(result.scores[index]),
            _label(second[0], colours),
            _number(second[1]),
        ]
        if has_calls:
            cells.append(f'<td class="number">{decision.call} of {num_calls}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    return (
        f'<section>\n<h2>{sentence}</h2>\n<div class="picture" role="img" aria-label="Beliefs in labels, call by call">\n'
        f"{picture}</div>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>\n</section>\n"
    )


def _label(label: str, colours: dict[str, str]) -> str:
    colour = colours.get(label, OUTSIDE_COLOUR)
    style = f"background: {colour}; color: {readable_on(colour)}"
    return f'<td><span class="label" style="{style}">{html.escape(label)}</span></td>'


def _number(score: float) -> str:
    return f'<td class="number">{half_up(100 * score, 1)} %</td>'
