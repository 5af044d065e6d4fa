"""``dmf errors``: the mistakes of a model on a labelled file, and two models compared."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusion_mf.cli.data import FormColumnOption, LabelNamesOption, LanguageOption, TagColumnOption, field_choice
from diffusion_mf.cli.evaluate import GoldColumn, GoldFormat, GoldScheme
from diffusion_mf.cli.tag import BatchTokens, Calls, Device, LegalDecoderName, note_skipped_context
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table, progress

if TYPE_CHECKING:
    from diffusion_mf.evaluation.mistakes import CheckedUnit, Comparison
    from diffusion_mf.tagger.inspection import CheckedCorpus

MATRIX_LABELS = 12
"""shown; more do not fit into a terminal"""


def errors(
    models_and_file: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [MODEL] FILE",
            help="A model, or two to compare, and a file with the right labels; - is standard input.",
        ),
    ],
    examples: Annotated[int, typer.Option(help="Mistakes shown of each confusion.")] = 3,
    groups: Annotated[int, typer.Option(help="Confusions shown.")] = 8,
    uncertain: Annotated[int, typer.Option(help="Least certain units shown.")] = 10,
    decoder: LegalDecoderName = None,
    calls: Calls = None,
    column: GoldColumn = None,
    scheme: GoldScheme = None,
    file_format: GoldFormat = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    batch_tokens: BatchTokens = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all mistakes.")] = False,
) -> None:
    """Show what a model gets wrong, in context and by confusion; of two models, whether one is better and where they differ."""
    if len(models_and_file) not in (2, 3):
        raise InputError(
            f"there {'is 1 argument' if len(models_and_file) == 1 else f'are {len(models_and_file)} arguments'}",
            remedy="give one or two models, and then one labelled file",
        )
    from diffusion_mf.tagger import Tagger
    from diffusion_mf.tagger.files import TaggingOptions, read_gold
    from diffusion_mf.tagger.inspection import checked_corpus

    *models, file = models_and_file
    taggers = [Tagger.load(model, device=device) for model in models]
    first = taggers[0]
    for model, tagger in zip(models, taggers, strict=True):
        if tagger.task is not first.task:
            raise InputError(
                f"a model of the task {tagger.task}, but {models[0]} is one of the task {first.task}",
                path=model,
                remedy="compare models of one task",
            )
    corpus = read_gold(
        first,
        file,
        column=column,
        scheme=scheme,
        file_format=file_format,
        fields=field_choice(form_column, tag_column, label_names, language),
    )
    if corpus.repaired is not None:
        note(corpus.repaired)
    options = TaggingOptions(batch_tokens=batch_tokens, calls=calls, decoder=decoder, scheme=first.scheme)
    found = []
    with progress("tagging", total=len(corpus) * len(taggers)) as advance:
        for tagger in taggers:
            found.append(checked_corpus(tagger, corpus, options=options, advance=advance))
    for tagger in taggers:
        note_skipped_context(tagger)
    if len(found) == 1:
        values = _mistakes(found[0], uncertain)
        print_json(_jsonable(values)) if as_json else _print_mistakes(values, examples=examples, groups=groups)
    else:
        values = _compared(models, found[0], found[1])
        print_json(_jsonable(values)) if as_json else _print_compared(values, examples=examples, groups=groups)


def _mistakes(found: "CheckedCorpus", uncertain: int) -> dict[str, Any]:
    from diffusion_mf.evaluation.mistakes import confusion_matrix, confusions, least_certain

    wrong = [unit for sentence in found.sentences for unit in sentence.wrong_units()]
    labels, counts = confusion_matrix(found.sentences)
    return {
        "metrics": dict(found.report.metrics),
        "sentences": len(found.sentences),
        "units": sum(len(sentence.units) for sentence in found.sentences),
        "mistakes": len(wrong),
        "confusions": [
            {"gold": gold, "predicted": predicted, "count": len(members), "units": members}
            for (gold, predicted), members in confusions(wrong)
        ],
        "matrix": {"labels": labels, "counts": counts},
        "spans": [
            {"kind": str(kind), "count": len(places), "places": places}
            for kind, places in found.spans.items()
            if places
        ],
        "least_certain": least_certain(found.sentences, uncertain),
    }


def _print_mistakes(values: Mapping[str, Any], *, examples: int, groups: int) -> None:
    wrong, units = values["mistakes"], values["units"]
    share = half_up(100 * wrong / max(units, 1), 2)
    print(f"{wrong:,} of {units:,} units in {values['sentences']:,} sentences have a wrong label ({share} %).\n")
    if values["spans"]:
        rows = [(each["kind"], each["count"], *each["places"][0]) for each in values["spans"]]
        print_table(["spans", "number", "first on line", "context", "type"], rows)
    shown = values["confusions"][:groups]
    if shown:
        rows = [
            (each["gold"], each["predicted"], each["count"], half_up(100 * each["count"] / wrong, 1)) for each in shown
        ]
        total = len(values["confusions"])
        title = f"The {groups} most frequent of {total:,} confusions" if total > groups else None
        print_table(["gold", "predicted instead", "number", "% of the mistakes"], rows, title=title)
    for each in shown if examples else ():
        title = f"{each['gold']} labelled as {each['predicted']}, most confident first"
        _print_with_second_best(each["units"][:examples], title=title)
    labels, counts = values["matrix"]["labels"][:MATRIX_LABELS], values["matrix"]["counts"]
    if labels:
        rows = [
            (label, *(counts[row][column] or None for column in range(len(labels)))) for row, label in enumerate(labels)
        ]
        print_table(["gold \\ predicted", *labels], rows, title="Labels with the most mistakes")
    if values["least_certain"]:
        _print_with_second_best(values["least_certain"], title="Least certain, right or wrong")


def _print_units(
    units: "Sequence[CheckedUnit]",
    others: Sequence[tuple[str, float]],
    *,
    title: str,
    names: tuple[str, str] = ("predicted", "second best"),
) -> None:
    """Units with their predicted labels, and beside them other labels and their scores."""
    rows = [
        (f"{unit.line}", unit.context, unit.gold, unit.predicted, _percent(unit.score), label, _percent(score))
        for unit, (label, score) in zip(units, others, strict=True)
    ]
    print_table(["line", "context", "gold", names[0], "score %", names[1], "score %"], rows, title=title)


def _print_with_second_best(units: "Sequence[CheckedUnit]", *, title: str) -> None:
    _print_units(units, [(unit.second, unit.second_score) for unit in units], title=title)


def _compared(models: Sequence[str], first: "CheckedCorpus", second: "CheckedCorpus") -> dict[str, Any]:
    from diffusion_mf.evaluation import PRIMARY_METRICS
    from diffusion_mf.evaluation.mistakes import compare_counts, disagreements

    found = disagreements(first.sentences, second.sentences)
    units = sum(len(sentence.units) for sentence in first.sentences)
    tests = {
        PRIMARY_METRICS[first.report.task]: compare_counts(first.counts, second.counts),
        "exact_match": compare_counts(first.exact, second.exact),
    }
    return {
        "models": list(models),
        "sentences": len(first.sentences),
        "units": units,
        "tests": tests,
        "both_right": units - sum(map(len, found.values())),
        "only_first_right": found[True, False],
        "only_second_right": found[False, True],
        "both_wrong": len(found[False, False]),
    }


def _print_compared(values: Mapping[str, Any], *, examples: int, groups: int) -> None:
    tests: Mapping[str, Comparison] = values["tests"]
    rows = [
        (
            name.replace("_", " "),
            half_up(test.first, 2),
            half_up(test.second, 2),
            f"{test.difference:+.2f}",
            f"{test.low:+.2f} … {test.high:+.2f}",
            f"{test.p_value:.4f}",
        )
        for name, test in tests.items()
    ]
    print("first: {}\nsecond: {}\n".format(*values["models"]))
    print_table(
        ["metric, %", "first", "second", "second − first", "95 % interval", "p"],
        rows,
        title=f"{values['sentences']:,} sentences, each as a whole in approximate randomisation (p) and bootstrap (interval)",
    )
    only = {name: values[f"only_{name}_right"] for name in ("first", "second")}
    print_table(
        ["units", "number"],
        [
            ("both right", values["both_right"]),
            ("only the first right", len(only["first"])),
            ("only the second right", len(only["second"])),
            ("both wrong", values["both_wrong"]),
        ],
    )
    for name, pairs in only.items():
        if pairs and examples:
            shown = pairs[: examples * groups]
            others = [(other.predicted, other.score) for _, other in shown]
            title = f"Only the {name} right"
            _print_units([one for one, _ in shown], others, title=title, names=("first", "second"))


def _percent(score: float) -> str:
    return half_up(100 * score, 1)


def _jsonable(value: Any) -> Any:
    """Records as objects with the names of their fields."""
    if hasattr(value, "_asdict"):
        return _jsonable(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    return value
