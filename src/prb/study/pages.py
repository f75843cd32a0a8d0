"""The annotator's pages: the steps of an item, skip and undo; and when collecting, consent, posts and questions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlalchemy import Connection

from prb.hashing import draw
from prb.study.database import ANNOTATOR, ASSIGNMENT, ITEM, POST, Visitor, log, sha256
from prb.study.judgments import (
    END,
    MAX_TEXT,
    SKIP_REASONS,
    CurrentStep,
    FormField,
    assigned_content,
    check_reply,
    collect_fields,
    current_step,
    letter_reply,
    letters,
    numbered_reply,
    progress,
    shown_order,
    store_reply,
    too_long,
    undo_reply,
    undone_reply,
    validate_fields,
)
from prb.study.site import Form, Id, Posted, Refused, ServedSite, Site, redirect

NOTICES = {
    "kept": "This item had already been answered, perhaps in another tab. The first answer was kept; use Undo to "
    "change it.",
    "undone": "Taken back. Change what you like and save it again.",
    "nothing": "There is nothing to undo.",
}
MAX_SKIP_WORDS = 1000
OFFERED = 12
"""Questions shown to choose from, those with the fewest takers first."""
NO_QUOTA = 1000
"""Most questions per participant in a study without a quota: no person answers more, but a program might try."""
STEPS, VALIDATE, COLLECT = APIRouter(), APIRouter(), APIRouter()
"""Pages of both kinds of study, of validation and of collection."""


@STEPS.post("/skip/{assignment}/{step}")
def skip(request: Request, site: ServedSite, assignment: Id, step: Id, form: Posted) -> Response:
    visitor = site.visitor(request)
    reason, words = form.get("reason", ""), form.get("words", "").strip()
    if reason not in SKIP_REASONS:
        raise Refused(422, "Why skip it?", "Go back and choose a reason.")
    if len(words) > MAX_SKIP_WORDS:
        raise Refused(422, "Your explanation is too long", too_long(words, MAX_SKIP_WORDS))
    return save(site, visitor, (assignment, step), {"skip": reason, "words": words}, form, last=True)


@STEPS.post("/undo")
def undo(request: Request, site: ServedSite, form: Posted) -> Response:
    _, annotator = site.annotator(request, form)
    with site.database.write() as connection:
        now = current_step(connection, annotator)
        if form.get("from") != (now.place if now else END):  # a second click, or another tab
            return redirect("/task")
        undone = undo_reply(connection, annotator)
    return redirect(f"/task?notice={'undone' if undone else 'nothing'}")


def save(
    site: Site, visitor: Visitor, place: tuple[int, int], reply: Mapping[str, Any], form: Form, *, last: bool
) -> Response:
    """Store a reply to (assignment, step) and go to the next one."""
    assert visitor.annotator is not None
    age = site.check_form(visitor, form)
    try:
        active = max(0.0, min(float(form.get("active", "")), age))  # as the browser counted it
    except ValueError:
        active = None
    with site.database.write() as connection:
        stored = store_reply(connection, visitor.annotator, *place, reply, last=last, seconds=age, active=active)
    if stored == "missing":
        raise Refused(404, "There is nothing here")
    return redirect("/task?notice=kept" if stored == "kept" else "/task")


def item_page(
    site: Site,
    visitor: Visitor,
    now: CurrentStep,
    fields: Sequence[FormField],
    texts: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    notice: str = "",
    wrong: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """The form of one step. Fields named after an answer's letter stand below it, the others at the end."""
    return site.page(
        f"{site.kind}.html",
        visitor,
        422 if wrong else 200,
        now=now,
        item=now.content,
        texts=texts,
        rate={letter: [f for f in fields if f.name.startswith(f"{letter}-")] for letter in texts},
        ask=[f for f in fields if "-" not in f.name],
        values=values,
        wrong=wrong,
        skips=SKIP_REASONS,
        notice=NOTICES.get(notice, ""),
    )


def finished_page(site: Site, connection: Connection, visitor: Visitor, notice: str) -> Response:
    assert visitor.annotator is not None
    done, total = progress(connection, visitor.annotator)
    return site.page("finished.html", visitor, done=done, total=total, place=END, notice=NOTICES.get(notice, ""))


def validate_page(site: Site, visitor: Visitor, now: CurrentStep, values: Mapping[str, str], **more: Any) -> Response:
    """Step 1 asks for quality and preference; step 2 shows the rubric and asks for the preference again."""
    chosen, rejected = now.content["answers"]
    texts = {"A": rejected, "B": chosen} if now.flipped else {"A": chosen, "B": rejected}
    return item_page(site, visitor, now, validate_fields(now.step), texts, values, **more)


@VALIDATE.get("/task")
def validate_task(request: Request, site: ServedSite, notice: str = "") -> Response:
    visitor, annotator = site.annotator(request)
    with site.database.read() as connection:
        now = current_step(connection, annotator)
        if now is None:
            return finished_page(site, connection, visitor, notice)
        values = undone_reply(connection, annotator, now) if notice == "undone" else {}
    return validate_page(site, visitor, now, values, notice=notice)


@VALIDATE.post("/task/{assignment}/{step}")
def validate_reply(request: Request, site: ServedSite, assignment: Id, step: Id, form: Posted) -> Response:
    visitor, annotator = site.annotator(request)
    given, wrong = check_reply(validate_fields(step), form)
    if not wrong:
        return save(site, visitor, (assignment, step), given, form, last=step == 2)
    with site.database.read() as connection:
        now = current_step(connection, annotator)
    if now is None or (now.assignment, now.step) != (assignment, step):
        return redirect("/task")
    return validate_page(site, visitor, now, form, wrong=wrong)


def collect_page(site: Site, visitor: Visitor, now: CurrentStep, values: Mapping[str, Any], **more: Any) -> Response:
    """Step 1 asks what the participant wants; step 2 shows the answers, to be rated and compared."""
    fields = collect_fields(now.step, len(now.content["answers"]))
    shown = [now.content["answers"][n] for n in shown_order(visitor.pseudonym, now.content)] if now.step == 2 else []
    texts = dict(zip(letters(len(shown)), shown, strict=True))
    return item_page(site, visitor, now, fields, texts, values, **more)


@COLLECT.get("/task")
def collect_task(request: Request, site: ServedSite, notice: str = "") -> Response:
    visitor, annotator = site.annotator(request)
    if not visitor.consented:
        return site.page("consent.html", visitor, text=site.settings["consent"], wrong="")
    with site.database.read() as connection:
        if len(posts_of(connection, annotator)) < site.settings["min_posts"]:
            return redirect("/posts")
        now = current_step(connection, annotator)
        if now is None and not progress(connection, annotator)[1]:
            return redirect("/questions")
        if now is None:
            return finished_page(site, connection, visitor, notice)
        undone = undone_reply(connection, annotator, now) if notice == "undone" else {}
    return collect_page(site, visitor, now, letter_reply(undone, visitor.pseudonym, now.content), notice=notice)


@COLLECT.post("/task/{assignment}/{step}")
def collect_reply(request: Request, site: ServedSite, assignment: Id, step: Id, form: Posted) -> Response:
    visitor, annotator = consented(site, request)
    with site.database.read() as connection:
        content = assigned_content(connection, annotator, assignment)
        now = current_step(connection, annotator)
    if content is None:
        raise Refused(404, "There is nothing here")
    given, wrong = check_reply(collect_fields(step, len(content["answers"])), form)
    if not wrong:
        last = step == 2 or not content["answers"]
        numbered = numbered_reply(given, visitor.pseudonym, content)
        return save(site, visitor, (assignment, step), numbered, form, last=last)
    if now is None or (now.assignment, now.step) != (assignment, step):
        return redirect("/task")
    return collect_page(site, visitor, now, form, wrong=wrong)


@COLLECT.post("/consent")
def consent(request: Request, site: ServedSite, form: Posted) -> Response:
    visitor, annotator = site.annotator(request, form)
    if form.get("agree") != "yes":
        wrong = "To take part, tick the box. If you prefer not to, close this page: nothing is stored."
        return site.page("consent.html", visitor, 422, text=site.settings["consent"], wrong=wrong)
    with site.database.write() as connection:
        connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(consented=time.time()))
        log(connection, "consented", annotator=annotator)
    return redirect("/task")


def posts_page(site: Site, visitor: Visitor, annotator: int, *, draft: str = "", wrong: str = "") -> Response:
    with site.database.read() as connection:
        posts = posts_of(connection, annotator)
    limits = {"least": site.settings["min_posts"], "most": site.settings["posts"]}
    return site.page("posts.html", visitor, 422 if wrong else 200, posts=posts, draft=draft, wrong=wrong, **limits)


@COLLECT.get("/posts")
def posts(request: Request, site: ServedSite) -> Response:
    return posts_page(site, *consented(site, request))


@COLLECT.post("/posts")
def add_post(request: Request, site: ServedSite, form: Posted) -> Response:
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
    return posts_page(site, visitor, annotator, draft=text, wrong=wrong) if wrong else redirect("/posts")


@COLLECT.post("/posts/{post}/remove")
def remove_post(request: Request, site: ServedSite, post: Id, form: Posted) -> Response:
    _, annotator = consented(site, request, form)
    with site.database.write() as connection:
        connection.execute(sa.delete(POST).where(POST.c.id == post, POST.c.annotator == annotator))
        log(connection, "post removed", annotator=annotator)
    return redirect("/posts")


def questions_page(site: Site, visitor: Visitor, annotator: int, *, own: str = "", wrong: str = "") -> Response:
    with site.database.read() as connection:
        offered, (_, taken) = offered_questions(connection, annotator), progress(connection, annotator)
    quota = site.settings.get("quota")
    fields = {"offered": offered[:OFFERED], "taken": taken, "own": own, "wrong": wrong}
    room = None if quota is None else max(0, quota - taken)
    return site.page("questions.html", visitor, 422 if wrong else 200, room=room, **fields)


@COLLECT.get("/questions")
def questions(request: Request, site: ServedSite) -> Response:
    return questions_page(site, *consented(site, request))


@COLLECT.post("/questions")
def take_questions(request: Request, site: ServedSite, form: Posted) -> Response:
    visitor, annotator = consented(site, request, form)
    own = form.get("own", "").strip()
    with site.database.write() as connection:
        lock_annotator(connection, annotator)
        items = [row.id for row in offered_questions(connection, annotator) if f"pick-{row.id}" in form]
        _, taken = progress(connection, annotator)
        room = max(0, (site.settings.get("quota") or NO_QUOTA) - taken)
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
    return questions_page(site, visitor, annotator, own=own, wrong=wrong) if wrong else redirect("/task")


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


def offered_questions(connection: Connection, annotator: int) -> list[Any]:
    """Questions this participant has not taken, the least taken first; ties in an order that differs between them."""
    taken = sa.select(ASSIGNMENT.c.item).where(ASSIGNMENT.c.annotator == annotator)
    takers = sa.select(sa.func.count()).where(ASSIGNMENT.c.item == ITEM.c.id).scalar_subquery().label("takers")
    free = sa.select(ITEM.c.id, ITEM.c.content, takers).where(ITEM.c.owner.is_(None), ITEM.c.id.not_in(taken))
    return sorted(connection.execute(free).all(), key=lambda r: (r.takers, draw(0, "offer", annotator, r.id)))


def ask_question(connection: Connection, annotator: int, question: str) -> int:
    """Add a participant's own question; it has no answers, so only step 1 is asked."""
    content = {"question": question, "answers": [], "category": ""}
    key = f"own-{secrets.token_hex(8)}"
    row = {"key": key, "cluster": key, "is_check": False, "owner": annotator, "content": content}
    inserted = connection.execute(sa.insert(ITEM).values(**row)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])
