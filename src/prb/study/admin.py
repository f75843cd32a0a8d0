"""The administrator's page: how far it is, whether people agree, how long it takes, what to look at."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from threading import Lock
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.study.access import (
    Visitor,
    close_session,
    digest,
    new_pseudonym,
    new_token,
    open_session,
    password_fits,
    renew_link,
)
from prb.study.agree import attention, report
from prb.study.database import log, study_row
from prb.study.desk import COOKIES, Desk, Form, Refused, form, go
from prb.study.export import judgements
from prb.study.tables import ANNOTATOR, ANSWER, ASSIGNMENT, AUDIT, POST

Posted = Annotated[Form, Depends(form)]
LIVE_SECONDS = 20.0
FAST, SKIPS, ONE_SIDED, ENOUGH = 1 / 3, 0.3, 0.85, 5


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/admin")
    live = Live(desk)

    @router.get("/login")
    def login_page() -> Response:
        return desk.page("login.html", wrong="")

    @router.post("/login")
    def login(request: Request, posted: Posted) -> Response:
        desk.slow_down(request)
        with desk.database.read() as connection:
            stored = study_row(connection)["admin_hash"]
        if not password_fits(stored, posted.get("password", "")):
            with desk.database.write() as connection:
                log(connection, "wrong password")
            return desk.page("login.html", status=403, wrong="This is not the password.")
        with desk.database.write() as connection:
            secret, seconds = open_session(connection, None)
        return desk.sign_in(go("/admin"), secret, seconds, admin=True)

    @router.post("/leave")
    def leave(request: Request, posted: Posted) -> Response:
        who = desk.visitor(request, admin=True)
        desk.age(who, posted)
        with desk.database.write() as connection:
            close_session(connection, who.session)
        return desk.sign_out(go("/admin/login"), admin=True)

    @router.get("")
    def overview(request: Request) -> Response:
        if not request.cookies.get(COOKIES[True]):
            return go("/admin/login")
        return _page(desk, desk.visitor(request, admin=True), live)

    @router.post("/renew")
    def renew(request: Request, posted: Posted) -> Response:
        who = desk.visitor(request, admin=True)
        desk.age(who, posted)
        number = posted.get("annotator", "")
        with desk.database.write() as connection:
            found = select_person(connection, int(number) if number.isdecimal() and len(number) < 10 else -1)
            if found is None or found.withdrawn:
                raise Refused(404, "There is no such person")
            token = renew_link(connection, found.id)
        return _page(desk, who, live, link=(found.name, f"{request.base_url}join/{token}"))

    @router.post("/add")
    def add(request: Request, posted: Posted) -> Response:
        who = desk.visitor(request, admin=True)
        desk.age(who, posted)
        if desk.kind != "collect":
            raise Refused(
                400, "Assignments are fixed", "A validation study is balanced for the annotators it began with."
            )
        token = new_token()
        with desk.database.write() as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(ANNOTATOR)) or 0
            row = {"name": f"Participant {count + 1}", "pseudonym": new_pseudonym(), "token_hash": digest(token)}
            connection.execute(sa.insert(ANNOTATOR).values(**row, created=time.time()))
            log(connection, "participant added")
        return _page(desk, who, live, link=(row["name"], f"{request.base_url}join/{token}"))

    return router


class Live:
    """Agreement is worked out at most every few seconds, however often the page is loaded."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._lock = Lock()
        self._made, self._value = -LIVE_SECONDS, None  # type: float, dict[str, Any] | None

    def agreement(self) -> dict[str, Any] | None:
        if self.desk.kind != "validate":
            return None
        with self._lock:
            if time.monotonic() - self._made >= LIVE_SECONDS:
                with self.desk.database.read() as connection:
                    rows = judgements(connection)
                self._value, self._made = report(rows, draws=200), time.monotonic()
            return self._value


def select_person(connection: Connection, annotator: int) -> Any:
    return connection.execute(sa.select(ANNOTATOR).where(ANNOTATOR.c.id == annotator)).first()


def _page(desk: Desk, who: Visitor, live: Live, *, link: tuple[str, str] | None = None) -> Response:
    with desk.database.read() as connection:
        people = table(connection, desk.kind)
        recent = connection.execute(sa.select(AUDIT).order_by(AUDIT.c.id.desc()).limit(12)).all()
    spent = [p["seconds"] for p in people if p["seconds"]]
    return desk.page(
        "admin.html",
        who,
        people=people,
        done=sum(p["done"] for p in people),
        total=sum(p["total"] for p in people),
        typical=statistics.median(spent) if spent else None,
        agreement=live.agreement(),
        recent=recent,
        clock=lambda at: time.strftime("%d %b %H:%M", time.gmtime(at)),
        link=link,
    )


def table(connection: Connection, kind: str) -> list[dict[str, Any]]:
    """One row a person: progress, median seconds an item, attention checks, flags."""
    rows = judgements(connection) if kind == "validate" else []
    passed = attention(rows)
    counts = {
        r.annotator: (r.done or 0, r.total)
        for r in connection.execute(
            sa.select(
                ASSIGNMENT.c.annotator,
                sa.func.sum(sa.cast(ASSIGNMENT.c.done, sa.Integer)).label("done"),
                sa.func.count().label("total"),
            ).group_by(ASSIGNMENT.c.annotator)
        )
    }
    times = _times(connection)
    typical = statistics.median(t for ts in times.values() for t in ts) if times else 0.0
    given = sa.select(POST.c.annotator, sa.func.count()).group_by(POST.c.annotator)
    posts = {row[0]: row[1] for row in connection.execute(given)}
    people = []
    for p in connection.execute(sa.select(ANNOTATOR).order_by(ANNOTATOR.c.id)):
        done, total = counts.get(p.id, (0, 0))
        own, spent = [r for r in rows if r["annotator"] == p.pseudonym], times.get(p.id, [])
        people.append(
            {
                "id": p.id,
                "name": p.name,
                "pseudonym": p.pseudonym,
                "withdrawn": p.withdrawn is not None,
                "done": done,
                "total": total,
                "posts": posts.get(p.id, 0),
                "seconds": statistics.median(spent) if spent else None,
                "checks": passed.get(p.pseudonym),
                "flags": flags(own, spent, typical, passed.get(p.pseudonym)),
            }
        )
    return people


def _times(connection: Connection) -> dict[int, list[float]]:
    """Seconds each person spent on each finished item, in view where the browser said so."""
    spent = sa.func.sum(sa.func.coalesce(ANSWER.c.active, ANSWER.c.seconds))
    found: dict[int, list[float]] = {}
    for annotator, seconds in connection.execute(
        sa.select(ASSIGNMENT.c.annotator, spent)
        .join_from(ASSIGNMENT, ANSWER, ANSWER.c.assignment == ASSIGNMENT.c.id)
        .where(ASSIGNMENT.c.done)
        .group_by(ASSIGNMENT.c.id, ASSIGNMENT.c.annotator)
    ):
        found.setdefault(annotator, []).append(seconds)
    return found


def flags(
    rows: Sequence[dict[str, Any]], spent: Sequence[float], typical: float, checks: tuple[int, int] | None
) -> list[str]:
    """Reasons to look closer, never to drop somebody unseen."""
    found = []
    if checks and checks[0] * 2 < checks[1]:
        found.append(f"missed {checks[1] - checks[0]} of {checks[1]} checks")
    if len(spent) >= ENOUGH and statistics.median(spent) < FAST * typical:
        found.append("much faster than the others")
    judged = [r for r in rows if r["before"]]
    if len(judged) >= ENOUGH:
        first = [(r["before"] == r["first"]) for r in judged if r["before"] != "neither"]
        if first and not 1 - ONE_SIDED <= sum(first) / len(first) <= ONE_SIDED:
            found.append("nearly always picks the same side")
        if len({v for r in judged for answer in r["ratings"].values() for v in answer.values()}) == 1:
            found.append("gives one and the same rating")
    if rows and sum(bool(r["skipped"]) for r in rows) > SKIPS * len(rows) and len(rows) >= ENOUGH:
        found.append("skips a lot")
    return found
