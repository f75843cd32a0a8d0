"""`prb study new`: items, and who judges which of them in which order; stored in one transaction.

Assignments are balanced by construction and determined by the seed.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import argon2
import orjson
import sqlalchemy as sa

from prb.data.load import load, sample_rows
from prb.data.retrieve import RANKERS, top_posts
from prb.errors import BadInput, RunConflict, redact_options
from prb.hashing import draw
from prb.study import database as db
from prb.study.config import NewConfig
from prb.study.judgments import LETTERS, has_rubric
from prb.text.words import words
from prb.types import Item, Pair

TITLES = {"validate": "Which answer suits this user?", "collect": "Your preferences"}
TEXTS = files("prb.study") / "texts"
Row = dict[str, Any]
SEED = 0
"""Of samples, assignments and orders."""
SHOWN_POSTS = 10
"""Of a user's posts, those closest to the question."""
PRACTICE: Row = orjson.loads((TEXTS / "practice.json").read_bytes())
"""Shown first and never counted, so that annotators learn the form before it matters."""
Edge = tuple[int, int]
"""An annotator and an item, both by position."""


class Assignment(NamedTuple):
    annotator: int
    item: int
    position: int
    flipped: bool
    """The rejected answer is shown as A."""


class NewStudy(NamedTuple):
    where: str
    items: int
    judgements: int
    links: dict[str, str]
    """Annotator to invitation link; the study stores only hashes. With a public link, only that one."""
    password: str
    """The administrator's."""


def new_study(config: NewConfig) -> NewStudy:
    validate = config.kind == "validate"
    try:
        consent = "" if validate else (TEXTS / "consent.txt").read_text("utf-8").strip()
        consent = config.consent.read_text("utf-8") if config.consent else consent
    except OSError as error:
        raise BadInput(f"--consent {config.consent}: {error.strerror}") from None
    items = validate_items(config) if validate else collect_items(config)
    if not items:
        raise BadInput(f"{config.dataset} has no question with at least two answers, or --limit leaves none")
    counted = sum(not item["is_check"] for item in items)
    assignments, rubric, practice = list[Assignment](), False, validate and bool(PRACTICE)
    if validate:
        rubric = any(has_rubric(item["content"]) for item in items)
        groups, checks = [item["content"]["group"] for item in items[:counted]], len(items) - counted
        assignments = assign(groups, annotators=config.annotators, overlap=config.overlap, checks=checks)
    judgements = sum(a.item < counted for a in assignments)
    if practice:
        content = PRACTICE | ({} if rubric else {"rubric": [], "narrative": ""})
        assignments += [Assignment(a, len(items), -1, a % 2 == 1) for a in range(config.annotators)]
        items.append({"key": "practice", "cluster": "practice", "is_check": False, "content": content})
    password = db.new_token()[: db.PASSWORD_LENGTH]
    tokens, public, now = [db.new_token() for _ in range(config.annotators)], db.new_token(), time.time()
    study = {
        "id": 1,
        "kind": config.kind,
        "title": TITLES[config.kind],
        "settings": {**config.saved(), "consent": consent, "rubric": rubric, "practice": practice},
        "admin_hash": argon2.PasswordHasher().hash(password),
        "created": now,
        "secret": db.new_token(),
        "public_hash": db.sha256(public) if config.public else None,
    }
    annotators: list[Row] = [
        {
            "name": f"{'Annotator' if validate else 'Participant'} {n}",
            "token_hash": db.sha256(token),
            "pseudonym": f"p-{secrets.token_hex(5)}",
            "created": now,
        }
        for n, token in enumerate(tokens, 1)
    ]
    store(config.out, study, items, annotators, assignments)
    url = config.url.rstrip("/")
    links = {a["name"]: f"{url}/join/{token}" for a, token in zip(annotators, tokens, strict=True)}
    if config.public:
        links = {"everybody": f"{url}/take/{public}?PROLIFIC_PID={{{{%PROLIFIC_PID%}}}}"}
    return NewStudy(redact_options(config.out), counted, judgements, links, password)


def validate_items(config: NewConfig) -> list[Row]:
    """One item per pair, and attention checks at the end."""
    dataset = load(config.dataset)
    rank, index = RANKERS["embedding"], dataset.index
    groups, items = index.together(), []
    sample = frozenset(sample_rows(groups, index.clusters, config.limit or len(groups), SEED))
    for n, pair in enumerate(dataset):
        assert isinstance(pair, Pair)
        if n not in sample:
            continue
        twin = index.twins[n]
        content = {
            "user": pair.user,
            "question": pair.question,
            "posts": [p.text for p in top_posts(pair.question, pair.profile, rank, k=SHOWN_POSTS).posts],
            "answers": [pair.chosen, pair.rejected],
            "rubric": [{**aspect._asdict(), "aspect": aspect.label} for aspect in pair.rubric],
            "narrative": pair.narrative,
            "twin": index.ids[twin] if twin >= 0 else None,
            "group": groups[n],
        }
        items.append({"key": pair.id, "cluster": index.clusters[n], "is_check": False, "content": content})
    return items + attention_checks(items, config.checks)


def attention_checks(items: Sequence[Row], count: int) -> list[Row]:
    """Real questions, each with its own answer and one to the question it shares the fewest words with."""
    checks: list[Row] = []
    for item in sorted(items, key=lambda item: draw(SEED, "check", item["key"])):
        others = [o["content"] for o in items if o["content"]["group"] != item["content"]["group"]]
        if len(checks) == count or not others:
            break
        vocabulary = set(words(item["content"]["question"]))
        stray = min(others, key=lambda o: len(vocabulary & set(words(o["question"] + o["answers"][0]))))
        answers = [item["content"]["answers"][0], stray["answers"][0]]
        key = f"check-{len(checks) + 1}"
        content = {**item["content"], "twin": None, "answers": answers, "group": key}
        checks.append({"key": key, "cluster": key, "is_check": True, "content": content})
    return checks


def collect_items(config: NewConfig) -> list[Row]:
    """One item per question, with all its distinct answers in the dataset, or the first 26 of them."""
    dataset = load(config.dataset)
    questions = [pair.question for pair in dataset]
    sample = frozenset(sample_rows(questions, questions, config.limit or len(questions), SEED))
    answers: dict[str, dict[str, None]] = {}
    first: dict[str, Item] = {}
    for n, pair in enumerate(dataset):
        if n in sample:
            answers.setdefault(pair.question, {}).update(dict.fromkeys(pair.answers))
            first.setdefault(pair.question, pair)
    return [
        {
            "key": pair.id,
            "cluster": pair.id,
            "is_check": False,
            "content": {
                "question": question,
                "answers": list(answers[question])[: len(LETTERS)],
                "category": pair.category,
            },
        }
        for question, pair in first.items()
        if len(answers[question]) > 1
    ]


def store(where: str, study: Row, items: list[Row], annotators: list[Row], assignments: Sequence[Assignment]) -> None:
    if "://" not in where and not Path(where).parent.exists():
        raise BadInput(f"{Path(where).parent} does not exist")
    database = db.Database(where)
    try:
        with database.write() as connection:
            db.METADATA.create_all(connection)
            if connection.scalar(sa.select(db.STUDY.c.id)) is not None:
                raise RunConflict(f"{redact_options(where)} already holds a study; choose another --out")
            connection.execute(sa.insert(db.SCHEMA).values(version_num=db.VERSION))
            connection.execute(sa.insert(db.STUDY).values(**study))
            connection.execute(sa.insert(db.ITEM), items)
            connection.execute(sa.insert(db.ANNOTATOR), annotators)
            if assignments:
                item_ids = connection.scalars(sa.select(db.ITEM.c.id).order_by(db.ITEM.c.id)).all()
                ids = connection.scalars(sa.select(db.ANNOTATOR.c.id).order_by(db.ANNOTATOR.c.id)).all()
                rows = [{**a._asdict(), "annotator": ids[a.annotator], "item": item_ids[a.item]} for a in assignments]
                connection.execute(sa.insert(db.ASSIGNMENT), rows)
            db.log(connection, "study made", items=len(items), annotators=len(annotators))
    except sa.exc.DBAPIError as error:
        raise BadInput(f"{redact_options(where)} cannot hold a study: {error.orig}".strip()) from None
    finally:
        database.close()


def assign(groups: Sequence[str], *, annotators: int, overlap: int, checks: int, seed: int = SEED) -> list[Assignment]:
    """Items 0 to n−1 go to `overlap` annotators each; items n, n+1, … are the checks and go to everybody, at even
    distances among the items and never first."""
    edges = balance_loads(groups, annotators=annotators, overlap=overlap, seed=seed)
    edges += [(a, len(groups) + c) for a in range(annotators) for c in range(checks)]
    flipped = balance_orders(edges, seed=seed)
    assignments = []
    for annotator in range(annotators):
        drawn = sorted((i for a, i in edges if a == annotator), key=lambda i: draw(seed, "queue", annotator, i))
        queue = [item for item in drawn if item < len(groups)]
        distance = len(queue) / (checks + 1)
        for n, check in enumerate(item for item in drawn if item >= len(groups)):
            queue.insert(max(1, round((n + 1) * distance)) + n, check)
        assignments += [Assignment(annotator, item, n, flipped[annotator, item]) for n, item in enumerate(queue)]
    return assignments


def balance_loads(groups: Sequence[str], *, annotators: int, overlap: int, seed: int) -> list[Edge]:
    """Loads differ by at most one; then twins are kept apart; then all annotator pairs share equally many items."""
    if overlap > annotators:
        raise BadInput(f"--overlap {overlap} needs at least {overlap} annotators; there are {annotators}")
    load, shared = [0] * annotators, [[0] * annotators for _ in range(annotators)]
    seen: set[tuple[int, str]] = set()
    edges: list[Edge] = []
    for item in sorted(range(len(groups)), key=lambda i: draw(seed, "item", i)):
        tie_break = [draw(seed, "who", item, a) for a in range(annotators)]
        together, chosen = [0] * annotators, list[int]()
        for _ in range(overlap):
            free = [a for a in range(annotators) if a not in chosen]
            best = min(free, key=lambda a: (load[a], (a, groups[item]) in seen, together[a], tie_break[a]))
            together = [count + more for count, more in zip(together, shared[best], strict=True)]
            chosen.append(best)
        for a in chosen:
            load[a] += 1
            seen.add((a, groups[item]))
            edges.append((a, item))
            for b in chosen:
                shared[a][b] += 1
    return edges


def balance_orders(edges: Sequence[Edge], *, seed: int) -> dict[Edge, bool]:
    """Which answer comes first, random but balanced: for every annotator and every item the two orders differ by ≤ 1.

    The edges of an annotator, and those of an item, are joined in pairs that get opposite orders. An edge is in at most
    one pair of either kind, and kinds alternate along a chain of pairs, so a chain that closes has even length.
    """
    shuffled = sorted(edges, key=lambda e: draw(seed, "edge", *e))
    partners = defaultdict[Edge, list[Edge]](list)
    for side in (0, 1):
        waiting: dict[int, Edge] = {}
        for edge in shuffled:
            if other := waiting.pop(edge[side], None):
                partners[edge].append(other)
                partners[other].append(edge)
            else:
                waiting[edge[side]] = edge
    flipped: dict[Edge, bool] = {}
    for start in shuffled:
        if start not in flipped:
            flipped[start], chain = draw(seed, "order", *start) % 2 == 0, [start]
            for edge in chain:  # grows as it is followed
                for other in partners[edge]:
                    if other not in flipped:
                        flipped[other] = not flipped[edge]
                        chain.append(other)
    return flipped
