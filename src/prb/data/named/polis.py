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
from prb.data.rows import folder_of, spec_name
from prb.data.source import DATASETS, MAX_LINE, RawRow, Source
from prb.errors import BadInput, unknown

COMMENTS, SUMMARY, MATRIX, VOTES = "comments.csv", "summary.csv", "participants-votes.csv", "votes.csv"
REJECTED = "-1"


@dataclass(frozen=True)
class Settings:
    conversation: str = "*"
    """Which ones: names or patterns, separated by commas; `!name` leaves one out."""


@DATASETS.register("polis")
def polis(path: str, settings: Settings, voting: PollVoting) -> Source:
    """Statements that a user agreed and disagreed with, by Polis conversation; with mirror=true, opposite users."""
    folders = conversations(folder_of(path, "polis"), settings.conversation)

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
    summary = {row[0]: row[1] for row in _lines(folder / SUMMARY) if len(row) > 1}
    topic = summary.get("topic", "").strip() or folder.name
    texts = {
        comment: body.strip()
        for comment, body, moderated in _columns(folder / COMMENTS, "comment-id", "comment-body", "moderated")
        if moderated != REJECTED and body.strip()
    }
    cast = (
        _columns(folder / VOTES, "voter-id", "comment-id", "timestamp") if timed and (folder / VOTES).is_file() else ()
    )
    times = {(voter, comment): float(time) for voter, comment, time in cast if time.isdecimal()}
    header = next(iter(_lines(folder / MATRIX)), [])
    comments = [name for name in header if name in texts]
    known = ["group-id"] if "group-id" in header else []
    for participant, *cells in _columns(folder / MATRIX, "participant", *known, *comments):
        user, group = f"{folder.name}-{participant}", cells.pop(0) if known else ""
        split, groups = user_split(user), {"group": group} if group else {}
        for comment, vote in zip(comments, cells, strict=True):
            if vote:
                if vote not in ("1", "0", "-1"):
                    raise BadInput(
                        f"{folder / MATRIX}: participant {participant} has vote {vote!r}; 1, 0, -1 are known"
                    )
                time = times.get((participant, comment), float("nan"))
                yield Ballot(folder.name, topic, user, texts[comment], float(vote), time, split, (), groups)


def _columns(path: Path, *names: str) -> Iterator[list[str]]:
    """The cells of these columns, row by row."""
    header, *rows = _lines(path) or [[]]
    if missing := [name for name in names if name not in header]:
        raise BadInput(f"{path} has no column {', '.join(missing)}")
    at = [header.index(name) for name in names]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise BadInput(f"{path}: row {number} has {len(row)} cells, the header {len(header)}")
        yield [row[n] for n in at]


def _lines(path: Path) -> list[list[str]]:
    csv.field_size_limit(MAX_LINE)
    if not path.is_file():
        raise BadInput(f"dataset 'polis': {path} does not exist")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [row for row in csv.reader(file) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}") from None
