"""By which names a server may be called.

A page of another web site can have the name of its own host resolve to a loopback address (DNS rebinding). The browser then takes the
server for that site, but still sends the site's name as ``Host``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")


def host_name(header: str) -> str | None:
    """The name in a ``Host`` header, without its port; None if it is none.

    >>> host_name("LocalHost:8080"), host_name("[::1]:8080"), host_name("::1")
    ('localhost', '::1', None)
    """
    match = _HOST.fullmatch(header)
    return None if match is None else (match[1] or match[2]).lower()


def hosts_of_loopback(host: str, origins: Sequence[str]) -> tuple[str, ...] | None:
    """What a server that listens at a loopback address may be called: so, as it was told to listen, and as allowed origins are.

    A page behind a reverse proxy has an origin of its own. None, for any name, if pages of all origins are allowed.
    """
    if "*" in origins:
        return None
    names = (urlsplit(origin).hostname for origin in origins)
    return (*LOOPBACK, host.lower(), *(name for name in names if name))


class HostCheck:
    """Refuses requests that call the server by another name."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and host_name(Headers(scope=scope).get("host", "")) not in self._hosts:
            error = "The server is not called by this name; start it with --allow-origin and the address of its pages."
            answer = JSONResponse({"error": error}, 403, headers={"Connection": "close"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)
