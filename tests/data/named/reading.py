"""Rows of a source, and what is wrong with them."""

from __future__ import annotations

from typing import Any

from prb.data.source import open_source

Row = dict[str, Any]


def read(spec: str) -> list[Row]:
    """All rows of a source without problems."""
    assert problems(spec) == []
    return [row.data for row in open_source(spec).rows()]


def problems(spec: str) -> list[str]:
    return [f"{row.place}:{row.line}: {row.problem}" for row in open_source(spec).rows() if row.problem]
