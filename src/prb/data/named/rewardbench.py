"""RewardBench (Lambert et al., arXiv 2403.13787), RewardBench 2 (arXiv 2506.01937), and every file of the same shape.

A row is a prompt with chosen and rejected answers, without a user: there are no posts and no choices, so every model is
user-blind here. Several answers stay one row. `rewardbench` names its rows by subset and id; `preferences` is the plain
shape that trl trains on: texts, or messages whose last one is the answer, with the prompt in front if it is not a
column of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prb.data.rows import (
    BadRow,
    Row,
    are_messages,
    conversation,
    converted,
    field,
    messages_or_text,
    pair,
    spec_name,
    split_of,
    turns,
)
from prb.data.source import DATASETS, RawRow, Source, open_rows


@dataclass(frozen=True)
class Preferences:
    kind: str
    inner: Source

    @property
    def name(self) -> str:
        return spec_name(self.kind, self.inner.name)

    def rows(self) -> Iterator[RawRow]:
        return converted(self.inner, _pair)


@DATASETS.register("rewardbench")
def rewardbench(path: str) -> Source:
    """A general-quality benchmark in RewardBench's format, 1 or 2 (path=FILE, a folder or hub:owner/name): no users."""
    return Preferences("rewardbench", open_rows(path))


@DATASETS.register("preferences")
def preferences(path: str) -> Source:
    """Plain preference data: prompt, chosen and rejected as texts or, as trl has them, as messages: no users."""
    return Preferences("preferences", open_rows(path))


def _pair(row: Row, at: RawRow) -> Iterator[RawRow]:
    if row.get("split") == "raw":  # RewardBench 1 on the hub: `filtered` is the part that is scored
        return
    subset = str(row.get("subset") or "all")
    row_id = str(row.get("id", at.line))
    own = row_id if row_id.startswith(subset) else f"{subset}-{row_id}"  # ids of public files restart in each subset
    chosen, rejected = (messages_or_text(field(row, name)) for name in ("chosen", "rejected"))
    if row.get("prompt") is not None:
        prompt = messages_or_text(row["prompt"])
    elif are_messages(chosen) and are_messages(rejected):
        prompt = _shared(chosen, rejected)
    else:
        raise BadRow("`prompt` is missing")
    yield pair(
        at,
        id=own,
        user=own,
        **conversation(prompt, "prompt"),
        category=subset,
        chosen=_answers(chosen, "chosen"),
        rejected=_answers(rejected, "rejected"),
        **({} if row.get("split") == "filtered" else split_of(row)),
    )


def _shared(chosen: list[Any], rejected: list[Any]) -> list[Any]:
    """The messages before the answers, where no column holds the prompt."""
    if chosen[:-1] != rejected[:-1] or len(chosen) < 2:
        raise BadRow("`prompt` is missing, and `chosen` and `rejected` do not begin with the same messages")
    return chosen[:-1]


def _answers(value: Any, name: str) -> str | list[str]:
    """One answer, several, or messages whose last one is the answer."""
    if isinstance(value, str):
        return value
    if are_messages(value):
        return turns(value, name)[-1]["text"]
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise BadRow(f"`{name}` must be text, a list of texts or a list of messages")
    return value if len(value) > 1 else value[0]
