"""PersonalRewardBench (SynthesizeMe, arXiv 2506.05598): PRISM and Chatbot Arena users with several choices each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from prb.data.rows import BadRow, conversation, field, identifier, spec_name, split_of, turns
from prb.data.source import DATASETS, RawRow, Row, Source, open_rows
from prb.data.votes import Vote, VoteSource, Voting


@dataclass(frozen=True)
class Settings:
    history: Annotated[int, Field(ge=0)] = 64
    """Past choices per row, the last ones of the user."""


@DATASETS.register("personalrewardbench")
def personalrewardbench(path: str, settings: Settings) -> Source:
    """One reply against another in a user's own conversation; past choices are the user's train and validation rows."""
    source = open_rows(path)
    name = spec_name("personalrewardbench", source.name, settings)
    return VoteSource(name, source, _choice, Voting(history=settings.history))


def _choice(row: Row, at: RawRow) -> Iterator[Vote]:
    asked = conversation(field(row, "context"), "context")
    replies = [turns([field(row, name)], name)[0]["text"] for name in ("chosen", "rejected")]
    for name, reply in zip(("chosen", "rejected"), replies, strict=True):
        if not reply.strip():
            raise BadRow(f"`{name}` is empty")
    conversation_id, user = identifier(row, "conversation_id"), identifier(row, "user_id")
    split = split_of({"split": field(row, "split")})["split"]
    if split not in ("train", "validation", "test"):
        raise BadRow(f"`split` is {split!r}; must be train, val or test")
    yield Vote(
        at=at,
        id=f"{conversation_id}-{split}-{at.line}",
        user=user,
        **asked,
        answers=replies,
        ranks=(0, 1),
        category=str(row.get("type") or "conversation"),
        split=split,
        unit=conversation_id,
    )
