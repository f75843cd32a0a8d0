"""The study as a web application, the server that runs it, and a demo that simulated annotators have filled."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sa
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from prb.errors import BadInput
from prb.hashing import draw
from prb.serving import http
from prb.study.admin import ADMIN
from prb.study.config import CRITERIA, DemoConfig, NewConfig, ServeConfig
from prb.study.database import ANNOTATOR, ASSIGNMENT, ITEM, Database, open_study, replace_password
from prb.study.design import new_study
from prb.study.judgments import store_reply, validate_fields
from prb.study.site import COLLECT, PAGES, Refused, Site

log = logging.getLogger("prb.study")

SESSION_SECONDS = 30 * 86400
MAX_BODY = 256 * 1024
"""Bytes of a form; the longest text allowed takes at most a third of it."""
HEADERS = http.HEADERS | {
    "referrer-policy": "same-origin",  # with no-referrer, browsers would hide the origin of our own forms from us
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
MAX_CONNECTIONS = 1024
GRACE_SECONDS = 10
"""How long open requests may take when the server stops."""
ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104 - to refuse them without a public address
HTTP_ERRORS = {
    404: ("There is nothing here", ""),
    413: ("This is too long", f"At most {MAX_BODY // 1024} kB can be sent at once; nothing was saved."),
}
NOT_SAVED = (
    "Nothing was saved just now; everything you saved before is kept. Go back and try again in a minute: what you "
    "filled in is still there."
)
OUR_FAULT = "This is our fault, and it has been logged. Everything you saved is kept; go back and try again."
CARELESS = 3
"""Index of the annotator who clicks through, so that the demo has something to flag."""


def make_app(site: Site, hosts: Sequence[str]) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.site = site
    app.add_middleware(
        SessionMiddleware,
        secret_key=site.secret,
        session_cookie="prb_study",
        max_age=SESSION_SECONDS,
        same_site="lax",
        https_only=site.url.startswith("https:"),
    )
    app.add_middleware(http.BodyLimit, max_bytes=MAX_BODY)
    app.add_middleware(http.SecurityHeaders, headers=HEADERS)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*http.LOOPBACK_NAMES, "[::1]", *hosts], www_redirect=False)
    app.mount("/static", StaticFiles(directory=str(files("prb.study") / "static")))
    for router in (PAGES, *([COLLECT] if site.kind == "collect" else []), ADMIN):
        app.include_router(router)

    for kind in (Refused, RequestValidationError, HTTPException, OperationalError, Exception):
        app.add_exception_handler(kind, partial(explain, site))
    return app


async def explain(site: Site, request: Request, error: Exception) -> Response:
    """Every error as a page that says what to do; what was saved is never lost."""
    status, heading, text, headers = 500, "Something went wrong", OUR_FAULT, dict[str, str]()
    match error:
        case Refused():
            status, heading, text = error.status, error.title, error.text
            headers = {"retry-after": "5"} if status == 429 else {}
            if status == 401 and request.url.path.startswith("/admin"):
                return site.page(request, "login.html", status, wrong="")
        case RequestValidationError():  # an id out of range
            status, (heading, text) = 404, HTTP_ERRORS[404]
        case HTTPException():
            status, headers = error.status_code, dict(error.headers or {})
            heading, text = HTTP_ERRORS.get(status, ("That did not work", ""))
        case OperationalError():
            log.error("the database is not available: %s", str(error.orig).partition("\n")[0])
            status, heading, text, headers = 503, "This cannot be saved at the moment", NOT_SAVED, {"retry-after": "60"}
        case _:
            headers = HEADERS  # this handler runs outside the middleware
    reply = site.page(request, "message.html", status, heading=heading, text=text)
    reply.headers.update(headers)
    return reply


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
        site = Site(database, url=config.url)
        app = make_app(site, [host for host in (public.hostname, config.host) if host])
        started = Ready(config.url or http.url_of(listener), password)
        server = http.Server(
            app, ready=lambda: ready(started), connections=MAX_CONNECTIONS, grace=GRACE_SECONDS, proxies=config.proxy
        )
        server.run(sockets=[listener])


class DemoReady(NamedTuple):
    link: str
    """Invitation of the annotator whose items are still open."""
    admin: str
    password: str


def run_demo(config: DemoConfig, ready: Callable[[DemoReady], None]) -> None:
    """Create, fill, serve; a temporary file is deleted when the server stops."""
    with tempfile.TemporaryDirectory() as folder:
        where = config.out or str(Path(folder) / "demo.db")
        study = new_study(NewConfig(out=where, limit=24, annotators=6))
        with closing(open_study(where)) as database:
            fill(database)
        token = list(study.links.values())[-1].rpartition("/")[2]
        serve(
            ServeConfig(study=where, port=config.port),
            lambda server: ready(DemoReady(f"{server.url}/join/{token}", f"{server.url}/admin", study.password)),
        )


def fill(database: Database) -> None:
    """Simulate replies of all annotators but the last, the most from the first ones."""
    with database.write() as connection:
        annotators = connection.scalars(sa.select(ANNOTATOR.c.id).order_by(ANNOTATOR.c.id)).all()
        for n, annotator in enumerate(annotators[:-1]):
            rows = connection.execute(
                sa.select(ASSIGNMENT.c.id, ASSIGNMENT.c.flipped, ITEM.c.key, ITEM.c.is_check)
                .join_from(ASSIGNMENT, ITEM)
                .where(ASSIGNMENT.c.annotator == annotator)
                .order_by(ASSIGNMENT.c.position)
            ).all()
            for row in rows[: len(rows) - 2 * n]:
                spent, replies = simulated(row, n)
                for step, reply in enumerate(replies, 1):
                    last = step == len(replies)
                    store_reply(connection, annotator, row.id, step, reply, last=last, seconds=spent)


def simulated(row: Any, n: int) -> tuple[float, list[dict[str, str]]]:
    """How many seconds each of two steps takes annotator n, and what they say of an item."""
    careless = n == CARELESS
    dice = [draw(n, row.key, what) % 100 for what in range(12)]
    labeled, other = ("B", "A") if row.flipped else ("A", "B")
    easy = draw(0, "easy", row.key) % 4 > 0
    chances = (55, 55) if careless else (92 if easy else 40, 96)
    before, after = (labeled if dice[k] < chance else other for k, chance in enumerate(chances))
    ratings = {}
    for (answer, criterion), die in zip(product("AB", CRITERIA), dice[2:8], strict=True):
        # both answers of an item are about equally good, and most annotators see how good
        rating = 3 + draw(0, "good", row.key, criterion) % 3 + (die > 88) - (die < 12)
        ratings[f"{answer}-{criterion}"] = str(min(5, rating))
    if row.is_check and not careless:
        before, ratings[f"{other}-relevance"] = labeled, "1"
    uneven = draw(0, "uneven", row.key) % 12 == 0  # a few items do differ in quality, and most annotators notice
    difference = ("quality" if uneven else "preference") if dice[9] < 88 else "unclear"
    spent = (9.0 if careless else 48.0) + dice[10] / 2
    replies = [{**ratings, "prefer": before}, {"prefer": after, "difference": difference}]
    for step, reply in enumerate(replies, 1):
        for field in validate_fields(step):  # any valid reply to questions that are simulated no better
            options = [option.value for option in field.options] or ["No remark."]
            reply.setdefault(field.name, options[draw(n, row.key, field.name) % len(options)])
    return spent, replies
