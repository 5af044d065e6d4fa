"""Correction: how many labels an annotator has to fix if the rest is labelled again after each fix.

A simulated annotator goes through a document in reading order, or starting with the least certain label. Correct labels are confirmed; the
first wrong one is fixed, and for entities the whole span. Confirmed and fixed labels are held (clamped), and the document is labelled again,
until everything is right. If labels did not depend on each other, there would be as many fixes as errors at the start.

An annotator may also apply every fix to the same words elsewhere in the document, as many tools allow: such labels count like those of
the model, and are fixed where they are wrong.

The annotators of all documents work in lockstep: every round labels the documents that still have errors, in shared batches. Where no fix
reaches another sentence, each sentence has its own annotator.
"""

from __future__ import annotations

import enum
import functools
import multiprocessing
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath, write_json
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, extract_spans
from diffusion_mf.data.sentence import Sentence, cut_documents, grouped
from diffusion_mf.decoding import DECODERS
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.mistakes import bootstrap, span_mistakes
from diffusion_mf.lab.experiments.folders import read_object
from diffusion_mf.model import Prediction
from diffusion_mf.model.storage import StoredModel, load_model
from diffusion_mf.prediction.memory import placed
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.prediction.sentences import predict_sentences
from diffusion_mf.systems import SYSTEMS

CORRECTION_ROW_KEY = (
    *("benchmark", "corpus", "file", "system", "encoder", "recall", "clamp_share"),
    *("order", "applied_to_all", "given", "calls"),
)
GIVEN = (1.0, 5.0, 10.0, 25.0, 50.0)
"""shares of the labels, in per cent"""
REFERENCE = "lcrf"
"""the system that the others with the same encoder are compared with"""
NUM_RESAMPLES = 10_000

NONE = -1
"""no label"""

Flags = Bool[np.ndarray, " N"]


class Order(enum.StrEnum):
    """The order in which an annotator looks at the labels."""

    READING = "reading"
    UNCERTAIN = "uncertain"
    """those with the lowest scores first"""


class Way(NamedTuple):
    """How an annotator works."""

    order: Order
    applied_to_all: bool = False
    """whether every fix is applied to the same words of the document"""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Way | None:
        """The way of a result row; None if it is about given labels."""
        return cls(Order(row["order"]), row["applied_to_all"]) if row["order"] else None

    @property
    def title(self) -> str:
        """The name in tables and plots."""
        return self.order.value + ", applied to all" * self.applied_to_all


class Fix(NamedTuple):
    """What an annotator decides about one sentence."""

    sentence: int
    units: range


class Labelled(NamedTuple):
    """The labels of a sentence, as ids, and their scores."""

    labels: Int[np.ndarray, " N"]
    scores: Float[np.ndarray, " N"]


class Corrector:
    """A model and labelled sentences, which it labels around the gold labels that are held.

    Sentences with a label that the model does not know are left out: their labels cannot be held.
    """

    def __init__(
        self, model: StoredModel, sentences: Sequence[Sentence], *, device: torch.device, calls: int | None = None
    ) -> None:
        self.model, self._calls = model, calls
        labeller = placed(model.labeller, device).eval()
        self._predictor = Predictor(labeller, model.config, device)
        ids, prepare = model.vocabulary.label_ids, model.config.data.prepare
        known = [
            bool(sentence.units) and all(label in ids for label in sentence.labels or ()) for sentence in sentences
        ]
        self.num_left_out = sum(
            not flag and bool(sentence.units) for flag, sentence in zip(known, sentences, strict=True)
        )
        kept = [prepare(sentence) for sentence, flag in zip(sentences, known, strict=True) if flag]
        self.documents = np.array([place for place, flag in zip(_documents(sentences), known, strict=True) if flag])
        """of every sentence, the number of its document, for all models the same"""
        self.sentences = [*cut_documents(kept)] if self._predictor.recall else kept
        self.gold = [np.array([ids[label] for label in sentence.labels or ()]) for sentence in kept]
        self._names = model.vocabulary.labels
        self._has_spans = model.config.task is Task.NER
        self._legality = labeller.legality
        self._gold_spans = [self.spans(gold) for gold in self.gold] if self._has_spans else []

    @property
    def num_units(self) -> int:
        """The number of units of all sentences."""
        return sum(map(len, self.gold))

    @property
    def num_targets(self) -> int:
        """What fixes are counted per: gold spans for entities, otherwise units."""
        return sum(map(len, self._gold_spans)) if self._has_spans else self.num_units

    @property
    def can_apply_to_all(self) -> bool:
        """Whether there are documents, and units that are words."""
        return self.model.config.task is not Task.SEG_POS and len(set(self.documents.tolist())) < len(self.documents)

    def groups(self, *, by_document: bool) -> list[list[int]]:
        """The sentences of every annotator: a document's where its sentences depend on each other, otherwise a single one."""
        if by_document:
            return grouped(self.documents.tolist())
        return grouped([sentence.document if self._predictor.recall else 0 for sentence in self.sentences])

    def spans(self, labels: Int[np.ndarray, " N"]) -> list[LabelledSpan]:
        """The spans that labels encode."""
        return extract_spans([self._names[index] for index in labels], LabelScheme.BMES)

    @torch.inference_mode()
    def label(
        self, members: Sequence[int], held: Sequence[Flags], applied: Mapping[int, Int[np.ndarray, " N"]] | None = None
    ) -> dict[int, Labelled]:
        """Label some sentences by the best decoder whose output is legal, with gold labels where ``held`` is set.

        Elsewhere, labels ``applied`` to a sentence are kept (`applied_labels`).
        """
        decoder = DECODERS[self.model.tagging_decoder]

        def finish(prediction: Prediction, *, members: Sequence[int], allowed: Tensor | None) -> list[Tensor]:
            labels = decoder(prediction.decoder_input)
            return [labels, prediction.marginals.float().gather(-1, labels.clamp(min=0)[..., None])[..., 0]]

        batches = predict_sentences(
            self._predictor,
            [self.sentences[index] for index in members],
            self.model.vocabulary,
            finish,
            budget=self.model.config.inference.budget,
            num_calls=self._calls,
            allowed=[self._allowed(index, held[index], (applied or {}).get(index)) for index in members],
        )
        found = {}
        for places, (labels, scores) in batches:
            for row, place in enumerate(places):
                index = members[place]
                size = len(self.gold[index])
                found[index] = Labelled(labels[row, :size].numpy().copy(), scores[row, :size].numpy().copy())
        return found

    def _allowed(self, index: int, held: Flags, applied: Int[np.ndarray, " N"] | None) -> Bool[Tensor, "_ K"] | None:
        decided = np.where(held, self.gold[index], NONE if applied is None else applied)
        (places,) = np.nonzero(decided != NONE)
        if not len(places):
            return None
        allowed = torch.ones(len(held), len(self._names), dtype=torch.bool)
        allowed[torch.from_numpy(places)] = False
        allowed[torch.from_numpy(places), torch.from_numpy(decided[places])] = True
        return allowed

    def applied_labels(self, index: int, fixes: Sequence[Fix], held: Flags) -> Int[np.ndarray, " N"]:
        """The labels of fixes at the same words in sentence ``index``, `NONE` elsewhere; the longest and latest of them count.

        A fix is not applied where something is held, nor beside labels that it cannot stand next to.
        """
        units = self.sentences[index].units
        decided = np.where(held, self.gold[index], NONE)
        for _, fix in sorted(
            enumerate(fixes), key=lambda numbered: (len(numbered[1].units), numbered[0]), reverse=True
        ):
            words = self.sentences[fix.sentence].units[fix.units.start : fix.units.stop]
            labels = self.gold[fix.sentence][fix.units.start : fix.units.stop]
            for start in range(len(units) - len(words) + 1):
                end = start + len(words)
                if (
                    units[start:end] == words
                    and (decided[start:end] == NONE).all()
                    and self._may_follow(decided[start - 1] if start else NONE, labels[0])
                    and self._may_follow(labels[-1], decided[end] if end < len(units) else NONE)
                ):
                    decided[start:end] = labels
        return np.where(held, NONE, decided)

    def _may_follow(self, previous: int, label: int) -> bool:
        return self._legality is None or NONE in (previous, label) or bool(self._legality.transitions[previous, label])

    def num_errors(self, index: int, labels: Int[np.ndarray, " N"]) -> int:
        """How many fixes a sentence would need if no fix changed any other label."""
        if not self._has_spans:
            return int((labels != self.gold[index]).sum())
        return len(span_mistakes(self._gold_spans[index], self.spans(labels)))

    def fixed_units(self, index: int, labels: Int[np.ndarray, " N"], position: int) -> range:
        """The units that an annotator decides when the label at ``position`` is wrong: that one, and for entities a span.

        It is the gold span there; where there is none, the gold span that the wrong one overlaps or, failing this, all of the wrong one.
        """
        if not self._has_spans:
            return range(position, position + 1)
        gold = self._gold_spans[index]
        at_position = [span for span in gold if span.start <= position < span.end]
        wrong = [span for span in self.spans(labels) if span.start <= position < span.end]
        overlapped = [span for span in gold if wrong and span.start < wrong[0].end and wrong[0].start < span.end]
        chosen = (at_position or overlapped or wrong or [LabelledSpan(position, position + 1, "")])[0]
        return range(chosen.start, chosen.end)


def _documents(sentences: Sequence[Sentence]) -> list[int]:
    """The number of every sentence's document; a sentence without one is a document of its own."""
    numbers = [0] * len(sentences)
    for number, group in enumerate(grouped([sentence.document for sentence in sentences])):
        for index in group:
            numbers[index] = number
    return numbers


@dataclass(frozen=True)
class Corrected:
    """Errors at the start and fixes until everything is right, by sentence."""

    errors: Int[np.ndarray, " S"]
    fixes: Int[np.ndarray, " S"]


def correct(corrector: Corrector, way: Way) -> Corrected:
    """Simulate the annotators of all documents."""
    number = len(corrector.sentences)
    held = [np.zeros(len(gold), dtype=bool) for gold in corrector.gold]
    errors, fixes = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    applied: dict[int, Int[np.ndarray, " N"]] = {}
    # A document and the fixes in it so far.
    active: list[tuple[list[int], list[Fix]]] = [
        (group, []) for group in corrector.groups(by_document=way.applied_to_all)
    ]
    is_first = True
    while active:
        found = corrector.label([index for group, _ in active for index in group], held, applied)
        if is_first:
            errors[:] = [corrector.num_errors(index, found[index].labels) for index in range(number)]
            is_first = False
        remaining = []
        for group, earlier in active:
            fix = _next_fix(corrector, group, found, held, way.order)
            if fix is None:
                continue
            fixes[fix.sentence] += 1
            remaining.append((group, [*earlier, fix]))
            if way.applied_to_all:
                applied |= {index: corrector.applied_labels(index, [*earlier, fix], held[index]) for index in group}
        active = remaining
    return Corrected(errors, fixes)


def _next_fix(
    corrector: Corrector, group: Sequence[int], found: Mapping[int, Labelled], held: Sequence[Flags], order: Order
) -> Fix | None:
    """Confirm and fix labels of a group in ``held`` until one was wrong; the fix, None if all are right."""
    sizes = [len(held[index]) for index in group]
    starts = np.cumsum([0, *sizes])
    is_wrong = np.concatenate([found[index].labels != corrector.gold[index] for index in group])
    if not is_wrong.any():
        return None
    looked_at = np.arange(len(is_wrong))
    if order is Order.UNCERTAIN:
        is_held = np.concatenate([held[index] for index in group])
        scores = np.concatenate([found[index].scores for index in group])
        looked_at = np.argsort(np.where(is_held, np.inf, scores), kind="stable")
    turn = int(np.argmax(is_wrong[looked_at]))
    confirmed, place = looked_at[:turn], int(looked_at[turn])
    member = int(np.searchsorted(starts, place, side="right")) - 1
    index, position = group[member], place - int(starts[member])
    units = corrector.fixed_units(index, found[index].labels, position)
    decided = np.concatenate([confirmed, [place], starts[member] + np.arange(units.start, units.stop)])
    if order is Order.READING:
        # Everything up to the end of what is fixed has been read.
        decided = np.arange(int(starts[member]) + max(units.stop, position + 1))
    flags = np.zeros(len(is_wrong), dtype=bool)
    flags[decided] = True
    for start, size, each in zip(starts, sizes, group, strict=False):
        held[each] |= flags[start : start + size]
    return Fix(index, units)


class GivenResult(NamedTuple):
    """The accuracy (%) on units whose label is not given."""

    accuracy: float
    without: float
    """of the same units, with no label given"""


def accuracy_of_others(corrector: Corrector, shares: Sequence[float]) -> Iterator[GivenResult]:
    """For every share (%) of units drawn at random whose gold labels are given, the accuracy on the others.

    The units of a smaller share are among those of a larger one, and the same for all models.
    """

    def accuracy(labelled: Mapping[int, Labelled], chosen: Flags) -> float:
        is_right = np.concatenate([labelled[index].labels == gold for index, gold in enumerate(corrector.gold)])
        return 100 * float(is_right[chosen].mean()) if chosen.any() else 100.0

    everything = range(len(corrector.sentences))
    nothing = [np.zeros(len(gold), dtype=bool) for gold in corrector.gold]
    free = corrector.label(everything, nothing)
    drawn = np.random.default_rng(0).random(corrector.num_units)
    parts = np.split(drawn, np.cumsum([len(gold) for gold in corrector.gold])[:-1])
    for share in shares:
        held = [part < share / 100 for part in parts]
        found = corrector.label(everything, held)
        is_other = ~np.concatenate(held)
        yield GivenResult(accuracy(found, is_other), accuracy(free, is_other))


class ModelGroup(NamedTuple):
    """What models of different seeds have in common."""

    system: str
    encoder: str
    recall: str
    """of the other occurrences of a word: states, beliefs, states and beliefs, or nothing"""
    clamp_share: float

    @classmethod
    def of(cls, model: StoredModel) -> ModelGroup:
        """The group of a model; direct systems are never trained for clamps, whatever the configuration says."""
        config = model.config
        encoder = Path(config.encoder.model or config.encoder.kind).name
        is_categorical = config.system_entry.process == "categorical"
        recalled = ["states"] * bool(config.encoder.recall) + ["beliefs"] * bool(
            is_categorical and config.denoiser.recall
        )
        clamp_share = config.diffusion.clamp_share if config.system_entry.is_diffusion else 0.0
        return cls(config.system, encoder, " and ".join(recalled) or "nothing", clamp_share)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> ModelGroup:
        """The group of a result row."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def title(self) -> str:
        """The name in tables and plots."""
        encoder = "" if self.encoder == "scratch" else self.encoder
        recall = "" if self.recall == "nothing" else f"recall of {self.recall}"
        parts = [SYSTEMS[self.system].title, encoder, "clamps" * (self.clamp_share > 0), recall]
        return ", ".join(filter(None, parts))


class Measured(NamedTuple):
    """The measurements of one model."""

    group: ModelGroup
    seed: int
    facts: dict[str, Any]
    """the same for all seeds"""
    corrected: dict[Way, Corrected]
    given: dict[float, GivenResult]
    documents: Int[np.ndarray, " S"]
    num_targets: int


def measure_models(
    folders: Sequence[StrPath],
    sentences: Sequence[Sentence],
    *,
    device: torch.device,
    calls: int | None,
    workers: int = 1,
) -> Iterator[Measured]:
    """The measurements of the model in every folder, in order; several workers are processes that share the device."""
    work = functools.partial(_measured, sentences=sentences, device=device, calls=calls)
    if workers == 1:
        yield from map(work, folders)
        return
    # Spawned: a forked process cannot use CUDA.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, folders)


def _measured(folder: StrPath, *, sentences: Sequence[Sentence], device: torch.device, calls: int | None) -> Measured:
    """Correct ``sentences`` in every way that they allow, and measure the accuracy on the others for every share of given labels."""
    model = load_model(folder)
    corrector = Corrector(
        model, sentences, device=device, calls=calls if model.config.system_entry.is_diffusion else None
    )
    ways = [Way(order, is_applied) for is_applied in (False, corrector.can_apply_to_all) for order in Order]
    corrected = {way: correct(corrector, way) for way in dict.fromkeys(ways)}
    given = dict(zip(GIVEN, accuracy_of_others(corrector, GIVEN), strict=True))
    facts = {
        "decoder": model.tagging_decoder,
        "per": "1,000 spans" if model.config.task is Task.NER else "1,000 units",
        "units": corrector.num_units,
        "documents": len(set(corrector.documents.tolist())),
        "sentences_left_out": corrector.num_left_out,
    }
    return Measured(
        ModelGroup.of(model), model.config.seed, facts, corrected, given, corrector.documents, corrector.num_targets
    )


def kept_name(measured: Measured) -> str:
    """The name of a file for `write_measured`: another for everything that has rows of its own, and for every seed."""
    facts, group = measured.facts, measured.group
    calls = "own" if facts["calls"] is None else facts["calls"]
    model = f"{group.system}.{group.encoder}.recall-{group.recall.replace(' ', '-')}.clamps{group.clamp_share:g}"
    return f"{facts['corpus']}.{Path(facts['file']).stem}.{model}.calls-{calls}.seed{measured.seed}.json"


def write_measured(path: Path, measured: Measured) -> None:
    """Keep the measurements of one model in a JSON file."""
    content = {
        **measured._asdict(),
        "group": measured.group._asdict(),
        "corrected": [
            {**way._asdict(), "errors": found.errors.tolist(), "fixes": found.fixes.tolist()}
            for way, found in measured.corrected.items()
        ],
        "given": {str(share): found._asdict() for share, found in measured.given.items()},
        "documents": measured.documents.tolist(),
    }
    write_json(path, content)


def read_measured(path: Path) -> Measured:
    """What `write_measured` wrote; `InputError` if the file has something else."""
    content = read_object(path) or {}
    try:
        return Measured(
            ModelGroup(**content["group"]),
            content["seed"],
            content["facts"],
            {
                Way(Order(found["order"]), found["applied_to_all"]): Corrected(
                    np.array(found["errors"]), np.array(found["fixes"])
                )
                for found in content["corrected"]
            },
            {float(share): GivenResult(**found) for share, found in content["given"].items()},
            np.array(content["documents"]),
            content["num_targets"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = "these are not the measurements of a model" if path.exists() else "no such file"
        raise InputError(problem, path=path, remedy="name a model folder, or a file of --keep") from error


def correction_rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """A row per system and way to correct, and per system and share of given labels, with means over seeds."""
    by_group: dict[ModelGroup, list[Measured]] = {}
    # Measurements of earlier versions lack some ways.
    corrected: dict[tuple[ModelGroup, Way], list[Measured]] = {}
    for each in measured:
        by_group.setdefault(each.group, []).append(each)
        for way in each.corrected:
            corrected.setdefault((each.group, way), []).append(each)
    rows: list[dict[str, Any]] = []
    for group, members in by_group.items():
        rows += [_fix_row(corrected, *place) for place in corrected if place[0] == group]
        for share in members[0].given:
            results = [each.given[share] for each in members]
            rows.append(
                {
                    **_common_values(members),
                    "order": None,
                    "applied_to_all": False,
                    "given": share,
                    "accuracy_of_others": statistics.fmean(result.accuracy for result in results),
                    "accuracy_without": statistics.fmean(result.without for result in results),
                    "accuracy_by_seed": {str(each.seed): each.given[share].accuracy for each in members},
                }
            )
    return rows


def _common_values(members: Sequence[Measured]) -> dict[str, Any]:
    """What all rows of a system's models begin with."""
    return {
        "benchmark": "correction",
        **members[0].group._asdict(),
        "seeds": sorted(each.seed for each in members),
        **members[0].facts,
        # Models may have been measured at different times and places.
        **{
            key: "; ".join(dict.fromkeys(str(each.facts[key]) for each in members))
            for key in ("decoder", "commit", "hardware")
            if key in members[0].facts
        },
    }


def _fix_row(
    corrected: Mapping[tuple[ModelGroup, Way], Sequence[Measured]], group: ModelGroup, way: Way
) -> dict[str, Any]:
    """Errors and fixes per 1,000, what is saved (%), and the comparisons with LCRFs: corrected in the same way, and the best."""
    members = corrected[group, way]

    def per_thousand(each: Measured, counts: Int[np.ndarray, " S"]) -> float:
        return 1000 * float(counts.sum()) / max(each.num_targets, 1)

    def minus(other: ModelGroup, other_way: Way) -> dict[str, float]:
        theirs = _fixes_by_document(corrected[other, other_way], other_way)
        return _difference(_fixes_by_document(members, way), theirs, members[0].num_targets)

    errors = {str(each.seed): per_thousand(each, each.corrected[way].errors) for each in members}
    fixes = {str(each.seed): per_thousand(each, each.corrected[way].fixes) for each in members}
    total_errors, total_fixes = statistics.fmean(errors.values()), statistics.fmean(fixes.values())
    row: dict[str, Any] = {
        **_common_values(members),
        **way._asdict(),
        "given": None,
        "errors": total_errors,
        "fixes": total_fixes,
        "fixes_sd": statistics.stdev(fixes.values()) if len(fixes) > 1 else None,
        "saved": 100 * (1 - total_fixes / total_errors) if total_errors else None,
        "errors_by_seed": errors,
        "fixes_by_seed": fixes,
    }
    for recall, name in (("nothing", f"minus_{REFERENCE}"), ("states", f"minus_{REFERENCE}_with_states")):
        other = group._replace(system=REFERENCE, recall=recall, clamp_share=0.0)
        if group != other and (other, way) in corrected:
            row[name] = minus(other, way)
    rivals = [
        (other, other_way)
        for other, other_way in corrected
        if (other.system, other.encoder, other_way.order) == (REFERENCE, group.encoder, way.order)
    ]
    if rivals and group.system != REFERENCE:
        best, best_way = min(
            rivals, key=lambda rival: _fixes_by_document(corrected[rival], rival[1]).mean(axis=0).sum()
        )
        row[f"minus_best_{REFERENCE}"] = {
            "recall": best.recall,
            "applied_to_all": best_way.applied_to_all,
            **minus(best, best_way),
        }
    return row


def _difference(ours: Float[np.ndarray, "S D"], theirs: Float[np.ndarray, "R D"], num_targets: int) -> dict[str, float]:
    """The difference of mean fixes per 1,000, its 95 % interval and the one-sided p of “fewer”.

    By bootstrap: documents are resampled for both together, seeds for each by itself.
    """
    scale = 1000 / max(num_targets, 1)
    generator = np.random.default_rng(0)

    def resampled(weights: Float[np.ndarray, "B D"], fixes: Float[np.ndarray, "S D"]) -> Float[np.ndarray, " B"]:
        number = len(fixes)
        shares = generator.multinomial(number, np.full(number, 1 / number), size=len(weights)) / number
        return ((weights @ fixes.T) * shares).sum(axis=1)

    drawn = scale * bootstrap(
        lambda weights: resampled(weights, ours) - resampled(weights, theirs),
        ours.shape[1],
        num_resamples=NUM_RESAMPLES,
    )
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {
        "difference": scale * float(ours.sum() / len(ours) - theirs.sum() / len(theirs)),
        "low": float(low),
        "high": float(high),
        "p_fewer": float(np.mean(drawn >= 0)),
    }


def _fixes_by_document(members: Sequence[Measured], way: Way) -> Float[np.ndarray, "S D"]:
    """The number of fixes of every seed in every document."""
    number = 1 + max(int(each.documents.max(initial=0)) for each in members)
    totals = np.zeros((len(members), number))
    for total, each in zip(totals, members, strict=True):
        np.add.at(total, each.documents, each.corrected[way].fixes)
    return totals


def write_correction_plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw, for every corpus, errors and fixes in reading order by system, and the errors among the other units by the share given."""
    from diffusion_mf.lab.experiments.plots import new_figure, save_figure, system_colour

    corpora = [*dict.fromkeys(row["corpus"] for row in rows)]
    figure = new_figure()
    figure.set_size_inches(5.4 * len(corpora), 7)
    panels = figure.subplots(2, len(corpora), squeeze=False)
    for corpus, bars, curves in zip(corpora, *panels, strict=True):
        here = [row for row in rows if row["corpus"] == corpus]
        systems = [*SYSTEMS]
        groups = sorted({ModelGroup.of_row(row) for row in here}, key=lambda group: (systems.index(group[0]), group))
        for place, group in enumerate(groups):
            own = [row for row in here if ModelGroup.of_row(row) == group]
            colour = system_colour(group.system)
            for row in own:
                if row["order"] == Order.READING:
                    half = {"y": place + 0.2 * (1 if row["applied_to_all"] else -1), "height": 0.4}
                    bars.barh(**half, width=row["errors"], color="#DDDDDD")
                    hatch = "///" * row["applied_to_all"]
                    bars.barh(**half, width=row["fixes"], color=colour, edgecolor="white", hatch=hatch)
            points = sorted((row["given"], 100 - row["accuracy_of_others"]) for row in own if row["given"] is not None)
            if points:
                line = "--" if group.recall != "nothing" else ":" if group.clamp_share else "-"
                marker = "s" if group.recall == "states and beliefs" else "o"
                look = {"color": colour, "linestyle": line, "marker": marker}
                curves.plot(*zip(*points, strict=True), markersize=3, label=group.title, **look)
        bars.set_yticks(range(len(groups)), [group.title for group in groups], fontsize=7)
        bars.invert_yaxis()
        bars.set_title(f"{corpus}: errors (grey) and fixes\n(hatched: each fix applied to all occurrences)", fontsize=8)
        bars.set_xlabel(f"per {here[0]['per']}, reading order")
        curves.set_xlabel("labels given (%)")
        curves.set_ylabel("wrong among the others (%)")
        curves.legend(fontsize=6, frameon=False)
        for axes in (bars, curves):
            axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
