"""Personalized sets in the format of PRISM (Kirk et al., arXiv 2404.16019): real people rating models' answers.

`conversations.jsonl` holds one conversation a row, `survey.jsonl` one person a row. Of each conversation the opening
turn is used: the answer this person went on with, against each one they scored lower. What is known of the person is
what they wrote: how they describe themselves and what they want of an assistant (survey), and their messages in their
*other* conversations. There is no rubric, so conditions `oracle` and the ceiling of an audit are not available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prb.data.registry import DATASETS
from prb.data.source import RawRow, Source, dict_row, file_source
from prb.errors import BadInput

CONVERSATIONS, SURVEY = "conversations.jsonl", "survey.jsonl"
WORDS = ("self_description", "system_string")
GROUPS = ("age", "gender", "education", "employment_status", "english_proficiency")
NOTHING = frozenset({"", "EMPTY STRING", "ERROR"})
"""What stands where a model gave no answer."""
Posts = dict[str, list[tuple[str, dict[str, str]]]]
"""Of each person: messages with the conversation they are from."""


@dataclass(frozen=True)
class Prism:
    name: str
    conversations: Path
    survey: Path | None

    def rows(self) -> Iterator[RawRow]:
        people = _survey(self.survey) if self.survey else {}
        posts = _messages(file_source(self.conversations))
        for row in file_source(self.conversations).rows():
            found = row.problem or problem_of(row.data)
            if found:
                yield row._replace(problem=found)
            else:
                person = people.get(str(row.data["user_id"]), {})
                yield from (dict_row(row.place, row.line, pair) for pair in pairs_of(row.data, person, posts))


@DATASETS.register("prism")
def prism(path: Path) -> Source:
    """People's own ratings of answers in PRISM's format: path=FOLDER with conversations.jsonl and survey.jsonl."""
    conversations = path / CONVERSATIONS if path.is_dir() else path
    if not conversations.is_file():
        raise BadInput(f"dataset 'prism': {conversations} does not exist")
    survey = conversations.with_name(SURVEY)
    return Prism(f"prism?path={path}", conversations, survey if survey.is_file() else None)


def problem_of(row: Any) -> str | None:
    if not isinstance(row, dict):
        return "a row is an object"
    for field in ("conversation_id", "user_id", "conversation_history"):
        if field not in row:
            return f"`{field}` is missing"
    history = row["conversation_history"]
    if not isinstance(history, list) or not all(
        isinstance(m, dict) and isinstance(m.get("content"), str) for m in history
    ):
        return "`conversation_history` wants a list of messages"
    return None


def _survey(path: Path) -> dict[str, dict[str, Any]]:
    rows = [row for row in file_source(path).rows() if isinstance(row.data, dict) and "user_id" in row.data]
    return {str(row.data["user_id"]): row.data for row in rows}


def _messages(source: Source) -> Posts:
    found: Posts = {}
    for row in source.rows():
        if row.problem or problem_of(row.data):
            continue
        own, kind = str(row.data["conversation_id"]), _kind(row.data)
        for n, message in enumerate(m for m in row.data["conversation_history"] if m.get("role") == "user"):
            if message["content"].strip():
                post = {"id": f"{own}-{n}", "category": kind, "text": message["content"]}
                found.setdefault(str(row.data["user_id"]), []).append((own, post))
    return found


def _kind(row: Mapping[str, Any]) -> str:
    return str(row.get("conversation_type") or "conversation")


def pairs_of(row: dict[str, Any], person: Mapping[str, Any], posts: Posts) -> Iterator[dict[str, Any]]:
    own, user = str(row["conversation_id"]), str(row["user_id"])
    opening = [m for m in row["conversation_history"] if m.get("turn", 0) == 0]
    question = next((m["content"] for m in opening if m.get("role") == "user"), "")
    answers = [m for m in opening if m.get("role") == "model" and m["content"].strip() not in NOTHING]
    chosen = next((m for m in answers if m.get("if_chosen")), None)
    if chosen is None or not question.strip():
        return
    told = [{"id": f"{user}-{w}", "category": "survey", "text": str(person[w])} for w in WORDS if person.get(w)]
    profile = told + [post for conversation, post in posts.get(user, []) if conversation != own]
    for n, rejected in enumerate(answers):
        if _score(rejected) < _score(chosen) and rejected["content"].strip() != chosen["content"].strip():
            yield {
                "id": f"{own}-{rejected.get('within_turn_id', n)}",
                "user": user,
                "question": question,
                "profile": profile,
                "rubric_aspects": [],
                "narrative": "",
                "category": _kind(row),
                "chosen": chosen["content"],
                "rejected": rejected["content"],
                "groups": {key: person[key] for key in GROUPS if isinstance(person.get(key), str)},
            }


def _score(answer: Mapping[str, Any]) -> float:
    score = answer.get("score")
    return float(score) if isinstance(score, (int, float)) else 0.0
