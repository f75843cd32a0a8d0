"""Other results: runs of grade, train and build, as the tables and lines their commands print."""

from __future__ import annotations

from functools import partial
from typing import Any

from prb.reporting.exports import tables_of
from prb.reporting.gather import Inputs, prepared

KINDS = ("grade", "train", "build")


def build(inputs: Inputs) -> list[tuple[str, Any]] | None:
    results = [{"kind": kind, **run} for kind in KINDS for run in prepared(inputs, kind, partial(_tables, kind))]
    return [("other", results)] if results else None


def _tables(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"tables": [table._asdict() for table in tables_of(kind, content)]}
