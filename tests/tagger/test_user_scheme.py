"""Who trains on a scheme reads that scheme: results, scores, trajectories, clamps, files, and the decoder that keeps them legal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
from small_models import small_model, small_tagger, vocabulary_of, write_model
from stand_in import stand_in_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import FieldChoice
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, check_sequence, encode_spans, extract_spans
from diffusion_mf.errors import InputError, NoLegalSequenceError
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import Tagger, load_model
from diffusion_mf.tagger.files import TaggingOptions, evaluate_corpus, tag_file
from diffusion_mf.training.loop import train

SCHEMES = [scheme for scheme in LabelScheme if scheme is not LabelScheme.PLAIN]
FORMS = [*vocabulary_of(Task.NER).form_counts, "unseen", "☃"]
TYPES = ("LOC", "ORG", "PER")


def random_spans(generator: random.Random, length: int) -> list[LabelledSpan]:
    spans, start = [], 0
    while start < length:
        end = min(length, start + generator.randint(1, 3))
        if generator.random() < 0.6:
            spans.append(LabelledSpan(start, end, generator.choice(TYPES)))
        start = end
    return spans


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[LabelScheme, Path]:
    """The same sentences in every scheme."""
    generator = random.Random(1)
    folder = tmp_path_factory.mktemp("corpora")
    sentences = []
    for _ in range(30):
        length = generator.randint(2, 9)
        sentences.append((generator.choices(FORMS[:-1], k=length), random_spans(generator, length)))
    # One of each kind makes every scheme plain to see.
    sentences.append((FORMS[:7], [LabelledSpan(0, 3, "PER"), LabelledSpan(3, 4, "PER"), LabelledSpan(5, 7, "LOC")]))
    found = {}
    for scheme in SCHEMES:
        found[scheme] = folder / f"{scheme}.txt"
        rows = (
            "".join(
                f"{unit} {label}\n" for unit, label in zip(units, encode_spans(spans, len(units), scheme), strict=True)
            )
            for units, spans in sentences
        )
        found[scheme].write_text("\n".join(rows))
    return found


class TestTraining:
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_from_a_file_to_a_tagged_file(
        self, scheme: LabelScheme, corpora: dict[LabelScheme, Path], tmp_path: Path
    ) -> None:
        path = corpora[scheme]
        changes: list[dict[str, Any]] = [{"data": {"dev": str(path)}, "training": {"epochs": 1, "budget": 2000}}]
        config = small_runs.small_config(path.parent, {"system": "unigram", "data": {"train": str(path)}}, *changes)
        folder = train(config, output=tmp_path / "run", device="cpu")
        assert json.loads((folder / "config.json").read_text())["source_scheme"] == scheme
        assert f"| scheme | {scheme} |" in (folder / "README.md").read_text()
        tagger = Tagger.load(folder, device="cpu")
        assert tagger.scheme is scheme
        tag_file(tagger, path, tmp_path / "tagged.txt")
        tagged = read_task(tmp_path / "tagged.txt", Task.NER, scheme=scheme, strict=True)
        own = tagger.tag([sentence.units for sentence in tagged], scheme="bmes")
        assert [sentence.labels for sentence in tagged] == [tuple(result.labels) for result in own]
        for result in tagger.tag([sentence.units for sentence in tagged]):
            check_sequence(result.labels, scheme)
            assert set(result.labels) <= set(tagger.labels)
        # Metrics do not depend on the scheme that users read.
        report = evaluate_corpus(tagger, read_task(corpora[LabelScheme.BMES], Task.NER)).report
        assert report.metrics == evaluate_corpus(tagger, read_task(path, Task.NER)).report.metrics
        assert report.metrics["f1"] == pytest.approx(load_model(folder).metrics["dev"]["f1"])

    def test_a_scheme_that_is_named_and_a_file_without_entities(self, tmp_path: Path) -> None:
        path = tmp_path / "train.txt"
        path.write_text("Ada B-PER\nsings O\n")
        for text, scheme, expected in (
            ("Ada B-PER\nsings O\n", {"scheme": "iobes"}, LabelScheme.IOBES),
            ("Ada O\nsings O\n", {}, LabelScheme.BMES),
        ):
            path.write_text(text)
            settings = {"data": {"train": str(path), "dev": None, **scheme}, "training": {"epochs": 1}}
            config = small_runs.small_config(tmp_path, {"system": "unigram"}, settings)
            folder = train(config, output=tmp_path / f"run-{expected}", device="cpu")
            assert Tagger.load(folder, device="cpu").scheme is expected

    def test_a_legal_decoder_is_chosen_beside_the_best_of_all(
        self, corpora: dict[LabelScheme, Path], tmp_path: Path
    ) -> None:
        path = str(corpora[LabelScheme.BIO2])
        settings = {"data": {"train": path, "dev": path}, "training": {"epochs": 1, "budget": 2000}}
        config = small_runs.small_config(tmp_path, {"system": "diffusion-uni"}, settings)
        model = load_model(train(config, output=tmp_path / "run", device="cpu"))
        (entry,) = small_runs.read_log(tmp_path / "run", "evaluation")
        assert set(entry["scores"]) == {"argmax", "mask-viterbi"}
        assert model.decoder == max(entry["scores"], key=lambda name: entry["scores"][name]["f1"])
        assert model.legal_decoder == entry["legal_decoder"] == "mask-viterbi"
        named = small_runs.small_config(tmp_path, {"system": "unigram", "inference": {"decoder": "argmax"}}, settings)
        model = load_model(train(named, output=tmp_path / "named", device="cpu"))
        assert (model.decoder, model.tagging_decoder) == ("argmax", "argmax")


class TestDecoders:
    def test_taggers_use_a_legal_one_unless_asked(self) -> None:
        tagger = stand_in_tagger({"Ada": {"M-PER": 0.6, "S-PER": 0.4}}, decoder="argmax")
        assert (tagger.decoder, tagger.model.decoder) == ("mask-viterbi", "argmax")
        assert tagger.tag([["Ada"]])[0].labels == ["S-PER"]
        assert tagger.tag([["Ada"]], decoder="argmax")[0].labels == ["M-PER"]

    @pytest.mark.parametrize("system", SYSTEMS)
    def test_folders_of_earlier_versions_fall_back_to_one_of_their_system(self, system: str, tmp_path: Path) -> None:
        for decoder in SYSTEMS[system].constrained_decoders:
            model = load_model(write_model(tmp_path / decoder, system, decoder=decoder))
            assert model.legal_decoder is None
            assert model.tagging_decoder == SYSTEMS[system].constrained_decoders[-1]
        plain = load_model(write_model(tmp_path / "pos", system, Task.POS))
        assert plain.tagging_decoder == SYSTEMS[system].plain_decoders[-1]

    def test_the_card_tells_both(self, tmp_path: Path) -> None:
        model = small_model(decoder="argmax", source_scheme=LabelScheme.BIO2)
        scores = {"argmax": {"f1": 80.0}, "mask-viterbi": {"f1": 79.5}}
        model = model._replace(metrics={"dev": scores["argmax"], "test": {"f1": 70.0}, "decoders": scores})
        Tagger(model, device="cpu").save(tmp_path / "model")
        card = (tmp_path / "model" / "README.md").read_text()
        assert "| decoder | mask-viterbi: the best on dev of those whose output is always legal; argmax was" in card
        assert (
            "| % | dev, mask-viterbi | dev, argmax | test, argmax |\n|---|---:|---:|---:|\n| f1 | 79.50 | 80.00 | 70.00 |"
            in card
        )
        assert "| labels | 6: B-LOC, B-ORG, B-PER, I-ORG, I-PER, O |" in card


class TestResults:
    def test_scores_are_sums_and_spans_keep_their_confidence(self) -> None:
        tagger = stand_in_tagger({
            "Ada": {"B-PER": 0.6, "S-PER": 0.3, "O": 0.1}, "Byron": {"E-PER": 0.5, "M-PER": 0.3, "O": 0.2},
        })  # fmt: skip
        user = Tagger(tagger.model._replace(source_scheme=LabelScheme.BIO2), device="cpu")
        own, found = tagger.tag([["Ada", "Byron"]])[0], user.tag([["Ada", "Byron"]], trajectory=True)[0]
        assert (own.labels, found.labels) == (["B-PER", "E-PER"], ["B-PER", "I-PER"])
        assert own.scores == pytest.approx([0.6, 0.5])
        assert found.scores == pytest.approx([0.9, 0.8])
        assert found.spans == own.spans
        assert found.spans[0].confidence == pytest.approx(0.5)
        assert user.labels == ("B-LOC", "B-PER", "I-PER", "O")
        assert found.trajectory[-1].beliefs.shape == (2, 4)
        assert user.tag([["Ada", "Byron"]], scheme="bmes")[0] == own
        assert user.labels_in("bmes") == tagger.labels

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("system", ["lcrf", "diffusion-mf", "diffusionsl"])
    def test_they_are_probabilities_in_every_scheme(self, system: str, scheme: LabelScheme) -> None:
        tagger = small_tagger(system, source_scheme=scheme, has_complete_labels=True)
        generator = random.Random(2)
        sentences = [generator.choices(FORMS, k=size) for size in (1, 4, 9)]
        for own, result in zip(
            tagger.tag(sentences, scheme="bmes"), tagger.tag(sentences, trajectory=True), strict=True
        ):
            assert result.spans == own.spans
            assert all(0 <= low - 1e-5 <= score <= 1 for low, score in zip([1e-5] * 9, result.scores, strict=False))
            for step in result.trajectory or ():
                assert step.beliefs.shape[1] == len(tagger.labels)
                np.testing.assert_allclose(step.beliefs.sum(-1), 1, atol=1e-4)

    def test_folders_without_the_scheme_keep_bmes(self, tmp_path: Path) -> None:
        folder = write_model(tmp_path / "older")
        assert "source_scheme" not in json.loads((folder / "config.json").read_text())
        tagger = Tagger.load(folder, device="cpu")
        assert tagger.scheme is LabelScheme.BMES
        newer = write_model(tmp_path / "newer", source_scheme=LabelScheme.BILOU)
        assert Tagger.load(newer, device="cpu").scheme is LabelScheme.BILOU
        for name in ("source_scheme", "legal_decoder"):
            values = json.loads((newer / "config.json").read_text())
            for bad in ("beam", 7):
                (newer / "config.json").write_text(json.dumps(values | {name: bad}))
                (newer / "manifest.json").unlink(missing_ok=True)
                with pytest.raises(InputError):
                    load_model(newer)

    def test_schemes_that_cannot_be(self) -> None:
        with pytest.raises(InputError, match="no scheme is called 'bio'; choose one of plain, iob1, bio2"):
            small_tagger().tag([["Ada"]], scheme="bio")
        with pytest.raises(InputError, match="labels of the task ner cannot be written in the scheme plain"):
            small_tagger().tag([["Ada"]], scheme="plain")
        with pytest.raises(InputError, match="labels of the task pos cannot be written in the scheme bmes"):
            small_tagger(task=Task.POS).labels_in("bmes")

    def test_words_of_characters_in_an_open_scheme(self) -> None:
        tagger = small_tagger(task=Task.SEG_POS)
        (own,), (open_labels,) = tagger.tag([["我", "们"]]), tagger.tag([["我", "们"]], scheme="bio2")
        assert {label[0] for label in open_labels.labels} <= {"B", "I"}
        assert own.spans == open_labels.spans


def clamped(generator: random.Random, scheme: LabelScheme, length: int) -> Iterator[tuple[dict[Any, Any], Any]]:
    """Clamps that a legal sequence fulfils, each with what to check: a position with the labels it may print as, or a span."""
    spans = random_spans(generator, length)
    labels, own = encode_spans(spans, length, scheme), encode_spans(spans, length, LabelScheme.BMES)
    names = sorted(
        {*encode_spans([LabelledSpan(0, 3, "PER"), LabelledSpan(3, 4, "LOC"), LabelledSpan(4, 6, "ORG")], 6, scheme)}
    )
    for position in range(length):
        kind = generator.random()
        if kind < 0.2:
            yield {position: labels[position]}, (position, {labels[position]})
        elif kind < 0.3:
            wanted = {labels[position], "O", *generator.sample(names, 2)}
            yield {position: wanted}, (position, wanted)
        elif kind < 0.4 and own[position][:2] in ("M-", "E-", "S-"):
            yield {position: own[position]}, (position, {own[position]})
    for span in spans:
        if generator.random() < 0.3:
            yield {"units": [span.start, span.end], "type": span.label}, span


class TestClamps:
    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("system", SYSTEMS)
    def test_whatever_is_clamped_holds_and_the_rest_is_legal(self, system: str, scheme: LabelScheme) -> None:
        tagger = small_tagger(system, source_scheme=scheme, has_complete_labels=True)
        generator = random.Random(f"{system} {scheme}")
        sentences = [generator.choices(FORMS, k=generator.randint(1, 8)) for _ in range(25)]
        given = [[*clamped(generator, scheme, len(units))] for units in sentences]
        clamps = [[clamp for clamp, _ in each] for each in given]
        results = tagger.tag(sentences, clamp=clamps, batch_tokens=60, trajectory=True)
        num_checked = 0
        for result, checks in zip(results, given, strict=True):
            check_sequence(result.labels, scheme)
            spans = [LabelledSpan(*span[:3]) for span in result.spans]
            assert extract_spans(result.labels, scheme) == spans
            model_labels = encode_spans(spans, len(result.units), LabelScheme.BMES)
            for clamp, check in checks:
                num_checked += 1
                if isinstance(check, LabelledSpan):
                    assert check in spans
                    # Whether IOB1 prints B or I where a span begins, the unit before decides.
                    inside = check.start + (scheme is LabelScheme.IOB1)
                    assert result.scores[inside : check.end] == pytest.approx([1.0] * (check.end - inside))
                    continue
                position, wanted = check
                # Letters that the scheme does not have are BMES's.
                assert result.labels[position] in wanted or model_labels[position] in wanted - set(tagger.labels)
                is_printed = scheme is not LabelScheme.IOB1 or clamp[position] in tagger.labels
                if isinstance(clamp[position], str) and is_printed:
                    assert result.scores[position] == pytest.approx(1.0)
                if len(wanted & set(tagger.labels)) == len(wanted):
                    columns = [index for index, name in enumerate(tagger.labels) if name in wanted]
                    for step in result.trajectory or ():
                        assert step.beliefs[position, columns].sum() == pytest.approx(1.0, abs=1e-4)
        assert num_checked > 25

    @pytest.mark.parametrize("system", SYSTEMS)
    def test_sets_of_labels_hold_with_decoders_that_look_at_single_units(self, system: str) -> None:
        tagger = small_tagger(system, source_scheme=LabelScheme.BIO2, has_complete_labels=True)
        generator = random.Random(7)
        sentences = [generator.choices(FORMS, k=6) for _ in range(10)]
        clamps = [{0: "B-ORG", 1: "I-ORG", 3: {"B-LOC", "O"}, 5: "O"}] * len(sentences)
        for decoder in {"argmax", *SYSTEMS[system].constrained_decoders}:
            for result in tagger.tag(sentences, clamp=clamps, decoder=decoder):
                assert result.labels[:2] == ["B-ORG", "I-ORG"]
                assert result.labels[3] in ("B-LOC", "O")
                assert [result.scores[place] for place in (0, 1, 5)] == pytest.approx([1.0] * 3)

    def test_a_label_of_bio_may_be_any_that_prints_so(self) -> None:
        tagger = stand_in_tagger(
            {"Ada": {"B-PER": 0.5, "S-PER": 0.5}, "Byron": {"E-PER": 0.9, "O": 0.1}, "sings": {"O": 1.0}}
        )
        tagger = Tagger(tagger.model._replace(source_scheme=LabelScheme.BIO2), device="cpu")
        found = tagger.tag([["sings", "Byron"], ["sings", "sings"]], clamp=[{0: "B-PER"}] * 2)
        assert [result.labels for result in found] == [["B-PER", "I-PER"], ["B-PER", "O"]]
        # In another scheme a label means what it means there; what it lacks is the model's.
        with pytest.raises(NoLegalSequenceError):
            tagger.tag([["sings"]], clamp=[{0: "B-PER"}], scheme="bmes")
        assert tagger.tag([["sings", "sings"]], clamp=[{0: "S-PER"}])[0].labels == ["B-PER", "O"]

    def test_spans_end_where_they_end(self) -> None:
        tagger = stand_in_tagger({"Ada": {"M-PER": 0.5, "B-PER": 0.5}, "sings": {"E-PER": 0.6, "M-PER": 0.4}})
        clamp = [{"units": [0, 2], "type": "PER"}, {3: "O"}]
        result = tagger.tag([["Ada", "sings", "sings", "sings"]], clamp=[clamp])[0]
        assert result.labels[:2] == ["B-PER", "E-PER"]
        assert result.labels[3] == "O"
        assert result.spans[0][:3] == (0, 2, "PER")

    @pytest.mark.parametrize(("clamp", "message"), [
        ({"units": [0, 3], "type": "PER"}, "has a span of the units [0, 3], but the sentence has 2 unit(s); count units from 0; end"),
        ({"units": [1, 1], "type": "PER"}, "has a span of the units [1, 1], but the sentence has 2 unit(s)"),
        ({"units": [0.5, 1], "type": "PER"}, "has a span of the units [0.5, 1]"),
        ({"units": [0], "type": "PER"}, "has the span {'units': [0], 'type': 'PER'}; give {\"units\": [start, end], \"type\""),
        ({"units": [0, 1]}, "has the span {'units': [0, 1]}"),
        ({"units": [0, 1], "type": "GPE"}, "has a span of the type 'GPE', which this model does not have; use one of its types: LOC, PER"),
        ({"units": [0, 2], "type": "LOC"}, "has a LOC span of 2 unit(s), for which this model has no labels; give another span"),
        ([{0: "O"}, {"units": [0, 1], "type": "PER"}], "has PER at position 0, but it also requires another label there; remove one"),
        ([{1: "O"}, {1: {"B-PER", "I-PER"}}], "has B-PER or I-PER at position 1, but it also requires another label there"),
        ({0: "I-PER"}, "no legal sequence of labels satisfies the clamp of sentence 1 up to position 0; relax the clamp"),
        ({1: "Q-PER"}, "names the label 'Q-PER', which this model does not have; use one of its labels, such as"),
        ({1: 7}, "names the label 7, which this model does not have"),
        ("O", "is 'O'; give labels by position, spans such as"),
        ([["O"]], "is [['O']]; give labels by position"),
    ])  # fmt: skip
    def test_mistaken_ones_are_one_sentence(self, clamp: Any, message: str) -> None:
        tagger = stand_in_tagger({})
        tagger = Tagger(tagger.model._replace(source_scheme=LabelScheme.BIO2), device="cpu")
        with pytest.raises(InputError) as caught:
            tagger.tag([["Ada", "sings"]], clamp=[clamp])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_iob1_begins_nothing_at_the_beginning_and_spans_need_boundaries(self) -> None:
        tagger = small_tagger(source_scheme=LabelScheme.IOB1, has_complete_labels=True)
        with pytest.raises(NoLegalSequenceError, match="has B-PER at position 0, but no sentence can begin with that"):
            tagger.tag([["Ada"]], clamp=[{0: "B-PER"}])
        with pytest.raises(NoLegalSequenceError, match="up to position 1"):
            tagger.tag([["Ada", "sings"]], clamp=[{0: "O", 1: "B-PER"}])
        with pytest.raises(InputError, match="do not mark spans; give a label instead"):
            small_tagger(task=Task.POS).tag([["mira"]], clamp=[{"units": [0, 1], "type": "NOUN"}])

    def test_words_of_chinese_are_spans(self) -> None:
        tagger = small_tagger(task=Task.SEG_POS)
        result = tagger.tag(["abcd"], clamp=[{"units": [1, 4], "type": "VV"}])[0]
        assert (1, 4, "VV") in [span[:3] for span in result.spans]


class TestFiles:
    @pytest.fixture
    def tagger(self) -> Tagger:
        return small_tagger(source_scheme=LabelScheme.BIO2, has_complete_labels=True)

    def test_a_column_of_clamps(self, tagger: Tagger, tmp_path: Path) -> None:
        path, output = tmp_path / "in.tsv", tmp_path / "out.tsv"
        for text, column in (
            ("Ada\t\nsings\tB-ORG\nin\tI-ORG\n\nOslo\t_\nEve\tB-LOC\n", "2"),
            ("word\tknown\nAda\t_\nsings\tB-ORG\nin\tI-ORG\n\nOslo\t\nEve\tB-LOC\n", "known"),
        ):
            path.write_text(text)
            tag_file(tagger, path, output, fields=_clamp_column(column))
            labels = [line.split("\t")[-1] for line in output.read_text().splitlines() if line]
            assert labels[-5:][1:3] == ["B-ORG", "I-ORG"]
            assert labels[-1] == "B-LOC"
            assert set(labels[-5:]) <= set(tagger.labels)
        # Lines of text have no columns.
        path = path.with_suffix(".txt")
        path.write_text("Ada _\nsings B-ORG\nin _\n")
        tag_file(tagger, path, output, fields=_clamp_column("2"))
        assert len(output.read_text().splitlines()) == 3
        assert output.read_text().splitlines()[1].split()[-1] == "B-ORG"
        # Another column gets the labels.
        path.write_text("Ada\tx\tS-PER\nsings\ty\t_\n")
        tag_file(tagger, path, output, fields=_clamp_column("3")._replace(tag_column="2"))
        rows = [line.split("\t") for line in output.read_text().splitlines() if line]
        assert (rows[0][1:], rows[1][2]) == (["B-PER", "S-PER"], "_")

    def test_conllu_and_json_lines(self, tagger: Tagger, tmp_path: Path) -> None:
        path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        rows = [
            {"units": ["Ada", "sings", "in"], "clamp": {"1": "B-ORG", "2": ["I-ORG", "O"]}},
            {"units": ["Ada", "sings", "in"], "clamp": [{"units": [1, 3], "type": "LOC"}, {"0": "O"}]},
            {"units": ["Oslo"], "clamp": None},
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        tag_file(tagger, path, output)
        first, second, _ = (json.loads(line)["labels"] for line in output.read_text().splitlines())
        assert (first[1], second) == ("B-ORG", ["O", "B-LOC", "I-LOC"])
        assert first[2] in ("I-ORG", "O")
        words = tmp_path / "in.conllu"
        words.write_text("1\tmira\t_\tVERB\t_\t_\t_\t_\t_\t_\n2\tsel\t_\t_\t_\t_\t_\t_\t_\t_\n")
        tag_file(small_tagger(task=Task.POS), words, tmp_path / "out.conllu", fields=_clamp_column("upos"))
        tags = [line.split("\t")[3] for line in (tmp_path / "out.conllu").read_text().splitlines()]
        assert tags[0] == "VERB"
        assert tags[1] != "_"

    @pytest.mark.parametrize(("name", "text", "column", "message"), [
        ("a.tsv", "Ada\tB-PER\nsings\tS-Q\n", "2", "a.tsv, line 2: the clamp names the label 'S-Q', which this model does not have"),
        ("a.tsv", "Ada\tO\n\nAda\tO\nsings\tI-PER\n", "2", "a.tsv, line 4: no legal sequence of labels satisfies the clamp"),
        ("a.tsv", "Ada\tO\n", "3", "a.tsv, line 1: there is no clamp column 3, only 2 column(s)"),
        ("a.tsv", "Ada\tO\n", "1", "a.tsv, line 1: column 1 cannot be both form and clamp; choose them with --form-column and"),
        ("a.jsonl", '{"units": ["Ada"], "clamp": {"00": "O"}}\n', None, "a.jsonl, line 1: the clamp names the position '00'"),
        ("a.jsonl", '{"units": ["Ada"], "clamp": {"7": "O"}}\n', None, "a.jsonl, line 1: the clamp names the position 7, but the sentence has 1 unit(s)"),
        ("a.jsonl", '{"units": ["Ada"], "clamp": "O"}\n', None, "a.jsonl, line 1: the clamp is 'O'; give labels by position"),
        ("a.jsonl", '{"units": ["Ada"]}\n', "2", "--clamp-column is for columns and conllu, not for jsonl; leave it out"),
        ("a.conllu", "1\tmira" + "\t_" * 8 + "\n", "misc", "the column misc of CoNLL-U cannot hold clamps for ner; choose --clamp-column upos"),
    ])  # fmt: skip
    def test_what_is_wrong_has_its_place(
        self, tagger: Tagger, tmp_path: Path, name: str, text: str, column: str | None, message: str
    ) -> None:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            tag_file(tagger, path, tmp_path / "out.tsv", fields=_clamp_column(column))
        assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)

    def test_another_scheme_for_the_output(self, tagger: Tagger, tmp_path: Path) -> None:
        path = tmp_path / "in.tsv"
        path.write_text("Ada\tO\nsings\tO\nin\tO\n")
        for scheme in SCHEMES:
            tag_file(tagger, path, tmp_path / "out.tsv", options=TaggingOptions(scheme=scheme))
            labels = [line.split("\t")[1] for line in (tmp_path / "out.tsv").read_text().splitlines()]
            assert labels == tagger.tag([["Ada", "sings", "in"]], scheme=scheme)[0].labels
        # What is known stays in the scheme of the training data.
        path.write_text("Ada\t_\nsings\tB-ORG\nin\tI-ORG\n")
        options = TaggingOptions(scheme=LabelScheme.BILOU)
        tag_file(tagger, path, tmp_path / "out.tsv", options=options, fields=_clamp_column("2"))
        assert (tmp_path / "out.tsv").read_text().splitlines()[1:] == ["sings\tB-ORG", "in\tL-ORG"]


def _clamp_column(name: str | None) -> FieldChoice:
    return FieldChoice(clamp_column=name)
