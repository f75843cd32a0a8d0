"""The participant's pages: consent, a few posts, questions to pick or ask, wishes, then ratings and a choice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.hashing import draw
from prb.study.database import ANNOTATOR, ASSIGNMENT, ITEM, POST, Visitor, log, sha256
from prb.study.judgments import (
    MAX_TEXT,
    CurrentStep,
    assigned_content,
    check_reply,
    collect_fields,
    current_step,
    letters,
    too_long,
    undone_reply,
)
from prb.study.pages import Form, Id, Posted, Refused, Site, redirect

OFFERED = 12
"""Questions shown to choose from, those with the fewest takers first."""
NO_QUOTA = 1000
"""Most questions per participant where the study sets no quota: nobody answers more, but a program might try."""


def collect_routes(site: Site) -> APIRouter:
    router = APIRouter()
    add_post_routes(router, site)
    add_question_routes(router, site)

    def page(visitor: Visitor, now: CurrentStep, values: Mapping[str, Any], **more: Any) -> Response:
        fields = collect_fields(now.step, len(now.content["answers"]))
        shown = [now.content["answers"][n] for n in shown_order(visitor, now.content)] if now.step == 2 else []
        return site.item_page(visitor, now, fields, dict(zip(letters(len(shown)), shown, strict=True)), values, **more)

    @router.get("/task")
    def task(request: Request, notice: str = "") -> Response:
        visitor, annotator = site.annotator(request)
        if not visitor.consented:
            return site.page("consent.html", visitor, text=site.settings["consent"], wrong="")
        with site.database.read() as connection:
            if len(posts_of(connection, annotator)) < site.settings["min_posts"]:
                return redirect("/posts")
            now = current_step(connection, annotator)
            if now is None and not count_taken(connection, annotator):
                return redirect("/questions")
            if now is None:
                return site.finished_page(connection, visitor, notice)
            undone = undone_reply(connection, annotator, now) if notice == "undone" else {}
        return page(visitor, now, letter_reply(undone, visitor, now.content), notice=notice)

    @router.post("/task/{assignment}/{step}")
    def reply(request: Request, assignment: Id, step: Id, form: Posted) -> Response:
        visitor, annotator = consented(site, request)
        with site.database.read() as connection:
            content = assigned_content(connection, annotator, assignment)
            now = current_step(connection, annotator)
        if content is None:
            raise Refused(404, "There is nothing here")
        given, wrong = check_reply(collect_fields(step, len(content["answers"])), form)
        if not wrong:
            last = step == 2 or not content["answers"]
            return site.save(visitor, (assignment, step), numbered_reply(given, visitor, content), form, last=last)
        if now is None or (now.assignment, now.step) != (assignment, step):
            return redirect("/task")
        return page(visitor, now, form, wrong=wrong)

    return router


def add_post_routes(router: APIRouter, site: Site) -> None:
    def page(visitor: Visitor, annotator: int, *, text: str = "", wrong: str = "") -> Response:
        with site.database.read() as connection:
            posts = posts_of(connection, annotator)
        limits = {"least": site.settings["min_posts"], "most": site.settings["posts"]}
        return site.page("posts.html", visitor, 422 if wrong else 200, posts=posts, draft=text, wrong=wrong, **limits)

    @router.post("/consent")
    def consent(request: Request, form: Posted) -> Response:
        visitor, annotator = site.annotator(request, form)
        if form.get("agree") != "yes":
            wrong = "To take part, tick the box. If you prefer not to, close this page: nothing is stored."
            return site.page("consent.html", visitor, 422, text=site.settings["consent"], wrong=wrong)
        with site.database.write() as connection:
            connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(consented=time.time()))
            log(connection, "consented", annotator=annotator)
        return redirect("/task")

    @router.get("/posts")
    def posts(request: Request) -> Response:
        return page(*consented(site, request))

    @router.post("/posts")
    def add_post(request: Request, form: Posted) -> Response:
        visitor, annotator = consented(site, request, form)
        text, most = form.get("text", "").strip(), site.settings["posts"]
        with site.database.write() as connection:
            lock_annotator(connection, annotator)
            posts = posts_of(connection, annotator)
            wrong = ""
            if not text:
                wrong = "Please write or paste something first."
            elif len(text) > MAX_TEXT:
                wrong = too_long(text)
            elif len(posts) >= most:
                wrong = f"{most} posts are enough; remove one to add another."
            elif all(post.text != text for post in posts):  # a second click adds nothing
                row = {"annotator": annotator, "digest": sha256(text), "text": text, "at": time.time()}
                connection.execute(sa.insert(POST).values(**row))
                log(connection, "post added", annotator=annotator)
        return page(visitor, annotator, text=text, wrong=wrong) if wrong else redirect("/posts")

    @router.post("/posts/{post}/remove")
    def remove_post(request: Request, post: Id, form: Posted) -> Response:
        _, annotator = consented(site, request, form)
        with site.database.write() as connection:
            connection.execute(sa.delete(POST).where(POST.c.id == post, POST.c.annotator == annotator))
            log(connection, "post removed", annotator=annotator)
        return redirect("/posts")


def add_question_routes(router: APIRouter, site: Site) -> None:
    quota = site.settings.get("quota")

    def page(visitor: Visitor, annotator: int, *, own: str = "", wrong: str = "") -> Response:
        with site.database.read() as connection:
            offered, taken = offered_questions(connection, annotator)[:OFFERED], count_taken(connection, annotator)
        room = None if quota is None else max(0, quota - taken)
        status = 422 if wrong else 200
        return site.page(
            "questions.html", visitor, status, offered=offered, taken=taken, room=room, own=own, wrong=wrong
        )

    @router.get("/questions")
    def questions(request: Request) -> Response:
        return page(*consented(site, request))

    @router.post("/questions")
    def take_questions(request: Request, form: Posted) -> Response:
        visitor, annotator = consented(site, request, form)
        own = form.get("own", "").strip()
        with site.database.write() as connection:
            lock_annotator(connection, annotator)
            items = [row.id for row in offered_questions(connection, annotator) if f"pick-{row.id}" in form]
            taken = count_taken(connection, annotator)
            room = max(0, (quota or NO_QUOTA) - taken)
            wrong = ""
            if len(own) > MAX_TEXT:
                wrong = too_long(own)
            elif not items and not own:
                wrong = "Pick at least one question, or ask one of your own."
            elif len(items) + bool(own) > room:
                wrong = f"You can take {room} more in this study."
            else:
                if own:
                    items.append(ask_question(connection, annotator, own))
                rows = [
                    {"annotator": annotator, "item": item, "position": taken + n, "flipped": False}
                    for n, item in enumerate(items)
                ]
                connection.execute(sa.insert(ASSIGNMENT), rows)
                log(connection, "questions taken", annotator=annotator, items=items)
        return page(visitor, annotator, own=own, wrong=wrong) if wrong else redirect("/task")


def consented(site: Site, request: Request, form: Form | None = None) -> tuple[Visitor, int]:
    visitor, annotator = site.annotator(request, form)
    if not visitor.consented:
        raise Refused(403, "Please give your consent first")
    return visitor, annotator


def lock_annotator(connection: Connection, annotator: int) -> None:
    """A double click waits for the first one and then sees what it did."""
    connection.execute(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.id == annotator).with_for_update())


def posts_of(connection: Connection, annotator: int) -> list[Any]:
    return list(connection.execute(sa.select(POST).where(POST.c.annotator == annotator).order_by(POST.c.id)).all())


def count_taken(connection: Connection, annotator: int) -> int:
    return connection.scalar(sa.select(sa.func.count()).where(ASSIGNMENT.c.annotator == annotator)) or 0


def offered_questions(connection: Connection, annotator: int) -> list[Any]:
    """Questions this participant has not taken, the least taken first, ties in an order of their own."""
    taken = sa.select(ASSIGNMENT.c.item).where(ASSIGNMENT.c.annotator == annotator)
    takers = sa.select(sa.func.count()).where(ASSIGNMENT.c.item == ITEM.c.id).scalar_subquery().label("takers")
    free = sa.select(ITEM.c.id, ITEM.c.content, takers).where(ITEM.c.owner.is_(None), ITEM.c.id.not_in(taken))
    return sorted(connection.execute(free).all(), key=lambda r: (r.takers, draw(0, "offer", annotator, r.id)))


def ask_question(connection: Connection, annotator: int, question: str) -> int:
    """A participant's own question: it has no answers, so only the wish is asked for."""
    content = {"question": question, "answers": [], "category": ""}
    key = f"own-{secrets.token_hex(8)}"
    row = {"key": key, "cluster": key, "is_check": False, "owner": annotator, "content": content}
    inserted = connection.execute(sa.insert(ITEM).values(**row)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def shown_order(visitor: Visitor, content: Mapping[str, Any]) -> list[int]:
    """The order of the answers for one participant: random, and always the same for them."""
    numbers = range(len(content["answers"]))
    return sorted(numbers, key=lambda n: draw(0, "shown", visitor.pseudonym, content["question"], n))


def numbered_reply(reply: Mapping[str, str], visitor: Visitor, content: Mapping[str, Any]) -> dict[str, Any]:
    """A reply with letters as answer numbers, so that what is stored does not depend on the order shown."""
    order = shown_order(visitor, content)
    number = dict(zip(letters(len(order)), order, strict=True))
    numbered: dict[str, Any] = {}
    for key, value in reply.items():
        letter, dash, _ = key.partition("-")
        if dash:
            numbered.setdefault("ratings", [None] * len(order))[number[letter]] = int(value)
        else:
            numbered[key] = number.get(value) if key in ("best", "worst") else value
    return numbered


def letter_reply(reply: Mapping[str, Any], visitor: Visitor, content: Mapping[str, Any]) -> dict[str, str]:
    """The inverse of `numbered_reply`, for a form that is filled in again."""
    order = shown_order(visitor, content)
    letter = dict(zip(order, letters(len(order)), strict=True))
    values = {key: str(value) for key, value in reply.items() if key not in ("best", "worst", "ratings")}
    values |= {key: letter.get(reply[key], "neither") for key in ("best", "worst") if key in reply}
    values |= {f"{letter[n]}-rating": str(value) for n, value in enumerate(reply.get("ratings", ())) if value}
    return values
