"""PrefEval (arXiv 2502.09597): 1,000 preferences in 20 topics, each with a question whose obvious answer breaks it.

The published folder (`mcq_options`, `explicit_preference`, `implicit_preference`) holds one JSON list per topic; the
lists of a topic are aligned by position. The first of four options follows the preference, the others break it. How the
user is known is the `form`: `persona`, chat messages that mention the preference; `choice`, a past selection among
options; `explicit`, the preference itself. Written by an LLM, not by people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prb.data.rows import BadRow, converted, field, folder_of, items, pair, posts, spec_name, text
from prb.data.source import DATASETS, RawRow, Row, Source, file_source
from prb.errors import BadInput

OPTIONS = "mcq_options"
FORMS = {
    "persona": "implicit_preference/persona-driven",
    "choice": "implicit_preference/choice-based",
    "explicit": "explicit_preference",
}


@dataclass(frozen=True)
class Settings:
    form: Literal["persona", "choice", "explicit"] = "persona"
    """How the preference shows."""


@DATASETS.register("prefeval")
def prefeval(path: str, settings: Settings) -> Source:
    """The option that follows a user's preference against three that break it: the published folder, or one file."""
    root = folder_of(path, "prefeval")
    if root.is_dir():
        root = next((p for p in (root, root / "benchmark_dataset") if (p / OPTIONS).is_dir()), root)
        for name in (OPTIONS, FORMS[settings.form]):
            if not (root / name).is_dir():
                raise BadInput(f"dataset 'prefeval': {root / name} does not exist")
    return PrefEval(spec_name("prefeval", path, settings), root, settings.form)


@dataclass(frozen=True)
class PrefEval:
    name: str
    root: Path
    form: str

    def rows(self) -> Iterator[RawRow]:
        if self.root.is_file():
            yield from converted(file_source(self.root), self._joined)
            return
        for path in sorted((self.root / OPTIONS).glob("*.json")):
            history = self.root / FORMS[self.form] / path.name
            if history.is_file():  # a stray copy of a topic has no counterpart
                yield from self._topic(path, history)

    def _topic(self, options: Path, histories: Path) -> Iterator[RawRow]:
        counterparts = file_source(histories).rows()

        def convert(row: Row, at: RawRow) -> Iterator[RawRow]:
            other = next(counterparts, None)
            if other is None or not isinstance(other.data, dict) or other.data.get("question") != row.get("question"):
                raise BadRow(f"`question` is not that of the same row of {FORMS[self.form]}/{histories.name}")
            row_id, topic = f"{options.stem}-{at.line}", options.stem
            answers = items(row, "classification_task_options")
            history = _history(self.form, other.data, row_id)
            yield _pair(at, row_id, topic, text(row, "question"), answers, text(row, "preference"), row, history)

        return converted(file_source(options), convert)

    def _joined(self, row: Row, at: RawRow) -> Iterator[RawRow]:
        """A row that holds all forms at once, in our own format with `rejected_all` and `implicit_choice`."""
        row_id = str(field(row, "id"))
        preference = text(row, "narrative")
        answers = [text(row, "chosen"), *items(row, "rejected_all")]
        if self.form == "persona":
            history: Row = {"profile": items(row, "profile")}
        else:
            history = _history(
                self.form, {"preference": preference, "conversation": row.get("implicit_choice")}, row_id
            )
        yield _pair(at, row_id, text(row, "category"), text(row, "question"), answers, preference, row, history)


def _pair(
    at: RawRow, row_id: str, topic: str, question: str, answers: list[Any], preference: str, row: Row, history: Row
) -> RawRow:
    if not all(isinstance(answer, str) and answer.strip() for answer in answers) or len(answers) < 2:
        raise BadRow("an option must be text, and there must be at least two")
    aspect = {"aspect": preference, "evidence": preference, "reason": str(row.get("explanation") or "")}
    return pair(
        at,
        id=row_id,
        user=row_id,
        question=question,
        category=topic,
        chosen=answers[0],
        rejected=answers[1:] if len(answers) > 2 else answers[1],
        rubric_aspects=row.get("rubric_aspects") or [aspect],
        narrative=preference,
        **history,
    )


def _history(form: str, row: Row, row_id: str) -> Row:
    """What a model may know of the user, as fields of a row."""
    if form == "explicit":
        return {"profile": posts([text(row, "preference")], row_id, "preference")}
    conversation = field(row, "conversation")
    if not isinstance(conversation, dict):
        raise BadRow("`conversation` must be an object")
    if form == "persona":
        messages = [text(turn, "user") for turn in conversation.values() if isinstance(turn, dict)]
        return {"profile": posts(messages, row_id, "chat")}
    # the selection is described in words only, so this is a post and not a choice
    parts = [text(conversation, name) for name in ("query", "assistant_options", "user_selection")]
    return {"profile": posts(["\n\n".join(parts)], row_id, "chat")}
