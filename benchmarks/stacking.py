"""Unigram stacked on another Unigram's marginals of a word's other occurrences in the document, and a vote among them.

    python benchmarks/stacking.py folds
    dmf experiment run runs/recall/folds/folds.toml --output runs/recall
    dmf experiment run configs/plans/recall-controls.toml --output runs/recall --only system=unigram --only variant=sentences
    python benchmarks/stacking.py marginals
    dmf experiment run configs/plans/recall-controls.toml --output runs/recall

A control of recall, after Krishnan and Manning (2006). ``folds`` cuts the training files into folds of whole documents, and writes a plan
with a Unigram for each fold that is trained on all others. ``marginals`` labels each fold with the model that has not seen it, dev and
test with the model of all of train, and writes the marginals for the encoder ``stacked``, which this file adds as a plugin; it also scores
a vote of each word with its other occurrences, and puts the rows into the plan's result file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch, EncodedSentences, collate, shorten
from diffusion_mf.batches.layouts import Layout
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.config.errors import toml_value
from diffusion_mf.config.files import flat
from diffusion_mf.data.formats import read_task
from diffusion_mf.data.sentence import Sentence, cut_documents
from diffusion_mf.decoding import DECODERS, DecoderInput
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation import score_sentences
from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.experiments.plan import PlanFile, Run, chosen_runs, load_plan, read_plan_file
from diffusion_mf.lab.experiments.record import save_rows
from diffusion_mf.lab.experiments.selection import Group, Outcomes, best_group
from diffusion_mf.lab.results import provenance
from diffusion_mf.model.core import content_keys
from diffusion_mf.networks.encoders import ENCODERS, ScratchEncoder
from diffusion_mf.networks.recall import mean_of_others
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.prediction.devices import choose_device
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.tagger import load_model
from diffusion_mf.training.evaluation import candidate_decoders, predict_all
from diffusion_mf.training.processes import Processes

RECALL = 8
"""other occurrences that vote, as many as the systems of the plan see"""
WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""of the mean marginals of the others, relative to the word's own; dev chooses"""


class StackedEncoder(ScratchEncoder):
    """States to which a linear map, initialised to zero, of the mean marginals of a unit's other occurrences is added.

    The marginals come from the file ``encoder.model``. A sentence is found in it by a hash of its spelling, on the device, so that
    batches can be packed and recorded; of two sentences with the same hash the first counts.
    """

    keys: Tensor
    starts: Tensor
    marginals: Tensor

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        if config.model is None or not config.recall:
            raise InputError("the encoder stacked needs encoder.model, a file of marginals, and encoder.recall")
        self.vocabulary, self.path, self.max_characters = vocabulary, config.model, config.max_characters
        try:
            with np.load(config.model) as file:
                sentences = [Sentence(tuple(units)) for units in json.loads(file["sentences"].tobytes())]
                marginals = torch.from_numpy(file["marginals"])
        except FileNotFoundError:
            raise InputError("no such file", path=config.model, remedy="run benchmarks/stacking.py marginals") from None
        lengths = np.array([len(sentence.units) for sentence in sentences])
        first: dict[int, int] = {}
        for key, start in zip(self._keys_of(sentences), (np.cumsum(lengths) - lengths).tolist(), strict=True):
            first.setdefault(key, start)
        keys = sorted(first)
        self.register_buffer("keys", torch.from_numpy(np.array(keys)), persistent=False)
        self.register_buffer("starts", torch.from_numpy(np.array([first[key] for key in keys])), persistent=False)
        self.register_buffer("marginals", marginals, persistent=False)
        self.recalled = nn.Linear(marginals.shape[1], self.width, bias=False)
        nn.init.zeros_(self.recalled.weight)

    def _keys_of(self, sentences: Sequence[Sentence]) -> Iterator[int]:
        for start in range(0, len(sentences), 1000):
            batch = collate([each._replace(labels=None) for each in sentences[start : start + 1000]], self.vocabulary)
            yield from self._keys(batch).tolist()

    def _keys(self, batch: Batch) -> Int[Tensor, " B"]:
        spellings, lengths = shorten(batch.character_ids, batch.character_lengths, self.max_characters)
        words = content_keys(spellings, unit_mask(lengths, spellings.shape[1]))
        return content_keys(words[batch.word_rows], unit_mask(batch.lengths, batch.form_ids.shape[1]))

    def study(self, sentences: Iterable[Sentence], *, note: Callable[[str], None]) -> None:
        """Check that every sentence is in the file: a forward pass cannot say that one is not."""
        if not {*self._keys_of([*sentences])} <= {*self.keys.tolist()}:
            raise InputError(
                "has no marginals for some sentences of the corpus", path=self.path, remedy="write it again"
            )

    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch, which has ``others``."""
        states, keys = super().forward(batch, layout), self._keys(batch)
        rows = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        places = self.starts[rows][:, None] + torch.arange(batch.form_ids.shape[1], device=keys.device)
        found = self.marginals[places.clamp(max=len(self.marginals) - 1)] * (self.keys[rows] == keys)[:, None, None]
        assert batch.others is not None
        return states + self.recalled(mean_of_others(found.to(states.dtype), layout.pack(batch.others)))


if __name__ != "__main__":  # the commands import the plan's plugins, and so this file again
    ENCODERS["stacked"] = StackedEncoder


def documents_of(text: str) -> list[str]:
    """The documents of a column or CoNLL-U file, marks included."""
    documents: list[list[str]] = []
    for block in text.strip("\n").split("\n\n"):
        begins = block.startswith("-DOCSTART-") or any(line.startswith("# newdoc") for line in block.split("\n"))
        if begins or not documents:
            documents.append([])
        documents[-1].append(block)
    return ["\n\n".join(blocks) for blocks in documents]


def fold_file(folder: Path, run: Run, fold: int, part: str) -> Path:
    """The file with the sentences of a fold (``held-out``), or with all others (``train``)."""
    return folder / f"{run.corpus}-fold{fold}-{part}{Path(run.config.data.train or '').suffix}"


def write_folds(plan: Path, runs: Sequence[Run], folder: Path, num_folds: int) -> None:
    """Write the files of every fold, and the plan that trains on them."""
    file, _ = read_plan_file(PlanFile, plan)
    lines = [
        f"configs = {toml_value(str((plan.parent / file.configs).resolve()))}",
        f'systems = ["unigram"]\nseeds = {toml_value(sorted({run.seed for run in runs}))}\n[run]\nworkers = {file.run.workers}\n[set]',
        *(f"{key} = {toml_value(value)}" for key, value in flat(file.set).items()),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for run, fold in itertools.product({run.corpus: run for run in runs}.values(), range(num_folds)):
        documents = documents_of(Path(run.config.data.train or "").read_text(encoding="utf-8"))
        rest = [document for index, document in enumerate(documents) if index % num_folds != fold]
        for part, chosen in (("held-out", documents[fold::num_folds]), ("train", rest)):
            path = fold_file(folder, run, fold, part)
            path.write_text("\n\n".join(chosen) + "\n\n", encoding="utf-8")
        lines += [
            f'[corpora.{run.corpus}-fold{fold}]\ntask = "{run.config.task}"',
            f"train = {toml_value(str(path.resolve()))}",
            f"dev = {toml_value(str(Path(run.config.data.dev or '').resolve()))}",
        ]
    (folder / "folds.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


class TrainedModel:
    """A model of a finished run."""

    def __init__(self, output: Path, run: Run, device: torch.device) -> None:
        place = ExperimentFolder(output).run(run.name)
        result = place.result()
        # A run that failed may have left the model of an early epoch.
        if result is None or not place.model.exists():
            problem = "this run has not finished, or its model was not kept"
            raise InputError(problem, path=place.root, remedy="run the plans first, and keep their models")
        self.stored, self.result = load_model(place.model), result
        self.config, self.vocabulary = self.stored.config, self.stored.vocabulary
        self.labeller = self.stored.labeller.to(device).eval()
        self.processes = Processes(0, 1, device)

    def label(self, path: str | Path, labels: Sequence[str]) -> tuple[list[Sentence], Float[Tensor, "U K"]]:
        """The sentences of a file, and the marginals of all their units for ``labels``, which include the model's."""
        sentences = [self.config.data.prepare(sentence) for sentence in read_task(path, self.config.task)]
        predictor, decoders = Predictor(self.labeller, self.config, self.processes.device), [self.stored.decoder]
        _, found = predict_all(predictor, sentences, self.config, self.vocabulary, decoders, self.processes)
        marginals = torch.zeros(len(found), len(labels))
        marginals[:, [labels.index(label) for label in self.vocabulary.labels]] = found
        return sentences, marginals

    def votes(
        self, sentences: Sequence[Sentence], marginals: Float[Tensor, "U K"]
    ) -> Iterator[tuple[tuple[str, float], dict[str, dict[str, float]]]]:
        """By the name of the vote and the weight of the others, the scores of every decoder."""
        sentences = [*cut_documents(sentences)]
        rows = EncodedSentences(sentences, self.vocabulary, has_labels=False, recall=RECALL)
        batch = rows.batch(range(len(sentences)))
        assert batch.others is not None
        is_unit = unit_mask(batch.lengths, batch.form_ids.shape[1])
        own = torch.zeros(*is_unit.shape, marginals.shape[1])
        own[is_unit] = marginals
        chosen = nn.functional.one_hot(own.argmax(-1), own.shape[-1]).float()
        of_others = (batch.others >= 0).sum(-1, keepdim=True) * mean_of_others(chosen, batch.others)
        # The word's own marginals break ties.
        voted = {("vote-labels", 1.0): chosen + of_others + 1e-3 * own}
        voted |= {("vote-marginals", weight): own + weight * mean_of_others(own, batch.others) for weight in WEIGHTS}
        legality, gold = self.labeller.cpu().legality, [sentence.labels or () for sentence in sentences]
        for place, scores in voted.items():
            inputs = DecoderInput(lengths=batch.lengths, unary_scores=scores.clamp(min=1e-12).log(), legality=legality)
            found = {}
            for decoder in candidate_decoders(self.labeller):
                ids = zip(DECODERS[decoder](inputs).tolist(), gold, strict=True)
                labels = [[self.vocabulary.labels[index] for index in row[: len(right)]] for row, right in ids]
                found[decoder] = score_sentences(self.config.task, self.stored.scheme, gold, labels)
            yield place, found


def cross_fit(runs: Sequence[Run], output: Path, device: torch.device) -> Iterator[Group]:
    """Write the marginals of every corpus and seed; yields the votes, those of marginals with the best weight on dev."""
    of_folds = load_plan(output / "folds/folds.toml").runs
    results: dict[tuple[str, str, float], dict[int, dict[str, Any]]] = {}
    for run in runs:
        base = TrainedModel(output, run, device)
        labels = base.vocabulary.labels
        folds = [each for each in of_folds if each.corpus.startswith(f"{run.corpus}-fold") and each.seed == run.seed]
        # Cross-fitted marginals come first: a sentence of dev or test that train has, too, gets those.
        parts = [
            TrainedModel(output, each, device).label(fold_file(output / "folds", run, fold, "held-out"), labels)
            for fold, each in enumerate(folds)
        ]
        parts += [base.label(path or "", labels) for path in (run.config.data.dev, run.config.data.test)]
        units = json.dumps([sentence.units for sentences, _ in parts for sentence in sentences]).encode()
        path = output / "marginals" / f"{run.corpus}.seed{run.seed}.npz"
        path.parent.mkdir(exist_ok=True)
        marginals = torch.cat([part for _, part in parts]).numpy()
        np.savez_compressed(path, sentences=np.frombuffer(units, dtype=np.uint8), marginals=marginals)
        print(path)
        kept = {name: base.result[name] for name in ("metric", "task", "parameters", "seconds")}
        kept |= provenance(shlex.join(["python", *sys.argv]), measured=[Path(__file__).resolve()])
        for ((name, weight), on_dev), (_, on_test) in zip(*(base.votes(*part) for part in parts[-2:]), strict=True):
            results.setdefault((run.corpus, name, weight), {})[run.seed] = {
                **kept,
                "configuration": f"{run.source}, weight of the others: {weight}",
                "decoders": on_dev,
                "test_decoders": on_test,
            }
    for (corpus, name), keys in itertools.groupby(results, key=lambda key: key[:2]):
        about = {"corpus": corpus, "system": "unigram", "encoder": "scratch", "variant": name}
        best = best_group([Group(**about, results=results[key], planned=tuple(results[key])) for key in keys])
        assert best is not None
        yield best


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["folds", "marginals"])
    parser.add_argument("--plan", type=Path, default=Path("configs/plans/recall-controls.toml"))
    parser.add_argument("--output", type=Path, default=Path("runs/recall"), help="the --output of the plans")
    parser.add_argument("--only", action="append", default=[], metavar="KEY=VALUES", help="as in dmf experiment run")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    plan = load_plan(given.plan)
    runs = chosen_runs(plan.runs, ["system=unigram", "variant=sentences", *given.only])
    if given.command == "folds":
        write_folds(given.plan, runs, given.output / "folds", given.folds)
        return
    votes = Outcomes(cross_fit(runs, given.output, choose_device(given.device)))
    if plan.record_file is not None:
        save_rows(plan.record_file, votes, experiment="variants")
    for group in votes.groups:
        for decoder in group.decoders:
            means = (group.summary(split, decoder) for split in ("dev", "test"))
            print(group.corpus, group.variant, decoder, *(f"{mean.mean:.2f}" for mean in means if mean is not None))


if __name__ == "__main__":
    main()
