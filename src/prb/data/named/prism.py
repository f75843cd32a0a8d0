"""Datasets in the format of PRISM (Kirk et al., arXiv 2404.16019): users rating the answers of models.

`conversations.jsonl` holds one conversation per row, `survey.jsonl` one user per row. The opening turn of each
conversation is used: the answer that the user continued with, against each one they scored lower. A user's posts are
what they wrote: how they describe themselves and what they expect of an assistant (survey), and their messages in their
*other* conversations. There is no rubric, so condition `oracle` and the ceiling of an audit are not available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prb.data.source import DATASETS, RawRow, Source, dict_row, file_source
from prb.errors import BadInput

CONVERSATIONS, SURVEY = "conversations.jsonl", "survey.jsonl"
WORDS = ("self_description", "system_string")
GROUPS = ("age", "gender", "education", "employment_status", "english_proficiency")
NOTHING = frozenset({"", "EMPTY STRING", "ERROR"})
"""Placeholders for a missing answer."""
Posts = dict[str, list[tuple[str, dict[str, str]]]]
"""By user: messages with the conversation they are from."""


@dataclass(frozen=True)
class Prism:
    name: str
    conversations: Path
    survey: Path | None

    def rows(self) -> Iterator[RawRow]:
        surveys: dict[str, dict[str, Any]] = {}
        for row in file_source(self.survey).rows() if self.survey else ():
            if isinstance(row.data, dict) and "user_id" in row.data:
                surveys[str(row.data["user_id"])] = row.data
        posts = _messages(file_source(self.conversations))
        for row in file_source(self.conversations).rows():
            if problem := row.problem or problem_of(row.data):
                yield row._replace(problem=problem)
            else:
                survey = surveys.get(str(row.data["user_id"]), {})
                yield from (dict_row(row.place, row.line, pair) for pair in pairs_of(row.data, survey, posts))


@DATASETS.register("prism")
def prism(path: Path) -> Source:
    """Users' own ratings of answers in PRISM's format: path=FOLDER with conversations.jsonl and survey.jsonl."""
    conversations = path / CONVERSATIONS if path.is_dir() else path
    if not conversations.is_file():
        raise BadInput(f"dataset 'prism': {conversations} does not exist")
    survey = conversations.with_name(SURVEY)
    return Prism(f"prism?path={path}", conversations, survey if survey.is_file() else None)


def problem_of(row: Any) -> str | None:
    if not isinstance(row, dict):
        return "a row must be an object"
    for field in ("conversation_id", "user_id", "conversation_history"):
        if field not in row:
            return f"`{field}` is missing"
    history = row["conversation_history"]
    if not isinstance(history, list) or not all(
        isinstance(m, dict) and isinstance(m.get("content"), str) for m in history
    ):
        return "`conversation_history` must be a list of messages"
    return None


def _messages(source: Source) -> Posts:
    posts: Posts = {}
    for row in source.rows():
        if row.problem or problem_of(row.data):
            continue
        conversation, kind = str(row.data["conversation_id"]), _kind(row.data)
        for n, message in enumerate(m for m in row.data["conversation_history"] if m.get("role") == "user"):
            if message["content"].strip():
                post = {"id": f"{conversation}-{n}", "category": kind, "text": message["content"]}
                posts.setdefault(str(row.data["user_id"]), []).append((conversation, post))
    return posts


def _kind(row: Mapping[str, Any]) -> str:
    return str(row.get("conversation_type") or "conversation")


def pairs_of(row: dict[str, Any], survey: Mapping[str, Any], posts: Posts) -> Iterator[dict[str, Any]]:
    conversation, user = str(row["conversation_id"]), str(row["user_id"])
    opening = [m for m in row["conversation_history"] if m.get("turn", 0) == 0]
    question = next((m["content"] for m in opening if m.get("role") == "user"), "")
    answers = [m for m in opening if m.get("role") == "model" and m["content"].strip() not in NOTHING]
    chosen = next((m for m in answers if m.get("if_chosen")), None)
    if chosen is None or not question.strip():
        return
    profile = [{"id": f"{user}-{w}", "category": "survey", "text": str(survey[w])} for w in WORDS if survey.get(w)]
    profile += [post for origin, post in posts.get(user, []) if origin != conversation]
    for n, rejected in enumerate(answers):
        if _score(rejected) < _score(chosen) and rejected["content"].strip() != chosen["content"].strip():
            yield {
                "id": f"{conversation}-{rejected.get('within_turn_id', n)}",
                "user": user,
                "question": question,
                "profile": profile,
                "rubric_aspects": [],
                "narrative": "",
                "category": _kind(row),
                "chosen": chosen["content"],
                "rejected": rejected["content"],
                "groups": {key: survey[key] for key in GROUPS if isinstance(survey.get(key), str)},
            }


def _score(answer: Mapping[str, Any]) -> float:
    score = answer.get("score")
    return float(score) if isinstance(score, (int, float)) else 0.0
