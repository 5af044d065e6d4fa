"""Finds every problem in a corpus, with its place and meaning, for ``dmf data check``.

Files are read as in training, except that errors are collected instead of raised.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Corpus, Task, missing_labels
from diffusion_mf.data.detection import Detection, detect
from diffusion_mf.data.files import DETECTED, FieldChoice, StrPath
from diffusion_mf.data.formats import FileFormat, FormatOptions, input_format, read_source, read_task, task_format
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme, split_label
from diffusion_mf.data.repair import PLACEHOLDER_FORM, Repair, Repairs
from diffusion_mf.errors import InputError

LONG_SENTENCE = 256
"""units; the paper cuts longer sentences for its pretrained encoders"""
NUM_AMBIGUOUS_SHOWN = 5

# Characters that an editor does not show: control characters (except tabs and line ends, which separate fields), line and
# paragraph separators, and the byte order mark.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


class Severity(enum.StrEnum):
    """How serious a problem is for using the corpus."""

    ERROR = "error"
    REPAIRED = "repaired"
    WARNING = "warning"
    NOTE = "note"


class Kind(enum.Enum):
    """The kinds of problems, in the order in which they are reported: name, severity, what it means.

    Those that are repaired have the names of `Repair`.
    """

    REFUSED = ("unusable", Severity.ERROR, "The file cannot be used for training or scoring until this is corrected.")
    TAGS = (
        "irregular tags",
        Severity.REPAIRED,
        "Read as in conlleval: a tag that cannot continue a span begins one, and an unfinished span ends where it stops.",
    )
    FORM = ("tag without a form", Severity.REPAIRED, f"The unit is read as {PLACEHOLDER_FORM} and keeps its tag.")
    WIDENED = (
        "span that cuts a token",
        Severity.REPAIRED,
        "The span is extended to the whole token, since labels belong to tokens.",
    )
    OVERLAP = (
        "overlapping spans",
        Severity.REPAIRED,
        "The longest span is kept, or the first of equally long ones.",
    )
    LEFT_OUT = (
        "annotation left out",
        Severity.WARNING,
        "Discontinuous spans, relations, events, attributes and rejected texts are not read.",
    )
    IN_TWO_FILES = (
        "sentence in two files",
        Severity.WARNING,
        "A model scores better on sentences it was trained on than on new ones.",
    )
    LABEL = (
        "label in one file only",
        Severity.WARNING,
        "A label missing from training cannot be learnt and counts as wrong; a label only in training is never scored.",
    )
    LONG = (
        "long sentence",
        Severity.WARNING,
        f"More than {LONG_SENTENCE} units are often several sentences; they need much memory, and a pretrained encoder "
        "processes them in parts.",
    )
    BLANK = ("blank form", Severity.WARNING, "The form is only white space.")
    CONTROL = ("control character", Severity.WARNING, "The form contains an invisible character.")
    DECOMPOSED = (
        "decomposed characters",
        Severity.WARNING,
        "Letters and their accents are separate characters here. To a model, the same word in composed characters (Unicode's NFC), as "
        "most texts have it, is another word: use one form in all files and texts.",
    )
    AMBIGUOUS = (
        "forms with several labels",
        Severity.NOTE,
        "This is normal in language, but a label that a frequent form has only once or twice may be a mistake.",
    )

    def __init__(self, title: str, severity: Severity, meaning: str) -> None:
        self.title = title
        self.severity = severity
        self.meaning = meaning


class Problem(NamedTuple):
    """One problem; ``line`` is None if it does not concern one line."""

    kind: Kind
    path: StrPath
    line: int | None
    text: str


class CheckedFile(NamedTuple):
    """A file that was checked; the counts are 0 if it could not be read."""

    path: StrPath
    split: str | None
    sentences: int
    units: int


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """The problems found, ordered by kind as in `Kind`, then by file and line."""

    task: Task
    files: Sequence[CheckedFile]
    problems: Sequence[Problem]
    detection: Detection | None = None
    """what the first file contains, unless it is a stream or could not be understood"""

    @property
    def is_usable(self) -> bool:
        """Whether every command can use the corpus, after repairs."""
        return not any(problem.kind.severity is Severity.ERROR for problem in self.problems)


def check_files(
    files: Sequence[tuple[StrPath, str | None]],
    *,
    task: Task | None = None,
    column: ConlluColumn | None = None,
    scheme: LabelScheme | None = None,
    file_format: FileFormat | None = None,
    fields: FieldChoice = DETECTED,
    advance: Callable[[int], None] = lambda count: None,
) -> CheckResult:
    """Check ``files``, each a path and the name of its split or None; ``advance`` is called after every file.

    The first file has to be usable for training unless it is a dev or test split. Without ``task``, it determines the task.
    """
    detection: Detection | None = None
    refusal: InputError | None = None
    path, split = files[0]
    if not _is_stream(path):
        try:
            detection = detect(path, task=task, column=column, scheme=scheme, file_format=file_format, fields=fields)
        except InputError as error:
            refusal = error if split in (None, "train") else None
    if task is None:
        task = _likely_task(path, column, file_format, fields) if detection is None else detection.task
    column = column or (detection.column if detection else None)
    problems: list[Problem] = []
    checked: list[CheckedFile] = []
    corpora: list[Corpus] = []
    for path, split in files:
        collected = _Collected(path)
        if refusal is not None and refusal.line is None:
            # The file as a whole is not what it should be, and so are all of its lines.
            collected.refuse(refusal)
            checked.append(CheckedFile(path, split, 0, 0))
            problems += collected.problems
            refusal = None
            advance(1)
            continue
        try:
            corpus = read_task(
                path, task, column=column, scheme=scheme, file_format=file_format, fields=fields, repairs=collected
            )
        except InputError as error:
            if not (error.line is None and collected.problems):
                collected.refuse(error)
            checked.append(CheckedFile(path, split, 0, 0))
        else:
            corpora.append(corpus)
            checked.append(CheckedFile(path, split, len(corpus), sum(len(sentence.units) for sentence in corpus)))
            for missing in missing_labels(corpus):
                collected.refuse(missing)
            collected.problems += _own_problems(corpus)
        if refusal is not None and refusal.line not in [problem.line for problem in collected.problems]:
            collected.refuse(refusal)
        refusal = None
        problems += collected.problems
        advance(1)
    problems += _overlaps(corpora)
    problems += _lonely_labels(corpora)
    paths = dict.fromkeys([*(path for path, _ in files), *(problem.path for problem in problems)])
    kinds, order = list(Kind), {path: number for number, path in enumerate(paths)}
    problems.sort(key=lambda problem: (kinds.index(problem.kind), order[problem.path], problem.line or 0))
    return CheckResult(task, checked, problems, detection)


class _Collected(Repairs):
    """Collects everything that a reader repairs or refuses."""

    collects = True

    def restart(self) -> None:
        super().restart()
        self.problems: list[Problem] = []

    def add(self, kind: Repair, place: int | str, text: str = "") -> None:
        if isinstance(place, int):
            line, shown = place, text or f"read as {PLACEHOLDER_FORM}"
        else:
            line, shown = None, f"{place}: {text}"
        self.problems.append(Problem(Kind[kind.name], self.path, line, shown))

    def refuse(self, error: InputError) -> None:
        remedy = f"; {error.remedy}" if error.remedy else ""
        # The file of a folder that has the error.
        path = self.path if error.path in (None, os.fspath(self.path)) else error.path
        self.problems.append(Problem(Kind.REFUSED, path, error.line, f"{error.problem}{remedy}"))


def _is_stream(path: StrPath) -> bool:
    """Whether it can be read only once."""
    return path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def _likely_task(
    path: StrPath, column: ConlluColumn | None, file_format: FileFormat | None, fields: FieldChoice
) -> Task:
    """The task of a stream, or of a file that cannot be used as it is, to look for all of its problems."""
    named = file_format or input_format(path)
    if named is not None and named.annotation is not None:
        return Task.NER
    if named is FileFormat.CONLLU:
        return Task.POS
    if _is_stream(path):
        raise InputError(
            "the task of a stream that can be read only once cannot be detected",
            path=path,
            remedy="specify it with --task",
        )
    options = FormatOptions(column=column or ConlluColumn.UPOS, fields=fields)
    collected = _Collected(path)
    try:
        file_format = task_format(path, Task.POS, file_format=file_format)
        if file_format is FileFormat.CONLLU:
            return Task.POS
        sentences = read_source(path, file_format, options, repairs=collected).sentences
        detected = detect_scheme(sentences, path=path, is_unit_per_line=True, repairs=collected)
    except InputError:
        return Task.NER  # reading the file for the task reports the error
    return Task.POS if detected is LabelScheme.PLAIN else Task.NER


def _own_problems(corpus: Corpus) -> list[Problem]:
    problems: list[Problem] = []
    labels_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in corpus:
        if len(sentence.units) > LONG_SENTENCE:
            problems.append(Problem(Kind.LONG, corpus.path, sentence.line, f"{len(sentence.units):,} units"))
        for index, (unit, label) in enumerate(zip(sentence.units, sentence.labels or (), strict=True)):
            labels_of[unit][_tag(label, corpus.task)] += 1
            if unit.isspace() or _CONTROL.search(unit):
                kind = Kind.CONTROL if _CONTROL.search(unit) else Kind.BLANK
                problems.append(Problem(kind, corpus.path, corpus.unit_line(sentence, index), ascii(unit)))
    decomposed = [unit for unit in labels_of if unicodedata.normalize("NFC", unit) != unit]
    if decomposed:
        text = f"{len(decomposed):,} of {len(labels_of):,} forms, such as {decomposed[0]}"
        problems.append(Problem(Kind.DECOMPOSED, corpus.path, None, text))
    ambiguous = {unit: counts for unit, counts in labels_of.items() if len(counts) > 1}
    if ambiguous:
        most = sorted(ambiguous.items(), key=lambda item: (-len(item[1]), -item[1].total(), item[0]))
        examples = "; ".join(
            f"{unit} ({', '.join(f'{label} {count:,}' for label, count in counts.most_common(NUM_AMBIGUOUS_SHOWN))})"
            for unit, counts in most[:NUM_AMBIGUOUS_SHOWN]
        )
        text = f"{len(ambiguous):,} of {len(labels_of):,} forms; most labels: {examples}"
        problems.append(Problem(Kind.AMBIGUOUS, corpus.path, None, text))
    return problems


def _tag(label: str, task: Task) -> str:
    """The part of a label that does not depend on the position in a span or word."""
    return label if task is Task.POS else split_label(label)[1] or label


def _overlaps(corpora: Iterable[Corpus]) -> list[Problem]:
    problems: list[Problem] = []
    places: dict[tuple[str, ...], tuple[StrPath, int]] = {}
    for corpus in corpora:
        own: dict[tuple[str, ...], tuple[StrPath, int]] = {}
        for sentence in corpus:
            if sentence.units in places:
                path, line = places[sentence.units]
                problems.append(Problem(Kind.IN_TWO_FILES, corpus.path, sentence.line, f"also in {path}, line {line}"))
            else:
                own.setdefault(sentence.units, (corpus.path, sentence.line))
        places |= own
    return problems


def _lonely_labels(corpora: Sequence[Corpus]) -> list[Problem]:
    """Report labels (for entities, types) that occur in only one of several files."""
    if len(corpora) < 2:
        return []
    lines: defaultdict[str, list[tuple[StrPath, int]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for corpus in corpora:
        own: dict[str, int] = {}
        for sentence in corpus:
            for index, label in enumerate(sentence.labels or ()):
                # A model knows all boundary labels of an entity type, but only the Seg-POS labels it has seen.
                name = _tag(label, corpus.task) if corpus.task is Task.NER else label
                counts[name] += 1
                if name not in own:
                    own[name] = corpus.unit_line(sentence, index)
        for name, line in own.items():
            lines[name].append((corpus.path, line))
    return [
        Problem(Kind.LABEL, *places[0], f"{name}, {counts[name]:,} unit{'s' if counts[name] > 1 else ''}")
        for name, places in sorted(lines.items())
        if len(places) == 1
    ]
