"""Sentences of a document are labelled together by a model with recall, however they are asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_models import small_tagger, write_model
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.tagger.tagger import windows

FORMS = ["Ada", "Byron", "sings", "in", "Oslo", "for", "the", "royal", "choir", "Eve", "unseen"]
RECALL = {"denoiser": {"width": 16, "heads": 2, "layers": 1, "time_width": 8, "recall": 4}}


def text(count: int = 40) -> tuple[list[list[str]], list[str | None]]:
    """Sentences, some of them empty, and the documents that they belong to, if to any."""
    generator = random.Random(1)
    sentences = [generator.choices(FORMS, k=generator.randrange(9)) for _ in range(count)]
    names = [None if index % 10 > 7 else f"document {index // 10}" for index in range(count)]
    return sentences, names


def labels(results) -> list[list[str]]:
    return [result.labels for result in results]


def test_batches_change_nothing_and_documents_do() -> None:
    tagger = small_tagger(settings=RECALL)
    sentences, names = text()
    whole = tagger.tag(sentences, documents=names)
    for batch_tokens in (1, 30, 500):
        for one, other in zip(whole, tagger.tag(sentences, documents=names, batch_tokens=batch_tokens), strict=True):
            assert one.labels == other.labels
            assert one.scores == pytest.approx(other.scores, abs=1e-4)
    alone = tagger.tag(sentences)
    assert labels(alone) != labels(whole)
    for index, name in enumerate(names):
        if name is None:
            assert alone[index].labels == whole[index].labels
    # Whatever else is tagged beside it.
    assert labels(tagger.tag(sentences[10:18], documents=["x"] * 8)) == labels(whole[10:18])
    with_numbers = [
        Sentence(tuple(units), document=name is not None) for units, name in zip(sentences, names, strict=True)
    ]
    assert labels(tagger.tag(with_numbers[:8])) == labels(whole[:8])


def test_a_model_without_recall_does_not_look_at_documents() -> None:
    tagger = small_tagger()
    sentences, names = text()
    assert labels(tagger.tag(sentences, documents=names)) == labels(tagger.tag(sentences))


def test_scores_of_the_first_call_are_not_shown_for_labels_that_follow_from_given_ones() -> None:
    first, last = (small_tagger(settings=RECALL | {"inference": {"scores_from": call}}) for call in ("first", "last"))
    sentences, names = [["Ada", "sings"], ["Oslo", "sings"], ["Oslo", "in"], ["Ada", "sings"]], [1, 1, 2, None]
    clamp = [{0: "S-LOC"}, None, None, None]
    free, held, latest = (
        first.tag(sentences, documents=names),
        *(tagger.tag(sentences, documents=names, clamp=clamp) for tagger in (first, last)),
    )
    for index in range(4):
        known, other = (latest, free) if index < 2 else (free, latest)
        assert held[index].scores == pytest.approx(known[index].scores, abs=1e-5)
        assert held[index].scores != pytest.approx(other[index].scores, abs=1e-3)
    # A model that was trained for clamps knows of them in its first call.
    trained = RECALL | {"diffusion": {"clamp_share": 0.5}}
    first, last = (small_tagger(settings=trained | {"inference": {"scores_from": call}}) for call in ("first", "last"))
    held, latest = (tagger.tag(sentences, documents=names, clamp=clamp) for tagger in (first, last))
    assert held[1].scores != pytest.approx(latest[1].scores, abs=1e-3)


def test_a_label_known_in_one_sentence_is_news_in_another() -> None:
    tagger = small_tagger(settings=RECALL)
    sentences = [["Ada", "sings"], ["in", "Oslo"], ["Oslo", "the", "choir"]]
    free = tagger.tag(sentences, documents=[1, 1, 1])
    clamp = [None, {1: "S-LOC" if free[1].labels[1] != "S-LOC" else "O"}, None]
    held = tagger.tag(sentences, documents=[1, 1, 1], clamp=clamp)
    apart = tagger.tag(sentences, documents=[1, 2, 3], clamp=clamp)
    assert held[0].scores == pytest.approx(free[0].scores, abs=1e-5)
    assert held[2].scores != pytest.approx(free[2].scores, abs=1e-4)
    assert apart[2].scores == pytest.approx(tagger.tag(sentences, documents=[1, 2, 3])[2].scores, abs=1e-5)


def test_a_document_beyond_memory_is_named_and_others_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = small_tagger(settings=RECALL)
    sentences, names = text()
    whole = tagger.tag(sentences, documents=names)
    predict = tagger._predictor.predict

    def with_room_for(count: int) -> None:
        def limited(batch, finish, **options):
            if len(batch.lengths) > count:
                raise torch.OutOfMemoryError("out of memory")
            return predict(batch, finish, **options)

        monkeypatch.setattr(tagger._predictor, "predict", limited)

    with_room_for(10)
    assert labels(tagger.tag(sentences, documents=names)) == labels(whole)
    with_room_for(3)
    with pytest.raises(InputError, match=r"a document of \d+ units does not fit in memory"):
        tagger.tag(sentences, documents=names)


@pytest.mark.parametrize("document", [-1, "x"])
def test_documents_of_sentences_are_numbers(document) -> None:
    with pytest.raises(InputError, match="the document of sentence 1 is"):
        small_tagger(settings=RECALL).tag([Sentence(("Ada",), document=document)])


@pytest.mark.parametrize(
    ("documents", "message"),
    [(["a"], "fewer documents than sentences: none for sentence 2"), (["a"] * 3, r"more documents than sentences \(2\)"), ("ab", "per sentence"), (5, "per sentence")],
)  # fmt: skip
def test_documents_are_as_many_as_sentences(documents, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_tagger(settings=RECALL).tag([["Ada"], ["Eve"]], documents=documents)


def test_windows_end_with_documents_and_sentences_of_none_do_not_wait() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in [0, 0, 1, 1, 1, 2, 0]:
            taken.append(item)
            yield item

    found = windows(items(), lambda item: 8, budget=1, document=lambda item: item)
    assert next(found) == [0]
    assert taken == [0]
    assert [*found] == [[0], [1, 1, 1], [2], [0]]


def test_a_file_may_be_said_to_be_one_document(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", settings=RECALL)
    assert "\n| recall | uses the other occurrences" in (model / "README.md").read_text()
    sentences = [" ".join(units) for units in text(30)[0] if units]
    (tmp_path / "plain.tok").write_text("\n".join(sentences) + "\n")
    marked = "".join(f"{chr(10).join(line.split())}\n\n" for line in sentences)
    (tmp_path / "marked.tsv").write_text(f"-DOCSTART-\n\n{marked}")
    (tmp_path / "bare.tsv").write_text(marked)

    def tagged(name: str, *options: str) -> str:
        found = CliRunner().invoke(app, ["tag", str(model), str(tmp_path / name), "--to", "columns", *options])
        assert found.exit_code == 0, found.output
        return found.stdout

    assert tagged("plain.tok", "--one-document") == tagged("marked.tsv")
    told = CliRunner().invoke(app, ["tag", str(model), str(tmp_path / "plain.tok")]).stderr
    assert (
        told == "dmf: no documents are marked, so this model had nothing to recall; mark them, or use --one-document\n"
    )
    assert CliRunner().invoke(app, ["tag", str(model), str(tmp_path / "marked.tsv")]).stderr == ""
    # Some files mark where documents end.
    (tmp_path / "ended.tsv").write_text(f"{marked}-DOCSTART-\n\n{marked}")
    lines = tagged("ended.tsv").splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] == tagged("marked.tsv").splitlines()
    assert tagged("plain.tok") == tagged("bare.tsv") != tagged("marked.tsv")
