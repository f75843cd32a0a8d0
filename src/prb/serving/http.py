"""What the reward server and the study app share: listener, body limit, headers, graceful stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prb.errors import BadInput

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to its port, not yet listening, so a taken port is reported before any slow work."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise BadInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}; --port 0 picks a free port"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class BodyLimit:
    """Refuses bodies that are too large. It counts received bytes; a Content-Length proves nothing."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.max_bytes:
                reason = f"the body has more than {self.max_bytes} bytes"
                raise HTTPException(413, reason, {"Connection": "close"})
            return message

        await self.app(scope, limited, send)


class SecurityHeaders:
    """Sets headers on every reply; a route's own cache policy wins."""

    def __init__(self, app: ASGIApp, *, headers: Mapping[str, str] = HEADERS) -> None:
        self.app, self.headers = app, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM, then accepts nothing more and answers open requests for up to `grace` seconds; a
    second signal does not wait (`force_exit`). Only `proxies` are trusted when they say whose request they forward."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ready: Callable[[], None],
        connections: int,
        grace: int | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        settings = uvicorn.Config(
            app,
            http="h11",
            h11_max_incomplete_event_size=32 * 1024,  # bytes of headers
            limit_concurrency=connections,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            access_log=False,  # paths and queries may hold secrets
            log_config=None,
            log_level="error",  # warnings are about malformed requests: anybody could fill the disk with them
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=75,  # more than the 60 s of common proxies, so that the proxy closes first
            timeout_graceful_shutdown=grace,
        )
        super().__init__(settings)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()  # it listens, and a signal from now on is handled

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # not remembered for after the shutdown, as uvicorn does: then SIGTERM would still kill the process
        self.force_exit = self.should_exit
        self.should_exit = True
