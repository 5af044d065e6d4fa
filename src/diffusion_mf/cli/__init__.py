"""The command line, ``dmf``: thin commands over the package, one file per group.

Progress goes to stderr and results to stdout. A `DiffusionMFError` becomes one sentence and its exit status (2 for bad
input), as does wrong usage; ``--debug``, anywhere on the line, shows the traceback instead. Commands import what they need
when they run, so that ``dmf --help`` does not wait for PyTorch. For the same reason their annotations are objects, not the strings
of ``from __future__ import annotations``, each of which Typer would compile twice.
"""

import errno
import io
import os
import signal
import sys
import threading
from typing import Annotated, Any, NoReturn

import typer

from diffusion_mf.cli import (
    benchmark,
    config,
    convert_encoder,
    data,
    demo,
    errors,
    evaluate,
    experiment,
    explain,
    export,
    models,
    score,
    serve,
    tag,
    train,
)
from diffusion_mf.errors import DiffusionMFError, InputError, TerminatedError, readable

app = typer.Typer(
    name="dmf",
    help="Sequence labelling by structured discrete diffusion.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of help: using models, making them, research.
app.command(name="tag")(tag.tag)
app.command(name="models")(models.models)
app.command(name="explain")(explain.explain)
app.command(name="errors")(errors.errors)
app.command(name="evaluate")(evaluate.evaluate)
app.command(name="score")(score.score)
app.command(name="serve")(serve.serve)
app.command(name="export")(export.export)
app.command(name="train")(train.train)
app.command(name="convert-encoder")(convert_encoder.convert_encoder)
app.command(name="search")(experiment.search)
app.command(name="demo")(demo.demo)
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")
app.add_typer(experiment.app, name="experiment")
app.add_typer(benchmark.app, name="benchmark")


# Typer brings its own copy of Click or uses Click's; this is the class in either.
_UsageError: Any = typer.BadParameter.__mro__[1]


_CANNOT_WRITE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT, errno.EFBIG)


def _usage_sentence(error: Any) -> str:
    problem = readable(" ".join(error.format_message().split())).replace("Value error, ", "").removesuffix(".")
    if not problem or type(error).__name__ == "NoArgsIsHelpError":
        return ""  # the help has been shown instead
    command = "dmf" if error.ctx is None else error.ctx.command_path
    return f"dmf: {problem[0].lower()}{problem[1:]}; see {command} --help.\n"


def _print_version(value: bool) -> None:
    if value:
        from diffusion_mf import __version__

        print(f"dmf {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and stop."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error (works after the command too)."),
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="MODULE",
            help="Import a module or a .py file that adds systems, structures, encoders or decoders; may be repeated "
            "(works after the command too).",
        ),
    ] = None,
) -> None:
    from diffusion_mf.plugins import from_environment, import_plugins

    import_plugins([*from_environment(), *(plugins or ())])


def _options_first(arguments: list[str]) -> list[str]:
    """The arguments with every ``--plugin`` moved before the command, where Typer expects options of the whole program."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options: list[str] = []
    others: list[str] = []
    given = iter(arguments[:end])
    for argument in given:
        if argument == "--plugin":
            module = next(given, None)
            if module is None:
                raise InputError("--plugin has no value", remedy="write --plugin MODULE")
            options += [argument, module]
        else:
            (options if argument.startswith("--plugin=") else others).append(argument)
    return [*options, *others, *arguments[end:]]


class _ClosedOutput(io.RawIOBase):
    """What a closed standard output is replaced by, so that commands which print nothing still work."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.EBADF, "it is closed")


def _open_closed_streams() -> None:
    """Let no file that is opened later become one of the standard streams, into which libraries write messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_ClosedOutput()), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the end)


def _terminate(number: int, frame: object) -> NoReturn:
    raise TerminatedError(number)


def main() -> None:
    """Run ``dmf``; the console script's entry point."""
    _open_closed_streams()
    # So that files which are half-written are removed; training and the server have handlers of their own.
    for number in (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        # Otherwise Typer would draw boxes around usage errors.
        status = app(args=_options_first(arguments), prog_name="dmf", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)
    except _UsageError as error:
        print(_usage_sentence(error), end="", file=sys.stderr)
        sys.exit(2)
    except DiffusionMFError as error:
        if debug:
            raise
        print(f"dmf: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:
        # Files have names; what else can be full or closed is standard output.
        if debug or error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        print(f"dmf: standard output cannot be written ({error.strerror}); send it elsewhere.", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # what is still to be written would fail again, with a traceback
    except (MemoryError, RuntimeError) as error:
        # PyTorch has no class of its own for this.
        if debug or not (isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
            raise
        print("dmf: there is not enough memory; use less data, a smaller model or a larger machine.", file=sys.stderr)
        sys.exit(1)
    except TerminatedError:
        print("dmf: terminated", file=sys.stderr)
        raise
    except (KeyboardInterrupt, typer.Abort):
        print("dmf: interrupted", file=sys.stderr)
        sys.exit(130)
