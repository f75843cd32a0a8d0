"""Global Dialogues (Collective Intelligence Project): people of many countries voting on each other's answers about AI.

`GD<N>_binary.csv` holds one vote per row (agree, disagree or neutral), `GD<N>_verbatim_map.csv` the answers that were
voted on, `GD<N>_participants.csv` what each person chose in the opening questions. Everybody votes on a few answers to
each open question, so a history spans questions; mirror pairs are rare.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from prb.data.polls import Ballot, Poll, PollSource, PollVoting, collect, user_split
from prb.data.rows import about, folder_of, spec_name, table
from prb.data.source import DATASETS, RawRow, Source
from prb.errors import BadInput

BINARY, VERBATIM, PARTICIPANTS = "_binary.csv", "_verbatim_map.csv", "_participants.csv"
VOTES = {"agree": 1.0, "disagree": -1.0, "neutral": 0.0}
OPENING = 8
"""Columns of participants that are opening questions: language, age, gender, place, concern, religion, country."""


@DATASETS.register("global-dialogues")
def global_dialogues(path: str, voting: PollVoting) -> Source:
    """Answers of others that a person agreed and disagreed with: path=FOLDER with GD<N>_binary.csv."""
    folder = folder_of(path, "global-dialogues")
    rounds = sorted(file.name.removesuffix(BINARY) for file in folder.glob(f"*{BINARY}"))
    if not rounds:
        raise BadInput(f"dataset 'global-dialogues': {folder} holds no file GD<N>{BINARY}")

    def read() -> Iterator[Poll | RawRow]:
        yield from collect((ballot for name in rounds for ballot in _ballots(folder, name)), place=BINARY)

    return PollSource(spec_name("global-dialogues", path, voting), read, voting)


def _ballots(folder: Path, name: str) -> Iterator[Ballot]:
    needed = "Question Text", "Thought ID", "Thought Text"
    thoughts = {row["Thought ID"]: row for row in table(folder / f"{name}{VERBATIM}", *needed)}
    facts_of: dict[str, dict[str, str]] = {}
    participants = folder / f"{name}{PARTICIPANTS}"
    for row in table(participants, "Participant Id") if participants.is_file() else ():
        facts_of[row["Participant Id"]] = {key: value for key, value in list(row.items())[2:OPENING] if value}
    path = folder / f"{name}{BINARY}"
    for row in table(path, "Participant ID", "Thought ID", "Vote"):
        thought, vote = thoughts.get(row["Thought ID"]), VOTES.get((row["Vote"] or "").strip().lower())
        if vote is None:
            raise BadInput(f"{path}: vote {row['Vote']!r}; known are {', '.join(VOTES)}")
        question, item = (
            ((thought[key] or "").strip() for key in ("Question Text", "Thought Text")) if thought else ("", "")
        )
        if not question or not item:
            continue  # an answer that was removed
        user, facts = f"{name}-{row['Participant ID']}", facts_of.get(row["Participant ID"], {})
        yield Ballot(
            category=name,
            question=question,
            user=user,
            item=item,
            value=vote,
            time=_time(row.get("Timestamp"), path),
            split=user_split(user),
            profile=about(user, facts),
            groups=facts,
        )


def _time(value: str | None, path: Path) -> float:
    try:
        return datetime.fromisoformat(value).timestamp() if value else float("nan")
    except ValueError:
        raise BadInput(f"{path}: `Timestamp` must be an ISO date and time, not {value!r}") from None
