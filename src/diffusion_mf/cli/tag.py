"""``dmf tag``: labels for a file or for standard input, streaming."""

import contextlib
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

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a trained model, or hf:OWNER/NAME on the hub.")]
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
    model: Model,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="File to label; - is standard input.")] = "-",
    file_format: Annotated[
        FileFormat | None,
        typer.Option(
            "--format",
            help="Format of FILE.",
            show_default="detected from its name or first lines; text for standard input",
        ),
    ] = None,
    output: Annotated[str, typer.Option(metavar="FILE", help="Output file; - is standard output.")] = "-",
    output_format: Annotated[
        FileFormat | None,
        typer.Option(
            "--to", help="Format to write.", show_default="by the name of --output, else as FILE; columns for text"
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
    calls: Calls = None,
    decoder: LegalDecoderName = None,
    batch_tokens: BatchTokens = None,
    on_long: OnLong = None,
    one_document: OneDocument = False,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --to jsonl.")] = False,
) -> None:
    """Label sentences; CoNLL-U and column files keep every other byte."""
    if as_json:
        if output_format not in (None, FileFormat.JSONL):
            raise InputError(f"--json contradicts --to {output_format}", remedy="leave one of them out")
        output_format = FileFormat.JSONL

    from diffusion_mf.tagger import Tagger
    from diffusion_mf.tagger.files import TaggingOptions, tag_file

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
            fields=field_choice(form_column, tag_column, label_names, language)._replace(clamp_column=clamp_column),
            column=column,
            use_scores=scores,
            advance=advance,
            note=note,
        )
    note_skipped_context(tagger)


def settle(tagger: "Tagger", *, on_long: Literal["window", "error", "truncate"] | None, one_document: bool) -> None:
    """Apply the options to the tagger, and tell the user about options that have no effect on this model."""
    if on_long is not None:
        tagger.set_on_long(on_long)
        if tagger.on_long is None:
            note("--on-long has no effect: this model's encoder accepts sentences of any length")
    if one_document and not tagger.model.config.recall:
        note("--one-document has no effect: this model was trained without recall (denoiser.recall)")


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
            + (went if tagger.on_long == "truncate" else "went in overlapping windows")
        )
