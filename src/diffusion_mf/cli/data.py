"""``dmf data``: statistics, checks, conversion, and the synthetic corpus."""

import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from diffusion_mf.data.columns import Separator
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Corpus, Task
from diffusion_mf.data.files import FieldChoice
from diffusion_mf.data.formats import FileFormat, FormatOptions, format_of, read_task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table, progress

if TYPE_CHECKING:
    from diffusion_mf.data.check import CheckResult, Kind, Problem
    from diffusion_mf.data.statistics import CorpusStatistics


app = typer.Typer(help="Statistics, checks, conversion, synthetic corpus.", no_args_is_help=True)


@app.command()
def synth(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; created if missing.")],
    sentences: Annotated[int, typer.Option(help="Sentences in the training split.")] = 2000,
    dev_sentences: Annotated[
        int | None, typer.Option(help="Sentences in the development split; a quarter of --sentences by default.")
    ] = None,
    test_sentences: Annotated[
        int | None, typer.Option(help="Sentences in the test split; a quarter of --sentences by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    flavour: Annotated[Literal["pos", "ner", "seg-pos", "all"], typer.Option(help="Which corpus.")] = "all",
    adjacent: Annotated[
        float, typer.Option(help="Share of sentences whose neighbouring labels depend on each other, 0 to 1.")
    ] = 0.5,
    distant: Annotated[
        float, typer.Option(help="Share of sentences whose labels far apart depend on each other, 0 to 1.")
    ] = 0.5,
    json_output: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write a corpus in an invented language, and the best scores possible on it."""
    from diffusion_mf.lab.synthetic import FLAVOURS, write_corpus

    if sentences < 1:
        raise InputError(f"--sentences must be at least 1, found {sentences}", remedy="ask for 1 or more")
    quarter = max(1, sentences // 4)
    manifest = write_corpus(
        folder,
        flavours=list(FLAVOURS) if flavour == "all" else [flavour],
        sizes={
            "train": sentences,
            "dev": quarter if dev_sentences is None else dev_sentences,
            "test": quarter if test_sentences is None else test_sentences,
        },
        seed=seed,
        adjacent=adjacent,
        distant=distant,
    )
    if json_output:
        print_json(manifest)
    else:
        _print_manifest(manifest)


_DECODER_TITLES = {
    "position_wise": "position-wise argmax",
    "chain": "first-order chain",
    "joint": "joint mode",
    "bound": "best possible",
}


def _print_manifest(manifest: dict[str, Any]) -> None:
    def rounded(value: float | None) -> str | None:
        return None if value is None else half_up(value, 1)

    for name, described in manifest["flavours"].items():
        print_table(
            ["file", "sentences", "units", *(f"{kind} groups" for kind in described["patterns"])],
            [
                [about["file"], about["sentences"], about["units"], *about["groups"].values()]
                for about in described["splits"].values()
            ],
        )
        test = described["splits"]["test"]
        metrics = list(test["expected"]["joint"])
        rows: list[list[str | None]] = []
        for title, scores in (("expected", test["expected"]), ("on these labels", test["realised"])):
            for decoder, values in scores.items():
                rows.append([title, _DECODER_TITLES[decoder], *(rounded(values[metric]) for metric in metrics)])
        print_table(
            ["test", "decoder", *(metric.replace("consistency_", "consistent, ") for metric in metrics)],
            rows,
            title=f"{name}: scores of decoders that know the true distribution, %",
        )


NUM_PLACES_SHOWN = 10
"""places shown for each kind of problem without ``--all``"""

ColumnOption = Annotated[
    ConlluColumn | None,
    typer.Option("--column", help="CoNLL-U column with the labels (default: upos; for characters xpos)."),
]
SchemeOption = Annotated[
    LabelScheme | None, typer.Option("--scheme", help="Label scheme of the file; detected unless given.")
]

FormatOption = Annotated[
    FileFormat | None, typer.Option("--format", help="Format of the files; inferred from name and task unless given.")
]
FormColumnOption = Annotated[
    str | None,
    typer.Option(
        "--form-column",
        metavar="NAME|NUMBER",
        help="Column of the forms in a column file: its number, or its name in the header line.",
        show_default="detected",
    ),
]
TagColumnOption = Annotated[
    str | None,
    typer.Option(
        "--tag-column",
        metavar="NAME|NUMBER",
        help="Column of the tags in a column file: its number, or its name in the header line; for a Hugging Face dataset, the key.",
        show_default="detected",
    ),
]
LabelNamesOption = Annotated[
    str | None,
    typer.Option(
        "--label-names",
        metavar="NAME,NAME…",
        help="Label names for tags that are numbers, from 0.",
        show_default="as stated in a Hugging Face dataset",
    ),
]
LanguageOption = Annotated[
    str | None,
    typer.Option(
        "--language",
        help="Language for splitting raw text into tokens: en splits at hyphens, fr splits verbs from pronouns.",
        show_default="rules common to all languages",
    ),
]


def field_choice(
    form_column: str | None, tag_column: str | None, label_names: str | None, language: str | None
) -> FieldChoice:
    """The choice of fields in a file that the options make."""
    return FieldChoice(form_column, tag_column, read_label_names(label_names), language)


def read_label_names(text: str | None) -> tuple[str, ...] | None:
    """The names that ``--label-names`` lists; `InputError` if one is empty or occurs twice."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) < len(names):
        wrong = "an empty name" if "" in names else f"{max(names, key=names.count)} twice"
        raise InputError(f"--label-names has {wrong}", remedy="list the names in the order of their numbers, from 0")
    return names


StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse irregular tags and units without a form instead of repairing them.")
]


class _SplitStatistics(NamedTuple):
    """Statistics of one file; ``out_of_vocabulary`` counts units not in train (None for train itself, or without it)."""

    name: str
    split: str | None
    statistics: "CorpusStatistics"
    out_of_vocabulary: int | None


@app.command()
def stats(
    *,
    task: Annotated[Task, typer.Option(help="The task, which determines units and labels.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE…", help="Labelled files.", show_default=False)
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Training split, from which the OOV rates of the others are computed.")
    ] = None,
    dev: Annotated[str | None, typer.Option(help="Development split.")] = None,
    test: Annotated[str | None, typer.Option(help="Test split.")] = None,
    column: ColumnOption = None,
    scheme: SchemeOption = None,
    file_format: FormatOption = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    strict: StrictOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object per file.")] = False,
) -> None:
    """The paper's dataset tables: sizes, lengths, vocabulary, OOV rates, label entropy and distribution."""
    from diffusion_mf.batches.vocabulary import describe_unknown_labels
    from diffusion_mf.data.label_schemes import complete_labels
    from diffusion_mf.data.statistics import corpus_statistics, out_of_vocabulary

    named = _named_files(files, train, dev, test)
    fields = field_choice(form_column, tag_column, label_names, language)
    notes: list[str] = []

    def read(path: str) -> Corpus:
        corpus = read_task(
            path, task, column=column, scheme=scheme, file_format=file_format, fields=fields, strict=strict
        )
        if task is Task.NER:
            found = f"scheme {corpus.source_scheme}"
            if corpus.layout is not None:
                found = f"{corpus.layout.describe()}, {found} ({'detected' if scheme is None else 'as given'})"
            notes.append(f"{path}: {found}")
        if corpus.repaired is not None:
            notes.append(corpus.repaired)
        return corpus

    training = None if train is None else read(train)
    trained = None if training is None else corpus_statistics(training)
    rows: list[_SplitStatistics] = []
    for path, split in named:
        if split == "train" and trained is not None:
            rows.append(_SplitStatistics(path, split, trained, None))
            continue
        corpus = read(path)
        unknown = None
        if train is not None and trained is not None:
            known = complete_labels(trained.label_counts, corpus.scheme) if task is Task.NER else trained.label_counts
            missing = describe_unknown_labels(corpus, known, owner=f"{train} does not have")
            notes += [] if missing is None else [missing]
            unknown = out_of_vocabulary(corpus, trained.vocabulary)
        rows.append(_SplitStatistics(path, split, corpus_statistics(corpus), unknown))
    for message in notes:
        note(message)
    if as_json:
        print_json([_json_row(row, task) for row in rows])
    else:
        _print_tables(rows)


def _named_files(
    files: list[str] | None, train: str | None, dev: str | None, test: str | None
) -> list[tuple[str, str | None]]:
    """The files of the command line in order, each with the name of its split."""
    named: list[tuple[str, str | None]] = [(path, None) for path in files or []]
    named += [(path, split) for path, split in ((train, "train"), (dev, "dev"), (test, "test")) if path is not None]
    if not named:
        raise InputError("no files were given", remedy="give files, or splits with --train, --dev and --test")
    return named


def _oov_percent(row: _SplitStatistics) -> str | None:
    return None if row.out_of_vocabulary is None else half_up(100 * row.out_of_vocabulary / row.statistics.units, 2)


def _json_row(row: _SplitStatistics, task: Task) -> dict[str, Any]:
    """The statistics as JSON, rounded as in the paper's tables, with the exact counts."""
    s = row.statistics
    oov = _oov_percent(row)
    return {
        "file": row.name,
        "split": row.split,
        "task": task.value,
        "documents": s.documents,
        "sentences": s.sentences,
        "units": s.units,
        "mean": float(half_up(s.mean, 1)),
        "median": s.median,
        "p95": s.p95,
        "max": s.max,
        "labels": len(s.label_counts),
        "duplicates": s.duplicates,
        "vocabulary": len(s.vocabulary),
        "oov": None if oov is None else float(oov),
        "oov_units": row.out_of_vocabulary,
        "label_entropy": float(half_up(s.label_entropy, 3)),
        "top_labels": [{"label": label, "percent": float(half_up(p, 1))} for label, p in s.top_labels(3)],
        "top5_percent": float(half_up(s.top_mass(5), 1)),
        "label_bins": s.label_bins(),
        "label_counts": s.label_counts,
    }


def _print_tables(rows: list[_SplitStatistics]) -> None:
    names = [Path(row.name).name if row.split is None else f"{row.split}: {Path(row.name).name}" for row in rows]
    has_documents = any(row.statistics.documents for row in rows)
    print_table(
        [
            *("file", "sentences", "units", "mean", "median", "p95", "max", "labels", "duplicates"),
            *(["documents"] if has_documents else []),
        ],
        [
            [
                name,
                s.sentences,
                s.units,
                half_up(s.mean, 1),
                f"{s.median:g}",
                s.p95,
                s.max,
                len(s.label_counts),
                s.duplicates,
                *([s.documents] if has_documents else []),
            ]
            for name, (_, _, s, _) in zip(names, rows, strict=True)
        ],
        title="Sentences and lengths",
    )
    print_table(
        ["file", "vocabulary", "OOV %", "label entropy"],
        [
            [name, len(row.statistics.vocabulary), _oov_percent(row), half_up(row.statistics.label_entropy, 3)]
            for name, row in zip(names, rows, strict=True)
        ],
        title="Vocabulary and entropy",
    )
    print_table(
        ["file", "most frequent labels (%)", "top 5 (%)", *rows[0].statistics.label_bins()],
        [
            [
                name,
                "; ".join(f"{label} {half_up(percent, 1)}" for label, percent in s.top_labels(3)),
                half_up(s.top_mass(5), 1),
                *s.label_bins().values(),
            ]
            for name, (_, _, s, _) in zip(names, rows, strict=True)
        ],
        title="Label distribution: number of labels by their percentage",
    )


@app.command()
def check(
    *,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE…", help="Labelled files.", show_default=False)
    ] = None,
    task: Annotated[
        Task | None,
        typer.Option(help="The labelling task.", show_default="pos for CoNLL-U; otherwise detected from the labels"),
    ] = None,
    train: Annotated[str | None, typer.Option(help="Training split.")] = None,
    dev: Annotated[str | None, typer.Option(help="Development split.")] = None,
    test: Annotated[str | None, typer.Option(help="Test split.")] = None,
    column: ColumnOption = None,
    scheme: SchemeOption = None,
    file_format: FormatOption = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    list_all: Annotated[
        bool, typer.Option("--all", help=f"List every place, not only the first {NUM_PLACES_SHOWN} of each problem.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every problem in a corpus with its line and meaning; exit 0 if the corpus is usable (after repairs), 2 if not."""
    from diffusion_mf.data.check import check_files

    named = _named_files(files, train, dev, test)
    with progress("checking", total=len(named), unit="files") as advance:
        result = check_files(
            named,
            task=task,
            column=column,
            scheme=scheme,
            file_format=file_format,
            fields=field_choice(form_column, tag_column, label_names, language),
            advance=advance,
        )
    if as_json:
        print_json(_check_values(result, list_all=list_all))
    else:
        _print_check(result, list_all=list_all, is_task_known=task is not None or result.detection is not None)
    if not result.is_usable:
        raise typer.Exit(2)


def _by_kind(result: "CheckResult") -> "list[tuple[Kind, list[Problem]]]":
    return [(kind, list(group)) for kind, group in itertools.groupby(result.problems, key=lambda problem: problem.kind)]


def _check_values(result: "CheckResult", *, list_all: bool) -> dict[str, Any]:
    return {
        "usable": result.is_usable,
        "task": result.task.value,
        "detected": None if result.detection is None else result.detection.lines(),
        "files": [
            {"file": str(each.path), "split": each.split, "sentences": each.sentences, "units": each.units}
            for each in result.files
        ],
        "problems": [
            {
                "kind": kind.title,
                "severity": kind.severity.value,
                "meaning": kind.meaning,
                "count": len(problems),
                "places": [
                    {"file": str(problem.path), "line": problem.line, "text": problem.text}
                    for problem in (problems if list_all else problems[:NUM_PLACES_SHOWN])
                ],
            }
            for kind, problems in _by_kind(result)
        ],
    }


def _print_check(result: "CheckResult", *, list_all: bool, is_task_known: bool) -> None:
    if result.detection is not None:
        print(*result.detection.lines(), "", sep="\n")
    for kind, problems in _by_kind(result):
        # A note summarises a file, so the number of notes means nothing.
        count = "" if kind.severity == "note" else f": {len(problems):,}"
        print(f"{kind.title}{count} ({kind.severity})\n  {kind.meaning}")
        shown = problems if list_all else problems[:NUM_PLACES_SHOWN]
        for path, line, text in (problem[1:] for problem in shown):
            print(f"  {path}: {text}" if line is None else f"  {path}, line {line}: {text}")
        if len(shown) < len(problems):
            print(f"  … and {len(problems) - len(shown):,} more; --all lists them")
        print()
    severities = Counter(problem.kind.severity.value for problem in result.problems)
    names = ("error", "repaired", "warning", "note")
    found = ", ".join(f"{name} {severities[name]:,}" for name in names if severities[name])
    verdict = "can be used" if result.is_usable else "cannot be used"
    purpose = f" as {result.task} data" if is_task_known or result.is_usable else ""
    print(f"The corpus {verdict}{purpose} ({found or 'no problems'}).")


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Input file, optionally .gz, .xz or .zst; - is standard input.")
    ],
    target: Annotated[str, typer.Argument(metavar="OUT", help="Output file; - is standard output.")],
    source_format: Annotated[
        FileFormat | None, typer.Option("--from", help="Format of IN; inferred from its name unless given.")
    ] = None,
    target_format: Annotated[
        FileFormat | None, typer.Option("--to", help="Format of OUT; inferred from its name unless given.")
    ] = None,
    column: ColumnOption = None,
    scheme: SchemeOption = None,
    target_scheme: Annotated[
        LabelScheme | None,
        typer.Option("--to-scheme", help="Label scheme to write; without it, labels stay as they are."),
    ] = None,
    characters: Annotated[
        bool,
        typer.Option(
            "--characters",
            help="From CoNLL-U: one unit per character, boundary–XPOS labels. To CoNLL-U: back to words.",
        ),
    ] = False,
    documents: Annotated[
        bool, typer.Option("--documents", help="Also mark where documents begin: -DOCSTART-, # newdoc or a key.")
    ] = False,
    strict: StrictOption = False,
    separator: Annotated[Separator | None, typer.Option(help="Column separator of IN; detected unless given.")] = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
) -> None:
    """Convert between file formats, including those of annotation tools, and between label schemes; input is streamed."""
    from diffusion_mf.data.conversion import Conversion, convert

    conversion = Conversion(
        source_format=source_format or format_of(source, option="--from"),
        target_format=target_format or format_of(target, option="--to", is_output=True),
        options=FormatOptions(
            column=column or (ConlluColumn.XPOS if characters else ConlluColumn.UPOS),
            separator=separator,
            fields=field_choice(form_column, tag_column, label_names, language),
        ),
        source_scheme=scheme,
        target_scheme=target_scheme,
        use_characters=characters,
        keep_documents=documents,
        strict=strict,
    )
    with progress("converting") as advance:
        found = convert(source, target, conversion, advance=advance)
    for message in found:
        note(message)
