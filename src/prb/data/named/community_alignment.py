"""Community Alignment (Meta, 2025): people in five countries choosing one of four replies, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prb.data.rows import BadRow, about, identifier, spec_name
from prb.data.source import DATASETS, RawRow, Row, Source, open_rows
from prb.data.votes import Vote, VoteSource, Voting

TURNS = ("first", "second", "third", "fourth")
LETTERS = "abcd"
FACTS = ("age", "gender", "education_level", "political", "ethnicity", "country")
END = "<|end_of_text|>"


@DATASETS.register("community-alignment")
def community_alignment(path: str, voting: Voting) -> Source:
    """The preferred one of four replies, turn by turn; with mirror=true, annotators who chose different replies."""
    source = open_rows(path)
    return VoteSource(spec_name("community-alignment", source.name, voting), source, _votes, voting)


def _votes(row: Row, at: RawRow) -> Iterator[Vote]:
    if row.get("split") == "filtered":  # in version 1.0 a part of `full`
        return
    conversation, user = identifier(row, "conversation_id"), identifier(row, "annotator_id")
    facts = {fact: str(row[f"annotator_{fact}"]) for fact in FACTS if row.get(f"annotator_{fact}")}
    context: list[dict[str, str]] = []
    for number, turn in enumerate(TURNS):
        question = _clean(row.get(f"{turn}_turn_prompt"))
        replies = {f"response_{x}": _clean(row.get(f"{turn}_turn_response_{x}")) for x in LETTERS}
        preferred = row.get(f"{turn}_turn_preferred_response")
        if not question or not preferred:
            return  # the conversation ended
        if not replies.get(str(preferred)):
            raise BadRow(f"`{turn}_turn_preferred_response` is {preferred!r}, a reply that is missing")
        given = {name: reply for name, reply in replies.items() if reply}
        yield Vote(
            at=at,
            id=f"{conversation}-t{number}",
            user=user,
            question=question,
            answers=list(given.values()),
            ranks=[int(name != preferred) for name in given],
            context=list(context),
            profile=about(user, facts),
            category=str(row.get("assigned_lang") or "conversation"),
            groups=facts,
            unit=conversation,
        )
        context += [{"role": "user", "text": question}, {"role": "assistant", "text": replies[preferred]}]


def _clean(text: Any) -> str:
    if text is not None and not isinstance(text, str):
        raise BadRow("prompts and responses must be text")
    return (text or "").strip().removesuffix(END).strip()
