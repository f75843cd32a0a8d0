"""From a dataset to a study: items, checks, annotators, assignments, in one transaction."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from prb.data.load import load
from prb.data.retrieve import ranker, top_posts
from prb.errors import BadInput, RunConflict
from prb.study.access import digest, hash_password, new_pseudonym, new_token
from prb.study.config import NewConfig
from prb.study.database import Database, log, open_study, shown
from prb.study.design import Task, draw, plan
from prb.study.tables import ANNOTATOR, ASSIGNMENT, ITEM, SESSION, STUDY
from prb.text.tokens import words
from prb.types import Item, Pair

PASSWORD = "PRB_STUDY_PASSWORD"  # noqa: S105 — the name of a variable, not its content
CONSENT = (
    "Your posts, questions, wishes and ratings are stored under a random pseudonym and used for research on how "
    "well language models follow individual preferences. They may be published in that form, so leave out names, "
    "addresses and anything you would not want others to read. Taking part is voluntary. You can stop at any time "
    "and delete everything you gave, on the page “My data”."
)
Row = dict[str, Any]


class Made(NamedTuple):
    where: str
    items: int
    judgements: int
    links: dict[str, str]
    """Annotator to invitation link; only hashes of them are kept."""
    password: str | None
    """Of the administrator, if it was made up here."""


def new_study(config: NewConfig) -> Made:
    _check(config)
    items = _collect_items(config) if config.kind == "collect" else _validate_items(config)
    if not items:
        raise BadInput(f"{config.dataset} holds no question with at least two answers, or --limit leaves none")
    tasks = []
    if config.kind == "validate":
        groups = [item["content"]["group"] for item in items if not item["is_check"]]
        tasks = plan(
            groups,
            annotators=config.annotators,
            overlap=config.overlap,
            quota=config.quota,
            checks=len(items) - len(groups),
            seed=config.seed,
        )
    password = os.environ.get(PASSWORD) or None
    admin = password or new_token()[:16]
    tokens = [new_token() for _ in range(config.annotators)]
    study = {
        "kind": config.kind,
        "title": config.title or ("Which answer suits this person?" if config.kind == "validate" else "Your taste"),
        "settings": _settings(config),
        "admin_hash": hash_password(admin),
        "created": time.time(),
    }
    people = [
        {"name": f"{'Annotator' if config.kind == 'validate' else 'Participant'} {n}", "token_hash": digest(token)}
        for n, token in enumerate(tokens, 1)
    ]
    _store(config.out, study, items, people, tasks)
    links = {p["name"]: invitation(config.url, token) for p, token in zip(people, tokens, strict=True)}
    judgements = sum(not items[t.item]["is_check"] for t in tasks)
    count = sum(not item["is_check"] for item in items)
    return Made(config.out, count, judgements, links, None if password else admin)


def invitation(url: str, token: str) -> str:
    return f"{url.rstrip('/')}/join/{token}"


def _check(config: NewConfig) -> None:
    if config.kind == "validate" and config.task == "ratings":
        raise BadInput("--kind validate needs pairs; --task ratings goes with --kind collect")
    for name in ("annotators", "overlap"):
        if getattr(config, name) < 1:
            raise BadInput(f"--{name} must be at least 1")
    if config.checks < 0 or config.posts < 1 or config.min_posts < 0:
        raise BadInput("--checks, --posts and --min-posts cannot be negative, and --posts not 0")


def _settings(config: NewConfig) -> Row:
    values: Row = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(config).items()}
    for name in ("out", "url", "json"):  # of the machine, not of the study
        values.pop(name)
    try:
        values["consent"] = config.consent.read_text("utf-8") if config.consent else CONSENT
    except OSError as error:
        raise BadInput(f"--consent {config.consent}: {error.strerror}") from None
    return values


def _validate_items(config: NewConfig) -> list[Row]:
    dataset = load(config.dataset, split=config.split)
    rank, index = ranker("embedding"), dataset.index
    groups = [min(own, index.ids[twin]) if twin >= 0 else own for own, twin in zip(index.ids, index.twins, strict=True)]
    wanted, items = drawn(groups, config.limit, config.seed), []
    for n, pair in enumerate(dataset):
        assert isinstance(pair, Pair)
        if n not in wanted:
            continue
        twin = index.twins[n]
        content = {
            "user": pair.user,
            "question": pair.question,
            "posts": [p.text for p in top_posts(pair.question, pair.profile, rank, k=config.posts).posts],
            "answers": [pair.chosen, pair.rejected],
            "rubric": [aspect._asdict() for aspect in pair.rubric],
            "narrative": pair.narrative,
            "twin": index.ids[twin] if twin >= 0 else None,
            "group": groups[n],
        }
        items.append({"key": pair.id, "cluster": index.clusters[n], "is_check": False, "content": content})
    return items + _attention_checks(items, config.checks, config.seed)


def drawn(groups: Sequence[str], limit: int | None, seed: int) -> set[int]:
    """Which rows are used: whole groups in a random order, as many as fit."""
    if limit is None:
        return set(range(len(groups)))
    members: dict[str, list[int]] = {}
    for n, group in enumerate(groups):
        members.setdefault(group, []).append(n)
    chosen: set[int] = set()
    for group in sorted(members, key=lambda g: draw(seed, "sample", g)):
        if len(chosen) + len(members[group]) <= limit:
            chosen.update(members[group])
    return chosen


def _attention_checks(items: Sequence[Row], count: int, seed: int) -> list[Row]:
    """A real question with its own answer and one to the question it has least in common with."""
    order = sorted(items, key=lambda item: draw(seed, "check", item["key"]))
    checks: list[Row] = []
    for item in order:
        if len(checks) == count:
            break
        own = set(words(item["content"]["question"]))
        others = [o for o in items if o["content"]["group"] != item["content"]["group"]]
        if not others:
            break
        stray = min(others, key=lambda o: len(own & set(words(o["content"]["question"] + o["content"]["answers"][0]))))
        content = {**item["content"], "twin": None, "answers": [item["content"]["answers"][0]]}
        content["answers"].append(stray["content"]["answers"][0])
        key = f"check-{len(checks) + 1}"
        checks.append({"key": key, "cluster": key, "is_check": True, "content": {**content, "group": key}})
    return checks


def _collect_items(config: NewConfig) -> list[Row]:
    """One item a question, with all distinct answers the dataset has to it."""
    dataset = load(config.dataset, task=config.task, split=config.split)
    wanted = drawn([item.question for item in dataset], config.limit, config.seed)
    answers: dict[str, dict[str, None]] = {}
    about: dict[str, Item] = {}
    for n, item in enumerate(dataset):
        if n not in wanted:
            continue
        answers.setdefault(item.question, {}).update(dict.fromkeys(item.answers))
        about.setdefault(item.question, item)
    return [
        {
            "key": about[question].id,
            "cluster": about[question].id,
            "is_check": False,
            "content": {"question": question, "answers": list(texts), "category": about[question].category},
        }
        for question, texts in answers.items()
        if len(texts) > 1
    ]


def _store(where: str, study: Row, items: list[Row], people: list[Row], tasks: Sequence[Task]) -> None:
    path = None if "://" in where else Path(where)
    if path and not path.parent.exists():
        raise BadInput(f"{path.parent} does not exist")
    fresh = path is not None and not path.exists()
    database = Database(where)
    try:
        database.upgrade()
        with database.write() as connection:
            if connection.scalar(sa.select(STUDY.c.id)) is not None:
                raise RunConflict(f"{shown(where)} already holds a study; choose another --out")
            connection.execute(sa.insert(STUDY).values(id=1, **study))
            connection.execute(sa.insert(ITEM), items)
            names = [{**p, "pseudonym": new_pseudonym(), "created": study["created"]} for p in people]
            connection.execute(sa.insert(ANNOTATOR), names)
            _store_tasks(connection, tasks)
            log(connection, "study made", items=len(items), annotators=len(people))
    except sa.exc.DBAPIError as error:
        raise BadInput(f"{shown(where)} cannot hold a study: {error.orig}".strip()) from None
    finally:
        database.close()
        if fresh and path and path.exists() and not _holds_study(path):
            path.unlink()


def _store_tasks(connection: sa.Connection, tasks: Sequence[Task]) -> None:
    items = connection.scalars(sa.select(ITEM.c.id).order_by(ITEM.c.id)).all()
    people = connection.scalars(sa.select(ANNOTATOR.c.id).order_by(ANNOTATOR.c.id)).all()
    rows = [{**t._asdict(), "annotator": people[t.annotator], "item": items[t.item]} for t in tasks]
    if rows:
        connection.execute(sa.insert(ASSIGNMENT), rows)


def _holds_study(path: Path) -> bool:
    database = Database(str(path))
    try:
        with database.read() as connection:
            return connection.scalar(sa.select(STUDY.c.id)) is not None
    except sa.exc.DBAPIError:
        return False
    finally:
        database.close()


def new_password(where: str) -> str:
    """Replace the administrator's password; open sessions of the old one end."""
    password = new_token()[:16]
    database = open_study(where)
    with database.write() as connection:
        connection.execute(sa.update(STUDY).values(admin_hash=hash_password(password)))
        connection.execute(sa.delete(SESSION).where(SESSION.c.annotator.is_(None)))
        log(connection, "password replaced")
    database.close()
    return password
