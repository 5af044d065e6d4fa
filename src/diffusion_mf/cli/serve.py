"""``dmf serve``: an HTTP server for trained models."""

from pathlib import Path
from typing import Annotated

import typer

from diffusion_mf.errors import InputError


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL…]",
            help="Folders of trained models, names of models of the package (dmf models), or hf:OWNER/NAME on the hub; "
            "NAME=MODEL gives one a name.",
            show_default="all models of the package",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every address of the machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8080,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The bearer token that clients must send.", show_default="DIFFUSION_MF_TOKEN, if set"
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="An origin whose web pages may use the server, such as its own address behind a proxy; may be repeated.",
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1024, help="Most bytes in a request.")] = 1 << 20,
    max_units: Annotated[int, typer.Option(min=1, help="Most units in a request.")] = 20_000,
    max_sentence: Annotated[int, typer.Option(min=1, help="Most units in a sentence.")] = 2_000,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Most units waiting for a model; further requests get 429.")
    ] = 100_000,
    max_open: Annotated[int, typer.Option(min=1, help="Most requests open at a time; further ones get 429.")] = 1_000,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds within which a request is answered.")] = 30.0,
    body_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds within which the body of a request must arrive.")
    ] = 30.0,
    shutdown_timeout: Annotated[float, typer.Option(min=1, help="Seconds to finish requests after SIGTERM.")] = 30.0,
    batch_units: Annotated[
        int | None,
        typer.Option(min=1, help="Units computed at once.", show_default="2,000 on a CPU; as configured on a GPU"),
    ] = None,
    batch_wait: Annotated[
        float, typer.Option(min=0, help="Milliseconds to wait, under load, for requests to share a batch with.")
    ] = 3.0,
    batching: Annotated[bool, typer.Option(help="Whether requests share batches.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Answer HTTP requests with labels, until SIGTERM or Ctrl-C; logs are lines of JSON on stderr."""
    try:
        from diffusion_mf.serving import run
        from diffusion_mf.serving.settings import Settings
        from diffusion_mf.tagger.shipped import shipped_models
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "prometheus_client", "uvicorn"):
            raise
        raise InputError(
            "the server needs FastAPI, uvicorn and prometheus-client", remedy="pip install 'diffusion-mf[server]'"
        ) from None

    settings = Settings(
        body_bytes=max_body,
        request_units=max_units,
        sentence_units=max_sentence,
        waiting_units=max_waiting,
        open_requests=max_open,
        request_seconds=timeout,
        body_seconds=body_timeout,
        shutdown_seconds=shutdown_timeout,
        batch_units=batch_units,
        batch_seconds=batch_wait / 1000,
        is_batching=batching,
        token=run.read_token(token_file),
        origins=tuple(allow_origin or ()),
    )
    run.serve(models or list(shipped_models()), settings, host=host, port=port, device=device)
