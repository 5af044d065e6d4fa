"""Every problem of a corpus with its place and meaning: the work of ``dmf data check``.

Files are read as training reads them, save that what cannot be used is collected instead of ending the reading.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Corpus, Task, missing_labels
from diffusion_mf.data.files import DETECTED, FieldChoice, StrPath
from diffusion_mf.data.formats import FileFormat, FormatOptions, input_format, read_source, read_task, task_format
from diffusion_mf.data.label_schemes import LabelScheme, detect_scheme, split_label
from diffusion_mf.data.repair import PLACEHOLDER_FORM, Repairs, SpanProblem, describe_span
from diffusion_mf.errors import InputError

LONG_SENTENCE = 256
"""units; the paper cuts longer sentences for its pretrained encoders"""
NUM_AMBIGUOUS_SHOWN = 5

# Tabs and line ends part fields. What is left of the control characters, line and paragraph separators, and the byte
# order mark, cannot be seen in an editor.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


class Severity(enum.StrEnum):
    """What a problem means for those who use the corpus."""

    ERROR = "error"
    REPAIRED = "repaired"
    WARNING = "warning"
    NOTE = "note"


class Kind(enum.Enum):
    """The kinds of problems, in the order in which they are reported: name, severity, what it means."""

    REFUSED = ("unusable", Severity.ERROR, "Training and scoring refuse the file until this is corrected.")
    TAGS = (
        "irregular tags",
        Severity.REPAIRED,
        "Read as conlleval does: a span begins where a tag cannot continue one, and an unfinished span ends where it stops.",
    )
    FORM = ("tag without a form", Severity.REPAIRED, f"The unit is read as {PLACEHOLDER_FORM} and keeps its tag.")
    WIDENED = (
        "span that cuts a token",
        Severity.REPAIRED,
        "The span is widened to the token, for labels are those of tokens.",
    )
    OVERLAPPING = ("overlapping spans", Severity.REPAIRED, "The longest span is kept, of equal ones the first.")
    LEFT_OUT = (
        "annotation left out",
        Severity.WARNING,
        "Discontinuous spans, relations, events, attributes and rejected texts are not read.",
    )
    OVERLAP = (
        "sentence in two files",
        Severity.WARNING,
        "A model that has seen a sentence in training scores better on it than on new ones.",
    )
    LABEL = (
        "label in one file only",
        Severity.WARNING,
        "What training lacks cannot be learnt and counts as wrong; what only training has is never scored.",
    )
    LONG = (
        "long sentence",
        Severity.WARNING,
        f"More than {LONG_SENTENCE} units are often several sentences; they take much memory, and a pretrained encoder "
        "sees them in parts.",
    )
    BLANK = ("blank form", Severity.WARNING, "The form is nothing but white space.")
    CONTROL = ("control character", Severity.WARNING, "The form holds a character that cannot be seen.")
    AMBIGUOUS = (
        "forms with several labels",
        Severity.NOTE,
        "This is normal in language; a label that a frequent form has once or twice may be a mistake.",
    )

    def __init__(self, title: str, severity: Severity, meaning: str) -> None:
        self.title = title
        self.severity = severity
        self.meaning = meaning


_SPAN_KINDS = {
    SpanProblem.WIDENED: Kind.WIDENED,
    SpanProblem.OVERLAP: Kind.OVERLAPPING,
    SpanProblem.LEFT_OUT: Kind.LEFT_OUT,
}


class Problem(NamedTuple):
    """One problem; ``line`` is None where it is not about a place."""

    kind: Kind
    path: StrPath
    line: int | None
    text: str


class CheckedFile(NamedTuple):
    """A file that was looked at; nothing was counted where it could not be read."""

    path: StrPath
    split: str | None
    sentences: int
    units: int


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What was found, by kind in the order of `Kind`, then by file and line."""

    task: Task
    files: Sequence[CheckedFile]
    problems: Sequence[Problem]

    @property
    def is_usable(self) -> bool:
        """Whether every command can use the corpus, repairs included."""
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
    """Look at ``files``, each a path and the name of its split or None; ``advance`` hears of every file.

    Without ``task`` it is POS for CoNLL-U, and elsewhere told by the first file: labels with boundaries are entities.
    """
    task = task or _detect_task(files[0][0], column, file_format, fields)
    problems: list[Problem] = []
    checked: list[CheckedFile] = []
    corpora: list[Corpus] = []
    for path, split in files:
        collected = _Collected(path)
        try:
            corpus = read_task(
                path,
                task,
                column=column,
                scheme=scheme,
                file_format=file_format,
                fields=fields,
                repairs=collected,
            )
        except InputError as error:
            collected.refuse(error)
            checked.append(CheckedFile(path, split, 0, 0))
        else:
            corpora.append(corpus)
            checked.append(CheckedFile(path, split, len(corpus), sum(len(sentence.units) for sentence in corpus)))
            for missing in missing_labels(corpus):
                collected.refuse(missing)
            collected.problems += _own_problems(corpus)
        problems += collected.problems
        advance(1)
    problems += _overlaps(corpora)
    problems += _lonely_labels(corpora)
    kinds, paths = list(Kind), [path for path, _ in files]
    problems.sort(key=lambda problem: (kinds.index(problem.kind), paths.index(problem.path), problem.line or 0))
    return CheckResult(task, checked, problems)


class _Collected(Repairs):
    """Keeps everything that a reader repairs or refuses."""

    def restart(self) -> None:
        super().restart()
        self.problems: list[Problem] = []

    def add_span(self, line: int, old: Sequence[str], new: Sequence[str]) -> None:
        self.problems.append(Problem(Kind.TAGS, self.path, line, describe_span(old, new)))

    def add_form(self, line: int) -> str:
        self.problems.append(Problem(Kind.FORM, self.path, line, f"read as {PLACEHOLDER_FORM}"))
        return PLACEHOLDER_FORM

    def add_problem(self, kind: SpanProblem, place: str, text: str) -> None:
        self.problems.append(Problem(_SPAN_KINDS[kind], self.path, None, f"{place}: {text}"))

    def refuse(self, error: InputError) -> None:
        remedy = f"; {error.remedy}" if error.remedy else ""
        self.problems.append(Problem(Kind.REFUSED, self.path, error.line, f"{error.problem}{remedy}"))


def _detect_task(
    path: StrPath, column: ConlluColumn | None, file_format: FileFormat | None, fields: FieldChoice
) -> Task:
    named = file_format or input_format(path)
    if named is not None and named.annotation is not None:
        return Task.NER
    if named is FileFormat.CONLLU:
        return Task.POS
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        raise InputError("what can be read only once does not tell its task", path=path, remedy="name it with --task")
    options = FormatOptions(column=column or ConlluColumn.UPOS, scheme=LabelScheme.PLAIN, fields=fields)
    collected = _Collected(path)
    try:
        file_format = task_format(path, Task.POS, file_format=file_format)
        if file_format is FileFormat.CONLLU:
            return Task.POS
        sentences = read_source(path, file_format, options, repairs=collected).sentences
        detected = detect_scheme(sentences, path=path, is_unit_per_line=True, repairs=collected)
    except InputError:
        return Task.NER  # reading it for the task says what is wrong
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
    ambiguous = {unit: counts for unit, counts in labels_of.items() if len(counts) > 1}
    if ambiguous:
        most = sorted(ambiguous.items(), key=lambda item: (-len(item[1]), -item[1].total(), item[0]))
        examples = "; ".join(
            f"{unit} ({', '.join(f'{label} {count:,}' for label, count in counts.most_common(NUM_AMBIGUOUS_SHOWN))})"
            for unit, counts in most[:NUM_AMBIGUOUS_SHOWN]
        )
        text = f"{len(ambiguous):,} of {len(labels_of):,} forms; those with the most: {examples}"
        problems.append(Problem(Kind.AMBIGUOUS, corpus.path, None, text))
    return problems


def _tag(label: str, task: Task) -> str:
    """What a label says about a form, wherever in its span or word that stands."""
    return label if task is Task.POS else split_label(label)[1] or label


def _overlaps(corpora: Iterable[Corpus]) -> list[Problem]:
    problems: list[Problem] = []
    places: dict[tuple[str, ...], tuple[StrPath, int]] = {}
    for corpus in corpora:
        own: dict[tuple[str, ...], tuple[StrPath, int]] = {}
        for sentence in corpus:
            if sentence.units in places:
                path, line = places[sentence.units]
                problems.append(Problem(Kind.OVERLAP, corpus.path, sentence.line, f"also in {path}, line {line}"))
            else:
                own.setdefault(sentence.units, (corpus.path, sentence.line))
        places |= own
    return problems


def _lonely_labels(corpora: Sequence[Corpus]) -> list[Problem]:
    """Labels (of entities: types) that only one of several files has."""
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
