"""Users' records: a question, the user's own explanation of it, and what the user wrote before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from prb.data.source import DATASETS, open_source
from prb.errors import BadData, BadInput, Problem
from prb.registry import Spec
from prb.text.pii import mask
from prb.types import Aspect, Post

READ = ("id", "user", "question", "narrative", "posts", "profile", "category", "rubric_aspects")
WRITTEN = ("chosen", "rejected", "mirror", "negative_rubric", "own_question", "build")
"""Fields a build writes itself; in an input they are left over from another build."""


@dataclass(frozen=True, kw_only=True)
class UserRecord:
    """One question of one user, with everything the user gave us."""

    id: str
    user: str
    question: str
    narrative: str
    posts: tuple[Post, ...]
    category: str = ""
    rubric: tuple[Aspect, ...] = ()
    """If the record has one; otherwise it is written from the narrative."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """All other fields of the row (split, topic, groups …), kept as they are."""

    def masked(self) -> UserRecord:
        """Without personal data in any text. The built rows are masked too."""
        return replace(
            self,
            question=mask(self.question),
            narrative=mask(self.narrative),
            posts=tuple(post._replace(text=mask(post.text)) for post in self.posts),
            rubric=tuple(Aspect(*map(mask, aspect)) for aspect in self.rubric),
        )


class Reject(NamedTuple):
    """Why a record did not become a pair."""

    record: str
    gate: str
    reason: str


def read_records(spec: str, *, skip_bad: bool = False) -> tuple[list[UserRecord], list[Reject]]:
    """All records of an input. Bad rows raise an error that lists them all, or become rejects."""
    folder = spec.removeprefix("lampqa:")
    source = DATASETS.build(Spec("lampqa", {"path": folder})) if folder != spec else open_source(spec)
    records: dict[str, UserRecord] = {}
    problems: list[Problem] = []
    for row in source.rows():
        try:
            if row.problem:
                raise ValueError(row.problem)
            record = parse_record(row.data)
            if record.id in records:
                raise ValueError(f"duplicate id {record.id!r}")
            records[record.id] = record
        except ValueError as error:
            problems.append(Problem(row.place, row.line, str(error)))
    if problems and not skip_bad:
        raise BadData(spec, problems)
    if not records:
        raise BadInput(f"{spec} has no records")
    return list(records.values()), [Reject(f"{p.place}:{p.line}", "input", p.what) for p in problems]


def parse_record(data: Any) -> UserRecord:
    """Raises `ValueError` with what is wrong, before anything is paid for."""
    if not isinstance(data, dict):
        raise ValueError("a record must be a JSON object")
    for name in ("id", "question"):
        if data.get(name) is None or not str(data[name]).strip():
            raise ValueError(f"`{name}` is missing")
    for name in ("question", "narrative"):
        if not isinstance(data.get(name) or "", str):
            raise ValueError(f"`{name}` must be a string")
    posts = (data.get("profile") or []) if data.get("posts") is None else data["posts"]
    posts = [{"text": post} if isinstance(post, str) else post for post in posts] if isinstance(posts, list) else None
    if posts is None or not all(isinstance(post, dict) and isinstance(post.get("text"), str) for post in posts):
        raise ValueError("`posts` must be a list of strings, or of objects with `text`")
    aspects = data.get("rubric_aspects") or []
    if not isinstance(aspects, list) or not all(
        isinstance(a, dict) and isinstance(text := a.get("aspect"), str) and text.strip() for a in aspects
    ):
        raise ValueError("`rubric_aspects` must be a list of objects with `aspect`")
    try:
        orjson.dumps(data)
    except (TypeError, ValueError) as error:
        raise ValueError(f"has a value that JSON cannot represent: {error}") from None
    record_id = str(data["id"])
    posts = [post for post in posts if post["text"].strip()]
    return UserRecord(
        id=record_id,
        user=record_id if data.get("user") is None else str(data["user"]),
        question=data["question"].strip(),
        narrative=(data.get("narrative") or "").strip(),
        posts=tuple(
            Post(str(post.get("id") or number), str(post.get("category") or ""), post["text"])
            for number, post in enumerate(posts, 1)
        ),
        category=str(data.get("category") or "uncategorised"),
        rubric=tuple(Aspect(a["aspect"], str(a.get("evidence") or ""), str(a.get("reason") or "")) for a in aspects),
        other={key: value for key, value in data.items() if key not in READ + WRITTEN and value is not None},
    )
