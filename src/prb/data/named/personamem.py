"""PersonaMem (arXiv 2504.14225) and PersonaMem-v2: simulated users, long chats, four answers to the next message.

The chat before the question is the user's history: every message of theirs is a post, so that the conditions `none` and
`shuffled` take it away. (The official evaluation shows the whole conversation as turns.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import orjson

from prb.data.schema import (
    conversation,
    converted,
    field,
    folder_of,
    identifier,
    items,
    literal,
    pair,
    posts,
    spec_name,
    table,
    text,
    turns,
)
from prb.data.source import DATASETS, BadRow, RawRow, Row, RowSource, Source, file_source
from prb.errors import BadInput

OPTION = re.compile(r"^\(([a-z])\)\s*", re.IGNORECASE)


@DATASETS.register("personamem")
def personamem(path: str, size: Literal["32k", "128k", "1M"] = "32k") -> Source:
    """The reply that fits what the user said in a long chat against three others: version 1 or 2, a folder or a CSV."""
    root = folder_of(path, "personamem")
    names = (f"questions_{size}.csv", "benchmark/text/benchmark.csv", "benchmark.csv")
    questions = next((root / name for name in names if (root / name).is_file()), None) if root.is_dir() else root
    if questions is None:
        raise BadInput(f"dataset 'personamem': {path} holds none of {', '.join(names)}")
    name = spec_name(personamem, path, size=size)
    return RowSource(name, partial(converted, file_source(questions), PersonaMem(questions, size).pair))


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
            letter = OPTION.match(str(option))
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
