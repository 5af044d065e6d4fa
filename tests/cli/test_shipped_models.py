"""The models that come with the package, on the command line; small ones in their place."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest
from small_models import write_model

from diffusion_mf import Tagger
from diffusion_mf.data.corpus import Task
from diffusion_mf.tagger import shipped

TEXT = "Ada Byron sings, in Oslo. Eve doesn't!"
CARD = {
    "language": "en",
    "licence": "CC-BY-4.0",
    "attribution": "By Ada.",
    "command": "dmf train box/en-ner --output DIR",
}


@pytest.fixture
def box(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "shipped"
    write_model(folder / "en-pos", task=Task.POS)
    write_model(folder / "en-ner", task=Task.NER, settings={"card": CARD})
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def units_and_labels(stdout: bytes) -> list[list[str]]:
    return [line.split("\t") for line in stdout.decode().splitlines() if line]


def expected(name: str, text: str) -> list[list[str]]:
    results = Tagger.load(name, device="cpu").tag_text(text)
    return [list(pair) for result in results for pair in zip(result.units, result.labels, strict=True)]


def test_without_a_model_raw_text_is_tagged(dmf: Callable, box: pathlib.Path) -> None:
    outcome = dmf("tag", stdin=TEXT.encode())
    assert (outcome.status, outcome.stderr) == (0, "")
    assert units_and_labels(outcome.stdout) == expected("en-pos", TEXT)
    assert [row[0] for row in units_and_labels(outcome.stdout) if row[0] in ("sings", ",", "Eve", "n't")] == [
        "sings",
        ",",
        "Eve",
        "n't",
    ]
    assert dmf("tag", "-", stdin=TEXT.encode()) == outcome
    named = dmf("tag", "--format", "text", stdin=b"Ada sings,\n")
    assert [row[0] for row in units_and_labels(named.stdout)] == ["Ada", "sings,"]


@pytest.mark.parametrize("arguments", [["en-ner"], ["--model", "en-ner"], ["en-ner", "-"], ["--model", "en-ner", "-"]])
def test_a_model_by_name(dmf: Callable, box: pathlib.Path, arguments: list[str]) -> None:
    outcome = dmf("tag", *arguments, stdin=TEXT.encode())
    assert (outcome.status, outcome.stderr) == (0, "")
    assert units_and_labels(outcome.stdout) == expected("en-ner", TEXT)


def test_an_argument_that_is_no_model_is_a_file(dmf: Callable, box: pathlib.Path) -> None:
    path = pathlib.Path("letter.txt")
    path.write_text(TEXT)
    outcome = dmf("tag", path)
    assert units_and_labels(outcome.stdout) == expected("en-pos", TEXT)
    assert outcome.stderr == (
        "dmf: letter.txt: read as raw text; use --format columns if each line is a unit, --format text if each is a sentence\n"
    )
    assert dmf("tag", "--model", "en-pos", path) == outcome
    assert units_and_labels(dmf("tag", "en-ner", path).stdout) == expected("en-ner", TEXT)
    # A model folder of the name comes first, nothing else does, and --model settles what a name is.
    write_model(pathlib.Path("mine"), task=Task.NER, seed=5)
    own = dmf("tag", "mine", stdin=b"Ada sings\n")
    assert dmf("tag", "--model", "mine", "-", stdin=b"Ada sings\n") == own
    pathlib.Path("en-ner").write_text(TEXT)
    assert units_and_labels(dmf("tag", "en-ner", stdin=TEXT.encode()).stdout) == expected("en-ner", TEXT)
    assert units_and_labels(dmf("tag", "--model", "en-pos", "en-ner").stdout) == expected("en-pos", TEXT)
    pathlib.Path("en-ner").unlink()
    pathlib.Path("en-ner").mkdir()
    assert units_and_labels(dmf("tag", "en-ner", path).stdout) == expected("en-ner", TEXT)
    (pathlib.Path("en-ner") / "model").mkdir()
    assert dmf("tag", "en-ner", path).status == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["none"], "none: no such model or file; check the path; dmf models lists names of models"),
    (["none", "file"], "none: no such model folder; check the path"),
    (["--model", "none"], "none: no such model folder; check the path; dmf models lists those that come with the package"),
    (["en-ner", "a", "b"], "there are 2 files; give a model and then one file, or - for standard input"),
    (["--to", "pdf"], "there is no format 'pdf'; choose one of conllu, columns,"),
])  # fmt: skip
def test_what_is_neither(dmf: Callable, box: pathlib.Path, arguments: list[str], message: str) -> None:
    outcome = dmf("tag", *arguments, stdin=b"a")
    assert outcome.status == 2
    assert outcome.stderr.startswith(f"dmf: {message}")


def test_the_folder_of_a_run_says_where_its_model_is(dmf: Callable, box: pathlib.Path) -> None:
    write_model(pathlib.Path("run") / "model")
    outcome = dmf("tag", "run", stdin=b"a")
    assert outcome.status == 2
    assert "name run/model" in outcome.stderr


def test_explain_without_a_model(dmf: Callable, box: pathlib.Path) -> None:
    found = json.loads(dmf("explain", "Ada sings", "--json").stdout)
    assert set(found["labels"]) == set(Tagger.load("en-pos").labels)
    for arguments in (["en-ner", "Ada sings"], ["Ada sings", "--model", "en-ner"]):
        named = json.loads(dmf("explain", *arguments, "--json").stdout)
        assert set(named["labels"]) == set(Tagger.load("en-ner").labels)
    outcome = dmf("explain", "en-ner", "--json")
    assert (outcome.status, outcome.stderr) == (
        2, "dmf: there is no text; give one text in quotes, after a model or alone.\n",
    )  # fmt: skip


def test_models_are_listed(dmf: Callable, box: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = dmf("models").stdout.decode()
    assert "en-ner" in shown
    assert "12.50" in shown
    assert "CC-BY-4.0" in shown
    values = json.loads(dmf("models", "--json").stdout)
    assert [value["name"] for value in values] == ["en-ner", "en-pos"]
    assert values[0]["folder"] == str(box / "en-ner")
    assert values[0].items() >= {**CARD, "task": "ner", "system": "diffusion-mf", "dev": {"f1": 12.5}}.items()
    card = (box / "en-ner" / "README.md").read_text()
    assert "language: en\nlicense: cc-by-4.0\n" in card
    assert "By Ada." in card
    assert f"    {CARD['command']}\n" in card
    monkeypatch.setattr(shipped, "FOLDER", box / "none")
    assert dmf("models").stderr == "dmf: no models come with this copy of the package; install a released version.\n"


def test_the_server_has_all_of_them(dmf: Callable, box: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusion_mf.serving import run
    from diffusion_mf.serving.models import load_models
    from diffusion_mf.serving.settings import Settings

    served: list[list[str]] = []
    monkeypatch.setattr(run, "serve", lambda names, *_, **__: served.append(names))
    assert dmf("serve").status == 0
    assert dmf("serve", "en-ner").status == 0
    assert served == [["en-ner", "en-pos"], ["en-ner"]]
    assert list(load_models(served[0], Settings(), device="cpu")) == ["en-ner", "en-pos"]


def test_names_in_python(box: pathlib.Path) -> None:
    assert Tagger.load("en-ner").task is Tagger.from_pretrained("en-ner").task is Task.NER
    assert list(shipped.shipped_models()) == ["en-ner", "en-pos"]
    write_model(pathlib.Path("en-ner"), task=Task.SEG_POS)
    assert Tagger.load("en-ner").task is Task.SEG_POS


def test_colours_on_a_terminal_only(dmf: Callable, box: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dmf("tag", stdin=TEXT.encode()).stdout
    asked = dmf("tag", "--to", "terminal", stdin=TEXT.encode()).stdout
    assert b"\x1b[" in asked
    assert b"\x1b[" not in plain
    monkeypatch.setattr("diffusion_mf.cli.tag.sys.stdout.isatty", lambda: True, raising=False)
    assert dmf("tag", stdin=TEXT.encode()).stdout == asked
    assert dmf("tag", "--to", "columns", stdin=TEXT.encode()).stdout == plain
