"""Polls as published, in which people voted on each other's statements or rated the same ones: see `prb.data.votes`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path

from prb.data.pull import pulled_polis
from prb.data.schema import about, folder_of, identifier, number, table, text
from prb.data.source import DATASETS, BadRow, RawRow, Row, RowSource, Source, file_source
from prb.data.votes import Ballot, PollSource, PollVoting, Vote, VoteSource, Voting, collect, user_split
from prb.errors import BadInput, unknown

# Open data of Polis (compdemocracy.org/polis, CC BY 4.0): thousands of people voting on each other's statements.
# A folder of conversations, or one conversation: `summary.csv` has the topic, `comments.csv` the statements,
# `participants-votes.csv` a row per participant and a column per statement (1 agree, −1 disagree, 0 pass). Statements
# that moderators rejected are left out. `prb data pull polis` fetches it.

COMMENTS, MATRIX = "comments.csv", "participants-votes.csv"


@DATASETS.register("polis")
def polis(*, conversation: str = "*", voting: PollVoting, path: str = "") -> Source:
    """Statements that a user agreed and disagreed with, by Polis conversation; with mirror=true, opposite users.

    conversation: which ones, names or patterns separated by commas; `!name` leaves one out.
    """
    home = folder_of(path, "polis") if path else pulled_polis()
    folders = [home] if (home / COMMENTS).is_file() else sorted(p.parent for p in home.glob(f"*/{COMMENTS}"))
    if not folders:
        raise BadInput(f"dataset 'polis': {home} holds no conversation, which is a folder with {COMMENTS}")
    names, patterns = [folder.name for folder in folders], [part.strip() for part in conversation.split(",")]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in names):
            raise unknown("conversation", pattern.removeprefix("!"), names)
    included = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    selected = [
        folder
        for folder in folders
        if any(fnmatchcase(folder.name, pattern) for pattern in included)
        and not any(fnmatchcase(folder.name, pattern) for pattern in excluded)
    ]
    return PollSource(
        lambda: (p for f in selected for p in collect(_polis_ballots(f), place=f"{f.name}/{MATRIX}")), voting
    )


def _polis_ballots(folder: Path) -> Iterator[Ballot]:
    try:  # a row per fact and no header
        with (folder / "summary.csv").open(encoding="utf-8-sig", newline="") as file:
            facts = {row[0]: row[1].strip() for row in csv.reader(file) if len(row) > 1}
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{folder / 'summary.csv'} cannot be read as CSV: {error}") from None
    topic = facts.get("topic") or folder.name
    texts = {
        row["comment-id"]: row["comment-body"].strip()
        for row in table(folder / COMMENTS, "comment-id", "comment-body", "moderated")
        if row["moderated"] != "-1" and row["comment-body"] and row["comment-body"].strip()
    }
    for row in table(folder / MATRIX, "participant"):
        # not `group-id`: Polis fits it to these very votes, so it would explain them by themselves
        user = f"{folder.name}-{row['participant']}"
        split = user_split(user)
        for comment, vote in row.items():
            if vote is not None and comment in texts:
                if vote not in ("1", "0", "-1"):
                    raise BadInput(f"{folder / MATRIX}: {user} has vote {vote!r}; 1, 0 and -1 are known")
                yield Ballot(folder.name, topic, user, texts[comment], float(vote), split)


# Global Dialogues (Collective Intelligence Project): people of many countries voting on each other's answers about AI.
# `GD<N>_binary.csv` holds one vote per row (agree, disagree or neutral), `GD<N>_verbatim_map.csv` the answers that were
# voted on, `GD<N>_participants.csv` what each person chose in the opening questions. Everybody votes on a few answers
# to each open question, so a history spans questions; mirror pairs are rare.

BINARY = "_binary.csv"
VOTES = {"agree": 1.0, "disagree": -1.0, "neutral": 0.0}


@DATASETS.register("global-dialogues")
def global_dialogues(path: str, voting: PollVoting) -> Source:
    """Answers of others that a person agreed and disagreed with: path=FOLDER with GD<N>_binary.csv."""
    folder = folder_of(path, "global-dialogues")
    rounds = sorted(file.name.removesuffix(BINARY) for file in folder.glob(f"*{BINARY}"))
    if not rounds:
        raise BadInput(f"dataset 'global-dialogues': {folder} holds no file GD<N>{BINARY}")

    def ballots(name: str) -> Iterator[Ballot]:
        thoughts, facts_of = _thoughts(folder, name), _facts(folder, name)
        path = folder / f"{name}{BINARY}"
        for row in table(path, "Participant ID", "Thought ID", "Vote"):
            thought, vote = thoughts.get(row["Thought ID"]) or {}, VOTES.get((row["Vote"] or "").strip().lower())
            if vote is None:
                raise BadInput(f"{path}: vote {row['Vote']!r}; known are {', '.join(VOTES)}")
            question, item = ((thought.get(key) or "").strip() for key in ("Question Text", "Thought Text"))
            if not question or not item:
                continue  # an answer that was removed
            user, facts = f"{name}-{row['Participant ID']}", facts_of.get(row["Participant ID"], {})
            yield Ballot(name, question, user, item, vote, user_split(user), about(user, facts), facts)

    return PollSource(lambda: collect(chain.from_iterable(map(ballots, rounds)), place=BINARY), voting)


def _thoughts(folder: Path, name: str) -> dict[str, Row]:
    """Answers to open questions, by id."""
    needed = "Question Text", "Thought ID", "Thought Text"
    return {row["Thought ID"]: row for row in table(folder / f"{name}_verbatim_map.csv", *needed)}


def _facts(folder: Path, name: str) -> dict[str, dict[str, str]]:
    """By person, what they chose in the opening questions: language, age, gender, place, concern, religion, country."""
    file = folder / f"{name}_participants.csv"
    people = table(file, "Participant Id") if file.is_file() else ()
    return {row["Participant Id"]: {key: value for key, value in list(row.items())[2:8] if value} for row in people}


# `GD<N>_preference.csv` holds one choice between two answers per row: one of them, or both, or neither.

PREFERENCE = "_preference.csv"
PREFERRED = {"thought a": (0, 1), "thought b": (1, 0), "i agree with both": (0, 0), "i disagree with both": (0, 0)}


@DATASETS.register("global-dialogues-preferences")
def global_dialogues_preferences(path: str, voting: Voting) -> Source:
    """Of two answers of others the one that a person preferred: path=FOLDER with GD<N>_preference.csv."""
    folder = folder_of(path, "global-dialogues-preferences")
    if not (files := sorted(folder.glob(f"*{PREFERENCE}"))):
        raise BadInput(f"dataset 'global-dialogues-preferences': {folder} holds no file GD<N>{PREFERENCE}")
    known = cache(lambda dialogue: (_thoughts(folder, dialogue), _facts(folder, dialogue)))

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        dialogue, vote = at.place.removesuffix(PREFERENCE), text(row, "Vote").strip().lower()
        thoughts, facts_of = known(dialogue)
        sides = [thoughts.get(row.get(f"Thought {side} ID") or "", {}) for side in "AB"]
        if (ranks := PREFERRED.get(vote)) is None:
            raise BadRow(f"`Vote` is {row['Vote']!r}; known are {', '.join(PREFERRED)}")
        answers = [(side.get("Thought Text") or "").strip() for side in sides]
        question, person = (sides[0].get("Question Text") or "").strip(), identifier(row, "Participant ID")
        if not question or not all(answers):
            return  # an answer that was removed
        user, facts = f"{dialogue}-{person}", facts_of.get(person, {})
        yield Vote(
            at=at,
            id=f"{dialogue}-{at.line}",
            user=user,
            question=question,
            answers=answers,
            ranks=ranks,
            profile=about(user, facts),
            category=dialogue,
            groups=facts,
        )

    rows = RowSource(lambda: chain.from_iterable(file_source(file).rows() for file in files))
    return VoteSource(rows, votes, voting)


# PluriHarms (Li et al., ICLR 2026): 100 people rating how harmful 150 requests to an AI assistant are, from 0 to 100.
# `annotations.csv` holds one person per row with their ratings and demographics, `prompts.csv` the requests. A pair is
# a request that a person finds harmful (above 50) against one that they do not.

HARMFUL = "Which of these requests to an AI assistant is harmful?"
ANNOTATIONS = "annotations.csv"
DEMOGRAPHICS = ["Race_Ethnicity", "Gender", "Sexual_Orientation", "Age", "Political_Affiliation", "Education", "Income"]
DEMOGRAPHICS += ["Religion_Importance", "Social_Media_Frequency", "Toxicity_Experience"]


@DATASETS.register("pluriharms")
def pluriharms(path: str, voting: PollVoting) -> Source:
    """Requests that a person finds harmful against others that they do not."""
    folder = folder_of(path, "pluriharms")

    def ballots() -> Iterator[Ballot]:
        prompts = table(folder / "prompts.csv", "Question_Index", "Question_Content")
        requests = {prompt["Question_Index"]: prompt["Question_Content"] for prompt in prompts}
        for row in table(folder / ANNOTATIONS, "Participant_ID"):
            user = f"pluriharms-{row['Participant_ID']}"
            facts = {name.replace("_", " ").lower(): row[name].strip() for name in DEMOGRAPHICS if row.get(name)}
            person = user_split(user), about(user, facts), facts
            for index, request in requests.items():
                if request and row.get(f"Rating_{index}"):
                    try:
                        value = number(row, f"Rating_{index}")
                    except BadRow as error:
                        raise BadInput(f"{folder / ANNOTATIONS}: {user}: {error}") from None
                    yield Ballot("pluriharms", HARMFUL, user, request.strip(), value, *person)

    return PollSource(lambda: collect(ballots(), middle=50.0, place=ANNOTATIONS), voting)
