"""General-quality benchmarks in RewardBench's format: a prompt, chosen and rejected answers, no user.

RewardBench (Lambert et al., arXiv 2403.13787) has one rejected answer per row, RewardBench 2 (arXiv 2506.01937) lists
of both. Each chosen answer with each rejected one is a pair; the pairs of a row are one cluster. There are no posts, so
every model is user-blind on such a dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prb.data.source import DATASETS, RawRow, Source, dict_row, open_source


@dataclass(frozen=True)
class RewardBench:
    inner: Source

    @property
    def name(self) -> str:
        return f"rewardbench?path={self.inner.name}"

    def rows(self) -> Iterator[RawRow]:
        for row in self.inner.rows():
            if problem := row.problem or problem_of(row.data):
                yield row._replace(problem=problem)
            else:
                yield from (dict_row(row.place, row.line, pair) for pair in pairs_of(row.data, row.line))


@DATASETS.register("rewardbench")
def rewardbench(path: str) -> Source:
    """A general-quality benchmark in RewardBench's format (path=FILE, a folder or hub:owner/name): no users."""
    return RewardBench(open_source(path))


def problem_of(row: Any) -> str | None:
    if not isinstance(row, dict):
        return "a row must be an object"
    for field in ("prompt", "chosen", "rejected"):
        if field not in row:
            return f"`{field}` is missing"
    if text_of(row["prompt"]) is None:
        return "`prompt` must be text or a list of messages"
    for field in ("chosen", "rejected"):
        if not answers_of(row[field]):
            return f"`{field}` must be text, a list of texts or a list of messages"
    return None


def pairs_of(row: dict[str, Any], line: int) -> Iterator[dict[str, Any]]:
    row_id = str(row.get("id", line))
    subset = str(row.get("subset") or "all")
    # ids of public files restart in each subset
    user = row_id if row_id.startswith(subset) else f"{subset}-{row_id}"
    chosen, rejected = answers_of(row["chosen"]), answers_of(row["rejected"])
    single = len(chosen) == len(rejected) == 1
    for n, better in enumerate(chosen, 1):
        for k, worse in enumerate(rejected, 1):
            pair: dict[str, Any] = {
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
    if not _is_chat(prompt):
        return None
    if len(prompt) == 1:
        return str(prompt[0]["content"])
    return "\n\n".join(f"{m.get('role', 'user')}: {m['content']}" for m in prompt)


def answers_of(value: Any) -> list[str]:
    """One answer, several, or a conversation whose last message is the answer."""
    if isinstance(value, str):
        return [value]
    if _is_chat(value):
        return [value[-1]["content"]]
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in value)
    )
