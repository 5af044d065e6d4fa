from __future__ import annotations

import colorsys
import dataclasses
import io
import itertools
import json
import pathlib
import time
import warnings

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from diffusion_mf.lab.demo.lines import print_trajectory
from diffusion_mf.lab.demo.picture import (
    _QUIET_HEIGHT,
    _axes,
    _draw_calls,
    _fonts,
    decisions,
    draw_trajectory,
    label_colours,
)
from diffusion_mf.lab.demo.run import DEMO_SYSTEMS, DemoSettings, compare, run_demo
from diffusion_mf.lab.synthetic import FLAVOURS, generate, realised_scores
from diffusion_mf.lab.synthetic.optimal import decode
from diffusion_mf.tagger import TaggedSentence, Tagger, TrajectoryStep

LABELS = ("ADP", "NOUN", "VERB")
SMALL = DemoSettings(
    train_sentences=30,
    dev_sentences=5,
    test_sentences=20,
    calls_shown=4,
    overrides=("training.epochs=1", "encoder.width=16", "denoiser.width=16", "structure.scorer_width=16"),
)


def sentence(*rows: list[list[float]]) -> TaggedSentence:
    """Two units whose beliefs after each call are given; the last call decides."""
    steps = tuple(
        TrajectoryStep(10 * (len(rows) - i - 1), np.array(row, dtype=np.float32)) for i, row in enumerate(rows)
    )
    labels = [LABELS[column] for column in np.array(rows[-1]).argmax(-1)]
    return TaggedSentence(("mira", "an-unusually-long-word"), labels, [0.9, 0.8], [], steps)


FLIPPING = sentence(
    [[0.2, 0.5, 0.3], [0.4, 0.3, 0.3]],
    [[0.1, 0.8, 0.1], [0.55, 0.45, 0.0]],
    [[0.0, 0.9, 0.1], [0.3, 0.7, 0.0]],
    [[0.0, 0.9, 0.1], [0.3, 0.7, 0.0]],
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
)


def test_a_decision_is_the_last_time_a_label_takes_the_lead() -> None:
    assert decisions(FLIPPING, LABELS) == [(2, "NOUN"), (3, "NOUN")]
    with pytest.raises(ValueError, match="without its trajectory"):
        decisions(TaggedSentence(("a",), ["ADP"], [1.0], []), LABELS)


def test_the_trajectory_in_a_pipe() -> None:
    stream = io.StringIO()
    print_trajectory(Console(file=stream, width=20), FLIPPING, LABELS, others={"LCRF": ["VERB", "ADP"]})
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["mira", "an-unus…"],
        ["noise", "·", "·"],
        ["t", "=", "40", "noun", "adp"],
        ["t", "=", "30", "NOUN", "adp"],
        ["t", "=", "20", "NOUN", "noun"],
        ["1", "quiet", "call"],
        ["t", "=", "0", "NOUN", "NOUN"],
        ["LCRF", "VERB", "ADP"],
        [],
    ]
    assert "\x1b" not in stream.getvalue()


def test_the_trajectory_on_a_terminal_has_colours_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=24, color_system="truecolor", legacy_windows=False)
    print_trajectory(console, FLIPPING, LABELS)
    text = stream.getvalue()
    red, green, blue = (int(label_colours(LABELS)["NOUN"][i : i + 2], 16) for i in (1, 3, 5))
    assert f"38;2;{red};{green};{blue}" in text
    # One column at a time has room, so that the calls come twice.
    assert text.count("noise") == 2


def test_colours_are_distinct_for_any_number_of_labels() -> None:
    colours = label_colours([str(number) for number in range(104)])
    assert len(set(colours.values())) == 104
    assert all(len(colour) == 7 and int(colour[1:], 16) >= 0 for colour in colours.values())


@pytest.mark.parametrize("letters", ["BMES", "BI", "BILU"])
def test_labels_of_one_type_are_shades_of_one_colour(letters: str) -> None:
    labels = [f"{letter}-{kind}" for kind in ("LOC", "ORG", "PER") for letter in letters] + ["O"]
    colours = label_colours(labels)
    assert len(set(colours.values())) == len(labels)
    hues: dict[str, set[float]] = {}
    for label, colour in colours.items():
        hue, _, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
        if label == "O":
            assert min(to_rgb(colour)) > 0.8
            assert max(to_rgb(colour)) - min(to_rgb(colour)) < 0.05
        else:
            assert saturation > 0.2
            hues.setdefault(label[2:], set()).add(round(hue, 1))
    assert [len(each) for each in hues.values()] == [1, 1, 1]
    # A tag set that has an O, or a hyphen somewhere, has a colour for each tag.
    assert len(set(label_colours(["O", "NOUN", "X-Y"]).values())) == 3
    assert label_colours(["O", "NOUN", "X-Y"])["O"] != colours["O"]


@pytest.mark.parametrize("num_quiet", [1, 2, 3, 4, 6, 12])
def test_names_of_calls_do_not_overlap(num_quiet: int) -> None:
    """A call that changes little stands close below the one before it, and the last one is named in any case."""
    heights = np.cumsum([0.0, 1.0, 1.0, *[_QUIET_HEIGHT] * num_quiet])
    figure = Figure(figsize=(7.0, 3.0 + 0.62 * heights[-1]), dpi=160)
    canvas = FigureCanvasAgg(figure)
    axes = _axes(figure, 1.2)
    axes.set_ylim(heights[-1], 0)
    _draw_calls(axes, [1000, 30, *range(3 * num_quiet, -1, -3)], heights)
    canvas.draw()
    boxes = sorted((label.get_window_extent() for label in axes.get_yticklabels()), key=lambda box: box.y0)
    assert all(below.y1 < above.y0 for below, above in itertools.pairwise(boxes))
    ends = [each.get_window_extent() for each in axes.texts]
    assert len(ends) == 2
    assert not any(end.overlaps(box) for end in ends for box in boxes)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert "t = 0" in names
    assert "t = 3" not in names


def test_fonts_that_have_the_characters_are_found(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _fonts("mira") == ["DejaVu Sans"]
    # A sign that comes with matplotlib, but not in its usual font.
    assert _fonts("a\u2316") == ["DejaVu Sans", "STIXGeneral"]
    assert capsys.readouterr().err == ""
    fonts = [entry for entry in font_manager.fontManager.ttflist if entry.name.startswith(("DejaVu", "STIX"))]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_trajectory(tmp_path / "a.png", dataclasses.replace(FLIPPING, units=("北", "京")), LABELS)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no installed font has these characters: 京 北; install one that does, such as Noto Sans CJK" in error


def test_the_picture_shows_beliefs_and_is_the_same_every_time(tmp_path: pathlib.Path) -> None:
    for name in ("one.png", "two.png"):
        draw_trajectory(tmp_path / name, FLIPPING, LABELS, title="a title")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    pixels = np.asarray(Image.open(tmp_path / "one.png").convert("RGB")).reshape(-1, 3)
    shares = {
        label: (pixels == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(1).mean()
        for label, colour in label_colours(LABELS).items()
    }
    # NOUN wins both streams; ADP, the other's rival, takes more room than VERB, which nobody believed.
    assert shares["NOUN"] > 0.1
    assert shares["NOUN"] > shares["ADP"] > shares["VERB"] > 0
    with pytest.raises(ValueError, match="needs a sentence with units and its trajectory"):
        draw_trajectory(tmp_path / "none.png", TaggedSentence((), [], [], [], ()), LABELS)


def test_the_comparison_of_decoders_that_know_the_truth_reaches_the_limits() -> None:
    sentences = list(generate("pos", 60, 3))
    flavour = FLAVOURS["pos"]

    def tagged(decoder: str) -> list[TaggedSentence]:
        return [
            TaggedSentence(s.units, decode(s, flavour=flavour, decoder=decoder), [1.0] * len(s.units), [])
            for s in sentences
        ]

    results = {"unigram": tagged("position_wise"), "lcrf": tagged("chain"), "diffusion-mf": tagged("joint")}
    rows = compare(sentences, results, flavour="pos")
    for row in rows:
        assert row.scores == pytest.approx(row.limits)
    limits = realised_scores(sentences, flavour=flavour)
    assert rows[2].limits["exact_match"] == limits["joint"]["exact_match"]
    assert rows[0].limits["consistency_adjacent"] == 0


def test_a_much_reduced_demonstration(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = run_demo(tmp_path, seed=3, settings=SMALL)
    printed = capsys.readouterr().out
    for words in ("Unigram", "LCRF", "Diffusion-MF", "best possible", "noise", "t = 0", "Picture: "):
        assert words in printed
    assert [row["system"] for row in values["systems"]] == list(DEMO_SYSTEMS)
    assert Image.open(tmp_path / "trajectory.png").size[0] > 1000
    for system in DEMO_SYSTEMS:
        assert Tagger.load(tmp_path / "models" / system, device="cpu").model.config.seed == 3
    # It can be run again in the same place, and gives the same.
    again = run_demo(tmp_path, seed=3, settings=SMALL, as_json=True)
    printed_again = json.loads(capsys.readouterr().out)
    assert printed_again == json.loads(json.dumps(again))
    assert again["sentence"] == values["sentence"]


@pytest.mark.slow
def test_the_whole_demonstration(tmp_path: pathlib.Path) -> None:
    values = run_demo(tmp_path)
    scores = {row["system"]: row for row in values["systems"]}
    unigram, chain, diffusion = (scores[system] for system in DEMO_SYSTEMS)
    assert chain["consistency_adjacent"] > unigram["consistency_adjacent"] + 30
    assert diffusion["consistency_distant"] > max(unigram["consistency_distant"], chain["consistency_distant"]) + 30
    assert diffusion["exact_match"] > chain["exact_match"] > unigram["exact_match"]
    assert sum(row["seconds"] for row in values["systems"]) < 180
