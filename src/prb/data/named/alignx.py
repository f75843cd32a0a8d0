"""AlignX (arXiv 2503.15463): 1.3 million preferences of Reddit users, each with comments and earlier preferences.

Every row carries its user along: a description, comments on other posts, and pairs they preferred elsewhere. P-Soups,
a benchmark file beside it, has `profile` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prb.data.schema import ConvertedSource, pair, posts, spec_name, text
from prb.data.source import DATASETS, BadRow, RawRow, Row, Source, open_rows


@DATASETS.register("alignx")
def alignx(path: str) -> Source:
    """The answer a user would prefer, given a description, four comments and four earlier preferences of theirs."""
    source = open_rows(path)
    return ConvertedSource(spec_name(alignx, source.name), source, _alignx_row)


def _alignx_row(row: Row, at: RawRow) -> Iterator[RawRow]:
    def objects(name: str) -> list[dict[str, Any]]:
        value = row.get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise BadRow(f"`{name}` must be a list of objects")
        return value

    row_id = str(row.get("id") or f"{at.place.rsplit('.', 1)[0]}-{at.line}")
    descriptions = [str(row[key]) for key in ("Demographic Information", "profile") if row.get(key)]
    comments = [f"{text(c, 'prompt')}\n\n{text(c, 'comment')}" for c in objects("User-Generated Content")]
    earlier = objects("Pair-wise Comparative Feedback")
    yield pair(
        at,
        id=row_id,
        user=row_id,
        question=text(row, "prompt"),
        chosen=text(row, "chosen"),
        rejected=text(row, "rejected"),
        category="alignx",
        profile=[*posts(descriptions, f"{row_id}-about", "about"), *posts(comments, row_id, "comment")],
        choices=[
            {"question": text(p, "prompt"), "chosen": text(p, "chosen"), "rejected": text(p, "rejected")}
            for p in earlier
        ],
    )
