"""A server process: loads models, opens the port, and stops when it is told to."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import uvicorn

from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError
from diffusion_mf.serving.application import Server, make_application
from diffusion_mf.serving.hosts import hosts_of_loopback
from diffusion_mf.serving.models import load_models
from diffusion_mf.serving.observation import JsonFormatter, log
from diffusion_mf.serving.settings import Settings

TOKEN_VARIABLE = "DIFFUSION_MF_TOKEN"
LEAST_TOKEN = 16
SECONDS_TO_ARRIVE = 0.3
"""after the signal to stop, for requests that clients have sent already"""


def read_token(path: StrPath | None) -> str | None:
    """The token of a file, or of the variable `TOKEN_VARIABLE`; None if there is none."""
    place = TOKEN_VARIABLE if path is None else os.fspath(path)
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE)
        if token is None:
            return None
    else:
        try:
            with open(path, encoding="utf-8") as stream:
                token = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the token cannot be read ({error})", path=path, remedy="check the path") from None
    token = token.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(
            f"{place} holds no token of at least {LEAST_TOKEN} ASCII characters",
            remedy="make one with: openssl rand -hex 32",
        )
    return token


class _UvicornServer(uvicorn.Server):
    """Tells the application as soon as it is to stop: streams then end after the lines they have read."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._application_server = server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        for each in sockets or ():
            host, port = each.getsockname()[:2]
            log("listening", {"host": host, "port": port, "models": list(self._application_server.models)})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, on a signal."""
        log("stopping", {"signal": signal.Signals(sig).name})
        self._application_server.stop()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what clients have sent, and close."""
        # Idle connections are closed next, and with them requests that lie in the sockets' buffers, unless these are read before.
        await asyncio.sleep(SECONDS_TO_ARRIVE)
        await super().shutdown(sockets)


def serve(names: Sequence[str], settings: Settings, *, host: str, port: int, device: str) -> None:
    """Serve models until a signal (SIGTERM, SIGINT) asks to stop; what has been begun is finished."""
    _start_logging()
    listener = _listen(host, port)
    try:
        is_loopback = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        if is_loopback:
            settings = dataclasses.replace(settings, hosts=hosts_of_loopback(host, settings.origins))
        models = load_models(names, settings, device=device)
        app = make_application(models, settings)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
        )
        if not is_loopback and settings.token is None:
            log("anybody who reaches this host may use the server: no token is set", level=logging.WARNING)
        # Once it has stopped in good order, uvicorn raises the signal again for whoever else wants to hear of it: nobody does.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        _UvicornServer(config, app.state.server).run(sockets=[listener])
    finally:
        listener.close()
    log("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before models are loaded, which takes a while: if it is taken already, that is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only if the protocol is named does asyncio turn off Nagle's algorithm, which would delay answers by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise InputError(f"cannot listen at {host}, port {port} ({reason})", remedy="choose another --port") from None
    return listener


def _start_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("diffusion_mf.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name != "uvicorn" else logging.WARNING)
