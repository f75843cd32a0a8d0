"""PRISM (Kirk et al., arXiv 2404.16019): people from 75 countries rating the replies of models in live conversations.

`conversations.jsonl` holds one conversation per row, `survey.jsonl` one user. Every turn is a pair: the reply that the
user continued with against those they scored lower, after the turns before. A user's posts are what they wrote: how
they describe themselves and what they expect of an assistant (survey), and their messages in their *other*
conversations, whose turns are their past choices. There is no rubric, so condition `oracle` and the ceiling of an audit
are not available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from prb.data.rows import BadRow, converted, identifier, items, main_file, posts, spec_name, turns
from prb.data.source import DATASETS, RawRow, Row, Source, file_source
from prb.data.votes import Vote, VoteSource, Voting

CONVERSATIONS, SURVEY = "conversations.jsonl", "survey.jsonl"
WORDS = ("self_description", "system_string")
GROUPS = ("age", "gender", "education", "employment_status", "english_proficiency")
NOTHING = frozenset({"", "EMPTY STRING", "ERROR"})
"""Placeholders for a missing reply."""
Posts = dict[str, list[tuple[str, dict[str, str]]]]
"""By user: messages with the conversation they are from."""


@dataclass(frozen=True)
class Settings:
    turns: Literal["all", "opening"] = "all"
    history: Annotated[int, Field(ge=0)] = 16
    """Past choices per row, the last ones of the user's other conversations."""


@DATASETS.register("prism")
def prism(path: str, settings: Settings) -> Source:
    """Users' own ratings of replies, turn by turn: path=FOLDER with conversations.jsonl and survey.jsonl, or hub:…."""
    conversations = main_file(path, "prism", CONVERSATIONS)
    convert = Conversations(conversations, settings.turns).votes
    name, voting = spec_name("prism", path, settings), Voting(history=settings.history)
    return VoteSource(name, file_source(conversations), convert, voting)


@dataclass(frozen=True)
class Conversations:
    path: Path
    turns: Literal["all", "opening"]

    @cached_property
    def _surveys(self) -> dict[str, Row]:
        survey = self.path.with_name(SURVEY)
        rows = file_source(survey).rows() if survey.is_file() else ()
        return {str(r.data["user_id"]): r.data for r in rows if isinstance(r.data, dict) and "user_id" in r.data}

    @cached_property
    def _posts(self) -> Posts:
        by_user: Posts = {}
        for made in converted(file_source(self.path), _messages):
            if not isinstance(made, RawRow):
                user, conversation, post = made
                by_user.setdefault(user, []).append((conversation, post))
        return by_user

    def votes(self, row: Row, at: RawRow) -> Iterator[Vote]:
        conversation, user = identifier(row, "conversation_id"), identifier(row, "user_id")
        survey = self._surveys.get(user, {})
        profile = [{"id": f"{user}-{w}", "category": "survey", "text": str(survey[w])} for w in WORDS if survey.get(w)]
        profile += [post for origin, post in self._posts.get(user, []) if origin != conversation]
        for number, context, question, replies in _contests(row):
            if number and self.turns == "opening":
                return
            yield Vote(
                at=at,
                id=f"{conversation}-t{number}",
                user=user,
                question=question,
                answers=[reply["content"] for reply in replies],
                ranks=[int(not reply.get("if_chosen")) for reply in replies],
                context=context,
                profile=profile,
                category=_kind(row),
                groups={key: survey[key] for key in GROUPS if isinstance(survey.get(key), str)},
                unit=conversation,
            )


def _messages(row: Row, at: RawRow) -> Iterator[tuple[str, str, dict[str, str]]]:  # noqa: ARG001
    """User, conversation and post."""
    conversation, user = identifier(row, "conversation_id"), identifier(row, "user_id")
    history = turns(row.get("conversation_history"), "conversation_history")
    pairs = zip(history, row["conversation_history"], strict=True)
    texts = [turn["text"] for turn, message in pairs if message.get("role") == "user"]
    for post in posts(texts, conversation, _kind(row)):
        yield user, conversation, post


def _kind(row: Mapping[str, Any]) -> str:
    return str(row.get("conversation_type") or "conversation")


def _contests(row: Row) -> Iterator[tuple[int, list[dict[str, str]], str, list[Row]]]:
    """Of each turn with a choice: its number, the turns before, the question, the chosen replies and the lower ones."""
    turns(items(row, "conversation_history"), "conversation_history")
    by_turn: dict[int, list[Row]] = {}
    for n, message in enumerate(row["conversation_history"]):
        number = message.get("turn", 0)
        if not isinstance(number, int):
            raise BadRow(f"`conversation_history.{n}.turn` must be an integer")
        by_turn.setdefault(number, []).append(message)
    context: list[dict[str, str]] = []
    for number, messages in sorted(by_turn.items()):
        question = next((m["content"] for m in messages if m.get("role") == "user"), "")
        replies = [m for m in messages if m.get("role") != "user" and m["content"].strip() not in NOTHING]
        chosen = [m for m in replies if m.get("if_chosen")]
        if not chosen or not question.strip():
            return  # nothing to continue from
        lower = [m for m in replies if not m.get("if_chosen") and _score(m) < min(map(_score, chosen))]
        yield number, list(context), question, [*chosen, *lower]
        context += [{"role": "user", "text": question}, {"role": "assistant", "text": chosen[0]["content"]}]


def _score(reply: Mapping[str, Any]) -> float:
    score = reply.get("score")
    return float(score) if isinstance(score, (int, float)) else 0.0
