"""One row of a dataset by its id."""

from __future__ import annotations

from typing import Any

from prb.data.source import open_source
from prb.errors import unknown


def find_row(spec: str, wanted: str) -> dict[str, Any]:
    ids = []
    for row in open_source(spec).rows():
        if isinstance(row.data, dict):
            ids.append(str(row.data.get("id")))
            if ids[-1] == wanted:
                found: dict[str, Any] = row.data
                return found
    raise unknown(f"row of {spec}", wanted, ids, hint=f"ids look like {ids[0]!r}" if ids else "it is empty")
