"""A filled example: made-up annotators, drawn from a fixed seed, have judged most of a small study."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.study.access import Visitor
from prb.study.app import serve
from prb.study.collect import by_text
from prb.study.config import DemoConfig, NewConfig, ServeConfig
from prb.study.database import Database, open_study
from prb.study.design import draw
from prb.study.forms import CRITERIA
from prb.study.new import Made, new_study
from prb.study.tables import ANNOTATOR, ASSIGNMENT, ITEM, POST
from prb.study.work import submit

POSTS = (
    "I have stopped finishing books out of duty. If page forty has not got me, it goes to the charity shop.",
    "Please no more apps for this. I want a sheet of paper on the fridge that everybody can read.",
    "Took the slow train on purpose and saw two herons. Would do it again, delay and all.",
)
WISHES = (
    "Short, and no lecture. One thing I can do today.",
    "Give me the reasons, not just the advice, and be honest.",
)


def run_demo(config: DemoConfig) -> None:
    """Make, fill, serve; the temporary file goes when the server does."""
    with tempfile.TemporaryDirectory() as folder:
        where = config.out or str(Path(folder) / "demo.db")
        made = new_study(NewConfig(kind=config.kind, out=where, limit=24, annotators=6, posts=6, quota=None))
        database = open_study(where)
        fill(database, config.kind)
        database.close()

        def say(url: str) -> None:
            _introduce(made, url)

        serve(ServeConfig(study=where, port=config.port, quiet=config.quiet), say)


def _introduce(made: Made, url: str) -> None:
    path = list(made.links.values())[-1].partition("/join/")[2]
    lines = [
        f"take part        {url}/join/{path}",
        f"administration   {url}/admin   password: {made.password or 'yours'}",
        "Ctrl-C ends it",
    ]
    print("\n".join(lines), flush=True)  # noqa: T201


def fill(database: Database, kind: str) -> None:
    """All but the last annotator have worked; the first were the most diligent, the fourth is careless."""
    with database.write() as connection:
        people = connection.execute(sa.select(ANNOTATOR).order_by(ANNOTATOR.c.id)).all()
        for n, person in enumerate(people[:-1]):
            _validate(connection, person, n) if kind == "validate" else _collect(connection, person, n)


def _validate(connection: Connection, person: Any, n: int) -> None:
    rows = connection.execute(
        sa.select(ASSIGNMENT.c.id, ASSIGNMENT.c.flipped, ITEM.c.key, ITEM.c.is_check)
        .join_from(ASSIGNMENT, ITEM, ASSIGNMENT.c.item == ITEM.c.id)
        .where(ASSIGNMENT.c.annotator == person.id)
        .order_by(ASSIGNMENT.c.position)
    ).all()
    careless = n == 3
    for row in rows[: len(rows) - 2 * n]:
        dice = [draw(n, row.key, what) % 100 for what in range(12)]
        labelled, other = ("B", "A") if row.flipped else ("A", "B")
        easy = draw(0, "easy", row.key) % 4 > 0
        chances = (55, 55) if careless else (92 if easy else 40, 96)
        before, after = (labelled if dice[k] < chance else other for k, chance in enumerate(chances))
        said = {f"{a}-{c}": _rating(row.key, c, dice[2 + k]) for k, (a, c) in enumerate(_ratings())}
        if row.is_check and not careless:
            before, said[f"{other}-relevance"] = labelled, "1"
        sure = "3" if dice[8] > 40 else "2"
        uneven = draw(0, "uneven", row.key) % 12 == 0  # a few items do differ in quality, and most notice
        difference = ("quality" if uneven else "preference") if dice[9] < 88 else "unclear"
        spent = (9.0 if careless else 48.0) + dice[10] / 2
        steps = ({**said, "prefer": before}, {"prefer": after, "sure": sure, "difference": difference})
        for step, reply in enumerate(steps, 1):
            submit(connection, person.id, row.id, step, reply, last=step == 2, seconds=spent, active=spent * 0.9)


def _rating(item: str, criterion: str, dice: int) -> str:
    """Both answers of an item are about equally good; most people notice how good."""
    return str(min(5, 3 + draw(0, "good", item, criterion) % 3 + (dice > 88) - (dice < 12)))


def _ratings() -> list[tuple[str, str]]:
    return [(answer, criterion) for answer in "AB" for criterion in CRITERIA]


def _collect(connection: Connection, person: Any, n: int) -> None:
    from prb.study.access import digest

    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == person.id).values(consented=person.created))
    for text in POSTS[: 2 + n % 2]:
        own = f"{text} ({n + 1})" if n else text
        row = {"annotator": person.id, "digest": digest(own), "text": own, "at": person.created}
        connection.execute(sa.insert(POST).values(**row))
    items = connection.execute(sa.select(ITEM).where(ITEM.c.owner.is_(None)).order_by(ITEM.c.id)).all()
    who = Visitor("", person.id, person.name, person.pseudonym, True)
    for position, item in enumerate(sorted(items, key=lambda i: draw(n, "take", i.key))[: 5 - n]):
        values = {"annotator": person.id, "item": item.id, "position": position, "flipped": False}
        made = connection.execute(sa.insert(ASSIGNMENT).values(**values)).inserted_primary_key
        assert made is not None
        dice = [draw(n, item.key, k) % 3 for k in range(3)]
        ratings = {"A-rating": str(3 + dice[0]), "B-rating": str(3 + dice[1])}
        compared = by_text({**ratings, "best": "A" if dice[0] > dice[1] else "B"}, who, item.content)
        for step, said in enumerate(({"narrative": WISHES[n % 2]}, compared), 1):
            submit(connection, person.id, made[0], step, said, last=step == 2, seconds=60.0, active=50.0)
