"""``dmf tag``: labels for a file or for standard input, streaming."""

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from diffusion_mf.cli.data import FormColumnOption, LabelNamesOption, LanguageOption, TagColumnOption, field_choice
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import note, progress

if TYPE_CHECKING:
    from diffusion_mf.tagger import Tagger
    from diffusion_mf.tagger.rendering import Readable

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Folder of a trained model, a model of the package (dmf models), or hf:OWNER/NAME on the hub.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model, if it is not the first argument.", show_default="en-pos"),
]
Calls = Annotated[int | None, typer.Option(help="Denoising steps of a diffusion system.", show_default="as configured")]
DecoderName = Annotated[
    str | None,
    typer.Option("--decoder", help="argmax, mask-viterbi, viterbi or native.", show_default="the best on dev"),
]
LegalDecoderName = Annotated[
    str | None,
    typer.Option(
        "--decoder",
        help="argmax, mask-viterbi, viterbi or native.",
        show_default="the best on dev among those that always give a legal sequence",
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(help="Units computed at once; 1 labels sentence by sentence.", show_default="as configured"),
]
OnLong = Annotated[
    Literal["window", "error", "truncate"] | None,
    typer.Option(
        help="How to handle sentences too long for a pretrained encoder: window, error or truncate.",
        show_default="as trained",
    ),
]
OneDocument = Annotated[
    bool, typer.Option("--one-document", help="For models with recall: treat FILE as one document.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


def tag(
    model_and_file: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [FILE]",
            help="Folder of a trained model, a model of the package (dmf models) or hf:OWNER/NAME on the hub; and a file to "
            "label, - for standard input.",
            show_default="en-pos, standard input",
        ),
    ] = None,
    model_option: ModelOption = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option(
            "--format",
            help="Format of FILE.",
            show_default="detected from its name or first lines; text for standard input, raw with a model of the package",
        ),
    ] = None,
    output: Annotated[str, typer.Option(metavar="FILE", help="Output file; - is standard output.")] = "-",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Format to write: conllu, columns, jsonl and others that --format takes, spans, html or terminal.",
            show_default="by the name of --output, else as FILE; columns for text; colours on a terminal",
        ),
    ] = None,
    column: Annotated[
        ConlluColumn | None,
        typer.Option(help="CoNLL-U column to write to.", show_default="the model's; misc for entities"),
    ] = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    scheme: Annotated[
        LabelScheme | None, typer.Option(help="Label scheme of the output.", show_default="that of the training data")
    ] = None,
    clamp_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|NUMBER",
            help="Column with known labels, in a column file or CoNLL-U (upos, xpos); empty or _ leaves a unit free.",
            show_default="none",
        ),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also write the probability of every label.")] = False,
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="P", min=0, max=1, help="Leave out spans, and write _ for tags, that are less probable than this."
        ),
    ] = None,
    least_certain: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Write only the N least certain sentences, in that order.")
    ] = None,
    calls: Calls = None,
    decoder: LegalDecoderName = None,
    batch_tokens: BatchTokens = None,
    on_long: OnLong = None,
    one_document: OneDocument = False,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --to jsonl.")] = False,
) -> None:
    """Label sentences; CoNLL-U and column files keep every other byte."""
    if as_json and to not in (None, FileFormat.JSONL):
        raise InputError(f"--json and --to {to} contradict each other", remedy="leave one of them out")

    from diffusion_mf.tagger import Tagger
    from diffusion_mf.tagger.files import TaggingOptions, tag_file
    from diffusion_mf.tagger.rendering import Readable
    from diffusion_mf.tagger.shipped import is_shipped

    output_format = _output_format(FileFormat.JSONL if as_json else to)
    if output_format is None and output == "-" and sys.stdout.isatty():
        output_format = Readable.TERMINAL
    model, others = model_and_others(model_and_file or [], model_option)
    file = others[0] if others else "-"
    if len(others) > 1:
        raise InputError(
            f"there are {len(others)} files", remedy="give a model and then one file, or - for standard input"
        )
    is_alone = model_and_file == [file] and model_option is None
    if file != "-" and is_alone and not os.path.exists(file):
        raise InputError("no such model or file", path=file, remedy="check the path; dmf models lists names of models")
    tagger = Tagger.load(model, device=device)
    settle(tagger, on_long=on_long, one_document=one_document)
    # A progress bar would be mixed with the results.
    bar = contextlib.nullcontext(lambda count: None) if output == "-" else progress("tagging")
    with bar as advance:
        tag_file(
            tagger,
            file,
            output,
            options=TaggingOptions(
                batch_tokens=batch_tokens, calls=calls, decoder=decoder, one_document=one_document, scheme=scheme
            ),
            file_format=file_format,
            output_format=output_format,
            text_format=FileFormat.RAW if is_shipped(model) else FileFormat.TEXT,
            min_confidence=min_confidence,
            least_certain=least_certain,
            fields=field_choice(form_column, tag_column, label_names, language)._replace(clamp_column=clamp_column),
            column=column,
            use_scores=scores,
            advance=advance,
            note=note,
        )
    note_skipped_context(tagger)


def model_and_others(arguments: list[str], option: str | None) -> tuple[str, list[str]]:
    """The model and the other arguments: ``--model``, or else the first of two arguments or a single one that is a model.

    Without any, it is the default model of the package.
    """
    from diffusion_mf.model.storage import is_exported
    from diffusion_mf.tagger.shipped import DEFAULT_MODEL, is_model

    if option is not None:
        return option, arguments
    if not arguments:
        return DEFAULT_MODEL, []
    first = arguments[0]
    # The folders of a run and of an export are not models, but loading them gives an error that says what to do.
    is_run = os.path.isdir(os.path.join(first, "model"))
    if len(arguments) > 1 or is_model(first) or is_run or is_exported(first):
        return first, arguments[1:]
    return DEFAULT_MODEL, arguments


def _output_format(name: str | None) -> "FileFormat | Readable | None":
    from diffusion_mf.tagger.rendering import Readable

    formats: "dict[str, FileFormat | Readable]" = {each.value: each for kind in (FileFormat, Readable) for each in kind}
    if name is not None and name not in formats:
        raise InputError(f"there is no format {name!r}", remedy=f"choose one of {', '.join(formats)}")
    return None if name is None else formats[name]


def settle(tagger: "Tagger", *, on_long: Literal["window", "error", "truncate"] | None, one_document: bool) -> None:
    """Apply the options to the tagger, and tell the user about options that have no effect on this model."""
    if on_long is not None:
        tagger.set_on_long(on_long)
        if tagger.on_long is None:
            note("--on-long has no effect: this model's encoder accepts sentences of any length")
    if one_document and not tagger.model.config.recall:
        note("--one-document has no effect: this model was trained without recall (denoiser.recall, encoder.recall)")


def note_skipped_context(tagger: "Tagger") -> None:
    """Tell the user how many sentences were too long for a pretrained encoder, and whether recall had no documents."""
    if tagger.model.config.recall and not tagger.num_in_documents:
        note("no documents are marked, so this model had nothing to recall; mark them, or use --one-document")
    count = tagger.num_long_sentences
    if count:
        many, them = ("sentence was", "it") if count == 1 else ("sentences were", "they")
        went = "was truncated" if count == 1 else "were truncated"
        note(
            f"{count:,} {many} longer than the encoder takes at once: {them} "
            + (went if tagger.on_long == "truncate" else "were split into overlapping windows")
        )
