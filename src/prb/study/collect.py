"""Collecting preferences: consent, a few posts, questions to pick or to ask, wishes, then ratings and a choice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.study.access import Visitor, digest
from prb.study.database import log
from prb.study.design import draw
from prb.study.desk import Desk, Form, Refused, form, go
from prb.study.forms import MAX_TEXT, SKIP, collect_fields, read, too_long
from prb.study.tables import ANNOTATOR, ASSIGNMENT, ITEM, POST
from prb.study.validate import NOTICES, add_steps, finished, save, taken_back, where
from prb.study.work import Current, content_of, current

Posted = Annotated[Form, Depends(form)]
OFFERED = 12
"""Questions shown to choose from, those with the fewest takers first."""


def routes(desk: Desk) -> APIRouter:
    router = APIRouter()
    _add_person(router, desk)
    _add_questions(router, desk)

    @router.get("/task")
    def task(request: Request, notice: str = "") -> Response:
        who, annotator = desk.annotator(request)
        if not who.consented:
            return desk.page("consent.html", who, text=desk.settings["consent"], wrong="")
        with desk.database.read() as connection:
            if len(posts_of(connection, annotator)) < desk.settings["min_posts"]:
                return go("/posts")
            now = current(connection, annotator)
            if now is None and not _picked(connection, annotator):
                return go("/questions")
            if now is None:
                return finished(desk, connection, who, annotator, notice)
            again = taken_back(connection, annotator, now) if notice == "undone" else {}
        return _page(desk, who, now, values=again, notice=NOTICES.get(notice, ""))

    @router.post("/task/{assignment}/{step}")
    def reply(request: Request, assignment: int, step: int, posted: Posted) -> Response:
        who, annotator = _consented(desk, request)
        with desk.database.read() as connection:
            content = content_of(connection, annotator, assignment)
            now = current(connection, annotator)
        if content is None:
            raise Refused(404, "There is nothing here")
        said, wrong = read(collect_fields(step, len(content["answers"])), posted)
        if wrong:
            if now is None or (now.assignment, now.step) != (assignment, step):
                return go("/task")
            return _page(desk, who, now, values=posted, wrong=wrong, status=422)
        last = step == 2 or not content["answers"]
        return save(desk, who, annotator, (assignment, step), by_text(said, who, content), posted, last=last)

    add_steps(router, desk)
    return router


def _add_person(router: APIRouter, desk: Desk) -> None:
    @router.post("/consent")
    def consent(request: Request, posted: Posted) -> Response:
        who, annotator = desk.annotator(request)
        desk.age(who, posted)
        if posted.get("agree") != "yes":
            wrong = "To take part, tick the box. If you would rather not, just close this page: nothing is stored."
            return desk.page("consent.html", who, 422, text=desk.settings["consent"], wrong=wrong)
        with desk.database.write() as connection:
            connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(consented=time.time()))
            log(connection, "consented", annotator=annotator)
        return go("/task")

    @router.get("/posts")
    def posts(request: Request) -> Response:
        who, annotator = _consented(desk, request)
        return _posts_page(desk, who, annotator)

    @router.post("/posts")
    def add_post(request: Request, posted: Posted) -> Response:
        who, annotator = _consented(desk, request)
        desk.age(who, posted)
        text = posted.get("text", "").strip()
        with desk.database.write() as connection:
            _one_at_a_time(connection, annotator)
            have = posts_of(connection, annotator)
            wrong = _post_problem(text, len(have), desk.settings["posts"])
            if not wrong and all(p.text != text for p in have):  # a second click adds nothing
                row = {"annotator": annotator, "digest": digest(text), "text": text, "at": time.time()}
                connection.execute(sa.insert(POST).values(**row))
                log(connection, "post added", annotator=annotator)
        return _posts_page(desk, who, annotator, text=text, wrong=wrong) if wrong else go("/posts")

    @router.post("/posts/{post}/remove")
    def remove_post(request: Request, post: int, posted: Posted) -> Response:
        who, annotator = _consented(desk, request)
        desk.age(who, posted)
        with desk.database.write() as connection:
            connection.execute(sa.delete(POST).where(POST.c.id == post, POST.c.annotator == annotator))
            log(connection, "post removed", annotator=annotator)
        return go("/posts")


def _add_questions(router: APIRouter, desk: Desk) -> None:
    @router.get("/questions")
    def questions(request: Request) -> Response:
        who, annotator = _consented(desk, request)
        return _questions_page(desk, who, annotator)

    @router.post("/questions")
    def choose(request: Request, posted: Posted) -> Response:
        who, annotator = _consented(desk, request)
        desk.age(who, posted)
        own = posted.get("own", "").strip()
        with desk.database.write() as connection:
            _one_at_a_time(connection, annotator)
            offered = {row.id for row in _offer(connection, annotator, None)}
            wanted = [n for n in (_number(key) for key in posted if key.startswith("pick-")) if n in offered]
            room = (desk.settings["quota"] or 1000) - _picked(connection, annotator)
            wrong = _choice_problem(own, len(wanted), room)
            if not wrong:
                if own:
                    wanted.append(_ask(connection, annotator, own))
                _take(connection, annotator, wanted)
        return _questions_page(desk, who, annotator, own=own, wrong=wrong) if wrong else go("/task")


def _consented(desk: Desk, request: Request) -> tuple[Visitor, int]:
    who, annotator = desk.annotator(request)
    if not who.consented:
        raise Refused(403, "Please give your consent first")
    return who, annotator


def _one_at_a_time(connection: Connection, annotator: int) -> None:
    """A double click waits for the first one and then finds its work done."""
    connection.execute(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.id == annotator).with_for_update())


def posts_of(connection: Connection, annotator: int) -> list[Any]:
    return list(connection.execute(sa.select(POST).where(POST.c.annotator == annotator).order_by(POST.c.id)).all())


def _post_problem(text: str, have: int, most: int) -> str:
    if not text:
        return "Please write or paste something first."
    if len(text) > MAX_TEXT:
        return too_long(text)
    return f"{most} posts are plenty; remove one to add another." if have >= most else ""


def _choice_problem(own: str, wanted: int, room: int) -> str:
    if len(own) > MAX_TEXT:
        return too_long(own)
    if not wanted and not own:
        return "Pick at least one question, or ask one of your own."
    return f"You can take {max(0, room)} more in this study." if wanted + bool(own) > room else ""


def _number(key: str) -> int:
    digits = key.removeprefix("pick-")
    return int(digits) if digits.isdecimal() and len(digits) < 10 else -1


def _offer(connection: Connection, annotator: int, limit: int | None) -> list[Any]:
    """Questions this person has not taken, the least taken first, equal ones in an order of their own."""
    taken = sa.select(ASSIGNMENT.c.item).where(ASSIGNMENT.c.annotator == annotator)
    takers = sa.select(sa.func.count()).where(ASSIGNMENT.c.item == ITEM.c.id).scalar_subquery().label("takers")
    free = sa.select(ITEM.c.id, ITEM.c.content, takers).where(ITEM.c.owner.is_(None), ITEM.c.id.not_in(taken))
    rows = connection.execute(free).all()
    return sorted(rows, key=lambda r: (r.takers, draw(0, "offer", annotator, r.id)))[:limit]


def _picked(connection: Connection, annotator: int) -> int:
    return connection.scalar(sa.select(sa.func.count()).where(ASSIGNMENT.c.annotator == annotator)) or 0


def _ask(connection: Connection, annotator: int, question: str) -> int:
    """A question of one's own: it has no answers yet, so only the wish is asked for."""
    content = {"question": question, "answers": [], "category": ""}
    key = f"own-{secrets.token_hex(8)}"
    row = {"key": key, "cluster": key, "is_check": False, "owner": annotator, "content": content}
    made = connection.execute(sa.insert(ITEM).values(**row)).inserted_primary_key
    assert made is not None
    return int(made[0])


def _take(connection: Connection, annotator: int, items: list[int]) -> None:
    after = _picked(connection, annotator)
    rows = [{"annotator": annotator, "item": i, "position": after + n, "flipped": False} for n, i in enumerate(items)]
    connection.execute(sa.insert(ASSIGNMENT), rows)
    log(connection, "questions taken", annotator=annotator, items=items)


def shown_order(who: Visitor, content: Mapping[str, Any]) -> list[int]:
    """The order of the answers for one person: random, and always the same for them."""
    return sorted(range(len(content["answers"])), key=lambda n: draw(0, "shown", who.pseudonym, content["question"], n))


def by_text(said: Mapping[str, str], who: Visitor, content: Mapping[str, Any]) -> dict[str, Any]:
    """Letters as numbers of answers, so that what is stored does not depend on the order shown."""
    order = shown_order(who, content)
    number = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", order, strict=False))
    out: dict[str, Any] = {}
    for key, value in said.items():
        letter, dash, _ = key.partition("-")
        if dash:
            out.setdefault("ratings", [None] * len(order))[number[letter]] = int(value)
        else:
            out[key] = number.get(value) if key in ("best", "worst") else value
    return out


def by_letter(said: Mapping[str, Any], who: Visitor, content: Mapping[str, Any]) -> dict[str, str]:
    """`by_text` backwards, for a form that is filled in again."""
    letter = {n: x for x, n in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", shown_order(who, content), strict=False)}
    out = {key: str(value) for key, value in said.items() if key not in ("best", "worst", "ratings")}
    out |= {key: letter.get(said[key], "neither") for key in ("best", "worst") if key in said}
    out |= {f"{letter[n]}-rating": str(value) for n, value in enumerate(said.get("ratings", ()))}
    return out


def _posts_page(desk: Desk, who: Visitor, annotator: int, *, text: str = "", wrong: str = "") -> Response:
    with desk.database.read() as connection:
        have = posts_of(connection, annotator)
    least, most = desk.settings["min_posts"], desk.settings["posts"]
    return desk.page(
        "posts.html", who, 422 if wrong else 200, posts=have, least=least, most=most, draft=text, wrong=wrong
    )


def _questions_page(desk: Desk, who: Visitor, annotator: int, *, own: str = "", wrong: str = "") -> Response:
    with desk.database.read() as connection:
        offered, picked = _offer(connection, annotator, OFFERED), _picked(connection, annotator)
    quota = desk.settings["quota"]
    room = None if quota is None else max(0, quota - picked)
    status = 422 if wrong else 200
    return desk.page("questions.html", who, status, offered=offered, picked=picked, room=room, own=own, wrong=wrong)


def _page(
    desk: Desk,
    who: Visitor,
    now: Current,
    *,
    values: Mapping[str, Any],
    wrong: Mapping[str, str] | None = None,
    notice: str = "",
    status: int = 200,
) -> Response:
    fields = collect_fields(now.step, len(now.content["answers"]))
    order = shown_order(who, now.content)
    texts = {f.name[0]: now.content["answers"][n] for f, n in zip(fields, order, strict=False)} if now.step == 2 else {}
    return desk.page(
        "collect.html",
        who,
        status,
        now=now,
        at=where(now),
        item=now.content,
        texts=texts,
        rate={name: [f for f in fields if f.name == f"{name}-rating"] for name in texts},
        ask=[f for f in fields if "-" not in f.name],
        values=values if wrong else by_letter(values, who, now.content),
        wrong=wrong or {},
        skips=SKIP,
        notice=notice,
    )
