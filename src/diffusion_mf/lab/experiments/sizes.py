"""Learning curves: scores by the number of training sentences, with the recipe, compared with python-crfsuite.

A plan of sizes describes runs on nested random samples of training files. Each run uses the settings that ``dmf train TRAIN`` would
choose for its sample; python-crfsuite is trained on the same sentences, with the regularisation that is best on dev. `scheduler` executes
the runs, as those of other plans; `size_curves` makes tables and plots of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy
import pydantic
from pydantic import PositiveInt

from diffusion_mf.config.errors import override
from diffusion_mf.config.files import flat
from diffusion_mf.data.columns import DOCUMENT_START, ColumnBlock, read_column_blocks
from diffusion_mf.data.conllu import ConlluBlock, read_conllu_blocks
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import BYTE_ORDER_MARK, StrPath, make_folder, open_output, write_json
from diffusion_mf.data.formats import FileFormat, task_format
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation import PRIMARY_METRICS, score_sentences
from diffusion_mf.evaluation.mistakes import sentence_counts
from diffusion_mf.evaluation.reconstruction import Reconstructor
from diffusion_mf.lab.experiments.folders import ExperimentFolder, RunPlace, read_object
from diffusion_mf.lab.experiments.plan import (
    AnyFile,
    CorpusEntry,
    check_files,
    chosen_corpora,
    known_corpora_of,
    read_plan_file,
)
from diffusion_mf.lab.experiments.same_data import FileDigests, check_unchanged, digest_of
from diffusion_mf.lab.experiments.scheduler import Job
from diffusion_mf.lab.results import provenance

if TYPE_CHECKING:
    from diffusion_mf.training.corpora import TrainingData

CRFSUITE = "python-crfsuite"
ALL = "all"
COUNTS_FILE = "counts.npz"
"""in the folder of a finished run: ``test``, of shape (sentences, 3), has what `sentence_counts` counts"""

Size: TypeAlias = PositiveInt | Literal["all"]
"""training sentences"""


CRFSUITE_SETTINGS = {"c1": [0.0, 0.1], "c2": [0.01, 0.1, 1.0], "min_count": 1, "max_iterations": 100}
"""Dev selects among the values of lists. Features that occur once are kept: without them training is faster, but a point worse."""


class SizesFile(AnyFile):
    """The file of a plan of sizes; its seeds are used for samples and for training, and its settings override the recipe's."""

    peers = (CRFSUITE,)
    sizes: list[Size]
    corpora: list[str] = pydantic.Field(default=[])
    """sampled in all ``sizes``"""
    whole_corpora: list[str] = pydantic.Field(default=[])
    """small corpora, used whole"""
    device: Literal["cuda", "cpu"]
    workers: PositiveInt = 1
    record: str | None = None
    """the result file that its rows belong to"""


@dataclass(frozen=True, kw_only=True)
class SizedRun:
    """A system on a sample."""

    corpus: str
    size: int | str
    seed: int
    system: str
    device: str
    """where it is trained; python-crfsuite is always trained on a CPU"""
    entry: CorpusEntry
    settings: Mapping[str, Any]
    """those of the plan that affect the result"""

    @property
    def name(self) -> str:
        """A readable unique name, used for the run's folder."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:6]
        return f"{self.corpus}.{self.system}.{self.size}.seed{self.seed}.{self.device}.{digest}"

    def coordinates(self) -> dict[str, Any]:
        """The run's coordinates in the plan."""
        return {name: getattr(self, name) for name in ("corpus", "size", "system", "seed", "device")}


@dataclass(frozen=True, kw_only=True)
class SizesPlan:
    """A plan of sizes and its runs, small ones first."""

    name: str
    file: SizesFile
    runs: Sequence[SizedRun]
    left_out: Sequence[str]
    """optional corpora that are missing"""
    digests: FileDigests = field(default_factory=FileDigests)

    def files(self) -> dict[str, dict[str, str]]:
        """The files of every run, by name."""
        return {run.name: run.entry.files() for run in self.runs}

    def jobs(self, folder: ExperimentFolder, *, runs: Iterable[SizedRun], command: str) -> list[Job]:
        """The jobs for `scheduler.run_jobs`; ``command`` is stored in results."""
        return [
            Job(
                name=run.name,
                description={
                    "sample": {
                        **run.coordinates(),
                        "task": run.entry.task.value,
                        "files": run.entry.files(),
                        "samples": os.path.abspath(folder.root / "samples"),
                        "settings": run.settings,
                    },
                    "data": self.digests.of(run.entry.files()),
                    "evaluation": {},
                    "command": command,
                },
            )
            for run in runs
        ]


def load_sizes_plan(
    path: StrPath, *, overrides: Mapping[str, Any] | None = None, corpora_file: StrPath | None = None
) -> SizesPlan:
    """Read a plan and count the sentences of its corpora; everything wrong with them is an `InputError`."""
    path = Path(path)
    plan, text = read_plan_file(SizesFile, path)
    known = known_corpora_of(path.parent / plan.corpora_file if corpora_file is None else Path(corpora_file))
    named = chosen_corpora([*plan.corpora, *plan.whole_corpora], known, path, text, needs_dev=False)
    corpora = {name: entry for name, entry in named.items() if not entry.is_missing}
    settings = {**flat(plan.set), **(overrides or {})}
    runs = []
    for corpus, entry in corpora.items():
        files = entry.files()
        if "test" not in files:
            raise InputError(
                f"the corpus {corpus!r} has no test file", path=path, remedy="add test = FILE to its entry"
            )
        check_files(*files.values())
        number = len(sentence_blocks(files["train"], entry.task, {**flat(entry.set), **settings}))
        sizes: list[int | str] = [ALL] if corpus in plan.whole_corpora else list(plan.sizes)
        for size in [size for size in sizes if size == ALL or int(size) < number]:
            runs += [
                (number if size == ALL else size, run)
                for run in _runs(plan, corpus, entry, size, {**flat(entry.set), **settings}, has_dev="dev" in files)
            ]
    if not runs:
        raise InputError("no corpus has so many sentences", path=path, remedy="choose smaller sizes, or all")
    return SizesPlan(
        name=plan.name or path.stem,
        file=plan,
        # Small samples first, with all their seeds, so that quick results come early.
        runs=[run for _, run in sorted(runs, key=lambda pair: (pair[0], pair[1].seed))],
        left_out=[name for name in named if name not in corpora],
    )


def _runs(
    plan: SizesFile, corpus: str, entry: CorpusEntry, size: int | str, settings: Mapping[str, Any], *, has_dev: bool
) -> Iterator[SizedRun]:
    for seed in plan.seeds:
        for system in plan.systems:
            is_crfsuite = system == CRFSUITE
            # It draws no random numbers, so that all seeds give the same result on the same sentences.
            if is_crfsuite and size == ALL and has_dev and seed != plan.seeds[0]:
                continue
            yield SizedRun(
                corpus=corpus,
                size=size,
                seed=seed,
                system=system,
                device="cpu" if is_crfsuite else plan.device,
                entry=entry,
                settings=CRFSUITE_SETTINGS if is_crfsuite else settings,
            )


def sentence_blocks(path: StrPath, task: Task, settings: Mapping[str, Any] | None = None) -> list[str]:
    """The sentences that training reads from a file, as they stand there, but for marks of documents and paragraphs.

    In a sample, these marks would join unrelated sentences. ``settings`` may give the file's format and columns.
    """
    given = {key: str(value) for key, value in (settings or {}).items() if value is not None}
    chosen = next((name for name in FileFormat if name == given.get("data.format")), None)
    file_format = task_format(path, task, file_format=chosen)
    repairs = Repairs(path)
    blocks: Iterable[ColumnBlock | ConlluBlock]
    if file_format is FileFormat.CONLLU:
        blocks, mark = read_conllu_blocks(path, repairs=repairs), re.compile(r"#\s*new(doc|par)(?=\s|$)")
    elif file_format is FileFormat.COLUMNS:
        form, tag = given.get("data.form_column"), given.get("data.tag_column")
        blocks = read_column_blocks(path, form_column=form, tag_column=tag, repairs=repairs)
        mark = re.compile(r"# +new(doc|par)(?=\s|$)")
    else:
        raise InputError(f"samples of {file_format} cannot be drawn", path=path, remedy="use columns or CoNLL-U")
    return [_own_lines(block.text, mark) for block in blocks if block.sentence is not None]


def _own_lines(text: str, mark: re.Pattern[str]) -> str:
    """The lines of a sentence and the comments directly above it."""
    lines = text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n").split("\n")
    is_blank = [line.startswith(DOCUMENT_START) or not line.strip(" \t") for line in lines]
    kept = "\n".join("" if blank else line for line, blank in zip(lines, is_blank, strict=True))
    own = kept.strip("\n").rpartition("\n\n")[2]
    return "\n".join(line for line in own.split("\n") if not mark.match(line))


def sample_indices(number: int, size: int, *, seed: int | str) -> list[int]:
    """The indices of a sample of ``size`` out of ``number`` sentences, ascending; with the same seed, larger samples contain smaller ones."""
    order = list(range(number))
    random.Random(f"sizes {seed}").shuffle(order)
    return sorted(order[:size])


def sample_file(
    train: str, size: int | str, seed: int, folder: Path, *, task: Task, settings: Mapping[str, Any] | None = None
) -> str:
    """The file with a sample of ``train``, written if it does not exist; for all sentences, ``train`` itself."""
    if size == ALL:
        return train
    # A file that has changed since has other samples.
    digest = (digest_of(train) or "")[:6]
    path = folder / f"{Path(train).stem}.{digest}.{size}.seed{seed}{Path(train).suffix}"
    if not path.exists():
        blocks = sentence_blocks(train, task, settings)
        chosen = [blocks[index] for index in sample_indices(len(blocks), int(size), seed=seed)]
        make_folder(folder)
        with open_output(path) as stream:
            stream.write(("\n\n".join(chosen) + "\n\n").encode())
    return os.fspath(path)


def train_on_sample(place: RunPlace, *, device: str) -> None:
    """Train the run that the folder describes, or resume it, and write its result."""
    description = place.description()
    sample = description["sample"]
    is_crfsuite = sample["system"] == CRFSUITE
    train = sample_file(
        sample["files"]["train"],
        sample["size"],
        sample["seed"],
        Path(sample["samples"]),
        task=Task(sample["task"]),
        settings=sample["settings"],
    )
    files = {**sample["files"], "train": train}
    import torch

    from diffusion_mf.training.automatic import choose_config
    from diffusion_mf.training.corpora import read_training_data

    given = {
        "task": sample["task"],
        # For python-crfsuite, any system serves to read the sentences.
        "system": "unigram" if is_crfsuite else sample["system"],
        "seed": sample["seed"],
        **{f"data.{split}": path for split, path in files.items() if split != "train"},
        **({} if is_crfsuite else sample["settings"]),
    }
    if sample["device"] == "cpu":
        device = "cpu"
        torch.set_num_threads(1)
        given["training.threads"] = 1
    overrides = [override(key, value) for key, value in given.items()]
    config = choose_config(files["train"], overrides, device_type=torch.device(device).type).config
    data = read_training_data(config)
    if not data.dev or not data.test:
        raise InputError("dev or test has no sentences", path=files["train"], remedy="use other files")
    if is_crfsuite:
        labelled, facts = _train_crfsuite(place, data, sample["settings"], task=config.task)
    else:
        labelled, facts = _train_ours(place, config, data.test, device=device)
    reconstruct = Reconstructor(config.task, data.scheme)
    counts = [
        sentence_counts(config.task, reconstruct(sentence.labels or (), labels, sentence.units))
        for sentence, labels in zip(data.test, labelled, strict=True)
    ]
    with open_output(place.root / COUNTS_FILE) as stream:
        numpy.savez_compressed(stream, test=numpy.array(counts, dtype=numpy.uint16).reshape(-1, 3))
    check_unchanged(place)
    place.save_result(
        {
            "name": place.name,
            **{key: sample[key] for key in ("corpus", "task", "size", "seed", "system", "device")},
            "data": description.get("data", {}),
            "sentences": len(data.train),
            "metric": PRIMARY_METRICS[config.task],
            "test": _score(config.task, data.scheme, data.test, labelled),
            **facts,
            **provenance(description["command"], packages=[CRFSUITE] if is_crfsuite else ()),
        }
    )
    for remains in (place.checkpoint, place.model):
        shutil.rmtree(remains, ignore_errors=True)


def _train_ours(
    place: RunPlace, config: Any, test: Sequence[Sentence], *, device: str
) -> tuple[list[list[str]], dict[str, Any]]:
    from diffusion_mf.lab.experiments.worker import train_without_test
    from diffusion_mf.tagger import Tagger

    before = time.process_time()
    is_resumed = train_without_test(place, config, device=device)
    processor_seconds = None if is_resumed else round(time.process_time() - before, 1)
    entries = place.last_entries(num_bytes=1 << 40)
    tagger = Tagger.load(place.model, device=device)
    model = tagger.model
    labelled = [list(result.labels) for result in tagger.tag(test, decoder=model.decoder, scheme=model.scheme)]
    return labelled, {
        "dev": dict(model.metrics["decoders"][model.decoder]),
        "decoder": model.decoder,
        "chosen_calls": model.chosen_calls,
        "best_epoch": model.metrics.get("epoch"),
        "parameters": model.labeller.num_parameters(),
        "seconds": round(max((entry["seconds"] for entry in entries if "seconds" in entry), default=0.0), 1),
        "processor_seconds": processor_seconds,
        "settings": config.model_dump(
            mode="json", exclude_defaults=True, exclude={"data", "plugins", "task", "system", "seed"}
        ),
    }


def _train_crfsuite(
    place: RunPlace, data: TrainingData, settings: Mapping[str, Any], *, task: Task
) -> tuple[list[list[str]], dict[str, Any]]:
    """Train with every regularisation, recording each dev score at once, and label test with the best."""
    from diffusion_mf.lab.benchmarks.cpu import Crfsuite

    try:
        Crfsuite().import_module()
    except ImportError:
        raise InputError(f"{CRFSUITE} is not installed", remedy="pip install python-crfsuite") from None
    found: dict[str, dict[str, Any]] = read_object(place.regularisation) or {}
    limits = {key: settings[key] for key in ("min_count", "max_iterations")}
    for c1, c2 in itertools.product(settings["c1"], settings["c2"]):
        peer, folder = Crfsuite(c1=c1, c2=c2, **limits), place.root / f"c1={c1:g},c2={c2:g}"
        if folder.name in found and peer.is_trained(folder):
            continue
        started, processor_started = time.monotonic(), time.process_time()
        make_folder(folder)
        peer.train(data.train, data.dev or (), folder)
        labelled = peer.load(folder)([sentence.units for sentence in data.dev or ()])
        found[folder.name] = {
            "c1": c1,
            "c2": c2,
            "dev": _score(task, data.scheme, data.dev or (), labelled),
            "seconds": time.monotonic() - started,
            "processor_seconds": time.process_time() - processor_started,
        }
        write_json(place.regularisation, found)
    best = max(found, key=lambda name: found[name]["dev"][PRIMARY_METRICS[task]])
    predicted = Crfsuite().load(place.root / best)([sentence.units for sentence in data.test or ()])
    for name in found:
        shutil.rmtree(place.root / name, ignore_errors=True)
    return predicted, {
        "dev": found[best]["dev"],
        "decoder": "viterbi",
        "seconds": round(sum(each["seconds"] for each in found.values()), 1),
        "processor_seconds": round(sum(each["processor_seconds"] for each in found.values()), 1),
        "selected_seconds": round(found[best]["seconds"], 1),
        "settings": {**settings, **{key: found[best][key] for key in ("c1", "c2")}},
    }


def _score(
    task: Task, scheme: LabelScheme, sentences: Sequence[Sentence], labelled: Iterable[Sequence[str]]
) -> dict[str, float]:
    return score_sentences(task, scheme, [sentence.labels or () for sentence in sentences], labelled)
