"""Public benchmarks in formats of their own.

PRISM (Kirk et al., arXiv 2404.16019): users rating the answers of models. `conversations.jsonl` holds one conversation
per row, `survey.jsonl` one user per row. The opening turn of each conversation is used: the answer that the user
continued with, against each one they scored lower. A user's posts are what they wrote: how they describe themselves and
what they expect of an assistant (survey), and their messages in their *other* conversations. There is no rubric, so
condition `oracle` and the ceiling of an audit are not available.

RewardBench (Lambert et al., arXiv 2403.13787) and RewardBench 2 (arXiv 2506.01937): a prompt, chosen and rejected
answers (one rejected, or lists of both), no user. Each chosen answer with each rejected one is a pair; the pairs of a
row are one cluster. There are no posts, so every model is user-blind on such a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prb.data.source import DATASETS, RawRow, Source, dict_row, file_source, open_source
from prb.errors import BadInput

CONVERSATIONS, SURVEY = "conversations.jsonl", "survey.jsonl"
WORDS = ("self_description", "system_string")
GROUPS = ("age", "gender", "education", "employment_status", "english_proficiency")
NOTHING = frozenset({"", "EMPTY STRING", "ERROR"})
"""Placeholders for a missing answer."""
Row = dict[str, Any]
Posts = dict[str, list[tuple[str, dict[str, str]]]]
"""By user: messages with the conversation they are from."""


def converted(
    source: Source, problem_of: Callable[[Any], str | None], pairs_of: Callable[[Row, int], Iterator[Row]]
) -> Iterator[RawRow]:
    """The pairs of each row, or the row with what is wrong with it."""
    for row in source.rows():
        if problem := row.problem or problem_of(row.data):
            yield row._replace(problem=problem)
        else:
            yield from (dict_row(row.place, row.line, pair) for pair in pairs_of(row.data, row.line))


def missing_field(row: Any, *fields: str) -> str | None:
    if not isinstance(row, dict):
        return "a row must be an object"
    return next((f"`{field}` is missing" for field in fields if field not in row), None)


def are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in value)


@dataclass(frozen=True)
class Prism:
    name: str
    conversations: Path
    survey: Path | None

    def rows(self) -> Iterator[RawRow]:
        surveys: dict[str, Row] = {}
        for row in file_source(self.survey).rows() if self.survey else ():
            if isinstance(row.data, dict) and "user_id" in row.data:
                surveys[str(row.data["user_id"])] = row.data
        source = file_source(self.conversations)
        return converted(source, conversation_problem, partial(conversation_pairs, surveys, user_messages(source)))


@DATASETS.register("prism")
def prism(path: Path) -> Source:
    """Users' own ratings of answers in PRISM's format: path=FOLDER with conversations.jsonl and survey.jsonl."""
    conversations = path / CONVERSATIONS if path.is_dir() else path
    if not conversations.is_file():
        raise BadInput(f"dataset 'prism': {conversations} does not exist")
    survey = conversations.with_name(SURVEY)
    return Prism(f"prism?path={path}", conversations, survey if survey.is_file() else None)


def conversation_problem(row: Any) -> str | None:
    if missing := missing_field(row, "conversation_id", "user_id", "conversation_history"):
        return missing
    return None if are_messages(row["conversation_history"]) else "`conversation_history` must be a list of messages"


def user_messages(source: Source) -> Posts:
    posts: Posts = {}
    for row in source.rows():
        if row.problem or conversation_problem(row.data):
            continue
        conversation, kind = str(row.data["conversation_id"]), _kind(row.data)
        for n, message in enumerate(m for m in row.data["conversation_history"] if m.get("role") == "user"):
            if message["content"].strip():
                post = {"id": f"{conversation}-{n}", "category": kind, "text": message["content"]}
                posts.setdefault(str(row.data["user_id"]), []).append((conversation, post))
    return posts


def _kind(row: Mapping[str, Any]) -> str:
    return str(row.get("conversation_type") or "conversation")


def conversation_pairs(surveys: Mapping[str, Row], posts: Posts, row: Row, line: int) -> Iterator[Row]:  # noqa: ARG001
    conversation, user = str(row["conversation_id"]), str(row["user_id"])
    survey = surveys.get(user, {})
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


@dataclass(frozen=True)
class RewardBench:
    inner: Source

    @property
    def name(self) -> str:
        return f"rewardbench?path={self.inner.name}"

    def rows(self) -> Iterator[RawRow]:
        return converted(self.inner, quality_problem, quality_pairs)


@DATASETS.register("rewardbench")
def rewardbench(path: str) -> Source:
    """A general-quality benchmark in RewardBench's format (path=FILE, a folder or hub:owner/name): no users."""
    return RewardBench(open_source(path))


def quality_problem(row: Any) -> str | None:
    if missing := missing_field(row, "prompt", "chosen", "rejected"):
        return missing
    if text_of(row["prompt"]) is None:
        return "`prompt` must be text or a list of messages"
    for field in ("chosen", "rejected"):
        if not answers_of(row[field]):
            return f"`{field}` must be text, a list of texts or a list of messages"
    return None


def quality_pairs(row: Row, line: int) -> Iterator[Row]:
    row_id = str(row.get("id", line))
    subset = str(row.get("subset") or "all")
    # ids of public files restart in each subset
    user = row_id if row_id.startswith(subset) else f"{subset}-{row_id}"
    chosen, rejected = answers_of(row["chosen"]), answers_of(row["rejected"])
    single = len(chosen) == len(rejected) == 1
    for n, better in enumerate(chosen, 1):
        for k, worse in enumerate(rejected, 1):
            pair: Row = {
                "id": user if single else f"{user}-{n}-{k}",
                "user": user,
                "question": text_of(row["prompt"]),
                "profile": [],
                "rubric_aspects": [],
                "narrative": "",
                "category": subset,
                "chosen": better,
                "rejected": worse,
            }
            yield pair | ({"split": row["split"]} if "split" in row else {})


def text_of(prompt: Any) -> str | None:
    """A prompt as one text, whether text or messages; `None` if it is neither."""
    if isinstance(prompt, str):
        return prompt
    if not prompt or not are_messages(prompt):
        return None
    if len(prompt) == 1:
        return str(prompt[0]["content"])
    return "\n\n".join(f"{m.get('role', 'user')}: {m['content']}" for m in prompt)


def answers_of(value: Any) -> list[str]:
    """One answer, several, or a conversation whose last message is the answer."""
    if isinstance(value, str):
        return [value]
    if value and are_messages(value):
        return [value[-1]["content"]]
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []
