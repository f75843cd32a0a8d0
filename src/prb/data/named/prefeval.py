"""PrefEval (arXiv 2502.09597): 1,000 preferences in 20 topics, each with a question whose obvious answer breaks it.

The published folder (`mcq_options`, `explicit_preference`, `implicit_preference`) holds one JSON list per topic; the
lists of a topic are aligned by position. The first of four options follows the preference, the others break it. How
the user is known is the `form`: `persona`, chat messages that mention the preference; `choice`, a past selection
among options; `explicit`, the preference itself. Written by an LLM, not by people.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from prb.data.schema import AnyText, Foreign, Text, converted, folder_of, pair, posts, spec_name, text
from prb.data.source import DATASETS, BadRow, RawRow, Row, RowSource, Source, file_source
from prb.data.votes import one_or_all
from prb.errors import BadInput

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

    return RowSource(spec_name(prefeval, path, form=form), rows)
