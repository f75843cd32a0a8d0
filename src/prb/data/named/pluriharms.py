"""PluriHarms (Li et al., ICLR 2026): 100 people rating how harmful 150 requests to an AI assistant are, from 0 to 100.

`annotations.csv` holds one person per row with their ratings and demographics, `prompts.csv` the requests. A pair is a
request that a person finds harmful (above 50) against one that they do not; with rows=ratings, the ratings themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prb.data.polls import Ballot, Poll, PollSource, PollVoting, collect, user_split
from prb.data.rows import about, folder_of, number, spec_name, table
from prb.data.source import DATASETS, RawRow, Source
from prb.errors import BadInput

ANNOTATIONS, PROMPTS = "annotations.csv", "prompts.csv"
QUESTION = "Which of these requests to an AI assistant is harmful?"
FACTS = ("Race_Ethnicity", "Gender", "Sexual_Orientation", "Age", "Political_Affiliation", "Education", "Income")
MORE_FACTS = ("Religion_Importance", "Social_Media_Frequency", "Toxicity_Experience")


@DATASETS.register("pluriharms")
def pluriharms(path: str, voting: PollVoting) -> Source:
    """Requests that a person finds harmful against others; with rows=ratings, how harmful they find them."""
    folder = folder_of(path, "pluriharms")

    def read() -> Iterator[Poll | RawRow]:
        yield from collect(_ballots(folder), middle=50.0, scale=(0.0, 100.0), place=ANNOTATIONS)

    return PollSource(spec_name("pluriharms", path, voting), read, voting)


def _ballots(folder: Path) -> Iterator[Ballot]:
    prompts = {
        row["Question_Index"]: row["Question_Content"]
        for row in table(folder / PROMPTS, "Question_Index", "Question_Content")
    }
    for row in table(folder / ANNOTATIONS, "Participant_ID"):
        user = f"pluriharms-{row['Participant_ID']}"
        facts = {name.replace("_", " ").lower(): row[name].strip() for name in (*FACTS, *MORE_FACTS) if row.get(name)}
        for index, text in prompts.items():
            if text and row.get(f"Rating_{index}"):
                try:
                    value, trial = number(row, f"Rating_{index}"), float(row.get(f"Trial_{index}") or "nan")
                except ValueError as error:
                    raise BadInput(f"{folder / ANNOTATIONS}: {user}: {error}") from None
                yield Ballot(
                    "pluriharms",
                    QUESTION,
                    user,
                    text.strip(),
                    value,
                    trial,
                    user_split(user),
                    about(user, facts),
                    facts,
                )
