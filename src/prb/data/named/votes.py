"""`votes?path=FILE`: any table of votes. Options name its columns, so that no file needs rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from os.path import commonprefix
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from prb.data.schema import about, conversation, converted, field, identifier, items, messages_or_text, text
from prb.data.source import DATASETS, BadRow, RawRow, Row, Source, open_rows
from prb.data.votes import Ballot, Poll, PollSource, PollVoting, Vote, VoteSource, collect
from prb.errors import BadSpec

TIES = ("", "tie")
OPINIONS = {"agree": 1.0, "like": 1.0, "1": 1.0, "disagree": -1.0, "dislike": -1.0, "-1": -1.0, "pass": 0.0, "0": 0.0}


@dataclass(frozen=True)
class Columns:
    """Which column holds what; several columns are separated by commas."""

    prompt: str = "prompt"
    """Text or messages; several columns are joined with an empty line."""
    answers: str = "answers"
    """One column with a list, or a column per answer."""
    user: str = "user"
    choice: str = ""
    """Label of the preferred answer: its number, letter, column, what its column ends with, or its text. Or a tie."""
    voters: str = ""
    """Instead of user and choice: columns that hold one user's choice each. The user is the name of the column."""
    id: str = ""
    about: str = ""
    """Columns that describe the user: each becomes a post and a group."""
    category: str = ""
    split: str = ""
    item: str = ""
    """Votes on single items: the column with the item's text; `choice` is agree, disagree or pass."""


@dataclass(frozen=True)
class TableVoting(PollVoting):
    history: Annotated[int, Field(ge=0)] = 16


@DATASETS.register("votes")
def votes(path: str, columns: Columns, voting: TableVoting) -> Source:
    """Users' votes on answers or on single items, columns as options; with mirror=true, twins who voted oppositely."""
    if columns.voters and (columns.choice or columns.item):
        raise BadSpec("dataset 'votes': voters cannot be combined with choice or item")
    source = open_rows(path)
    if not columns.item:
        return VoteSource(source, partial(_votes, columns), voting)

    def read() -> Iterator[Poll | RawRow]:
        ballots = list(converted(source, partial(_ballots_on_items, columns)))
        yield from (row for row in ballots if isinstance(row, RawRow))
        yield from collect((ballot for ballot in ballots if isinstance(ballot, Ballot)), place=source.name)

    return PollSource(read, voting)


def _votes(columns: Columns, row: Row, at: RawRow) -> Iterator[Vote]:
    parts, names = columns.prompt.split(","), columns.answers.split(",")
    prompt = row.get(parts[0]) if len(parts) == 1 else "\n\n".join(filter(None, (row.get(p) or "" for p in parts)))
    asked = conversation(messages_or_text(field({columns.prompt: prompt}, columns.prompt)), columns.prompt)
    if len(names) == 1:
        answers = items(row, names[0])
        if not all(isinstance(answer, str) and answer.strip() for answer in answers):
            raise BadRow(f"`{names[0]}` must be a list of texts")
    else:
        answers = [text(row, name) for name in names]
    if len(answers) < 2:
        raise BadRow(f"`{columns.answers}` must hold at least two answers")
    labels = labels_of(len(answers), tuple(names) if len(names) > 1 else ())
    vote_id = identifier(row, columns.id) if columns.id else f"{PurePath(at.place).stem}-{at.line}"
    if columns.voters:  # a user's name is that of their column
        columns_of = {voter: voter for voter in columns.voters.split(",")}
    else:
        columns_of = {identifier(row, columns.user): columns.choice or "choice"}
    for user, column in columns_of.items():
        optional = not columns.voters and row.get(column, "") is None
        best = preferred("" if optional else field(row, column), column, answers, labels)
        yield Vote(
            at=at,
            id=f"{vote_id}-{user}" if columns.voters else vote_id,
            user=user,
            **asked,
            answers=answers,
            ranks=[0 if best is None else int(n != best) for n in range(len(answers))],
            **_shared_fields(columns, row, user),
        )


def _ballots_on_items(columns: Columns, row: Row, at: RawRow) -> Iterator[Ballot]:  # noqa: ARG001
    user, column = identifier(row, columns.user), columns.choice or "vote"
    if (value := row.get(column)) in (None, ""):
        return
    opinion = OPINIONS.get(f"{value:g}" if isinstance(value, float) else str(value).strip().lower())
    if opinion is None:
        raise BadRow(f"`{column}` is {value!r}; known are {', '.join(OPINIONS)}")
    yield Ballot(
        question=text(row, columns.prompt) if row.get(columns.prompt) else "Which statement does this user agree with?",
        user=user,
        item=text(row, columns.item).strip(),
        value=opinion,
        **_shared_fields(columns, row, user),
    )


def _shared_fields(columns: Columns, row: Row, user: str) -> dict[str, Any]:
    facts = {c: str(row[c]) for c in columns.about.split(",") if row.get(c) not in (None, "")}
    return {
        "category": str(row.get(columns.category) or "votes"),
        "split": str(row.get(columns.split or "split") or "") or None,
        "profile": about(user, facts),
        "groups": facts,
    }


@cache
def labels_of(count: int, names: tuple[str, ...]) -> Mapping[str, int]:
    """Everything an answer may be called: its column, what the column's name ends with, a letter, a number from 0."""
    labels = {name.lower(): n for n, name in enumerate(names)}
    prefix = commonprefix(names)  # noqa: RUF071 - of column names, not of paths
    labels |= {name.removeprefix(prefix).lower(): n for n, name in enumerate(names)}
    labels.pop("", None)
    labels = {chr(ord("a") + n): n for n in range(min(count, 26))} | labels
    if not any(label.isdigit() for label in labels):
        labels |= {str(n): n for n in range(count)}
    return labels


def preferred(value: Any, column: str, answers: Sequence[str], labels: Mapping[str, int]) -> int | None:
    """The answer that a label names, `None` for a tie."""
    label = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    if label.lower() in labels:
        return labels[label.lower()]
    if label in answers:
        return answers.index(label)
    if label.lower() in TIES or (label == "0" and "1" in labels):
        return None
    raise BadRow(f"`{column}` is {label!r}; an answer is called {', '.join(labels)}")
