"""LaMP-QA (arXiv 2506.00137): questions from StackExchange, with past posts, a narrative and rubric aspects.

Published are questions without answers: one file or folder per category, JSON lists, JSONL or Parquet. They are records
for `prb build`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prb.data.check import CATEGORIES
from prb.data.schema import converted, identifier, spec_name
from prb.data.source import DATASETS, BadRow, RawRow, Row, RowSource, Source, dict_row, open_rows


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

    return RowSource(spec_name(lampqa, source.name), partial(converted, source, convert))
