"""RewardBench (Lambert et al., arXiv 2403.13787), RewardBench 2 (arXiv 2506.01937), and every file of the same shape.

A row is a prompt with chosen and rejected answers, without a user: there are no posts and no choices, so every model is
user-blind here. Several answers stay one row. `rewardbench` names its rows by subset and id; `preferences` is the plain
shape that trl trains on: texts, or messages whose last one is the answer, with the prompt in front if it is not a
column of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prb.data.rows import (
    BadRow,
    ConvertedSource,
    are_messages,
    conversation,
    field,
    messages_or_text,
    pair,
    spec_name,
    split_of,
    turns,
)
from prb.data.source import DATASETS, RawRow, Row, Source, open_rows


@DATASETS.register("rewardbench")
def rewardbench(path: str) -> Source:
    """A general-quality benchmark in RewardBench's format, 1 or 2 (path=FILE, a folder or hub:owner/name): no users."""
    source = open_rows(path)
    return ConvertedSource(spec_name("rewardbench", source.name), source, _pair)


@DATASETS.register("preferences")
def preferences(path: str) -> Source:
    """Plain preference data: prompt, chosen and rejected as texts or, as trl has them, as messages: no users."""
    source = open_rows(path)
    return ConvertedSource(spec_name("preferences", source.name), source, _pair)


def _pair(row: Row, at: RawRow) -> Iterator[RawRow]:
    if row.get("split") == "raw":  # RewardBench 1 on the hub: `filtered` is the part that is scored
        return
    subset = str(row.get("subset") or "all")
    row_id = str(row.get("id", at.line))
    if not row_id.startswith(subset):  # ids of public files restart in each subset
        row_id = f"{subset}-{row_id}"
    chosen, rejected = (messages_or_text(field(row, name)) for name in ("chosen", "rejected"))
    if row.get("prompt") is not None:
        prompt = messages_or_text(row["prompt"])
    elif not are_messages(chosen) or not are_messages(rejected):
        raise BadRow("`prompt` is missing")
    elif chosen[:-1] == rejected[:-1] and len(chosen) > 1:
        prompt = chosen[:-1]
    else:
        raise BadRow("`prompt` is missing, and `chosen` and `rejected` do not begin with the same messages")
    yield pair(
        at,
        id=row_id,
        user=row_id,
        **conversation(prompt, "prompt"),
        category=subset,
        chosen=_answers(chosen, "chosen"),
        rejected=_answers(rejected, "rejected"),
        **({} if row.get("split") == "filtered" else split_of(row)),
    )


def _answers(value: Any, name: str) -> str | list[str]:
    """One answer, several, or messages whose last one is the answer."""
    if isinstance(value, str):
        return value
    if are_messages(value):
        return turns(value, name)[-1]["text"]
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise BadRow(f"`{name}` must be text, a list of texts or a list of messages")
    return value if len(value) > 1 else value[0]
