"""The administrator's pages: progress, agreement so far, time per item, and annotators to look at."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.stats.agreement import attention
from prb.study.agreement import attention_checks, summarize
from prb.study.config import Judgment
from prb.study.database import (
    ANNOTATOR,
    ASSIGNMENT,
    ITEM,
    POST,
    REPLY,
    STUDY,
    log,
    new_token,
    password_matches,
    sha256,
    study_row,
)
from prb.study.judgments import judgments
from prb.study.site import BOUND, OwnForm, Posted, Refused, ServedSite, Site, redirect

LIVE_DRAWS = 200
MIN_ITEMS = 5
"""Annotators with fewer finished items are not flagged."""
FAST = 1 / 3
"""Share of the typical time per item below which an annotator is fast."""
MANY_SKIPS = 0.3
ONE_SIDED = 0.85
ADMIN = APIRouter(prefix="/admin")


def administrator(request: Request, site: ServedSite) -> None:
    """Refuses everybody else."""
    session = request.session
    with site.database.read() as connection:
        password = sha256(study_row(connection).admin_hash)[:BOUND]
    if session.get("admin") != password or time.time() > session.get("admin_until", 0):
        raise Refused(401, "Please sign in")


Administrator = Annotated[None, Depends(administrator)]


@ADMIN.get("/login")
def login_page(request: Request, site: ServedSite) -> Response:
    return site.page(request, "login.html", wrong="")


@ADMIN.post("/login")
def login(request: Request, site: ServedSite, form: Posted) -> Response:
    site.limit_sign_ins(request)
    with site.database.read() as connection:
        stored = study_row(connection).admin_hash
    if password_matches(stored, form.get("password", "")):
        return site.sign_in(request, None)
    with site.database.write() as connection:
        log(connection, "wrong password")
    return site.page(request, "login.html", 403, wrong="Wrong password.")


@ADMIN.post("/leave")
def leave(request: Request, _: Administrator, __: OwnForm) -> Response:
    request.session.pop("admin")
    return redirect("/admin/login")


@ADMIN.get("")
def overview(request: Request, site: ServedSite) -> Response:
    if "admin" not in request.session:
        return redirect("/admin/login")
    administrator(request, site)
    return overview_page(request, site)


def overview_page(request: Request, site: Site, *, invited: str = "", token: str = "") -> Response:
    """Progress and agreement; `token` is a new invitation of whoever is `invited`, shown once."""
    with site.database.read() as connection:
        rows = judgments(connection) if site.kind == "validate" else []
        annotators = annotator_table(connection, rows)
        state = study_row(connection).state
    seconds = [a.seconds for a in annotators if a.seconds]
    address = site.url or str(request.base_url).rstrip("/")
    return site.page(
        request,
        "admin.html",
        annotators=annotators,
        done=sum(a.done for a in annotators),
        total=sum(a.total for a in annotators),
        typical=statistics.median(seconds) if seconds else None,
        agreement=summarize(rows, draws=LIVE_DRAWS) if site.kind == "validate" else None,
        link=(invited, f"{address}/join/{token}") if token else None,
        state=state,
    )


@ADMIN.post("/renew")
def renew(request: Request, site: ServedSite, _: Administrator, form: OwnForm) -> Response:
    """A new invitation; the old link stops working, and so do its sessions, which are bound to it."""
    number, token = form.get("annotator", ""), new_token()
    annotator = int(number) if number.isdecimal() and len(number) < 10 else -1
    with site.database.write() as connection:
        row = connection.execute(sa.select(ANNOTATOR).where(ANNOTATOR.c.id == annotator)).first()
        if row is None or row.withdrawn:
            raise Refused(404, "There is no such annotator")
        connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(token_hash=sha256(token)))
        log(connection, "link renewed", annotator=annotator)
    return overview_page(request, site, invited=row.name, token=token)


@ADMIN.post("/state")
def set_state(site: ServedSite, _: Administrator, form: OwnForm) -> Response:
    """Close or reopen the study; annotators keep what they saved."""
    state = form.get("state", "")
    if state not in ("open", "closed"):
        raise Refused(400, "There is no such state")
    with site.database.write() as connection:
        connection.execute(sa.update(STUDY).values(state=state))
        log(connection, "study opened" if state == "open" else "study closed")
    return redirect("/admin")


@ADMIN.get("/items")
def items(request: Request, site: ServedSite, _: Administrator) -> Response:
    """Every judged item with its texts and votes, those to look at first."""
    with site.database.read() as connection:
        rows = judgments(connection) if site.kind == "validate" else []
        content = {row.key: row.content for row in connection.execute(sa.select(ITEM.c.key, ITEM.c.content))}
    voted = sorted(summarize(rows, draws=0).items, key=lambda item: -len(item.reasons))
    return site.page(request, "items.html", items=[(item, content[item.item]) for item in voted])


class AnnotatorProgress(NamedTuple):
    row: Any
    """In the database."""
    done: int
    total: int
    posts: int
    seconds: float | None
    """Median per item."""
    checks: tuple[int, int] | None
    flags: list[str]


def annotator_table(connection: Connection, rows: Sequence[Judgment]) -> list[AnnotatorProgress]:
    checks = attention(attention_checks(rows))
    done = sa.func.sum(sa.cast(ASSIGNMENT.c.done, sa.Integer)).label("done")
    totals = sa.select(ASSIGNMENT.c.annotator, done, sa.func.count().label("total")).group_by(ASSIGNMENT.c.annotator)
    counts = {row.annotator: (row.done or 0, row.total) for row in connection.execute(totals)}
    post_counts = sa.select(POST.c.annotator, sa.func.count()).group_by(POST.c.annotator)
    posts = {row[0]: row[1] for row in connection.execute(post_counts)}
    spent = sa.func.sum(REPLY.c.seconds)
    per_item = sa.select(ASSIGNMENT.c.annotator, spent).join_from(ASSIGNMENT, REPLY).where(ASSIGNMENT.c.done)
    times = defaultdict[int, list[float]](list)
    for annotator, total in connection.execute(per_item.group_by(ASSIGNMENT.c.id, ASSIGNMENT.c.annotator)):
        times[annotator].append(total)
    typical = statistics.median(t for seconds in times.values() for t in seconds) if times else 0.0
    table = []
    for a in connection.execute(sa.select(ANNOTATOR).order_by(ANNOTATOR.c.id)):
        passed, seconds = checks.get(a.pseudonym), statistics.median(times[a.id]) if times[a.id] else None
        reasons = flags([r for r in rows if r.annotator == a.pseudonym], times[a.id], typical, passed)
        table.append(AnnotatorProgress(a, *counts.get(a.id, (0, 0)), posts.get(a.id, 0), seconds, passed, reasons))
    return table


def flags(
    rows: Sequence[Judgment], seconds: Sequence[float], typical: float, checks: tuple[int, int] | None
) -> list[str]:
    """Reasons to look closer; nobody is dropped because of them."""
    reasons = []
    if checks and checks[0] * 2 < checks[1]:
        reasons.append(f"missed {checks[1] - checks[0]} of {checks[1]} checks")
    if len(seconds) >= MIN_ITEMS and statistics.median(seconds) < FAST * typical:
        reasons.append("much faster than the others")
    judged = [r for r in rows if r.before]
    if len(judged) >= MIN_ITEMS:
        picked_first = [r.before == r.first for r in judged if r.before != "neither"]
        if picked_first and not 1 - ONE_SIDED <= sum(picked_first) / len(picked_first) <= ONE_SIDED:
            reasons.append("nearly always picks the same side")
        if len({v for r in judged for ratings in r.ratings.values() for v in ratings.values()}) == 1:
            reasons.append("always gives the same rating")
    if len(rows) >= MIN_ITEMS and sum(bool(r.skipped) for r in rows) > MANY_SKIPS * len(rows):
        reasons.append("skips many items")
    return reasons
