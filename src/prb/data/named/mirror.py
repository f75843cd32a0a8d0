"""The embedded benchmark: one file a couple, two people whose needs conflict, six questions both might ask.

A file holds each text once. Rows in the public schema are unfolded from it: every question gives two rows,
the same answers with the labels swapped, so a model that ignores the person scores exactly 50 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import orjson

from prb.data.registry import DATASETS
from prb.data.source import RawRow, Source, dict_row

VERSION = "1.0"


class Mirror:
    name = "mirror"

    def rows(self) -> Iterator[RawRow]:
        folder = files("prb.data") / "mirror" / "couples"
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            couple = orjson.loads(entry.read_bytes())
            for line, row in enumerate(unfold_couple(couple), 1):
                yield dict_row(entry.name, line, row)


@DATASETS.register("mirror")
def mirror() -> Source:
    """The embedded benchmark of mirror pairs, written for this project (English, CC-BY-4.0)."""
    return Mirror()


def unfold_couple(couple: dict[str, Any]) -> Iterator[dict[str, Any]]:
    profiles = {who: _profile(who, person["posts"]) for who, person in couple["people"].items()}
    for number, question in enumerate(couple["questions"], 1):
        first, second = couple["people"]
        for who, other in ((first, second), (second, first)):
            yield _row(couple, number, question, who, other, profiles[who])


def _profile(who: str, posts: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"id": f"{who}-{n:02}", "category": p["category"], "text": p["text"]} for n, p in enumerate(posts, 1)]


def _row(
    couple: dict[str, Any], number: int, question: dict[str, Any], who: str, other: str, profile: list[dict[str, str]]
) -> dict[str, Any]:
    wants = question["wants"]
    row = {
        "id": f"{couple['couple']}-q{number}-{who}",
        "user": who,
        "question": question["question"],
        "profile": profile,
        "rubric_aspects": wants[who]["aspects"],
        "narrative": wants[who]["narrative"],
        "category": question["category"],
        "chosen": wants[who]["answer"],
        "rejected": wants[other]["answer"],
        "tier": question["tier"],
        "mirror": f"{couple['couple']}-q{number}-{other}",
        "split": couple["split"],
        "topic": question["topic"],
        "bearing_posts": [profile[n - 1]["id"] for n in wants[who]["bearing"]],
    }
    return {**row, "drift": True} if wants[who].get("drift") else row
