"""The study as a web application, and the server that runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import Scope

from prb.errors import BadInput
from prb.serving import http
from prb.study.access import replace_password
from prb.study.admin import admin_routes
from prb.study.collect import collect_routes
from prb.study.config import ServeConfig
from prb.study.database import open_study
from prb.study.pages import Refused, Site, account_routes, step_routes, validate_routes

MAX_BODY = 256 * 1024
"""Bytes of a form; the longest text allowed takes a third of it."""
HEADERS = http.HEADERS | {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1", "[::1]")
ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104 - to refuse them without a public address
HTTP_ERRORS = {
    404: ("There is nothing here", ""),
    408: ("That took too long", "Nothing was saved. Go back and try again."),
    413: ("This is too long", f"At most {MAX_BODY // 1024} kB can be sent at once; nothing was saved."),
}


class StaticFilesRevalidated(StaticFiles):
    """Style and script may be cached, but are checked each time, so that an upgrade shows at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def make_app(site: Site, hosts: list[str] | None = None) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(http.BodyLimit, max_bytes=MAX_BODY)
    app.add_middleware(http.SecurityHeaders, headers=HEADERS)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK_NAMES, *(hosts or [])], www_redirect=False)
    app.mount("/static", StaticFilesRevalidated(directory=str(files("prb.study") / "static")))
    kind_routes = {"validate": validate_routes, "collect": collect_routes}[site.kind]
    for routes in (account_routes, step_routes, kind_routes, admin_routes):
        app.include_router(routes(site))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        needs_login = error.status == 401 and request.url.path.startswith("/admin")
        name = "login.html" if needs_login else "message.html"
        reply = site.page(name, status=error.status, heading=error.title, text=error.text, wrong="")
        if error.status == 429:
            reply.headers["retry-after"] = "5"
        return reply

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        heading, text = HTTP_ERRORS.get(error.status_code, ("That did not work", ""))
        reply = site.page("message.html", status=error.status_code, heading=heading, text=text)
        reply.headers.update(error.headers or {})
        return reply

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> Response:
        text = "This is our fault, and it has been logged. Everything you saved is kept; go back and try again."
        reply = site.page("message.html", status=500, heading="Something went wrong", text=text)
        reply.headers.update(HEADERS)  # this handler runs outside of every other layer
        return reply

    return app


class Ready(NamedTuple):
    """Reported once the study is being served."""

    url: str
    password: str | None = None
    """The administrator's, if a new one was requested."""


def serve(config: ServeConfig, ready: Callable[[Ready], None]) -> None:
    """Serve until SIGINT or SIGTERM."""
    if config.host in ALL_INTERFACES and not config.url:
        raise BadInput(f"--host {config.host or '::'} needs --url, the address that annotators will use")
    public = urlsplit(config.url)
    if config.url and (public.scheme not in ("http", "https") or not public.hostname):
        raise BadInput(f"--url {config.url} is not a URL like https://study.example.org")
    with http.bind(config.host, config.port) as listener, closing(open_study(config.study)) as database:
        password = replace_password(database) if config.new_password else None
        site = Site(database, rate=config.rate, secure=public.scheme == "https")
        app = make_app(site, [host for host in (public.hostname, config.host) if host])
        started = Ready(config.url or http.url_of(listener), password)
        http.serve_until_signal(app, listener, ready=lambda: ready(started))
