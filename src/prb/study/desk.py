"""What every page needs: the study, templates, who is asking, whether a form is really theirs."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from prb.study.access import Rate, Visitor, form_age, form_token, visitor
from prb.study.database import Database, study_row

MAX_BODY = 256 * 1024
SIGN_INS = 10
COOKIES = {False: "prb_study", True: "prb_study_admin"}
Form = dict[str, str]


class Refused(Exception):
    """Ends a request with a page that says why."""

    def __init__(self, status: int, title: str, text: str = "") -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text


class Desk:
    def __init__(self, database: Database, *, rate: int = 120, secure: bool = False) -> None:
        self.database = database
        self.secure = secure
        self.requests, self.sign_ins = Rate(rate), Rate(SIGN_INS)
        with database.read() as connection:
            study = study_row(connection)
        self.kind: str = study["kind"]
        self.title: str = study["title"]
        self.settings: Mapping[str, Any] = study["settings"]
        self.templates = Environment(
            loader=PackageLoader("prb.study"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters["shown"] = visible

    def page(self, name: str, who: Visitor | None = None, status: int = 200, **fields: Any) -> HTMLResponse:
        token = form_token(who.session) if who else ""
        common = {"title": self.title, "kind": self.kind, "who": who, "token": token, "notice": ""}
        return HTMLResponse(self.templates.get_template(name).render(**{**common, **fields}), status)

    def visitor(self, request: Request, *, admin: bool = False) -> Visitor:
        """Whoever is signed in; their requests count against their rate."""
        with self.database.read() as connection:
            found = visitor(connection, request.cookies.get(COOKIES[admin]))
        if found is None or (found.annotator is None) != admin:
            raise Refused(401, "Please sign in" if admin else "Please open your invitation link", "")
        if not self.requests.allows(found.session):
            raise Refused(429, "That was very fast", "Wait a moment, then try again. What you sent before is kept.")
        return found

    def annotator(self, request: Request) -> tuple[Visitor, int]:
        who = self.visitor(request)
        assert who.annotator is not None
        return who, who.annotator

    def age(self, who: Visitor, form: Form) -> float:
        """Seconds since the page of this form was made; refuses a form that is not ours."""
        age = form_age(who.session, form.get("token", ""))
        if age is None:
            raise Refused(403, "This form has expired", "Go back, reload the page and send it again.")
        return age

    def slow_down(self, request: Request) -> None:
        """Signing in is guessing, so it is slow for everybody at one address."""
        if not self.sign_ins.allows(request.client.host if request.client else ""):
            raise Refused(429, "Too many attempts", "Wait a minute, then try again.")

    def sign_in(self, response: Response, secret: str, seconds: int, *, admin: bool = False) -> Response:
        response.set_cookie(
            COOKIES[admin], secret, max_age=seconds, httponly=True, samesite="lax", secure=self.secure, path="/"
        )
        return response

    def sign_out(self, response: Response, *, admin: bool = False) -> Response:
        response.delete_cookie(COOKIES[admin], path="/")
        return response


def go(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


async def form(request: Request) -> Form:
    """A posted form from our own pages; anything else is refused before it is read."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, "This form came from another site")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise Refused(
                413, "This is too long", f"At most {MAX_BODY // 1024} kB can be sent at once; nothing was saved."
            )
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=200, errors="replace")
    except (UnicodeDecodeError, ValueError):
        raise Refused(400, "This form cannot be read") from None
    # no database text may hold a NUL; browsers send line ends as CRLF
    return {key: value.replace("\0", "\ufffd").replace("\r\n", "\n") for key, value in pairs}


def visible(text: str) -> str:
    """Control and direction characters as their code, so that no text can hide or reorder what is on the page."""
    return "".join(f"⟨U+{ord(c):04X}⟩" if _hidden(c) else c for c in text) if not text.isprintable() else text


def _hidden(c: str) -> bool:
    return c not in "\n\t" and (unicodedata.category(c) == "Cc" or c in BIDI)


BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
