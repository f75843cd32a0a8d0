"""Sets whose rows are pairs, or records, as published: AlignX, LaMP-QA, PersonaMem, PrefEval, RewardBench."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from prb.data.check import CATEGORIES
from prb.data.schema import (
    AnyText,
    Foreign,
    Text,
    conversation,
    converted,
    field,
    folder_of,
    identifier,
    items,
    literal,
    pair,
    posts,
    table,
    text,
    turns,
)
from prb.data.source import DATASETS, BadRow, RawRow, Row, RowSource, Source, dict_row, file_source, open_rows
from prb.data.votes import one_or_all
from prb.errors import BadInput

# AlignX (arXiv 2503.15463): 1.3 million preferences of Reddit users. Every row carries its user along: a description,
# comments on other posts, and pairs they preferred elsewhere.


class Comment(Foreign):
    prompt: Text
    comment: Text


class AlignXChoice(Foreign):
    prompt: Text
    chosen: Text
    rejected: Text


class AlignXRow(AlignXChoice):
    id: Any = None
    description: AnyText = Field("", alias="Demographic Information")
    comments: list[Comment] = Field([], alias="User-Generated Content")
    earlier: list[AlignXChoice] = Field([], alias="Pair-wise Comparative Feedback")


@DATASETS.register("alignx")
def alignx(path: str) -> Source:
    """The answer a user would prefer, given a description, four comments and four earlier preferences of theirs."""
    source = open_rows(path)

    def convert(given: Row, at: RawRow) -> Iterator[RawRow]:
        row = AlignXRow.read(given)
        row_id = str(row.id or f"{at.place.rsplit('.', 1)[0]}-{at.line}")
        comments = [f"{comment.prompt}\n\n{comment.comment}" for comment in row.comments]
        yield pair(
            at,
            id=row_id,
            user=row_id,
            question=row.prompt,
            chosen=row.chosen,
            rejected=row.rejected,
            category="alignx",
            profile=[*posts([row.description], f"{row_id}-about", "about"), *posts(comments, row_id, "comment")],
            choices=[{"question": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in row.earlier],
        )

    return RowSource(partial(converted, source, convert))


# LaMP-QA (arXiv 2506.00137): questions from StackExchange, with past posts, a narrative and rubric aspects. Published
# are questions without answers: one file or folder per category, JSON lists, JSONL or Parquet.


@DATASETS.register("lampqa")
def lampqa(path: str) -> Source:
    """Questions with rubrics as published, for `prb build`."""
    source = open_rows(path)

    def convert(row: Row, at: RawRow) -> Iterator[RawRow]:
        """The `category` of a row is its forum; the benchmark's category is in the name of the file or folder."""
        made = {**row, "id": identifier(row, "id"), "narrative": row.get("narrative") or ""}
        if category := next((c for c in CATEGORIES if c in at.place), None):
            made["category"] = category
        for name, key in (("profile", "text"), ("rubric_aspects", "aspect")):
            objects = row.get(name) or []
            if not isinstance(objects, list) or not all(isinstance(item, dict) and item.get(key) for item in objects):
                raise BadRow(f"`{name}` must be a list of objects with `{key}`")
            made[name] = [{k: v for k, v in item.items() if v is not None} for item in objects]
        yield dict_row(at.place, at.line, made)

    return RowSource(partial(converted, source, convert))


# PersonaMem (arXiv 2504.14225) and PersonaMem-v2: simulated users, long chats, four answers to the next message. The
# chat before the question is the user's history: every message of theirs is a post, so that the conditions `none` and
# `shuffled` take it away. (The official evaluation shows the whole conversation as turns.)

LETTER = re.compile(r"^\(([a-z])\)\s*", re.IGNORECASE)


@DATASETS.register("personamem")
def personamem(path: str, size: Literal["32k", "128k", "1M"] = "32k") -> Source:
    """The reply that fits what the user said in a long chat against three others: version 1 or 2, a folder or a CSV."""
    root = folder_of(path, "personamem")
    names = (f"questions_{size}.csv", "benchmark/text/benchmark.csv", "benchmark.csv")
    questions = next((root / name for name in names if (root / name).is_file()), None) if root.is_dir() else root
    if questions is None:
        raise BadInput(f"dataset 'personamem': {path} holds none of {', '.join(names)}")
    return RowSource(partial(converted, file_source(questions), PersonaMem(questions, size).pair))


@dataclass(frozen=True)
class PersonaMem:
    path: Path
    size: str
    """Length of the chats in tokens."""

    def pair(self, row: Row, at: RawRow) -> Iterator[RawRow]:
        yield self._version_2(row, at) if "user_query" in row else self._version_1(row, at)

    def _version_1(self, row: Row, at: RawRow) -> RawRow:
        options = {}
        for option in items(row, "all_options"):
            letter = LETTER.match(str(option))
            if letter is None:
                raise BadRow(f"`all_options` must hold texts that begin with (a), (b), …, not {str(option)[:20]!r}")
            options[letter[1].lower()] = str(option)[letter.end() :]
        right = text(row, "correct_answer").strip().strip("()").lower()
        if right not in options:
            raise BadRow(f"`correct_answer` is {row['correct_answer']!r}, which is none of the options")
        end = text(row, "end_index_in_shared_context").strip()
        if not end.isdecimal() or len(end) > 9:
            raise BadRow("`end_index_in_shared_context` must be an integer")
        name, user = identifier(row, "shared_context_id"), f"persona{identifier(row, 'persona_id')}"
        if name not in self._chats:
            raise BadRow(f"`shared_context_id` {name!r} is not in the file of shared contexts")
        return pair(
            at,
            id=identifier(row, "question_id"),
            user=user,
            question=text(row, "user_question_or_message"),
            chosen=options.pop(right),
            rejected=list(options.values()),
            category=text(row, "question_type"),
            topic=row.get("topic"),
            profile=_posts(self._chats[name], user, int(end)),
        )

    def _version_2(self, row: Row, at: RawRow) -> RawRow:
        query = literal(field(row, "user_query"))
        asked = conversation([query] if isinstance(query, dict) else query, "user_query")
        user, link = f"persona{identifier(row, 'persona_id')}", f"chat_history_{self.size}_link"
        chat = text(row, link)  # links begin at the root of the dataset, which is a folder above the CSV
        path = next((p / chat for p in self.path.parents[:4] if (p / chat).is_file()), None)
        if path is None or Path(chat).is_absolute() or ".." in Path(chat).parts:
            raise BadRow(f"`{link}` {chat!r} does not exist")
        try:
            chats = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError:
            raise BadRow(f"{chat} is broken JSON") from None
        preference = str(row.get("preference") or "")
        return pair(
            at,
            id=f"{user}-{at.line}",
            user=user,
            question=asked["question"],
            chosen=text(row, "correct_answer"),
            rejected=[str(answer) for answer in items(row, "incorrect_answers")],
            category=str(row.get("pref_type") or "preference"),
            topic=row.get("conversation_scenario"),
            rubric_aspects=[{"aspect": preference}] if preference else [],
            narrative=preference,
            groups={key: str(row[key]) for key in ("updated", "who") if row.get(key)},
            profile=_posts(chats.get("chat_history") if isinstance(chats, dict) else chats, user),
        )

    @cached_property
    def _chats(self) -> dict[str, Any]:
        """The shared contexts by id."""
        path = self.path.with_name(self.path.stem.replace("questions", "shared_contexts") + ".jsonl")
        return {name: chat for row in table(path) for name, chat in row.items()}


def _posts(chat: Any, user: str, end: int | None = None) -> list[dict[str, str]]:
    messages = turns(chat, "chat history")[:end]
    return posts([turn["text"] for turn in messages if turn["role"] != "assistant"], user, "chat")


# PrefEval (arXiv 2502.09597): 1,000 preferences in 20 topics, each with a question whose obvious answer breaks it. The
# published folder (`mcq_options`, `explicit_preference`, `implicit_preference`) holds one JSON list per topic; the
# lists of a topic are aligned by position. The first of four options follows the preference, the others break it. How
# the user is known is the `form`: `persona`, chat messages that mention the preference; `choice`, a past selection
# among options; `explicit`, the preference itself. Written by an LLM, not by people.

OPTIONS = "mcq_options"
FORMS = {
    "persona": "implicit_preference/persona-driven",
    "choice": "implicit_preference/choice-based",
    "explicit": "explicit_preference",
}


class Preference(Foreign):
    question: Text
    preference: Text
    explanation: AnyText = ""


class Question(Preference):
    classification_task_options: Annotated[list[Text], Field(min_length=2)]


class Known(Preference):
    conversation: dict[str, Any] = Field({})


@DATASETS.register("prefeval")
def prefeval(path: str, form: Literal["persona", "choice", "explicit"] = "persona") -> Source:
    """The option that follows a user's preference against three that break it: path=FOLDER as published."""
    root = folder_of(path, "prefeval")
    root = next((p for p in (root, root / "benchmark_dataset") if (p / OPTIONS).is_dir()), root)
    for name in (OPTIONS, FORMS[form]):
        if not (root / name).is_dir():
            raise BadInput(f"dataset 'prefeval': {root / name} does not exist")

    def rows() -> Iterator[RawRow]:
        for file in sorted((root / OPTIONS).glob("*.json")):
            history = root / FORMS[form] / file.name
            if history.is_file():  # a stray copy of a topic has no counterpart
                yield from converted(file_source(file), partial(convert, file, file_source(history).rows()))

    def convert(file: Path, counterparts: Iterator[RawRow], row: Row, at: RawRow) -> Iterator[RawRow]:
        other = next(counterparts, None)
        if other is None or not isinstance(other.data, dict) or other.data.get("question") != row.get("question"):
            raise BadRow(f"`question` is not that of the same row of {FORMS[form]}/{file.name}")
        asked, known = Question.read(row), Known.read(other.data)
        row_id, chat = f"{file.stem}-{at.line}", known.conversation
        if form == "explicit":
            texts = [known.preference]
        elif form == "persona":
            texts = [text(turn, "user") for turn in chat.values() if isinstance(turn, dict)]
        else:  # the selection is described in words only, so this is a post and not a choice
            texts = ["\n\n".join(text(chat, name) for name in ("query", "assistant_options", "user_selection"))]
        yield pair(
            at,
            id=row_id,
            user=row_id,
            question=asked.question,
            category=file.stem,
            chosen=asked.classification_task_options[0],
            rejected=one_or_all(asked.classification_task_options[1:]),
            rubric_aspects=[{"aspect": asked.preference, "evidence": asked.preference, "reason": asked.explanation}],
            narrative=asked.preference,
            profile=posts(texts, row_id, "preference" if form == "explicit" else "chat"),
        )

    return RowSource(rows)


# RewardBench (Lambert et al., arXiv 2403.13787), RewardBench 2 (arXiv 2506.01937), and every file of the same shape: a
# row is a prompt with chosen and rejected answers and a subset. Their own rows have no user: there are no posts and no
# choices, so every model is user-blind on them.


@DATASETS.register("rewardbench")
def rewardbench(path: str) -> Source:
    """A general-quality benchmark in RewardBench's format, 1 or 2 (path=FILE, a folder or hub:owner/name): no users."""
    source = open_rows(path)

    def convert(row: Row, at: RawRow) -> Iterator[RawRow]:
        """The row under our names, whatever else it holds."""
        row, part = dict(row), row.get("split")
        if part == "raw":  # RewardBench 1 on the hub: `filtered` is the part that is scored
            return
        if part == "filtered":
            del row["split"]
        if row.get("prompt") is not None:
            row = {"question": row.pop("prompt"), **row}
        subset = str(row.pop("subset", None) or "all")
        row_id = str(row.get("id", at.line))
        if not row_id.startswith(subset):  # ids of public files restart in each subset
            row_id = f"{subset}-{row_id}"
        yield dict_row(at.place, at.line, {**row, "id": row_id, "category": subset})

    return RowSource(partial(converted, source, convert))
