"""Judging an item step by step: fields of a form, valid replies, blinding, storing and undoing replies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.hashing import draw
from prb.study.config import CRITERIA
from prb.study.database import ANSWER, ASSIGNMENT, AUDIT, ITEM, log

SKIP_REASONS = {
    "unclear": "The question or an answer makes no sense",
    "unknown": "I know too little about the topic",
    "upsetting": "It is offensive or upsetting",
    "technical": "It is not displayed properly",
    "other": "Another reason",
}
MAX_TEXT = 20_000
"""Characters of a post, a question or a wish; longer ones are refused, never cut."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TAKEN_KEYS = "jknsu"
"""Shortcuts with another meaning: next, previous, neither, skip, undo."""


class FormOption(NamedTuple):
    value: str
    label: str
    key: str
    """The key that picks it."""


class FormField(NamedTuple):
    name: str
    label: str
    options: tuple[FormOption, ...] = ()
    """Without options: free text."""
    hint: str = ""
    ends: tuple[str, str] = ("", "")
    """What the two ends of a scale mean."""


SCALE = tuple(FormOption(str(n), str(n), str(n)) for n in range(1, 6))
PREFERENCE = (
    FormOption("A", "Answer A", "a"),
    FormOption("B", "Answer B", "b"),
    FormOption("neither", "Neither", "n"),
)
SURE = (FormOption("1", "A guess", "1"), FormOption("2", "Fairly sure", "2"), FormOption("3", "Certain", "3"))
DIFFERENCE = (
    FormOption("preference", "Personal preference", "p"),
    FormOption("quality", "Quality", "q"),
    FormOption("unclear", "Can’t tell", "t"),
)


def validate_fields(step: int) -> list[FormField]:
    """Step 1: quality and preference from the posts alone. Step 2: the preference again, with the rubric shown."""
    if step == 1:
        ratings = [
            FormField(f"{answer}-{name}", name.capitalize(), SCALE, hint, ("poor", "excellent"))
            for answer in "AB"
            for name, hint in CRITERIA.items()
        ]
        return [*ratings, FormField("prefer", "Which answer would this user prefer?", PREFERENCE)]
    return [
        FormField("prefer", "Now that you know this: which answer would this user prefer?", PREFERENCE),
        FormField("sure", "How sure are you?", SURE),
        FormField("difference", "What is the main difference between the answers?", DIFFERENCE),
    ]


def collect_fields(step: int, answers: int) -> list[FormField]:
    """Step 1: what the participant wants. Step 2: ratings and a choice among the answers."""
    if step == 1:
        hint = "What should it contain, how should it sound, what should it leave out, and why?"
        return [FormField("narrative", "What would make an answer a good one for you?", hint=hint)]
    fields, each = list[FormField](), list[FormOption]()
    for letter in letters(answers):
        ends = ("not at all", "perfectly")
        fields.append(FormField(f"{letter}-rating", "How well does it suit you?", SCALE, ends=ends))
        key = "" if len(letter) > 1 or letter.lower() in TAKEN_KEYS else letter.lower()
        each.append(FormOption(letter, f"Answer {letter}", key))
    neither = FormOption("neither", "No preference", "n")
    fields.append(FormField("best", "Which one do you prefer?", (*each, neither)))
    if answers > 2:
        neither = FormOption("neither", "Can’t say", "n")
        fields.append(FormField("worst", "Which one suits you least?", (*each, neither)))
    return fields


def letters(answers: int) -> list[str]:
    """Names of the answers on the page: A to Z, then AA, AB, …"""
    names = list(ALPHABET)
    while len(names) < answers:
        names += [f"{first}{last}" for first in names[-(len(ALPHABET) ** len(names[-1])) :] for last in ALPHABET]
    return names[:answers]


def check_reply(fields: Sequence[FormField], form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The valid values, and for each other field what is missing or wrong."""
    reply: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for field in fields:
        value = form.get(field.name, "").strip()
        if not value:
            wrong[field.name] = "Please write something here" if not field.options else "Please choose"
        elif field.options and value not in {option.value for option in field.options}:
            wrong[field.name] = "Please choose one of these"
        elif len(value) > MAX_TEXT:
            wrong[field.name] = too_long(value)
        else:
            reply[field.name] = value
    if reply.get("best") not in (None, "neither") and reply.get("best") == reply.get("worst"):
        wrong["worst"] = "The best answer cannot also be the worst one"
    return reply, wrong


def too_long(text: str, limit: int = MAX_TEXT) -> str:
    return f"This text has {len(text):,} characters; at most {limit:,} are allowed"


def unblind(reply: Mapping[str, Any], flipped: bool) -> dict[str, Any]:
    """A validation reply with chosen and rejected in place of A and B."""
    names = {"A": "rejected" if flipped else "chosen", "B": "chosen" if flipped else "rejected", "neither": "neither"}
    unblinded: dict[str, Any] = {}
    for key, value in reply.items():
        answer, dash, criterion = key.partition("-")
        if dash:
            unblinded.setdefault("ratings", {}).setdefault(names[answer], {})[criterion] = int(value)
        else:
            unblinded[key] = names[value] if key == "prefer" else value
    return unblinded


def shown_order(pseudonym: str, content: Mapping[str, Any]) -> list[int]:
    """The order in which a participant sees the answers: random, but always the same for them."""
    numbers = range(len(content["answers"]))
    return sorted(numbers, key=lambda n: draw(0, "shown", pseudonym, content["question"], n))


def numbered_reply(reply: Mapping[str, str], pseudonym: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """A collection reply with answer numbers in place of letters, so that it does not depend on the order shown."""
    order = shown_order(pseudonym, content)
    number = dict(zip(letters(len(order)), order, strict=True))
    numbered: dict[str, Any] = {}
    for key, value in reply.items():
        letter, dash, _ = key.partition("-")
        if dash:
            numbered.setdefault("ratings", [None] * len(order))[number[letter]] = int(value)
        else:
            numbered[key] = number.get(value) if key in ("best", "worst") else value
    return numbered


def letter_reply(reply: Mapping[str, Any], pseudonym: str, content: Mapping[str, Any]) -> dict[str, str]:
    """The inverse of `numbered_reply`, for a form that is filled in again."""
    order = shown_order(pseudonym, content)
    letter = dict(zip(order, letters(len(order)), strict=True))
    values = {key: str(value) for key, value in reply.items() if key not in ("best", "worst", "ratings")}
    values |= {key: letter.get(reply[key], "neither") for key in ("best", "worst") if key in reply}
    values |= {f"{letter[n]}-rating": str(value) for n, value in enumerate(reply.get("ratings", ())) if value}
    return values


class CurrentStep(NamedTuple):
    """The step an annotator is at."""

    assignment: int
    step: int
    content: dict[str, Any]
    flipped: bool
    done: int
    total: int
    can_undo: bool

    @property
    def place(self) -> str:
        return f"{self.assignment}-{self.step}"


END = "end"
"""The place after the last item."""

# what every request executes is composed once: composing a statement takes longer than executing it
_ANNOTATOR: sa.BindParameter[Any] = sa.bindparam("annotator")
_ASSIGNMENT: sa.BindParameter[Any] = sa.bindparam("assignment")
_PROGRESS = sa.select(sa.func.sum(sa.cast(ASSIGNMENT.c.done, sa.Integer)), sa.func.count()).where(
    ASSIGNMENT.c.annotator == _ANNOTATOR
)
_NEXT = (
    sa.select(
        ASSIGNMENT.c.id,
        ASSIGNMENT.c.flipped,
        ITEM.c.content,
        sa.select(sa.func.count()).where(ANSWER.c.assignment == ASSIGNMENT.c.id).scalar_subquery().label("steps"),
    )
    .join_from(ASSIGNMENT, ITEM, ASSIGNMENT.c.item == ITEM.c.id)
    .where(ASSIGNMENT.c.annotator == _ANNOTATOR, ASSIGNMENT.c.done.is_(False))
    .order_by(ASSIGNMENT.c.position)
    .limit(1)
)
_OWN_ASSIGNMENT = (
    sa.select(ASSIGNMENT.c.done)
    .where(ASSIGNMENT.c.id == _ASSIGNMENT, ASSIGNMENT.c.annotator == _ANNOTATOR)
    .with_for_update()
)
_REPLIES = sa.select(ANSWER.c.step, ANSWER.c.said).where(ANSWER.c.assignment == _ASSIGNMENT)
_INSERT_REPLY = sa.insert(ANSWER)
_FINISH = sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == _ASSIGNMENT).values(done=True)


def current_step(connection: Connection, annotator: int) -> CurrentStep | None:
    """The next step of the first unfinished item; `None` when all are finished."""
    row = connection.execute(_NEXT, {"annotator": annotator}).first()
    if row is None:
        return None
    done, total = progress(connection, annotator)
    return CurrentStep(row.id, row.steps + 1, row.content, row.flipped, done, total, bool(done or row.steps))


def progress(connection: Connection, annotator: int) -> tuple[int, int]:
    """Finished and assigned items."""
    done, total = connection.execute(_PROGRESS, {"annotator": annotator}).one()
    return done or 0, total


def assigned_content(connection: Connection, annotator: int, assignment: int) -> dict[str, Any] | None:
    """The item of an assignment, if it is this annotator's."""
    content = connection.scalar(
        sa.select(ITEM.c.content)
        .join_from(ASSIGNMENT, ITEM, ASSIGNMENT.c.item == ITEM.c.id)
        .where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator)
    )
    return None if content is None else dict(content)


Stored = Literal["saved", "repeated", "kept", "missing"]
"""Saved; saved before with the same content; an earlier reply is kept; there is no such assignment."""


def store_reply(
    connection: Connection,
    annotator: int,
    assignment: int,
    step: int,
    reply: Mapping[str, Any],
    *,
    last: bool,
    seconds: float,
    active: float | None,
) -> Stored:
    """Store one reply. The row's key is (assignment, step), so it is stored once however often it is sent."""
    row = connection.execute(_OWN_ASSIGNMENT, {"assignment": assignment, "annotator": annotator}).first()
    if row is None:
        return "missing"
    stored = {r.step: r.said for r in connection.execute(_REPLIES, {"assignment": assignment})}
    if step in stored:
        return "repeated" if stored[step] == reply else "kept"
    if row.done or step != len(stored) + 1:
        return "kept"
    values = {"assignment": assignment, "step": step, "said": dict(reply), "seconds": seconds, "active": active}
    connection.execute(_INSERT_REPLY, {**values, "at": time.time()})
    if last:
        connection.execute(_FINISH, {"assignment": assignment})
    log(connection, "skipped" if "skip" in reply else "replied", annotator=annotator, assignment=assignment, step=step)
    return "saved"


def undo_reply(connection: Connection, annotator: int) -> bool:
    """Take back the latest reply. Taking back step 1, after step 2 was shown, marks the assignment as revised."""
    row = connection.execute(
        sa.select(ANSWER.c.assignment, ANSWER.c.step, ANSWER.c.said, ASSIGNMENT.c.revised)
        .join_from(ANSWER, ASSIGNMENT, ANSWER.c.assignment == ASSIGNMENT.c.id)
        .where(ASSIGNMENT.c.annotator == annotator)
        .order_by(ASSIGNMENT.c.position.desc(), ANSWER.c.step.desc())  # not by time: clocks are set back
        .limit(1)
        .with_for_update()
    ).first()
    if row is None:
        return False
    connection.execute(sa.delete(ANSWER).where(ANSWER.c.assignment == row.assignment, ANSWER.c.step == row.step))
    revised = row.revised or (row.step == 1 and "skip" not in row.said)
    connection.execute(
        sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == row.assignment).values(done=False, revised=revised)
    )
    log(connection, "undone", annotator=annotator, assignment=row.assignment, step=row.step, said=row.said)
    return True


def undone_reply(connection: Connection, annotator: int, now: CurrentStep) -> dict[str, Any]:
    """The reply that was just taken back, to fill in the form again."""
    detail = connection.scalar(
        sa.select(AUDIT.c.detail)
        .where(AUDIT.c.annotator == annotator, AUDIT.c.what == "undone")
        .order_by(AUDIT.c.id.desc())
        .limit(1)
    )
    if detail is None or (detail["assignment"], detail["step"]) != (now.assignment, now.step):
        return {}
    return dict(detail["said"])
