"""Rows of a source, and what is wrong with them."""

from __future__ import annotations

from typing import Any

from prb.data.schema import normalize, row_problems
from prb.data.source import open_source

Row = dict[str, Any]


def read(spec: str) -> list[Row]:
    """All rows of a source, none of which has a problem of its own or breaks our format."""
    assert problems(spec) == []
    rows = [row.data for row in open_source(spec).rows()]
    assert [problem for row in rows if "chosen" in row for problem in row_problems(normalize(row), "pairs")] == []
    return rows


def problems(spec: str) -> list[str]:
    return [f"{row.place}:{row.line}: {row.problem}" for row in open_source(spec).rows() if row.problem]
