"""BESPOKE (arXiv 2509.21106): thirty people, their chat and search histories, and their scores of answers.

Parquet tables in one folder: `meta_test_set` holds, per query, several answers that the user scored from 1 to 5 for
need alignment, content depth, tone and explanation style; `chat_history` and `search_history` are the posts. The answer
with the highest sum is preferred to those below. What the user needed to know is the hidden part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from prb.data.rows import BadRow, field, folder_of, identifier, items, literal, number, posts, spec_name, text
from prb.data.source import DATASETS, READERS, RawRow, Row, Source, file_source
from prb.data.votes import Vote, VoteSource, Voting, ranks_by
from prb.errors import BadInput

SCORES = ("need_alignment", "content_depth", "tone", "explanation_style")
HISTORIES = {"chat": "chat_history", "search": "search_history"}


@dataclass(frozen=True)
class Settings:
    history: Annotated[int, Field(ge=0)] = 16
    """Past choices per row: the user's other queries."""


@DATASETS.register("bespoke")
def bespoke(path: str, settings: Settings) -> Source:
    """The answer a user scored highest against those they scored lower, with their chats and searches as posts."""
    tables = Tables(folder_of(path, "bespoke"))
    queries = tables.find("meta_test")
    if queries is None:
        raise BadInput(f"dataset 'bespoke': {path} holds no meta_test_set table")
    name, voting = spec_name("bespoke", path, settings), Voting(history=settings.history)
    return VoteSource(name, file_source(queries), tables.votes, voting)


@dataclass(frozen=True)
class Tables:
    folder: Path

    def find(self, name: str) -> Path | None:
        return next((p for e in READERS for p in sorted(self.folder.rglob(f"{name}*{e}")) if p.is_file()), None)

    @cached_property
    def _posts(self) -> dict[str, list[dict[str, str]]]:
        texts: dict[str, list[tuple[str, str]]] = {}
        for kind, name in HISTORIES.items():
            path = self.find(name)
            for row in file_source(path).rows() if path else ():
                if isinstance(row.data, dict) and row.data.get("user") and row.data.get("history"):
                    texts.setdefault(str(row.data["user"]), []).append((kind, str(row.data["history"])))
        return {
            user: [post for n, (kind, t) in enumerate(history) for post in posts([t], f"{user}-{kind}{n}", kind)]
            for user, history in texts.items()
        }

    def votes(self, row: Row, at: RawRow) -> Iterator[Vote]:
        user, query = identifier(row, "user"), identifier(row, "query-id")
        value = literal(field(row, "meta_test_set_value"))
        if not isinstance(value, dict):
            raise BadRow("`meta_test_set_value` must be an object in JSON")
        answers, totals = [], []
        for n, response in enumerate(items(value, "response_list")):
            if not isinstance(response, dict):
                raise BadRow(f"`response_list.{n}` must be an object")
            answers.append(text(response, "contents"))
            totals.append(sum(_score(response, name) for name in SCORES))
        need = str(value.get("gold_information_need") or "")
        yield Vote(
            at=at,
            id=f"{user}-{query}-{at.line}",
            user=user,
            question=text(value, "query"),
            answers=answers,
            ranks=ranks_by(totals),
            profile=self._posts.get(user, []),
            category="bespoke",
            rubric=[{"aspect": need}] if need else [],
            narrative=need,
            unit=query,
        )


def _score(response: Row, name: str) -> float:
    part = field(response, name)
    if not isinstance(part, dict):
        raise BadRow(f"`{name}` must be an object with `score`")
    return number(part, "score")
