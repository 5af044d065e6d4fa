from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from PIL import Image
from small_models import write_model

import diffusion_mf
from diffusion_mf import Tagger
from diffusion_mf.data.corpus import Task

TEXT = "Ada sings in Oslo."


class Page(HTMLParser):
    """Checks that tags close, and keeps the text of cells and all addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag in ("td", "h2"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "h2"} & set(self.open):
            self.cells[-1] += data


@pytest.mark.parametrize("system", ["diffusion-mf", "lcrf", "diffusionsl"])
def test_a_picture_of_any_system(dmf: Callable, tmp_path: pathlib.Path, system: str) -> None:
    model = write_model(tmp_path / "model", system)
    outcome = dmf("explain", model, TEXT, "-o", tmp_path / "picture.png")
    assert (outcome.status, outcome.stdout) == (0, b""), outcome.stderr
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.width > 500
    first = (tmp_path / "picture.png").read_bytes()
    dmf("explain", model, TEXT, "-o", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes() == first


@pytest.mark.parametrize("system", ["diffusion-uni", "unigram"])
def test_a_page_needs_nothing_else_and_shows_every_sentence(dmf: Callable, tmp_path: pathlib.Path, system: str) -> None:
    model = write_model(tmp_path / "model", system)
    text = "Ada sings <b>in Oslo. Eve sings & sings."
    assert dmf("explain", model, text, "-o", tmp_path / "page.html").status == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Page(page)
    assert all(address.startswith("#") for address in found.addresses)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(names)) == len(names)
    assert {address[1:] for address in found.addresses} | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(names)
    assert "<script" not in page
    assert not re.search(r"url\((?!#)", page)
    results = Tagger.load(model, device="cpu").tag_text(text, marginals=True)
    assert page.count("<svg") == len(results) == 2
    width = 6 if system == "diffusion-uni" else 5
    cells = iter(found.cells)
    for result in results:
        assert next(cells) == " ".join(result.units)
        for unit, label in zip(result.units, result.labels, strict=True):
            row = [next(cells) for _ in range(width)]
            assert row[:2] == [unit, label]
            assert row[2].endswith(" %")


def test_json_has_the_beliefs(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", "diffusion-mf", Task.POS)
    found = json.loads(dmf("explain", model, "mira sel da toro", "--json", "--calls", 3).stdout)
    (sentence,) = found["sentences"]
    tagger = Tagger.load(model, device="cpu")
    (result,) = tagger.tag_text("mira sel da toro", calls=3, trajectory=True)
    assert found["labels"] == list(tagger.labels)
    assert sentence["labels"] == result.labels
    assert [step["t"] for step in sentence["trajectory"]] == [step.t for step in result.trajectory or ()]
    assert len(sentence["trajectory"][0]["beliefs"]) == len(sentence["second_best"]) == 4


def test_lines_on_the_terminal_end_with_labels_and_scores(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model")
    (result,) = Tagger.load(model, device="cpu").tag_text(TEXT)
    lines = dmf("explain", model, TEXT).stdout.decode().strip().splitlines()
    assert lines[2].split() == list(result.units)
    assert lines[-2].split() == ["labels", *result.labels]
    assert lines[-1].split()[1::2] == ["%"] * len(result.units)


def test_what_cannot_be_drawn_is_said(dmf: Callable, tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path / "model", "unigram")
    for text, name, message in (
        (TEXT, "picture.jpg", "a picture cannot be written as .jpg; choose a name that ends in .png or .html."),
        (
            f"{TEXT} {TEXT}",
            "picture.png",
            "the text has 2 sentences, but a picture shows only one; give one sentence, or write .html.",
        ),
        ("a " * 301, "picture.png", "the sentence has 301 units, but a picture shows at most 300; write .html."),
    ):
        outcome = dmf("explain", model, text, "-o", tmp_path / name)
        assert (outcome.status, outcome.stderr) == (2, f"dmf: {tmp_path / name}: {message}\n")
        assert not (tmp_path / name).exists()
    outcome = dmf("explain", model, " ")
    assert (outcome.status, outcome.stderr) == (2, "dmf: the text has no words; give a sentence.\n")


def test_lines_and_json_need_no_matplotlib(tmp_path: pathlib.Path) -> None:
    """As in an installation without extras; a picture is refused there in a sentence."""
    model = write_model(tmp_path / "model")
    hidden = tmp_path / "hidden" / "matplotlib.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ImportError\n")
    package = pathlib.Path(diffusion_mf.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{hidden.parent}{os.pathsep}{package}"}

    def explain(*arguments: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "diffusion_mf.cli", "explain", model, TEXT, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert "labels" in explain().stdout
    assert json.loads(explain("--json").stdout)["system"] == "diffusion-mf"
    outcome = explain("-o", tmp_path / "picture.png")
    assert outcome.returncode == 2
    assert outcome.stderr == "dmf: the picture needs matplotlib; pip install 'diffusion-mf[demo]'.\n"
