"""LaMP-QA (arXiv 2506.00137): questions from StackExchange, with past posts, a narrative and rubric aspects.

Published are questions without answers: one file or folder per category, JSON lists, JSONL or Parquet. They are records
for `prb build`. With `answers=FILE` (rows of `id`, `answer`, `score`) they become pairs: the answer with the highest
score against those below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from prb.data.check import CATEGORIES
from prb.data.schema import converted, identifier, number, spec_name, split_of, text
from prb.data.source import DATASETS, SPLITS, BadRow, RawRow, Row, RowSource, Source, dict_row, open_rows
from prb.data.votes import Vote, one_or_all, ranks_by

_SPLIT_IN_ID = re.compile(r"\d+_([012])_\d+")


@DATASETS.register("lampqa")
def lampqa(path: str, answers: str = "") -> Source:
    """Questions with rubrics as published, for `prb build`; with answers=FILE, the best graded answer and the rest."""
    source, answer_source = open_rows(path), open_rows(answers) if answers else None

    @cache
    def graded() -> tuple[dict[str, list[tuple[float, str]]], list[RawRow]]:
        """Scores and answers by question, and the rows that are damaged."""
        by_question: dict[str, list[tuple[float, str]]] = {}
        damaged = []

        def read(row: Row, _: RawRow) -> Iterator[tuple[str, float, str]]:
            yield identifier(row, "id"), number(row, "score"), text(row, "answer")

        for answer in converted(answer_source, read) if answer_source else ():
            if isinstance(answer, RawRow):
                damaged.append(answer)
            else:
                by_question.setdefault(answer[0], []).append(answer[1:])
        return by_question, damaged

    def rows() -> Iterator[RawRow]:
        yield from graded()[1]
        yield from converted(source, convert)

    def convert(row: Row, at: RawRow) -> Iterator[RawRow]:
        """The `category` of a row is its forum; the benchmark's category is in the name of the file or folder."""
        row_id = identifier(row, "id")
        made = {**row, "narrative": row.get("narrative") or ""}
        if category := next((c for c in CATEGORIES if c in at.place), None):
            made["category"] = category
        for name, key in (("profile", "text"), ("rubric_aspects", "aspect")):
            objects = row.get(name) or []
            if not isinstance(objects, list) or not all(isinstance(item, dict) and item.get(key) for item in objects):
                raise BadRow(f"`{name}` must be a list of objects with `{key}`")
            made[name] = [{k: v for k, v in item.items() if v is not None} for item in objects]
        if answer_source is None:
            yield dict_row(at.place, at.line, made)
            return
        scored = graded()[0].get(row_id, [])
        ranks, texts = ranks_by([score for score, _ in scored]), [answer for _, answer in scored]
        best, others = Vote(at, row_id, row_id, str(row.get("question")), texts, ranks).sides()
        if others:
            in_id = _SPLIT_IN_ID.fullmatch(row_id)
            made |= {"split": SPLITS[int(in_id[1])]} if in_id else split_of(row)
            made |= {"id": row_id, "question": text(row, "question"), "category": made.get("category") or "LaMP-QA"}
            yield dict_row(at.place, at.line, made | {"chosen": one_or_all(best), "rejected": one_or_all(others)})

    return RowSource(spec_name(lampqa, source.name, answers=answers), rows)
