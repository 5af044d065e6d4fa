"""``dmf score``: every metric of a task from two files, without a model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from diffusion_mf.cli.data import FormColumnOption, LabelNamesOption, LanguageOption, TagColumnOption, field_choice
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table

if TYPE_CHECKING:
    from diffusion_mf.evaluation.metrics import Counts
    from diffusion_mf.evaluation.report import BreakdownRow, Report

NUM_CONFUSIONS_SHOWN = 20


def score(
    gold: Annotated[str, typer.Argument(metavar="GOLD", help="File with the gold labels; - is standard input.")],
    predicted: Annotated[str, typer.Argument(metavar="PREDICTED", help="The same sentences with predicted labels.")],
    task: Annotated[Task, typer.Option(help="The labelling task.")],
    scheme: Annotated[
        LabelScheme | None,
        typer.Option(help="Scheme of the predictions, for ner.", show_default="the one detected in GOLD"),
    ] = None,
    column: Annotated[
        ConlluColumn | None,
        typer.Option(help="Column of CoNLL-U files: upos or xpos.", show_default="upos; xpos for seg-pos"),
    ] = None,
    file_format: Annotated[
        FileFormat | None, typer.Option("--format", help="Format of the files.", show_default="by file name")
    ] = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    train: Annotated[
        str | None, typer.Option(metavar="FILE", help="Training file: scores known and unknown forms separately.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse irregular tags in GOLD instead of repairing them.")
    ] = False,
    details: Annotated[
        bool,
        typer.Option("--details", help="Also report scores by label, type and sentence length, and the confusions."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; percentages from 0 to 100.")] = False,
) -> None:
    """Score predicted labels against gold ones, as the paper does; predictions may be malformed."""
    from diffusion_mf.evaluation.paired_files import score_files
    from diffusion_mf.evaluation.report import breakdown_values, detail_values, summary_values

    report = score_files(
        gold,
        predicted,
        task,
        scheme=scheme,
        column=column,
        file_format=file_format,
        fields=field_choice(form_column, tag_column, label_names, language),
        train_path=train,
        strict=strict,
        note=note,
    )
    if _ends_no_span(report):
        note(f"no predicted label ends a span, as {report.predicted_scheme} must; if they are BIO2, add --scheme bio2")
    if as_json:
        values = summary_values(report)
        if train is not None:
            values["vocabulary"] = breakdown_values(report.vocabulary, size_name=_form_name(task))
        print_json(values | (detail_values(report) if details else {}))
    else:
        print_report(report, details=details)


def print_report(report: "Report", *, details: bool) -> None:
    """Print a report's tables on stdout."""
    is_usual = report.scheme is report.task.scheme and report.task is not Task.NER
    schemes = [] if is_usual else [str(report.scheme)]
    if report.predicted_scheme is not report.scheme:
        schemes.append(f"predictions {report.predicted_scheme}")
    print_table(
        ["metric", "value"],
        [
            *((name, half_up(value, 2)) for name, value in report.metrics.items() if name != "exact_match"),
            ("exact match", half_up(report.exact_match, 2)),
            ("invalid sentences", half_up(report.invalid_rate, 2)),
            ("malformed fragments", f"{report.malformed_fragments:,}"),
            ("sentences", f"{report.sentences:,}"),
            ("units", f"{report.units:,}"),
        ],
        title=f"{report.task} ({', '.join(schemes)})" if schemes else str(report.task),
    )
    if report.vocabulary:
        _print_breakdown(report.vocabulary, "training vocabulary", _form_name(report.task))
    if details:
        _print_counts(report.tokens.labels, "label")
        if report.types:
            _print_counts(report.types, "type")
        if confusions := report.tokens.top_confusions(NUM_CONFUSIONS_SHOWN):
            print_table(["gold", "predicted instead", "count"], confusions)
        _print_breakdown(report.lengths, "units in the sentence", "sentences")


def _ends_no_span(report: "Report") -> bool:
    """Whether labels read as BMES or the like must be BIO2: they mark spans, but never an end (E) or a single (S)."""
    letters = {label[0] for label, counts in report.tokens.labels.items() if counts.predicted and label != "O"}
    return report.predicted_scheme.is_closed and bool(letters) and not letters & {"E", "S"}


def _form_name(task: Task) -> str:
    return "words" if task is Task.SEG_POS else "units"


def _print_breakdown(rows: "Sequence[BreakdownRow]", title: str, size_name: str) -> None:
    print_table(
        [title, size_name, *rows[0].metrics],
        [(row.name, row.size, *(half_up(value, 2) for value in row.metrics.values())) for row in rows],
    )


def _print_counts(table: "Mapping[str, Counts]", name: str) -> None:
    print_table(
        [name, "precision", "recall", "f1", "support"],
        [
            (label, half_up(counts.precision, 2), half_up(counts.recall, 2), half_up(counts.f1, 2), counts.gold)
            for label, counts in table.items()
        ],
    )
