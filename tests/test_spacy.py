"""The component of spaCy says what the tagger says."""

from __future__ import annotations

import pathlib
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("spacy")

import spacy
from small_models import write_model
from spacy.tokens import Doc, Span
from spacy.training import Example

from diffusion_mf import Tagger
from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.spacy import DiffusionMF

TEXTS = ["Ada Byron sings in Oslo for the royal choir.", "", "Eve  sings.\n\nThe choir sings for Oslo", " "]


@pytest.fixture(scope="module")
def ner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "ner", "diffusion-mf", Task.NER)


@pytest.fixture(scope="module")
def pos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "pos", "lcrf", Task.POS)


def pipeline(model: Path | None, *before: str, **config: object) -> spacy.Language:
    nlp = spacy.blank("en")
    for name in before:
        nlp.add_pipe(name)
    nlp.add_pipe("diffusion_mf", config={"model": None if model is None else str(model), "device": "cpu", **config})
    return nlp


def words(doc: Doc) -> list[str]:
    return [token.text for token in doc if not token.is_space]


def entities(doc: Doc) -> list[tuple[str, str, float]]:
    return [(entity.text, entity.label_, entity._.confidence) for entity in doc.ents]


def test_entities_are_those_of_the_tagger(ner: Path) -> None:
    nlp, tagger = pipeline(ner), Tagger.load(ner, device="cpu")
    docs = [nlp(text) for text in TEXTS]
    assert any(doc.ents for doc in docs)
    for doc in docs:
        (result,) = tagger.tag([words(doc)])
        tokens = [token for token in doc if not token.is_space]
        expected = [
            (tokens[span.start].i, tokens[span.end - 1].i + 1, span.label, span.confidence) for span in result.spans
        ]
        assert [(e.start, e.end, e.label_, e._.confidence) for e in doc.ents] == expected
    component = nlp.get_pipe("diffusion_mf")
    assert component.labels == ("LOC", "ORG", "PER")
    assert component.attribute == "ents"


def test_batches_find_the_same(ner: Path) -> None:
    nlp = pipeline(ner)
    expected = [entities(nlp(text)) for text in TEXTS]
    for size in (1, 2, 100):
        assert [entities(doc) for doc in nlp.pipe(TEXTS, batch_size=size)] == expected


def test_batches_are_tagged_together(ner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nlp, sizes = pipeline(ner), []
    tag = Tagger.tag

    def counted(self: Tagger, sentences: list[list[str]], **options: object) -> object:
        sizes.append(len(sentences))
        return tag(self, sentences, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Tagger, "tag", counted)
    list(nlp.pipe(TEXTS * 3, batch_size=8))
    # Documents without tokens have no sentences.
    assert sizes == [6, 3]


def test_sentences_that_were_marked_are_tagged_one_by_one(ner: Path) -> None:
    nlp, tagger = pipeline(ner, "sentencizer"), Tagger.load(ner, device="cpu")
    doc = nlp("Eve sings. Ada Byron sings in Oslo.")
    sentences = list(doc.sents)
    assert len(sentences) == 2
    results = tagger.tag([[token.text for token in sentence] for sentence in sentences])
    expected = [span.label for result in results for span in result.spans]
    assert [entity.label_ for entity in doc.ents] == expected


@pytest.mark.parametrize("attribute", [None, "pos", "tag"])
def test_tags_are_those_of_the_tagger(pos: Path, attribute: str | None) -> None:
    nlp, tagger = pipeline(pos, attribute=attribute), Tagger.load(pos, device="cpu")
    for doc in nlp.pipe(TEXTS):
        (result,) = tagger.tag([words(doc)])
        found = [token for token in doc if not token.is_space]
        assert [token.tag_ if attribute == "tag" else token.pos_ for token in found] == result.labels
        assert [token._.confidence for token in found] == result.scores
        assert not doc.ents
    assert nlp.get_pipe("diffusion_mf").labels == tagger.labels


def test_pipelines_on_disk_and_as_bytes_bring_the_model(ner: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "diffusion-mf", Task.NER)
    nlp = pipeline(folder, "sentencizer", calls=3)
    expected = [entities(doc) for doc in nlp.pipe(TEXTS)]
    nlp.to_disk(tmp_path / "pipeline")
    data = nlp.to_bytes()
    # The folder that the pipeline was made from is needed no more.
    folder.rename(tmp_path / "elsewhere")
    loaded = spacy.load(tmp_path / "pipeline")
    assert [entities(doc) for doc in loaded.pipe(TEXTS)] == expected
    assert loaded.get_pipe("diffusion_mf").calls == 3
    empty = pipeline(None, "sentencizer", calls=3).from_bytes(data)
    assert [entities(doc) for doc in empty.pipe(TEXTS)] == expected


def test_documents_are_scored(ner: Path, pos: Path) -> None:
    nlp = pipeline(ner)
    doc = nlp(TEXTS[0])
    scores = nlp.evaluate([Example(nlp.make_doc(TEXTS[0]), doc)])
    assert scores["ents_f"] == 1.0
    nlp = pipeline(pos)
    assert nlp.evaluate([Example(nlp.make_doc(TEXTS[0]), nlp(TEXTS[0]))])["pos_acc"] == 1.0


def test_entities_set_before_are_replaced(ner: Path) -> None:
    nlp = pipeline(ner)
    doc = nlp.make_doc(TEXTS[0])
    doc.set_ents([Span(doc, 0, len(doc), label="OLD")])
    expected = entities(nlp(TEXTS[0]))
    assert entities(nlp.get_pipe("diffusion_mf")(doc)) == expected


def test_errors_reach_the_handler_of_the_pipeline(ner: Path) -> None:
    nlp = pipeline(ner, calls=100_000)
    with pytest.raises(InputError, match="100000 calls are not possible"):
        nlp("Ada")
    seen = []
    nlp.set_error_handler(lambda name, component, docs, error: seen.append((name, len(docs))))
    assert list(nlp.pipe(["Ada", "Eve"])) == []
    assert seen == [("diffusion_mf", 2)]


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the component diffusion_mf has no model; give one"):
        pipeline(None)("Ada")
    with pytest.raises(InputError, match="no such model folder"):
        pipeline(tmp_path / "nothing")("Ada")
    with pytest.raises(InputError, match="attribute cannot be 'lemma'; choose pos or tag"):
        pipeline(None, attribute="lemma")
    words_model = write_model(tmp_path / "words", "unigram", Task.SEG_POS)
    with pytest.raises(InputError, match="a model of the task seg-pos finds words"):
        pipeline(words_model)("Ada")


def test_spacy_finds_the_component_by_its_entry_point() -> None:
    text = (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["project"]["entry-points"]["spacy_factories"]
    assert entries == {"diffusion_mf": "diffusion_mf.spacy:make_component"}
    assert isinstance(pipeline(None).get_pipe("diffusion_mf"), DiffusionMF)
