"""LaMP-QA (arXiv 2506.00137): questions from StackExchange, with past posts, a narrative and rubric aspects.

Published are questions without answers: one file or folder per category, JSON lists, JSONL or Parquet. They are records
for `prb build`. With `answers=FILE` (rows of `id`, `answer`, `score`) they become pairs: the answer with the highest
score against those below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from prb.data.check import CATEGORIES
from prb.data.schema import converted, identifier, number, spec_name, split_of, text
from prb.data.source import DATASETS, SPLITS, BadRow, RawRow, Row, Source, dict_row, open_rows
from prb.data.votes import Vote, one_or_all, ranks_by

_SPLIT_IN_ID = re.compile(r"\d+_([012])_\d+")
Answers = dict[str, list[tuple[float, str]]]


@DATASETS.register("lampqa")
def lampqa(path: str, answers: str = "") -> Source:
    """Questions with rubrics as published, for `prb build`; with answers=FILE, the best graded answer and the rest."""
    source, graded = open_rows(path), open_rows(answers) if answers else None
    return LampQA(spec_name(lampqa, source.name, answers=answers), source, graded)


@dataclass(frozen=True)
class LampQA:
    name: str
    inner: Source
    answers: Source | None

    def rows(self) -> Iterator[RawRow]:
        yield from self._graded[1]
        yield from converted(self.inner, self._row)

    @cached_property
    def _graded(self) -> tuple[Answers, list[RawRow]]:
        """Scores and answers by question, and the rows that are damaged."""
        graded: Answers = {}
        damaged = []
        for answer in converted(self.answers, _graded_answer) if self.answers else ():
            if isinstance(answer, RawRow):
                damaged.append(answer)
            else:
                graded.setdefault(answer[0], []).append(answer[1:])
        return graded, damaged

    def _row(self, row: Row, at: RawRow) -> Iterator[RawRow]:
        """The `category` of a row is its forum; the benchmark's category is in the name of the file or folder."""
        row_id = identifier(row, "id")
        category = next((c for c in CATEGORIES if c in at.place), None)
        known = {
            **row,
            **({"category": category} if category else {}),
            "profile": _objects(row, "profile", "text"),
            "rubric_aspects": _objects(row, "rubric_aspects", "aspect"),
            "narrative": row.get("narrative") or "",
        }
        if self.answers is None:
            yield dict_row(at.place, at.line, known)
            return
        graded = self._graded[0].get(row_id, [])
        ranks = ranks_by([score for score, _ in graded])
        if len(set(ranks)) < 2:
            return  # nothing to prefer
        question, answers = text(row, "question"), [answer for _, answer in graded]
        best, others = Vote(at, row_id, row_id, question, answers, ranks).sides()
        if not others:
            return
        in_id = _SPLIT_IN_ID.fullmatch(row_id)
        yield dict_row(
            at.place,
            at.line,
            {
                **known,
                "id": row_id,
                "question": question,
                "category": known.get("category") or "LaMP-QA",
                **({"split": SPLITS[int(in_id[1])]} if in_id else split_of(row)),
                "chosen": one_or_all(best),
                "rejected": one_or_all(others),
            },
        )


def _graded_answer(row: Row, at: RawRow) -> Iterator[tuple[str, float, str]]:  # noqa: ARG001
    yield identifier(row, "id"), number(row, "score"), text(row, "answer")


def _objects(row: Row, name: str, key: str) -> list[Row]:
    """A list of objects that have `key`, without the fields that are null."""
    value = row.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) and item.get(key) for item in value):
        raise BadRow(f"`{name}` must be a list of objects with `{key}`")
    return [{k: v for k, v in item.items() if v is not None} for item in value]
