"""Coming in by an invitation, leaving, and one's own data: what is stored, and deleting it."""

from __future__ import annotations

import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.study.access import by_token, close_session, open_session
from prb.study.database import log
from prb.study.desk import COOKIES, Desk, Form, Refused, form, go
from prb.study.tables import ANNOTATOR, ANSWER, ASSIGNMENT, AUDIT, ITEM, POST, SESSION
from prb.study.work import progress

Posted = Annotated[Form, Depends(form)]


def routes(desk: Desk) -> APIRouter:
    router = APIRouter()

    @router.get("/")
    def home(request: Request) -> Response:
        if request.cookies.get(COOKIES[False]):
            return go("/task")
        text = "Whoever runs this study has sent you a link of your own. It brings you in, and back to where you were."
        return desk.page("message.html", heading="Please open your invitation link", text=text)

    @router.get("/join/{token}")
    def welcome(request: Request, token: str) -> Response:
        """A page with a button, not a redirect: programs that preview links must not sign anybody in."""
        annotator = _invited(desk, request, token)
        with desk.database.read() as connection:
            done, total = progress(connection, annotator)
        return desk.page("welcome.html", invitation=token, done=done, total=total)

    @router.post("/join")
    def join(request: Request, posted: Posted) -> Response:
        annotator = _invited(desk, request, posted.get("invitation", ""))
        with desk.database.write() as connection:
            secret, seconds = open_session(connection, annotator)
        return desk.sign_in(go("/task"), secret, seconds)

    @router.post("/leave")
    def leave(request: Request, posted: Posted) -> Response:
        who = desk.visitor(request)
        desk.age(who, posted)
        with desk.database.write() as connection:
            close_session(connection, who.session)
        return desk.sign_out(go("/"))

    @router.get("/data")
    def data(request: Request) -> Response:
        who, annotator = desk.annotator(request)
        with desk.database.read() as connection:
            return desk.page("data.html", who, stored=stored(connection, annotator), wrong="")

    @router.post("/data/delete")
    def delete(request: Request, posted: Posted) -> Response:
        who, annotator = desk.annotator(request)
        desk.age(who, posted)
        if posted.get("sure") != "yes":
            with desk.database.read() as connection:
                wrong = "Tick the box first: this cannot be undone."
                return desk.page("data.html", who, 422, stored=stored(connection, annotator), wrong=wrong)
        with desk.database.write() as connection:
            forget(connection, annotator)
        desk.database.scrub()
        text = "Everything you gave has been removed, and your link no longer works. Thank you for your time."
        return desk.sign_out(desk.page("message.html", heading="Your data is deleted", text=text))

    return router


def _invited(desk: Desk, request: Request, token: str) -> int:
    with desk.database.read() as connection:
        annotator = by_token(connection, token)
    if annotator is None:
        desk.slow_down(request)
        raise Refused(404, "This invitation is not known", "Ask whoever sent it for a new link.")
    return annotator


def stored(connection: Connection, annotator: int) -> dict[str, Any]:
    """What there is of one person, for that person to read."""
    of_them = ASSIGNMENT.c.annotator == annotator
    replies = connection.scalar(
        sa.select(sa.func.count())
        .select_from(ANSWER.join(ASSIGNMENT, ANSWER.c.assignment == ASSIGNMENT.c.id))
        .where(of_them)
    )
    posts = connection.scalars(sa.select(POST.c.text).where(POST.c.annotator == annotator).order_by(POST.c.id)).all()
    asked = connection.scalars(sa.select(ITEM.c.content).where(ITEM.c.owner == annotator)).all()
    pseudonym = connection.scalar(sa.select(ANNOTATOR.c.pseudonym).where(ANNOTATOR.c.id == annotator))
    return {
        "replies": replies,
        "posts": posts,
        "questions": [content["question"] for content in asked],
        "pseudonym": pseudonym,
    }


def forget(connection: Connection, annotator: int) -> None:
    """Remove all a person gave; what stays is an empty row and the fact that somebody left."""
    own = sa.select(ASSIGNMENT.c.id).where(ASSIGNMENT.c.annotator == annotator)
    connection.execute(sa.delete(ANSWER).where(ANSWER.c.assignment.in_(own)))
    connection.execute(sa.delete(ASSIGNMENT).where(ASSIGNMENT.c.annotator == annotator))
    for table, column in ((ITEM, ITEM.c.owner), (POST, POST.c.annotator), (SESSION, SESSION.c.annotator)):
        connection.execute(sa.delete(table).where(column == annotator))
    connection.execute(sa.delete(AUDIT).where(AUDIT.c.annotator == annotator))
    gone = {"name": "withdrawn", "token_hash": None, "pseudonym": f"gone-{annotator}"}
    connection.execute(
        sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(**gone, consented=None, withdrawn=time.time())
    )
    log(connection, "data deleted on request")
