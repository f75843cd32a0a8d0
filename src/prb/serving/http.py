"""What the reward server and the study app share: listener, token check, body limits, headers, graceful stop."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from prb.errors import BadInput

HEAD_SECONDS = 10.0
"""A connection that takes longer to send a request's headers is closed."""
BODY_SECONDS = 60.0
"""A body that takes longer is refused: slow clients must not block others."""
KEEP_ALIVE_SECONDS = 75
"""Longer than the idle timeout of common proxies (60 s), so that the proxy closes first."""
LAST_REPLIES_SECONDS = 10
"""How long clients may take to receive the last replies."""
BACKLOG = 2048
"""Connections waiting to be accepted."""
ACCEPTED_AT_ONCE = 16
"""Few, so that a burst cannot use up all file descriptors before the limit of connections applies."""
SPARE_DESCRIPTORS = 256
"""Left for files, databases and the model."""
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


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def has_token(authorization: bytes, token: bytes | None) -> bool:
    """`Bearer TOKEN`, or Basic with the token as password, which clients send for URLs like `http://prb:TOKEN@host`."""
    if token is None:
        return True
    kind, _, value = authorization.partition(b" ")
    if kind.lower() == b"basic":
        try:
            value = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif kind.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), token)


class BodyLimit:
    """Refuses bodies that are too large or too slow. It counts received bytes; a Content-Length proves nothing."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, complete = 0, False
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS

        async def limited() -> Message:
            nonlocal size, complete
            if complete:  # the next message is a disconnect
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time", {"Connection": "close"}) from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
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


def max_connections() -> int:
    """As many as the limit on open files allows, so that accepting one never fails."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return BACKLOG
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return BACKLOG if limit == resource.RLIM_INFINITY else max(limit // 2, limit - SPARE_DESCRIPTORS)


class Connection(H11Protocol):
    """Closes itself if a request's headers do not arrive in time; too many connections close the longest idle one.

    So idle sockets keep nobody else out.
    """

    most = BACKLOG
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        if len(self.connections) > self.most:
            idle: Any = [c for c in self.connections if c.idle and not c.transport.is_closing()]  # type: ignore
            min(idle, key=lambda c: c.idle_since).transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()
        elif self._deadline is None:  # the next request on this connection has begun
            self._await_headers()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether the next request's headers are not complete."""
        return self.conn.their_state is h11.IDLE

    def _await_headers(self) -> None:
        self.idle_since = self.loop.time()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


class Server(uvicorn.Server):
    """Stops in two steps: after a signal it serves until `drained()` is true; a second signal does not wait."""

    def __init__(
        self, app: ASGIApp, *, ready: Callable[[], None], drained: Callable[[], bool], proxies: Sequence[str] = ()
    ) -> None:
        Connection.most = max_connections()
        settings = uvicorn.Config(
            app,
            http=Connection,
            backlog=ACCEPTED_AT_ONCE,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            access_log=False,  # paths and queries may hold secrets
            log_config=None,
            log_level="error",  # warnings are about malformed requests: anybody could fill the disk with them
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_REPLIES_SECONDS,
        )
        super().__init__(settings)
        self.ready, self.drained = ready, drained
        self.stopping = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        self.ready()  # it listens, and a signal from now on is handled

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.stopping:
            self.force_exit = self.should_exit = True
        self.stopping = True

    async def on_tick(self, counter: int) -> bool:
        if self.stopping:
            self.should_exit = self.drained() or self.should_exit
        return await super().on_tick(counter)


def serve_until_signal(
    app: ASGIApp,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    drained: Callable[[], bool] = lambda: True,
    proxies: Sequence[str] = (),
) -> bool:
    """Serve until SIGINT or SIGTERM. `False`: a second signal ended it before it had drained.

    Only `proxies` are believed when they say whose request they forward.
    """
    server = Server(app, ready=ready, drained=drained, proxies=proxies)
    server.run(sockets=[listener])
    return not server.force_exit or drained()
