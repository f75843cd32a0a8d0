"""PrefEval (arXiv 2502.09597): 1,000 preferences in 20 topics, each with a question whose obvious answer breaks it.

The published folder (`mcq_options`, `explicit_preference`, `implicit_preference`) holds one JSON list per topic; the
lists of a topic are aligned by position. The first of four options follows the preference, the others break it. How
the user is known is the `form`: `persona`, chat messages that mention the preference; `choice`, a past selection
among options; `explicit`, the preference itself. Written by an LLM, not by people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from prb.data.schema import converted, field, folder_of, items, pair, posts, spec_name, text
from prb.data.source import DATASETS, BadRow, RawRow, Row, Source, file_source
from prb.errors import BadInput

OPTIONS = "mcq_options"
FORMS = {
    "persona": "implicit_preference/persona-driven",
    "choice": "implicit_preference/choice-based",
    "explicit": "explicit_preference",
}


@DATASETS.register("prefeval")
def prefeval(path: str, form: Literal["persona", "choice", "explicit"] = "persona") -> Source:
    """The option that follows a user's preference against three that break it: path=FOLDER as published."""
    root = folder_of(path, "prefeval")
    root = next((p for p in (root, root / "benchmark_dataset") if (p / OPTIONS).is_dir()), root)
    for name in (OPTIONS, FORMS[form]):
        if not (root / name).is_dir():
            raise BadInput(f"dataset 'prefeval': {root / name} does not exist")
    return PrefEval(spec_name(prefeval, path, form=form), root, form)


@dataclass(frozen=True)
class PrefEval:
    name: str
    root: Path
    form: str

    def rows(self) -> Iterator[RawRow]:
        for path in sorted((self.root / OPTIONS).glob("*.json")):
            history = self.root / FORMS[self.form] / path.name
            if history.is_file():  # a stray copy of a topic has no counterpart
                counterparts = file_source(history).rows()
                yield from converted(file_source(path), partial(self._pair, path.stem, counterparts))

    def _pair(self, topic: str, counterparts: Iterator[RawRow], row: Row, at: RawRow) -> Iterator[RawRow]:
        other = next(counterparts, None)
        if other is None or not isinstance(other.data, dict) or other.data.get("question") != row.get("question"):
            raise BadRow(f"`question` is not that of the same row of {FORMS[self.form]}/{topic}.json")
        row_id, preference = f"{topic}-{at.line}", text(row, "preference")
        answers = items(row, "classification_task_options")
        if not all(isinstance(answer, str) and answer.strip() for answer in answers) or len(answers) < 2:
            raise BadRow("an option must be text, and there must be at least two")
        reason = str(row.get("explanation") or "")
        yield pair(
            at,
            id=row_id,
            user=row_id,
            question=text(row, "question"),
            category=topic,
            chosen=answers[0],
            rejected=answers[1:] if len(answers) > 2 else answers[1],
            rubric_aspects=[{"aspect": preference, "evidence": preference, "reason": reason}],
            narrative=preference,
            profile=self._posts(other.data, row_id),
        )

    def _posts(self, row: Row, row_id: str) -> list[dict[str, str]]:
        """What a model may know of the user."""
        if self.form == "explicit":
            return posts([text(row, "preference")], row_id, "preference")
        chat = field(row, "conversation")
        if not isinstance(chat, dict):
            raise BadRow("`conversation` must be an object")
        if self.form == "persona":
            return posts([text(turn, "user") for turn in chat.values() if isinstance(turn, dict)], row_id, "chat")
        # the selection is described in words only, so this is a post and not a choice
        parts = [text(chat, name) for name in ("query", "assistant_options", "user_selection")]
        return posts(["\n\n".join(parts)], row_id, "chat")
