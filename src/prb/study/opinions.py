"""What single judgements say beyond a study's figures: how ratings are spread, and what was said of each item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
STEPS = range(1, 6)
ANSWERS = ("chosen", "rejected")
PREFERENCES = (*ANSWERS, "neither")


def ratings_given(rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    """For each criterion and answer, how often 1 to 5 was given."""
    criteria = dict.fromkeys(c for r in rows for said in r["ratings"].values() for c in said)
    given = Counter((c, a, score) for r in rows for a, said in r["ratings"].items() for c, score in said.items())
    return {c: {a: [given[c, a, step] for step in STEPS] for a in ANSWERS} for c in criteria}


def said_of_items(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each item: who prefers which answer before and after the wishes, why they differ, the mean of all ratings."""
    found: dict[str, list[Row]] = {}
    for r in rows:
        found.setdefault(r["item"], []).append(r)
    return [{"item": item, "n": len(said), **_said(said)} for item, said in found.items()]


def _said(rows: Sequence[Row]) -> dict[str, Any]:
    why = Counter(r["difference"] for r in rows if r["difference"])
    return {
        **{when: {p: sum(r[when] == p for r in rows) for p in PREFERENCES} for when in ("before", "after")},
        "difference": dict(sorted(why.items())),
        "means": {a: _mean([score for r in rows for score in r["ratings"].get(a, {}).values()]) for a in ANSWERS},
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
