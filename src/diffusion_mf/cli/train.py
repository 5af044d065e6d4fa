"""``dmf train``: one run, from a corpus or a configuration to a model folder."""

import itertools
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diffusion_mf.cli.data import FormColumnOption, LabelNamesOption, LanguageOption, TagColumnOption, read_label_names
from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Display, half_up, note, print_json, print_table

if TYPE_CHECKING:
    from diffusion_mf.config import Config
    from diffusion_mf.training.automatic import PlannedRun


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRAIN|CONFIG]",
            help="A labelled file to train on, or a configuration: a TOML file or a name such as ner/diffusion-mf. "
            "Not needed with --resume.",
            show_default=False,
        ),
    ] = None,
    dev: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Labelled file for choosing the best model.",
            show_default="a part of TRAIN is held out",
        ),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Labelled file for scoring the best model, once.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the model, checkpoints and log of the run.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="System to train; docs/systems.md has the list.", show_default="diffusion-mf")
    ] = None,
    task: Annotated[Task | None, typer.Option(help="pos, ner or seg-pos.", show_default="detected")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A pretrained encoder: a folder or a name on the hub.", show_default="from scratch"
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", min=0.1, help="Train for at most about this many minutes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same as --set seed=…", show_default="1")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Start from the weights of this model (data.start)."),
    ] = None,
    file_format: Annotated[
        FileFormat | None, typer.Option("--format", help="Format of the files.", show_default="detected")
    ] = None,
    column: Annotated[
        ConlluColumn | None, typer.Option(help="Column of CoNLL-U: upos or xpos.", show_default="detected")
    ] = None,
    scheme: Annotated[
        LabelScheme | None, typer.Option(help="Scheme of the files' span labels.", show_default="detected")
    ] = None,
    form_column: FormColumnOption = None,
    tag_column: TagColumnOption = None,
    label_names: LabelNamesOption = None,
    language: LanguageOption = None,
    on_long: Annotated[
        Literal["window", "error", "truncate"] | None,
        typer.Option(
            help="The same as --set encoder.on_long=…, for pretrained encoders.", show_default="as configured"
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="The same as --set data.strict=true: refuse irregular data instead of repairing them."
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in the folder with its own settings; --set training.epochs=N extends it."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto uses a GPU if there is one.")] = "auto",
    checkpoint_every: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time between checkpoints.")] = 300,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard logs to the folder.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print what would be trained, as a configuration, and stop.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Print the number of parameters and stop; --output is not needed.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also add a row with the run's scores to this result file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; percentages from 0 to 100.")] = False,
) -> None:
    """Train on a corpus or by a configuration, and keep the model that is best on dev; torchrun starts several processes."""
    # Before PyTorch is imported: threads that spin while they wait starve each other on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if start is not None:
        from diffusion_mf.tagger.shipped import model_folder

        start = os.fspath(model_folder(start))
    options = {
        "data.dev": _only(dev, "--dev"),
        "data.test": _only(test, "--test"),
        "system": system,
        "task": task,
        "encoder.kind": None if encoder is None else "pretrained",
        "encoder.model": encoder,
        "seed": seed,
        "data.start": start,
        "data.format": file_format,
        "data.column": column,
        "data.scheme": scheme,
        "data.form_column": form_column,
        "data.tag_column": tag_column,
        "data.label_names": read_label_names(label_names),
        "data.language": language,
        "encoder.on_long": on_long,
        "data.strict": True if strict else None,
    }
    if output is None and not (print_config or count):
        raise InputError("no folder was given for the model", remedy="name one with --output")
    if output is not None and not resume and not (print_config or count):
        from diffusion_mf.training.resumption import RunFolder

        RunFolder(output).check_unused()  # now, not after the files have been read
    from diffusion_mf.config.errors import override
    from diffusion_mf.training.automatic import plan_run

    given = [override(key, value) for key, value in options.items() if value is not None]
    is_corpus = source is not None and _is_corpus(source)
    _check_set_once(overrides or (), {**options, "data.train": source if is_corpus else None})
    planned = plan_run(
        corpus=source if is_corpus else None,
        configuration=None if is_corpus else source,
        overrides=[*(overrides or ()), *given],
        begun_in=output if resume else None,
        minutes=minutes,
        device=device,
        tell=note if _is_speaker() else lambda message: None,
    )
    config = planned.config
    if print_config:
        from diffusion_mf.cli.config import print_settings

        print_settings(config, planned.sources)
        return
    if count:
        _print_count(planned, as_json=as_json)
        return
    assert output is not None
    if record is not None:
        if source is None:
            raise InputError("a row of results names its configuration", remedy="give CONFIG together with --record")
        from diffusion_mf.lab.results import read_rows

        read_rows(record)  # Reject a file that is not a result file before hours of training, not after.
    from diffusion_mf.training.loop import train as run

    with Display() as display:
        folder = run(
            config,
            output=output,
            resume=resume,
            device=device,
            checkpoint_every=checkpoint_every,
            use_tensorboard=tensorboard,
            display=display,
            overrides=planned.overrides,
            resume_command=f"dmf train --output {shlex.quote(str(output))} --resume",
            planned_steps=planned.planned_steps,
            corpora=planned.corpora,
            started=_command_time(),
        )
    # Of the processes that torchrun starts, only one prints.
    if _is_speaker():
        if record is not None and source is not None:
            _record(record, config, folder, source=source, overrides=planned.overrides, device=device)
        _print_results(config, folder, as_json=as_json)


def _is_corpus(source: str) -> bool:
    """Whether a name is a file (or folder) to train on rather than a configuration; `InputError` for a pipe."""
    if source == "-" or source.endswith(".toml"):
        return False
    if os.path.exists(source) and not os.path.isfile(source) and not os.path.isdir(source):
        raise InputError(
            "this is a pipe or a device",
            path=source,
            remedy="save training data to a file first, since resuming reads it again",
        )
    from diffusion_mf.config.files import locate_config

    return os.path.isfile(source) or (os.path.isdir(source) and locate_config(source) is None)


def _only(files: list[str] | None, option: str) -> str | None:
    """The one value of an option that others might be given for, too; the command line would take the last."""
    if files is not None and len(files) > 1:
        raise InputError(f"there are {len(files)} {option} files", remedy="give one")
    return files[0] if files else None


def _check_set_once(overrides: Sequence[str], named: Mapping[str, Any]) -> None:
    """`InputError` if ``--set`` gives a setting another value than the file to train on or an option of its own."""
    from diffusion_mf.config.errors import override
    from diffusion_mf.config.files import flat, nested_overrides

    for key, value in flat(nested_overrides(overrides)).items():
        other = named.get(key)
        if other is not None and override(key, value) != override(key, other):
            raise InputError(
                f"--set {override(key, value)} contradicts the value that an argument or another option gives it, {other}",
                remedy="leave out one of them",
            )


def _is_speaker() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _command_time() -> float:
    """When this program was started, as `time.monotonic` counts."""
    try:
        # In clock ticks since the machine was started; the name before it may contain anything but the last parenthesis.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return time.monotonic() - age


def _print_count(planned: "PlannedRun", *, as_json: bool) -> None:
    from diffusion_mf.model import count_parameters
    from diffusion_mf.training.corpora import read_training_data

    data = read_training_data(planned.config, corpora=planned.corpora)
    for message in data.notes:
        note(message)
    num_parameters = count_parameters(planned.config, data.vocabulary, data.scheme)
    if as_json:
        print_json({"parameters": num_parameters})
    else:
        print(f"{num_parameters:,} parameters")


def _print_results(config: "Config", folder: Path, *, as_json: bool) -> None:
    from diffusion_mf.model.storage import METRICS, read_metrics

    metrics = read_metrics(folder)
    if config.data.dev is not None and "dev" not in metrics:
        note(f"{folder / METRICS} is missing, so the dev scores are unknown; dmf evaluate computes them")
    if as_json:
        print_json({"model": str(folder), **metrics})
        return
    splits = [split for split in ("dev", "test") if split in metrics]
    if splits:
        # Over single labels, precision, recall and F1 are the accuracy.
        left_out = {"precision", "recall", "f1"} if config.task is Task.POS else set()
        names = [name for name in metrics[splits[0]] if name not in left_out]
        print_table(
            [config.system, *splits],
            [(name, *(half_up(metrics[split][name], 2) for split in splits)) for name in names],
        )
    _print_details(metrics)
    if (spent := _time_spent(folder)) is not None:
        note(spent)
    note(f"the model is in {folder}")
    for command in _next_commands(config, shlex.quote(str(folder))):
        note(f"next: {command}")


def _time_spent(folder: Path) -> str | None:
    """Where the time of a run went; None if nothing was trained now."""
    from diffusion_mf.evaluation.terminal import described_seconds

    last = json.loads((folder.parent / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    if last["event"] != "time":
        return None
    training = last["training"]
    described = f"{training:.1f} s" if training < 60 else f"{described_seconds(training)} min"
    return (
        f"time: {last['before_first_step']:.1f} s to the first step, {described} of training and evaluation, "
        f"{last['after_last_step']:.1f} s from the last step to the saved model"
    )


_NUM_SHOWN_WORDS = 8
_NUM_SAMPLED = 50


def _next_commands(config: "Config", model: str) -> list[str]:
    """Commands that work as they are printed: tagging the beginning of a sentence, and the mistakes on dev or test."""
    from diffusion_mf.data.formats import FormatOptions, read_source, task_format

    data = config.data
    path = data.dev or data.test or data.train
    assert path is not None
    try:
        file_format = task_format(path, config.task, file_format=data.format)
        options = FormatOptions(fields=data.fields, task=config.task)
        some = itertools.islice(read_source(path, file_format, options).sentences, _NUM_SAMPLED)
        texts = [" ".join(sentence.units[:_NUM_SHOWN_WORDS]) for sentence in some]
    except InputError:
        return [f"dmf tag {model} FILE"]  # the file of a resumed run may have been moved
    # Not a heading, and nothing that is hard to read between quotation marks.
    text = next((text for text in texts if text.count(" ") >= 3 and "'" not in text), texts[0])
    commands = [f"echo {shlex.quote(text)} | dmf tag {model}"]
    if data.dev is not None or data.test is not None:
        # The choices about the file that detection would not make.
        choices = {
            "--format": data.format,
            "--scheme": data.scheme,
            "--form-column": data.form_column,
            "--tag-column": data.tag_column,
            "--label-names": None if data.label_names is None else ",".join(data.label_names),
        }
        given = [f" {name} {shlex.quote(value)}" for name, value in choices.items() if value is not None]
        commands.append(f"dmf errors {model} {shlex.quote(path)}{''.join(given)}")
    return commands


def _print_details(metrics: dict[str, Any]) -> None:
    """Report the most frequent confusions and the calibration of a model; models of earlier versions store neither."""
    confusions, certainty = metrics.get("confusions"), metrics.get("certainty")
    if confusions and confusions["most_frequent"]:
        shown = (f"{each['gold']} as {each['predicted']} ({each['count']:,})" for each in confusions["most_frequent"])
        print(f"most frequent confusions on {confusions['split']}: {', '.join(shown)}")
    if certainty:
        confidence, accuracy = half_up(certainty["confidence"], 1), half_up(certainty["accuracy"], 1)
        print(f"confidence on {certainty['split']}: {confidence} % on average; {accuracy} % of the labels are correct")


def _record(path: Path, config: "Config", folder: Path, *, source: str, overrides: list[str], device: str) -> None:
    """Write one row per configuration, overrides, seed and machine; a repeated run replaces its row."""
    from diffusion_mf.lab.results import provenance, write_rows
    from diffusion_mf.model.storage import read_metrics

    options = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    options += "" if device == "auto" else f" --device {device}"
    options += "".join(f" --plugin {shlex.quote(plugin)}" for plugin in config.plugins)
    log = (folder.parent / "log.jsonl").read_text(encoding="utf-8").splitlines()
    row = {
        "task": config.task,
        "train": Path(config.data.train or "").name,
        "system": config.system,
        "encoder": config.encoder.title,
        "seed": config.seed,
        "config": source,
        "overrides": overrides,
        **read_metrics(folder),
        # Time for training and evaluation, summed over all sessions of a resumed run.
        "seconds": json.loads(log[-1])["seconds"],
        "device": device,
        **provenance(f"dmf train {shlex.quote(source)}{options} --record {path}"),
    }
    key = ("task", "train", "system", "encoder", "seed", "config", "overrides", "device", "hardware")
    write_rows(path, [row], replace_by=key)
