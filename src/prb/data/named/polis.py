"""Open data of Polis (compdemocracy.org/polis, CC BY 4.0): thousands of people voting on each other's statements.

A folder of conversations, or one conversation: `summary.csv` has the topic, `comments.csv` the statements,
`participants-votes.csv` a row per participant and a column per statement (1 agree, −1 disagree, 0 pass). `votes.csv`
has one row per vote and its time. Statements that moderators rejected are left out. `prb data pull polis` fetches it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from prb.data.polls import Ballot, Poll, PollSource, PollVoting, collect, user_split
from prb.data.pull import pulled
from prb.data.rows import folder_of, number, spec_name, table
from prb.data.source import DATASETS, RawRow, Source
from prb.errors import BadInput, unknown

COMMENTS, SUMMARY, MATRIX, VOTES = "comments.csv", "summary.csv", "participants-votes.csv", "votes.csv"
REJECTED = "-1"


@dataclass(frozen=True)
class Settings:
    conversation: str = "*"
    """Which ones: names or patterns, separated by commas; `!name` leaves one out."""


@DATASETS.register("polis")
def polis(settings: Settings, voting: PollVoting, path: str = "") -> Source:
    """Statements that a user agreed and disagreed with, by Polis conversation; with mirror=true, opposite users."""
    home = folder_of(path, "polis") if path else pulled("polis")
    folders = conversations(home, settings.conversation)

    def read() -> Iterator[Poll | RawRow]:
        for folder in folders:
            yield from collect(_ballots(folder, timed=voting.order == "time"), place=f"{folder.name}/{MATRIX}")

    return PollSource(spec_name("polis", path, settings, voting), read, voting)


def conversations(folder: Path, wanted: str) -> list[Path]:
    """The folders of the conversations that `wanted` names."""
    found = [folder] if (folder / COMMENTS).is_file() else sorted(p.parent for p in folder.glob(f"*/{COMMENTS}"))
    if not found:
        raise BadInput(f"dataset 'polis': {folder} holds no conversation, which is a folder with {COMMENTS}")
    names, parts = [p.name for p in found], [part.strip() for part in wanted.split(",")]
    for part in parts:
        if not any(fnmatchcase(name, part.removeprefix("!")) for name in names):
            raise unknown("conversation", part.removeprefix("!"), names)
    kept = [part for part in parts if not part.startswith("!")] or ["*"]
    without = [part[1:] for part in parts if part.startswith("!")]
    return [
        path
        for path in found
        if any(fnmatchcase(path.name, part) for part in kept)
        and not any(fnmatchcase(path.name, part) for part in without)
    ]


def _ballots(folder: Path, *, timed: bool) -> Iterator[Ballot]:
    topic = _topic(folder / SUMMARY) or folder.name
    texts = {
        row["comment-id"]: row["comment-body"].strip()
        for row in table(folder / COMMENTS, "comment-id", "comment-body", "moderated")
        if row["moderated"] != REJECTED and row["comment-body"] and row["comment-body"].strip()
    }
    times: dict[tuple[str, str], float] = {}
    if timed and (folder / VOTES).is_file():
        for row in table(folder / VOTES, "voter-id", "comment-id", "timestamp"):
            times[row["voter-id"], row["comment-id"]] = number(row, "timestamp")
    for row in table(folder / MATRIX, "participant"):
        # not `group-id`: Polis fits it to these very votes, so it would explain them by themselves
        user = f"{folder.name}-{row['participant']}"
        split = user_split(user)
        for comment, vote in row.items():
            if vote is not None and comment in texts:
                if vote not in ("1", "0", "-1"):
                    raise BadInput(f"{folder / MATRIX}: {user} has vote {vote!r}; 1, 0 and -1 are known")
                time = times.get((row["participant"], comment), float("nan"))
                yield Ballot(folder.name, topic, user, texts[comment], float(vote), time, split)


def _topic(path: Path) -> str:
    """The cell after `topic`: the file has a row per fact and no header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next((row[1].strip() for row in csv.reader(file) if row[:1] == ["topic"] and len(row) > 1), "")
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}") from None
