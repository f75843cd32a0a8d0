"""A study being served: who is asking, genuine forms, rate limits; and the pages for joining and for one's own data."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from prb.study.database import (
    ANNOTATOR,
    SESSION,
    Database,
    Visitor,
    delete_data,
    open_session,
    session_visitor,
    sha256,
    stored_data,
    study_row,
)
from prb.study.judgments import progress
from prb.types import visible

MAX_FIELDS = 10_000
SIGN_INS_PER_MINUTE = 10
TRACKED_KEYS = 10_000
"""Rate limits forget idle keys when there are more."""
COOKIE, ADMIN_COOKIE = "prb_study", "prb_study_admin"
ACCOUNT = APIRouter()
"""Joining by an invitation, leaving, and one's own data: what is stored, and deleting it."""
Form = dict[str, str]
Id = Annotated[int, Path(ge=0, lt=2**31)]
"""The range of an integer column in any database."""


class Refused(Exception):
    """Ends a request with a page that says why."""

    def __init__(self, status: int, title: str, text: str = "") -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text


class Site:
    """A study being served: its database and templates, who is asking, and whether a form is genuine."""

    def __init__(self, database: Database, *, rate: int = 120, url: str = "") -> None:
        self.database = database
        self.url = url.rstrip("/")
        self.secure = url.startswith("https:")
        self.requests, self.sign_ins = RateLimit(rate), RateLimit(SIGN_INS_PER_MINUTE)
        with database.read() as connection:
            study = study_row(connection)
        self.kind: str = study["kind"]
        self.title: str = study["title"]
        self.settings: Mapping[str, Any] = study["settings"]
        self.templates = Environment(
            loader=PackageLoader("prb.study"),
            autoescape=True,
            auto_reload=False,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters["visible"] = visible

    def page(self, name: str, visitor: Visitor | None = None, status: int = 200, **fields: Any) -> HTMLResponse:
        token = form_token(visitor.session) if visitor else ""
        common = {"title": self.title, "kind": self.kind, "token": token, "notice": ""}
        return HTMLResponse(self.templates.get_template(name).render(**{**common, **fields}), status)

    def visitor(self, request: Request, form: Form | None = None, *, admin: bool = False) -> Visitor:
        """Whoever is signed in, and sent `form` from our page; each request counts against the session's rate."""
        with self.database.read() as connection:
            visitor = session_visitor(connection, request.cookies.get(ADMIN_COOKIE if admin else COOKIE))
        if visitor is None or (visitor.annotator is None) != admin:
            raise Refused(401, "Please sign in" if admin else "Please open your invitation link")
        if not self.requests.allows(visitor.session):
            raise Refused(429, "Too many requests", "Wait a moment, then try again. Everything you saved is kept.")
        if form is not None:
            self.check_form(visitor, form)
        return visitor

    def annotator(self, request: Request, form: Form | None = None) -> tuple[Visitor, int]:
        visitor = self.visitor(request, form)
        assert visitor.annotator is not None
        return visitor, visitor.annotator

    def check_form(self, visitor: Visitor, form: Form) -> float:
        """Seconds since the page of this form was made; refuses a form that is not from our page."""
        age = form_age(visitor.session, form.get("token", ""))
        if age is None:
            raise Refused(403, "This form has expired", "Go back, reload the page and send it again.")
        return age

    def limit_sign_ins(self, request: Request) -> None:
        """Passwords and links can be guessed, so attempts are limited per address."""
        if not self.sign_ins.allows(request.client.host if request.client else ""):
            raise Refused(429, "Too many attempts", "Wait a minute, then try again.")

    def invitation(self, request: Request, token: str) -> str:
        return f"{self.url or str(request.base_url).rstrip('/')}/join/{token}"

    def sign_in(self, to: str, annotator: int | None) -> Response:
        with self.database.write() as connection:
            secret, seconds = open_session(connection, annotator)
        response = redirect(to)
        name = ADMIN_COOKIE if annotator is None else COOKIE
        response.set_cookie(name, secret, max_age=seconds, httponly=True, samesite="lax", secure=self.secure, path="/")
        return response

    def sign_out(self, to: str, visitor: Visitor) -> Response:
        with self.database.write() as connection:
            connection.execute(sa.delete(SESSION).where(SESSION.c.hash == sha256(visitor.session)))
        response = redirect(to)
        response.delete_cookie(ADMIN_COOKIE if visitor.annotator is None else COOKIE, path="/")
        return response


async def served_site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


ServedSite = Annotated[Site, Depends(served_site)]


def redirect(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


def is_own_form(request: Request) -> bool:
    """Whether a form comes from our pages: as the browser says, or in older browsers by its origin."""
    fetched_from = request.headers.get("sec-fetch-site")
    if fetched_from is not None:
        return fetched_from in ("same-origin", "none")
    origin = request.headers.get("origin", request.headers.get("referer"))
    public = urlsplit(request.app.state.site.url).netloc
    return origin is None or urlsplit(origin).netloc in {request.headers.get("host"), public} - {""}


async def read_form(request: Request) -> Form:
    """A posted form from our own pages; anything else is refused before it is read."""
    if not is_own_form(request):
        raise Refused(403, "This form came from another site")
    try:
        body = (await request.body()).decode()
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="replace")
    except (UnicodeDecodeError, ValueError):
        raise Refused(400, "This form cannot be read") from None
    # no database text may hold a NUL; browsers send line ends as CRLF
    return {key: value.replace("\0", "\ufffd").replace("\r\n", "\n") for key, value in pairs}


Posted = Annotated[Form, Depends(read_form)]


def form_token(session: str) -> str:
    """Proves that a form came from our page in this session, and when that page was made."""
    made = f"{time.time():.3f}"
    return f"{made}.{_sign(session, made)}"


def form_age(session: str, token: str) -> float | None:
    """Seconds since the page was made; `None` if the token is not ours."""
    made, _, signature = token.rpartition(".")
    if not made or not hmac.compare_digest(_sign(session, made).encode(), signature.encode()):
        return None
    return max(0.0, time.time() - float(made))


def _sign(session: str, made: str) -> str:
    return hmac.new(f"form:{session}".encode(), made.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


@dataclass
class RateLimit:
    """A token bucket per key: `per_minute` requests, in bursts of as many; 0 means no limit."""

    per_minute: int
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def allows(self, key: str) -> bool:
        if not self.per_minute:
            return True
        now = time.monotonic()
        with self._lock:
            if len(self._buckets) > TRACKED_KEYS:  # a bucket is full again after a minute anyway
                self._buckets = {k: bucket for k, bucket in self._buckets.items() if now - bucket[1] < 60}
            left, last = self._buckets.get(key, (float(self.per_minute), now))
            left = min(float(self.per_minute), left + (now - last) * self.per_minute / 60)
            self._buckets[key] = (left - 1 if left >= 1 else left), now
            return left >= 1


@ACCOUNT.get("/")
def home(request: Request, site: ServedSite) -> Response:
    if request.cookies.get(COOKIE):
        return redirect("/task")
    text = "You received a personal link from whoever runs this study. It signs you in and brings you back to "
    text += "where you left off."
    return site.page("message.html", heading="Please open your invitation link", text=text)


def invited_annotator(request: Request, site: Site, token: str) -> int:
    with site.database.read() as connection:
        annotator = connection.scalar(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.token_hash == sha256(token)))
    if annotator is None:
        site.limit_sign_ins(request)
        raise Refused(404, "This invitation is not known", "Ask whoever sent it for a new link.")
    return int(annotator)


@ACCOUNT.get("/join/{token}")
def welcome(request: Request, site: ServedSite, token: str) -> Response:
    """A page with a button, not a redirect: programs that preview links must not sign anybody in."""
    annotator = invited_annotator(request, site, token)
    with site.database.read() as connection:
        done, total = progress(connection, annotator)
    return site.page("welcome.html", invitation=token, done=done, total=total)


@ACCOUNT.post("/join")
def join(request: Request, site: ServedSite, form: Posted) -> Response:
    return site.sign_in("/task", invited_annotator(request, site, form.get("invitation", "")))


@ACCOUNT.post("/leave")
def leave(request: Request, site: ServedSite, form: Posted) -> Response:
    return site.sign_out("/", site.visitor(request, form))


@ACCOUNT.get("/data")
def data(request: Request, site: ServedSite) -> Response:
    visitor, annotator = site.annotator(request)
    with site.database.read() as connection:
        return site.page("data.html", visitor, stored=stored_data(connection, annotator), wrong="")


@ACCOUNT.post("/data/delete")
def delete(request: Request, site: ServedSite, form: Posted) -> Response:
    visitor, annotator = site.annotator(request, form)
    if form.get("sure") != "yes":
        with site.database.read() as connection:
            wrong = "Tick the box first: this cannot be undone."
            return site.page("data.html", visitor, 422, stored=stored_data(connection, annotator), wrong=wrong)
    with site.database.write() as connection:
        delete_data(connection, annotator)
    site.database.scrub()
    text = "Everything you gave has been removed, and your link no longer works. Thank you for your time."
    response = site.page("message.html", heading="Your data is deleted", text=text)
    response.delete_cookie(COOKIE, path="/")
    return response
