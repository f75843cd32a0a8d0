"""`votes?path=FILE`: any table of votes. Options name its columns, so that no file needs rewriting."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from os.path import commonprefix
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from prb.data.schema import (
    SYNONYMS,
    about,
    are_messages,
    conversation,
    converted,
    field,
    identifier,
    items,
    literal,
    messages_or_text,
    plain,
    spec_name,
    split_of,
    text,
    timestamp,
    turns,
)
from prb.data.source import DATASETS, BadRow, RawRow, Row, Source, open_rows
from prb.data.votes import Ballot, Poll, PollSource, PollVoting, Vote, VoteSource, collect
from prb.errors import BadInput, BadSpec
from prb.registry import Spec

TIES = frozenset({"", "tie", "tied", "both", "neither", "equal", "same", "none", "bothbad", "tie (bothbad)"})
_BETTER = re.compile(r"(\w+)-is-(?:\w+-)?better")
"""`A-is-slightly-better`, as MultiPref writes it."""
_ANSWER = re.compile(r"(?:model|response|answer|completion|output|conversation)[ _-]?([a-z]|\d+)", re.IGNORECASE)
"""`model_a`, as arenas write it, and how columns of answers are called."""
OPINIONS = dict.fromkeys(("agree", "agreed", "yes", "like", "liked", "up", "upvote", "true"), 1.0)
OPINIONS |= dict.fromkeys(("disagree", "disagreed", "no", "dislike", "disliked", "down", "downvote", "false"), -1.0)
OPINIONS |= dict.fromkeys(("pass", "passed", "skip", "unsure", "neutral", "neither"), 0.0)
ASKED_OF_USER = "Which statement does this user agree with?"
"""The question of votes on items without a topic."""
CHOICES = ("winner", "choice", "preference", "preferred", "vote", "label")
"""How columns of votes are called."""


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
    ranking: str = ""
    """`B>A=C>D`, or a list of labels, best first."""
    voters: str = ""
    """Instead of user and choice: columns that hold one user's choice each. The user is the name of the column."""
    id: str = ""
    about: str = ""
    """Columns that describe the user: each becomes a post and a group."""
    category: str = ""
    split: str = ""
    first: int = 0
    """The number of the first answer where answers are numbered."""
    item: str = ""
    """Votes on single items: the column with the item's text; `choice` is agree, disagree or pass, or a rating."""
    items: str = ""
    """The same as a wide table: columns or patterns such as `Q*`, one per item and named after it."""
    threshold: float | None = None
    """Of ratings of items: above is agreed, below is disagreed."""
    time: str = ""
    """When an item was voted on: a number, or a date and time."""


@dataclass(frozen=True)
class TableVoting(PollVoting):
    history: Annotated[int, Field(ge=0)] = 16


@DATASETS.register("votes")
def votes(path: str, columns: Columns, voting: TableVoting) -> Source:
    """Users' votes on answers or on single items, columns as options; with mirror=true, twins who voted oppositely."""
    for several in (("choice", "ranking", "voters"), ("item", "items", "ranking", "voters"), ("items", "choice")):
        given = [name for name in several if getattr(columns, name)]
        if len(given) > 1:
            raise BadSpec(f"dataset 'votes': {' and '.join(given)} cannot be combined")
    source = open_rows(path)
    name = spec_name(votes, source.name, columns, voting)
    if not columns.item and not columns.items:
        return VoteSource(name, source, partial(_votes, columns), voting)

    def read() -> Iterator[Poll | RawRow]:
        ballots = list(converted(source, partial(_ballots_on_items, columns)))
        yield from (row for row in ballots if isinstance(row, RawRow))
        cast = [ballot for ballot in ballots if isinstance(ballot, Ballot)]
        yield from collect(cast, middle=columns.threshold or 0.0, place=source.name)

    return PollSource(name, read, voting)


def recognized(row: Row, path: str) -> Spec | None:
    """The spec that reads a file of such rows, if they are votes on answers in columns of their own.

    A table without a recognizable prompt or user column is refused; the error lists its columns.
    """
    answers = [name for name in row if _ANSWER.fullmatch(name) and not name.lower().startswith("model")]
    choice = next((name for name in row if name.lower() in CHOICES), None)
    if len(answers) < 2 and isinstance(literal(row.get("answers")), list):
        answers = ["answers"]
    elif len(answers) < 2:
        return None
    if choice is None:
        return None
    user = next((name for name in row if plain(name) in (*SYNONYMS["user"], "user", "judge")), None)
    prompt = next((name for name in row if plain(name) in (*SYNONYMS["question"], "question")), None)
    if prompt is None and are_messages(messages_or_text(row[answers[0]])):
        prompt = answers[0]
    options = {"prompt": prompt or "COLUMN", "answers": ",".join(answers), "user": user or "COLUMN", "choice": choice}
    spec = Spec("votes", {"path": path, **options})
    if prompt is None or user is None:
        missing = " and ".join(name for name, value in (("prompt", prompt), ("user", user)) if value is None)
        raise BadInput(
            f"{path} looks like votes, but its columns ({', '.join(row)}) do not tell the {missing}; "
            f"name them: --dataset {shlex.quote(str(spec))}"
        )
    return spec


def _votes(columns: Columns, row: Row, at: RawRow) -> Iterator[Vote]:
    parts = columns.prompt.split(",")
    prompt = row.get(parts[0]) if len(parts) == 1 else "\n\n".join(filter(None, (row.get(p) or "" for p in parts)))
    if parts[0] in columns.answers.split(","):  # a conversation that ends with the answer
        prompt = (messages_or_text(prompt) or [])[:-1]
    asked = conversation(messages_or_text(field({columns.prompt: prompt}, columns.prompt)), columns.prompt)
    answers, labels = _answers(row, columns)
    vote_id = identifier(row, columns.id) if columns.id else f"{PurePath(at.place).stem}-{at.line}"
    if columns.voters:  # a user's name is that of their column
        columns_of = {voter: voter for voter in columns.voters.split(",")}
    else:
        columns_of = {identifier(row, columns.user): columns.ranking or columns.choice or "choice"}
    for user, column in columns_of.items():
        optional = not columns.voters and not columns.ranking and row.get(column, "") is None
        value = "" if optional else field(row, column)
        yield Vote(
            at=at,
            id=f"{vote_id}-{user}" if columns.voters else vote_id,
            user=user,
            **asked,
            answers=answers,
            ranks=(ranked if columns.ranking else chosen)(value, column, answers, labels),
            **_shared_fields(columns, row, user),
        )


def _ballots_on_items(columns: Columns, row: Row, at: RawRow) -> Iterator[Ballot]:  # noqa: ARG001
    user = identifier(row, columns.user)
    named = {c for c in (columns.prompt, columns.user, columns.category, columns.split, columns.time) if c}
    if columns.item:
        cells = {text(row, columns.item): columns.choice or "vote"}
    else:
        patterns = columns.items.split(",")
        cells = {c: c for c in row if c not in named and any(fnmatchcase(c, p) for p in patterns)}
        if not cells:
            raise BadRow(f"no column is called {columns.items}")
    shared = _shared_fields(columns, row, user)
    for item, column in cells.items():
        if (value := row.get(column)) not in (None, ""):
            yield Ballot(
                question=text(row, columns.prompt) if row.get(columns.prompt) else ASKED_OF_USER,
                user=user,
                item=item.strip(),
                value=_opinion(value, column, rated=columns.threshold is not None),
                time=timestamp(row, columns.time),
                **shared,
            )


def _shared_fields(columns: Columns, row: Row, user: str) -> dict[str, Any]:
    facts = {c: str(row[c]) for c in columns.about.split(",") if row.get(c) not in (None, "")}
    category = str(row.get(columns.category) or "votes")
    return {"category": category, "profile": about(user, facts), "groups": facts, **split_of(row, columns.split)}


def _opinion(value: Any, column: str, *, rated: bool) -> float:
    """1 for agreement, −1 for disagreement, 0 for neither; a rating is a number as it is."""
    word = plain(str(value)) if isinstance(value, str) else str(value).lower()
    if not rated and word in OPINIONS:
        return OPINIONS[word]
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadRow(f"`{column}` is {value!r}; known are {', '.join(OPINIONS)}, 1, -1, 0, or a rating") from None
    if not rated and number not in (-1, 0, 1):
        raise BadRow(f"`{column}` is {value!r}; ratings need threshold=, above which a user agrees")
    return number


def _answers(row: Row, columns: Columns) -> tuple[list[str], Mapping[str, int]]:
    names = columns.answers.split(",")
    if len(names) == 1:
        answers = items(row, names[0])
        if not all(isinstance(answer, str) and answer.strip() for answer in answers):
            raise BadRow(f"`{names[0]}` must be a list of texts")
    else:
        given = {name: messages_or_text(row.get(name)) for name in names}
        answers = [turns(v, name)[-1]["text"] if are_messages(v) else text(row, name) for name, v in given.items()]
    if len(answers) < 2:
        raise BadRow(f"`{columns.answers}` must hold at least two answers")
    return answers, labels_of(len(answers), tuple(names) if len(names) > 1 else (), columns.first)


@cache
def labels_of(count: int, names: tuple[str, ...], first: int) -> Mapping[str, int]:
    """Everything an answer may be called: its column, what the column's name ends with, a letter, a number."""
    labels = {name.lower(): n for n, name in enumerate(names)}
    prefix = commonprefix(names)  # noqa: RUF071 - of column names, not of paths
    labels |= {name.removeprefix(prefix).lower(): n for n, name in enumerate(names)}
    labels.pop("", None)
    labels = {chr(ord("a") + n): n for n in range(min(count, 26))} | labels
    if not any(label.isdigit() for label in labels):
        labels |= {str(first + n): n for n in range(count)}
    return labels


def chosen(value: Any, column: str, answers: Sequence[str], labels: Mapping[str, int]) -> list[int]:
    """Ranks: 0 for the answer that a label names, 1 for the others; all 0 for a tie."""
    best = _which(value, column, answers, labels)
    return [0 if best is None else int(n != best) for n in range(len(answers))]


def _which(value: Any, column: str, answers: Sequence[str], labels: Mapping[str, int]) -> int | None:
    """The answer that a label names, `None` for a tie."""
    label = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    if better := _BETTER.fullmatch(label):
        label = better[1]
    if label.lower() in labels:
        return labels[label.lower()]
    if (named := _ANSWER.fullmatch(label)) and named[1].lower() in labels:
        return labels[named[1].lower()]
    if label in answers:
        return answers.index(label)
    if label.lower() in TIES or (label == "0" and "1" in labels):
        return None
    raise BadRow(f"`{column}` is {label!r}; an answer is called {', '.join(labels)}")


def ranked(value: Any, column: str, answers: Sequence[str], labels: Mapping[str, int]) -> list[int]:
    """Ranks from `B>A=C>D` or from a list of labels, best first; a list inside is a tie."""
    value = literal(value)
    levels = [level.split("=") for level in value.split(">")] if isinstance(value, str) else value
    if not isinstance(levels, list):
        raise BadRow(f"`{column}` must be a ranking such as B>A=C or a list of labels")
    ranks: dict[int, int] = {}
    for rank, level in enumerate(levels):
        for label in level if isinstance(level, list) else [level]:
            n = _which(label, column, answers, labels)
            if n is None or n in ranks:
                raise BadRow(f"`{column}` names {label!r} " + ("twice" if n is not None else "that is no answer"))
            ranks[n] = rank
    if len(ranks) < len(answers):
        raise BadRow(f"`{column}` ranks {len(ranks)} of {len(answers)} answers")
    return [ranks[n] for n in range(len(answers))]
