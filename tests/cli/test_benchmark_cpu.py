from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Sequence

import pytest
from small_models import write_model

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.lab.benchmarks import cpu
from diffusion_mf.lab.benchmarks import cpu as cpu_peers
from diffusion_mf.lab.synthetic import write_corpus
from diffusion_mf.tagger import Tagger

FIELDS = {
    "corpus", "system", "is_ours", "calls", "threads", "training", "accuracy", "exact_match", "words_per_second", "fastest_pass",
    "slowest_pass", "passes", "words", "cores", "pytorch_threads", "matched_by", "command", "commit", "hardware", "versions", "date",
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, flavours=["pos"], sizes={"train": 60, "dev": 10, "test": 12}, seed=3)
    return folder / "pos"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_model(tmp_path_factory.mktemp("model") / "m", task=Task.POS)


class Majority(cpu_peers.Peer):
    """Gives every word the most frequent label, and counts how often it is trained."""

    name, distribution, module, file = "majority", "pytest", "pytest", "label"
    description = "counted"
    num_trained = 0

    def train(self, train: Sequence[Sentence], dev: Sequence[Sentence], folder: pathlib.Path) -> None:
        labels = [label for sentence in train for label in sentence.labels or ()]
        (folder / self.file).write_text(max(sorted(set(labels)), key=labels.count))
        Majority.num_trained += 1

    def load(self, folder: pathlib.Path) -> cpu_peers.Tag:
        label = (folder / self.file).read_text()
        return lambda sentences: [[label] * len(words) for words in sentences]


def splits(corpus: pathlib.Path) -> list[object]:
    return [item for split in ("train", "dev", "test") for item in (f"--{split}", corpus / f"{split}.conllu")]


def test_rows_are_complete_and_peers_trained_once(
    dmf: Callable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    corpus: pathlib.Path,
    model: pathlib.Path,
) -> None:
    monkeypatch.setattr(cpu_peers, "all_peers", lambda task, **options: [Majority()])
    monkeypatch.setattr(Majority, "num_trained", 0)
    output = tmp_path / "cpu.json"
    arguments = ["benchmark", "cpu", *splits(corpus), "--model", f"ours={model}", "--model", f"few={model}@2"]
    arguments += ["--peers", tmp_path / "peers", "--passes", 2, "--threads", 1, "--output", output]
    outcome = dmf(*arguments, "--json")
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)
    assert json.loads(output.read_text(encoding="utf-8")) == rows
    assert all(set(row) == FIELDS for row in rows)
    assert [(row["system"], row["calls"], row["is_ours"]) for row in rows] == [
        ("ours", None, True), ("few", 2, True), ("majority", None, False),
    ]  # fmt: skip
    test = read_task(corpus / "test.conllu", Task.POS)
    gold = [label for sentence in test for label in sentence.labels or ()]
    expected = 100 * gold.count(next((tmp_path / "peers").glob("majority-*/label")).read_text()) / len(gold)
    assert rows[2]["accuracy"] == pytest.approx(expected, abs=0.005)
    assert {row["words"] for row in rows} == {len(gold)}
    own = Tagger.load(model, device="cpu").tag(test.sentences)
    whole = [list(result.labels) == list(sentence.labels or ()) for sentence, result in zip(test, own, strict=True)]
    assert rows[0]["exact_match"] == pytest.approx(100 * sum(whole) / len(whole), abs=0.005)
    for row in rows:
        assert row["slowest_pass"] <= row["words_per_second"] <= row["fastest_pass"]
    again = dmf(*arguments)
    assert again.status == 0, again.stderr
    assert Majority.num_trained == 1
    assert "majority" in again.stdout.decode()
    assert len(json.loads(output.read_text(encoding="utf-8"))) == len(rows)


def test_a_missing_peer_is_noted(
    dmf: Callable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    corpus: pathlib.Path,
    model: pathlib.Path,
) -> None:
    monkeypatch.setitem(sys.modules, "pycrfsuite", None)
    arguments = ["benchmark", "cpu", *splits(corpus), "--peers", tmp_path, "--only", "python-crfsuite", "--passes", 1]
    outcome = dmf(*arguments, "--model", f"ours={model}", "--json")
    assert outcome.status == 0, outcome.stderr
    assert [row["system"] for row in json.loads(outcome.stdout)] == ["ours"]
    assert (
        "python-crfsuite is not installed, so it is left out; pip install 'diffusion-mf[benchmark-cpu]'"
        in outcome.stderr
    )
    nobody = dmf(*arguments)
    assert nobody.status == 2
    assert "there is nothing to measure" in nobody.stderr


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--model", "folder"), "dmf: --model: 'folder' is not NAME=DIR; write NAME=DIR or NAME=DIR@CALLS.\n"),
        (("--only", "tnt"), "dmf: --only: unknown peer 'tnt'; choose from python-crfsuite, udpipe-1, spacy.\n"),
    ],
)
def test_bad_usage_is_one_sentence(dmf: Callable, corpus: pathlib.Path, option: tuple[str, ...], sentence: str) -> None:
    outcome = dmf("benchmark", "cpu", *splits(corpus), *option)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (2, b"", sentence)


def test_what_was_repaired_is_told(
    dmf: Callable, corpus: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "test.conllu"
    lines = (corpus / "test.conllu").read_text().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if line.startswith("1\t"))
    fields = lines[number].split("\t")
    lines[number] = "\t".join([fields[0], "", *fields[2:]])
    path.write_text("".join(lines))
    arguments = [*splits(corpus)[:-1], path, "--model", f"ours={model}", "--only", "none", "--passes", "1"]
    outcome = dmf("benchmark", "cpu", *arguments)
    assert outcome.status == 0, outcome.stderr
    assert f"dmf: {path}: 1 unit without a form read as" in outcome.stderr


def test_a_match_is_as_good_and_as_fast() -> None:
    def row(system: str, accuracy: float, speed: int, *, is_ours: bool = True) -> dict:
        return {"system": system, "accuracy": accuracy, "words_per_second": speed, "is_ours": is_ours}

    peer = row("peer", 90.0, 100, is_ours=False)
    better_peer = row("better", 99.0, 999, is_ours=False)
    assert cpu.best_match(peer, [peer, better_peer, row("slow", 95.0, 99), row("bad", 89.99, 500)]) is None
    assert cpu.best_match(peer, [peer, row("equal", 90.0, 100), row("fast", 91.0, 101)]) == "fast"


def test_what_a_pass_learnt_is_forgotten_before_the_next(corpus: pathlib.Path) -> None:
    events: list[str] = []

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        events.append("tag")
        return [["X"] * len(words) for words in sentences]

    test = read_task(corpus / "test.conllu", Task.POS)
    facts = {"system": "stub", "is_ours": True}
    contestant = cpu.Contestant(tag, facts, lambda: events.append("forget"))
    *before, (row,) = cpu.measure_cpu([contestant], test, passes=2)
    assert (before, row["passes"]) == ([[]] * 3, 2)
    assert events == ["tag", "forget", "tag", "forget", "tag"]


@pytest.mark.parametrize(
    "peer",
    [cpu_peers.Crfsuite(), cpu_peers.UDPipe(iterations=3), cpu_peers.Spacy(width=16, depth=1, epochs=1)],
    ids=lambda peer: peer.name,
)
def test_real_peers_learn_and_are_loaded(peer: cpu_peers.Peer, corpus: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip(peer.module)
    train, dev = (read_task(corpus / f"{split}.conllu", Task.POS).sentences for split in ("train", "dev"))
    assert not peer.is_trained(tmp_path)
    peer.train(train, dev, tmp_path)
    assert peer.is_trained(tmp_path)
    tag = peer.load(tmp_path)
    found = tag([sentence.units for sentence in train])
    assert [len(labels) for labels in found] == [len(sentence.units) for sentence in train]
    known = {label for sentence in train for label in sentence.labels or ()}
    assert {label for labels in found for label in labels} <= known
    pairs = [
        (a, b)
        for sentence, labels in zip(train, found, strict=True)
        for a, b in zip(sentence.labels, labels, strict=True)
    ]
    labels = [a for a, _ in pairs]
    majority = max(labels.count(label) for label in known)
    # One short epoch does not get spaCy far.
    assert sum(a == b for a, b in pairs) >= majority * (1 if peer.name == "spacy" else 2)


ENTITIES = "Ada\tS-PER\nsings\tO\n\nin\tO\nNew\tB-LOC\nYork\tE-LOC\n\n"


def test_spacy_recognises_entities(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("spacy")
    path = tmp_path / "train.txt"
    path.write_text(ENTITIES * 30)
    sentences = read_task(path, Task.NER).sentences
    peer = cpu_peers.Spacy(task=Task.NER, width=16, depth=1, epochs=12, patience=12)
    peer.batch_words = 10
    peer.train(sentences, sentences[:2], tmp_path)
    assert peer.load(tmp_path)([sentence.units for sentence in sentences[:2]]) == [
        ["S-PER", "O"], ["O", "B-LOC", "E-LOC"],
    ]  # fmt: skip


def test_entities_are_compared_by_f1(dmf: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(cpu_peers, "all_peers", lambda task, **options: [Majority()])
    folder = tmp_path / "names"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text(ENTITIES)
    model = write_model(tmp_path / "model", task=Task.NER)
    files = [item for split in ("train", "dev", "test") for item in (f"--{split}", folder / f"{split}.txt")]
    arguments = ["benchmark", "cpu", "--task", "ner", *files, "--model", f"ours={model}", "--peers", tmp_path / "peers"]
    outcome = dmf(*arguments, "--passes", 1, "--json")
    assert outcome.status == 0, outcome.stderr
    ours, majority = json.loads(outcome.stdout)
    assert set(ours) == FIELDS | {"f1"}
    assert ours["corpus"] == "names"
    assert (majority["f1"], majority["accuracy"]) == (0.0, 40.0)
    expected = json.loads(dmf("evaluate", model, folder / "test.txt", "--decoder", "mask-viterbi", "--json").stdout)
    assert ours["f1"] == pytest.approx(expected["f1"], abs=0.005)


def test_features_see_the_word_its_affixes_and_its_neighbours() -> None:
    first, second = cpu_peers.features(["Mira", "sel-7"])
    assert {"w=Mira", "l=mira", "s3=ira", "h=Xx", "+1=sel-7", "-1=<s>", "0,+1=mira sel-7"} <= set(first)
    assert {"h=x-d", "-1=mira", "+1=</s>", "+2=</s>", "-2=<s>"} <= set(second)
    assert [cpu_peers.shape(word) for word in ("abc", "ABC", "Abc", "aBc", "12.5", "A1")] == [
        "x", "X", "Xx", "xX", "d.d", "Xd",
    ]  # fmt: skip
