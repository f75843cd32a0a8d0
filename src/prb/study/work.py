"""An annotator's way through their items: the next one, a reply, a skip, one step back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.study.database import log
from prb.study.tables import ANSWER, ASSIGNMENT, ITEM

Result = Literal["saved", "repeated", "kept", "lost"]
"""Stored; stored before with the same content; something else is stored and stays; there is nothing to reply to."""


class Current(NamedTuple):
    """What lies before an annotator."""

    assignment: int
    step: int
    content: dict[str, Any]
    flipped: bool
    done: int
    total: int
    can_undo: bool


def current(connection: Connection, annotator: int) -> Current | None:
    """The first item that is not finished; `None` when all are."""
    done, total = progress(connection, annotator)
    row = connection.execute(
        sa.select(ASSIGNMENT.c.id, ASSIGNMENT.c.flipped, ITEM.c.content)
        .join_from(ASSIGNMENT, ITEM, ASSIGNMENT.c.item == ITEM.c.id)
        .where(ASSIGNMENT.c.annotator == annotator, ASSIGNMENT.c.done.is_(False))
        .order_by(ASSIGNMENT.c.position)
        .limit(1)
    ).first()
    if row is None:
        return None
    steps = connection.scalar(sa.select(sa.func.count()).where(ANSWER.c.assignment == row.id)) or 0
    return Current(row.id, steps + 1, row.content, row.flipped, done, total, bool(done or steps))


def progress(connection: Connection, annotator: int) -> tuple[int, int]:
    done, total = connection.execute(
        sa.select(sa.func.sum(sa.cast(ASSIGNMENT.c.done, sa.Integer)), sa.func.count()).where(
            ASSIGNMENT.c.annotator == annotator
        )
    ).one()
    return done or 0, total


def content_of(connection: Connection, annotator: int, assignment: int) -> dict[str, Any] | None:
    found = connection.scalar(
        sa.select(ITEM.c.content)
        .join_from(ASSIGNMENT, ITEM, ASSIGNMENT.c.item == ITEM.c.id)
        .where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator)
    )
    return None if found is None else dict(found)


def submit(
    connection: Connection,
    annotator: int,
    assignment: int,
    step: int,
    said: Mapping[str, Any],
    *,
    last: bool,
    seconds: float,
    active: float | None,
) -> Result:
    """Store one reply. The key of the row is (assignment, step), so it is stored once however often it is sent."""
    row = connection.execute(
        sa.select(ASSIGNMENT.c.done)
        .where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator)
        .with_for_update()
    ).first()
    if row is None:
        return "lost"
    stored = {
        r.step: r.said for r in connection.execute(sa.select(ANSWER).where(ANSWER.c.assignment == assignment)).all()
    }
    if step in stored:
        return "repeated" if stored[step] == said else "kept"
    if row.done or step != len(stored) + 1:
        return "kept"
    connection.execute(
        sa.insert(ANSWER).values(
            assignment=assignment, step=step, said=dict(said), seconds=seconds, active=active, at=time.time()
        )
    )
    if last:
        connection.execute(sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == assignment).values(done=True))
    log(connection, "skipped" if "skip" in said else "replied", annotator=annotator, assignment=assignment, step=step)
    return "saved"


def undo(connection: Connection, annotator: int) -> bool:
    """Take back the latest reply. A first step taken back after its second was seen is marked as revised."""
    row = connection.execute(
        sa.select(ANSWER.c.assignment, ANSWER.c.step, ANSWER.c.said, ASSIGNMENT.c.revised)
        .join_from(ANSWER, ASSIGNMENT, ANSWER.c.assignment == ASSIGNMENT.c.id)
        .where(ASSIGNMENT.c.annotator == annotator)
        .order_by(ANSWER.c.at.desc(), ANSWER.c.step.desc())
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
