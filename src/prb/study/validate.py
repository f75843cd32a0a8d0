"""Validating pairs: quality and preference first, then the person's wishes, then the preference again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.study.access import Visitor
from prb.study.desk import Desk, Form, Refused, form, go
from prb.study.forms import SKIP, Field, read, seconds, too_long, validate_fields
from prb.study.tables import AUDIT
from prb.study.work import Current, Result, current, progress, submit, undo

Posted = Annotated[Form, Depends(form)]
NOTICES = {
    "kept": "This item had already been answered, perhaps in another tab. The first answer stands; Undo changes it.",
    "undone": "Taken back. Change what you like and save it again.",
    "nothing": "There is nothing to undo.",
}


def routes(desk: Desk) -> APIRouter:
    router = APIRouter()

    @router.get("/task")
    def task(request: Request, notice: str = "") -> Response:
        who, annotator = desk.annotator(request)
        with desk.database.read() as connection:
            now = current(connection, annotator)
            if now is None:
                return finished(desk, connection, who, annotator, notice)
            again = taken_back(connection, annotator, now) if notice == "undone" else {}
        return _page(desk, who, now, values=again, notice=NOTICES.get(notice, ""))

    @router.post("/task/{assignment}/{step}")
    def reply(request: Request, assignment: int, step: int, posted: Posted) -> Response:
        who, annotator = desk.annotator(request)
        said, wrong = read(validate_fields(step), posted)
        if wrong:
            with desk.database.read() as connection:
                now = current(connection, annotator)
            if now is None or (now.assignment, now.step) != (assignment, step):
                return go("/task")
            return _page(desk, who, now, values=posted, wrong=wrong, status=422)
        return save(desk, who, annotator, (assignment, step), said, posted, last=step == 2)

    add_steps(router, desk)
    return router


def add_steps(router: APIRouter, desk: Desk) -> None:
    """What both kinds of study have: skip with a reason, and one step back."""

    @router.post("/skip/{assignment}/{step}")
    def skip(request: Request, assignment: int, step: int, posted: Posted) -> Response:
        who, annotator = desk.annotator(request)
        reason, words = posted.get("reason", ""), posted.get("words", "").strip()
        if reason not in SKIP or len(words) > 1000:
            raise Refused(422, "Why skip it?", too_long(words) if words else "Go back and choose a reason.")
        said = {"skip": reason, "words": words}
        return save(desk, who, annotator, (assignment, step), said, posted, last=True)

    @router.post("/undo")
    def back(request: Request, posted: Posted) -> Response:
        who, annotator = desk.annotator(request)
        desk.age(who, posted)
        with desk.database.write() as connection:
            now = current(connection, annotator)
            if posted.get("from") != where(now):  # a second click, or another tab
                return go("/task")
            done = undo(connection, annotator)
        return go(f"/task?notice={'undone' if done else 'nothing'}")


def save(
    desk: Desk, who: Visitor, annotator: int, at: tuple[int, int], said: Mapping[str, Any], posted: Form, *, last: bool
) -> Response:
    age = desk.age(who, posted)
    active = seconds(posted.get("active"), age)
    with desk.database.write() as connection:
        result: Result = submit(connection, annotator, *at, said, last=last, seconds=age, active=active)
    if result == "lost":
        raise Refused(404, "There is nothing here")
    return go("/task?notice=kept" if result == "kept" else "/task")


def where(now: Current | None) -> str:
    return "end" if now is None else f"{now.assignment}-{now.step}"


def taken_back(connection: Connection, annotator: int, now: Current) -> dict[str, str]:
    """What was said before an undo, to start from."""
    detail = connection.scalar(
        sa.select(AUDIT.c.detail)
        .where(AUDIT.c.annotator == annotator, AUDIT.c.what == "undone")
        .order_by(AUDIT.c.id.desc())
        .limit(1)
    )
    fits = detail is not None and (detail["assignment"], detail["step"]) == (now.assignment, now.step)
    return detail["said"] if detail is not None and fits else {}


def finished(desk: Desk, connection: Connection, who: Visitor, annotator: int, notice: str) -> Response:
    done, total = progress(connection, annotator)
    return desk.page("finished.html", who, done=done, total=total, at="end", notice=NOTICES.get(notice, ""))


def _page(
    desk: Desk,
    who: Visitor,
    now: Current,
    *,
    values: Mapping[str, str],
    wrong: Mapping[str, str] | None = None,
    notice: str = "",
    status: int = 200,
) -> Response:
    chosen, rejected = now.content["answers"]
    texts = {"A": rejected if now.flipped else chosen, "B": chosen if now.flipped else rejected}
    fields = validate_fields(now.step)
    rate: dict[str, list[Field]] = {name: [f for f in fields if f.name.startswith(f"{name}-")] for name in "AB"}
    return desk.page(
        "validate.html",
        who,
        status,
        now=now,
        at=where(now),
        item=now.content,
        texts=texts,
        rate=rate,
        ask=[f for f in fields if "-" not in f.name],
        values=values,
        wrong=wrong or {},
        skips=SKIP,
        notice=notice,
    )
