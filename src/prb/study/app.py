"""The web application: routes of both kinds, headers that every reply carries, and the server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.resources import files
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prb.errors import BadInput
from prb.study import admin, collect, entry, validate
from prb.study.config import ServeConfig
from prb.study.database import open_study
from prb.study.desk import Desk, Refused

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 — to refuse it without a public address


def make_app(desk: Desk, hosts: list[str] | None = None) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guarded)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, *(hosts or [])], www_redirect=False)
    app.mount("/static", StaticFiles(directory=str(files("prb.study") / "static")))
    kinds = {"validate": validate, "collect": collect}
    for part in (entry, kinds[desk.kind], admin):
        app.include_router(part.routes(desk))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> HTMLResponse:
        admins = error.status == 401 and request.url.path.startswith("/admin")
        name = "login.html" if admins else "message.html"
        reply = desk.page(name, status=error.status, heading=error.title, text=error.text, wrong="")
        if error.status == 429:
            reply.headers["retry-after"] = "5"
        return reply

    @app.exception_handler(HTTPException)
    async def missing(_: Request, error: HTTPException) -> HTMLResponse:
        heading = "There is nothing here" if error.status_code == 404 else "That did not work"
        return desk.page("message.html", status=error.status_code, heading=heading, text="")

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> HTMLResponse:
        text = "The fault is ours and has been noted. Everything you saved before is kept; go back and try again."
        reply = desk.page("message.html", status=500, heading="Something went wrong", text=text)
        reply.headers.update(HEADERS)  # this handler stands outside of every other layer
        return reply

    return app


class Guarded:
    """Headers on every reply; pages are never kept by a cache, style and script may be."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                static = scope["path"].startswith("/static/")
                headers["cache-control"] = "no-cache" if static else "no-store"
            await send(message)

        await self.app(scope, receive, guarded)


def serve(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Until Ctrl-C. `say` hears where it listens once it does."""
    import uvicorn

    if config.host in EVERYWHERE and not config.url:
        raise BadInput(f"--host {config.host or '::'} needs --url, the address people will use")
    public = urlsplit(config.url)
    if config.url and (public.scheme not in ("http", "https") or not public.hostname):
        raise BadInput(f"--url {config.url} is not like https://study.example.org")
    with _listen(config.host, config.port) as listener, closing(open_study(config.study)) as database:
        desk = Desk(database, rate=config.rate, secure=public.scheme == "https")
        app = make_app(desk, [host for host in (public.hostname, config.host) if host])
        # no access log: the path of an invitation is a secret
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
        say(config.url or f"http://{config.host}:{listener.getsockname()[1]}")
        with suppress(KeyboardInterrupt):  # by then uvicorn has finished what was under way
            server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}; --port 0 takes a free one") from None
    return listener
