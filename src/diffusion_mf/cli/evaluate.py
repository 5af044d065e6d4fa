"""``dmf evaluate``: the metrics of a model on a labelled file."""

import dataclasses
from typing import Annotated, Literal

import typer

from diffusion_mf.cli.data import FormColumnOption, LabelNamesOption, LanguageOption, TagColumnOption, field_choice
from diffusion_mf.cli.score import print_report
from diffusion_mf.cli.tag import (
    BatchTokens,
    Calls,
    DecoderName,
    Device,
    Model,
    OneDocument,
    OnLong,
    note_skipped_context,
    settle,
)
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table, progress

# Of the labelled file that models are compared with.
GoldColumn = Annotated[
    ConlluColumn | None, typer.Option(help="Column of CoNLL-U: upos or xpos.", show_default="the model's")
]
GoldScheme = Annotated[LabelScheme | None, typer.Option(help="Scheme of FILE, for ner.", show_default="detected")]
GoldFormat = Annotated[
    FileFormat | None,
    typer.Option("--format", help="Format of FILE.", show_default="detected from its name or first lines"),
]


def evaluate(
    model: Model,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File with the gold labels; - is standard input.")],
    decoder: DecoderName = None,
    calls: Calls = None,
    column: GoldColumn = None,
    scheme: GoldScheme = None,
    file_format: GoldFormat = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse irregular tags in FILE instead of repairing them.")
    ] = False,
    posterior: Annotated[
        Literal["product", "mixture", "sampled"] | None,
        typer.Option(help="Form of the reverse posterior: product, mixture or sampled.", show_default="as trained"),
    ] = None,
    batch_tokens: BatchTokens = None,
    on_long: OnLong = None,
    one_document: OneDocument = False,
    device: Device = "auto",
    details: Annotated[
        bool,
        typer.Option("--details", help="Also report scores by label, type and sentence length, and the confusions."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; percentages from 0 to 100.")] = False,
) -> None:
    """Tag a labelled file, and report its metrics (as ``dmf tag`` and ``dmf score`` would) and the model's calibration."""
    from diffusion_mf.batches.vocabulary import describe_unknown_labels
    from diffusion_mf.evaluation.report import detail_values, summary_values
    from diffusion_mf.tagger import Tagger
    from diffusion_mf.tagger.files import TaggingOptions, evaluate_corpus, read_gold

    tagger = Tagger.load(model, device=device)
    settle(tagger, on_long=on_long, one_document=one_document)
    if posterior is not None:
        tagger.set_posterior(posterior)
    corpus = read_gold(
        tagger,
        file,
        column=column,
        scheme=scheme,
        file_format=file_format,
        fields=field_choice(form_column, tag_column, label_names, language),
        strict=strict,
    )
    if corpus.repaired is not None:
        note(corpus.repaired)
    with progress("evaluating", total=len(corpus)) as advance:
        found = evaluate_corpus(
            tagger,
            corpus,
            options=TaggingOptions(batch_tokens=batch_tokens, calls=calls, decoder=decoder, one_document=one_document),
            advance=advance,
        )
    note_skipped_context(tagger)
    # Labels in another scheme cannot be compared.
    if corpus.scheme is tagger.model.scheme:
        unknown = describe_unknown_labels(corpus, tagger.model.vocabulary.labels, owner="the model does not know")
        if unknown is not None:
            note(unknown)
    # The report is counted in the model's own scheme, but users know that of the training data.
    report = dataclasses.replace(found.report, scheme=tagger.scheme, predicted_scheme=tagger.scheme)
    used = {"system": tagger.model.config.system, "decoder": decoder or tagger.model.decoder, "calls": calls}
    if tagger.model.config.system_entry.process == "categorical":
        used["posterior"] = posterior or tagger.model.config.inference.posterior
    if as_json:
        values = summary_values(report) | used
        values |= {"mean_score": 100 * found.mean_score, "calibration_error": 100 * found.calibration_error}
        if found.span_calibration_error is not None:
            values["span_calibration_error"] = 100 * found.span_calibration_error
        print_json(values | (detail_values(report) if details else {}))
        return
    print_report(report, details=details)
    print_table(
        ["scores", "value"],
        [
            ("mean score of the predicted labels", half_up(100 * found.mean_score, 2)),
            ("calibration error", half_up(100 * found.calibration_error, 2)),
            *(
                [("calibration error of spans", half_up(100 * found.span_calibration_error, 2))]
                if found.span_calibration_error is not None
                else []
            ),
        ],
        title=f"{used['system']}, {used['decoder']}",
    )
