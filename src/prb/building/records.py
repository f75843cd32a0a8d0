"""People's records: a question, their own explanation of it, and what they wrote before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from prb.data.schema import Problem
from prb.data.source import RawRow, Source, dict_row, open_source
from prb.errors import BadData, BadInput
from prb.text.pii import mask
from prb.types import Aspect, Post

GIVEN = ("id", "user", "question", "narrative", "posts", "profile", "category", "rubric_aspects")
MADE = ("chosen", "rejected", "mirror", "negative_rubric", "own_question", "build")
"""What a build writes itself; in an input it would be somebody else's."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One question of one person, with everything the person gave us."""

    id: str
    user: str
    question: str
    narrative: str
    posts: tuple[Post, ...]
    category: str = ""
    rubric: tuple[Aspect, ...] = ()
    """Given with the record; else made from the narrative."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """All other fields of the row (split, topic, groups …), kept as they are."""


class Reject(NamedTuple):
    """Why a record, or one attempt at it, did not become a pair."""

    record: str
    gate: str
    reason: str


def read_records(spec: str, *, skip_bad: bool = False) -> tuple[list[Record], list[Reject]]:
    """All records of an input; bad rows stop it, with every problem, or become rejects."""
    found: list[Record] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for row in record_source(spec).rows():
        what = row.problem or row_problem(row.data)
        record = None if what else to_record(row)
        if record is not None and record.id in seen:
            what = f"id {record.id!r} is there twice"
        if what or record is None:
            problems.append(Problem(row.place, row.line, what or "unreadable"))
            continue
        seen.add(record.id)
        found.append(record)
    if problems and not skip_bad:
        raise BadData(spec, problems)
    if not found:
        raise BadInput(f"{spec} holds no records")
    return found, [Reject(f"{p.place}:{p.line}", "input", p.what) for p in problems]


def record_source(spec: str) -> Source:
    return LampQA(Path(spec.removeprefix("lampqa:"))) if spec.startswith("lampqa:") else open_source(spec)


@dataclass(frozen=True)
class LampQA:
    """LaMP-QA as published: a file or folder a category, a list of records in JSON, or JSONL or Parquet."""

    path: Path

    @property
    def name(self) -> str:
        return f"lampqa:{self.path}"

    def rows(self) -> Iterator[RawRow]:
        if not self.path.is_dir():
            raise BadInput(f"{self.path} is no folder; lampqa:FOLDER wants the published files")
        lists = sorted(self.path.rglob("*.json"))
        for path in lists:
            yield from self._list(path)
        if not lists:
            for row in open_source(str(self.path)).rows():
                yield self._with_category(row, Path(row.place))

    def _list(self, path: Path) -> Iterator[RawRow]:
        try:
            rows = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None
        if not isinstance(rows, list):
            raise BadInput(f"{path} holds {type(rows).__name__}, wants a list of records")
        place = path.relative_to(self.path)
        for line, row in enumerate(rows, 1):
            data = row if isinstance(row, dict) else {}
            yield self._with_category(dict_row(str(place), line, data), place)

    def _with_category(self, row: RawRow, place: Path) -> RawRow:
        """The row's own category is the forum; the benchmark's is in the name of the file or folder."""
        from prb.data.check import CATEGORIES

        category = next((c for c in CATEGORIES if c in str(place)), None)
        if category is None or not isinstance(row.data, dict):
            return row
        return row._replace(data={**row.data, "category": category})


def row_problem(data: Any) -> str | None:
    if not isinstance(data, dict):
        return "a record is an object"
    for name in ("id", "question"):
        if data.get(name) is None or not str(data[name]).strip():
            return f"`{name}` is missing"
    for name in ("question", "narrative"):
        if not isinstance(data.get(name) or "", str):
            return f"`{name}` wants text"
    posts = _posts(data)
    if not isinstance(posts, list) or not all(isinstance(_post_text(post), str) for post in posts):
        return "`posts` wants a list of texts, or of objects with `text`"
    aspects = data.get("rubric_aspects") or []
    if not isinstance(aspects, list) or not all(isinstance(a, dict) and _text(a.get("aspect")) for a in aspects):
        return "`rubric_aspects` wants a list of objects with `aspect`"
    return _unwritable(data)


def _unwritable(data: dict[str, Any]) -> str | None:
    """Found before anything is paid for: in the end it could not be written."""
    try:
        orjson.dumps(data)
    except (TypeError, ValueError) as error:
        return f"holds a value that JSON has no form for: {error}"
    return None


def _posts(data: dict[str, Any]) -> Any:
    posts = data.get("posts")
    return (data.get("profile") or []) if posts is None else posts


def to_record(row: RawRow) -> Record:
    data = row.data
    own = str(data["id"])
    posts = [post for post in _posts(data) if _post_text(post).strip()]
    return Record(
        id=own,
        user=own if data.get("user") is None else str(data["user"]),
        question=data["question"].strip(),
        narrative=(data.get("narrative") or "").strip(),
        posts=tuple(_post(n, post) for n, post in enumerate(posts, 1)),
        category=str(data.get("category") or "uncategorised"),
        rubric=tuple(
            Aspect(a["aspect"], str(a.get("evidence") or ""), str(a.get("reason") or ""))
            for a in data.get("rubric_aspects") or []
        ),
        other={key: value for key, value in data.items() if key not in GIVEN + MADE and value is not None},
    )


def masked(record: Record) -> Record:
    """Personal data out of every text, before the first one is sent anywhere; the built rows are masked too."""
    return replace(
        record,
        question=mask(record.question),
        narrative=mask(record.narrative),
        posts=tuple(post._replace(text=mask(post.text)) for post in record.posts),
        rubric=tuple(Aspect(*(mask(text) for text in aspect)) for aspect in record.rubric),
    )


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _post_text(post: Any) -> Any:
    return post.get("text") if isinstance(post, dict) else post


def _post(number: int, post: Any) -> Post:
    if isinstance(post, str):
        return Post(str(number), "", post)
    return Post(str(post.get("id") or number), str(post.get("category") or ""), post["text"])


def people_of(records: Sequence[Record]) -> int:
    return len({record.user for record in records})
