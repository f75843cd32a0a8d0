"""AlignX (arXiv 2503.15463): 1.3 million preferences of Reddit users, each with comments and earlier preferences.

Every row carries its user along: a description, comments on other posts, and pairs they preferred elsewhere. P-Soups,
a benchmark file beside it, has `profile` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic import Field

from prb.data.schema import AnyText, Foreign, Text, converted, pair, posts, spec_name
from prb.data.source import DATASETS, RawRow, Row, RowSource, Source, open_rows


class Comment(Foreign):
    prompt: Text
    comment: Text


class Preference(Foreign):
    prompt: Text
    chosen: Text
    rejected: Text


class AlignXRow(Preference):
    id: Any = None
    description: AnyText = Field("", alias="Demographic Information")
    profile: AnyText = ""
    comments: list[Comment] = Field([], alias="User-Generated Content")
    earlier: list[Preference] = Field([], alias="Pair-wise Comparative Feedback")


@DATASETS.register("alignx")
def alignx(path: str) -> Source:
    """The answer a user would prefer, given a description, four comments and four earlier preferences of theirs."""
    source = open_rows(path)

    def convert(given: Row, at: RawRow) -> Iterator[RawRow]:
        row = AlignXRow.read(given)
        row_id = str(row.id or f"{at.place.rsplit('.', 1)[0]}-{at.line}")
        descriptions = filter(None, (row.description, row.profile))
        comments = [f"{comment.prompt}\n\n{comment.comment}" for comment in row.comments]
        yield pair(
            at,
            id=row_id,
            user=row_id,
            question=row.prompt,
            chosen=row.chosen,
            rejected=row.rejected,
            category="alignx",
            profile=[*posts(descriptions, f"{row_id}-about", "about"), *posts(comments, row_id, "comment")],
            choices=[{"question": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in row.earlier],
        )

    return RowSource(spec_name(alignx, source.name), partial(converted, source, convert))
