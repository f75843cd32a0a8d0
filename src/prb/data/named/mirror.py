"""The embedded benchmark: one file per couple, two users whose needs conflict, six questions that both might ask.

A file holds each text once. Rows in the public format are unfolded from it: every question gives two rows with the same
answers and swapped labels, so a model that ignores the user scores exactly 50 %. The recorded blind review of the
benchmark (can a reader tell, and are both answers good?) is beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from statistics import mean
from typing import Any

import orjson

from prb.data.source import DATASETS, RawRow, Source, dict_row
from prb.types import Pair

VERSION = "1.0"
EVEN = 0.5
"""Questions whose answers differ by more than this in mean rating are counted as uneven."""
Review = Mapping[str, Any]


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
    profiles: dict[str, list[dict[str, str]]] = {}
    for user, content in couple["people"].items():
        posts = enumerate(content["posts"], 1)
        profiles[user] = [{"id": f"{user}-{n:02}", "category": p["category"], "text": p["text"]} for n, p in posts]
    first, second = couple["people"]
    for number, question in enumerate(couple["questions"], 1):
        name, wants = f"{couple['couple']}-q{number}", question["wants"]
        for user, other in ((first, second), (second, first)):
            row = {
                "id": f"{name}-{user}",
                "user": user,
                "question": question["question"],
                "profile": profiles[user],
                "rubric_aspects": wants[user]["aspects"],
                "narrative": wants[user]["narrative"],
                "category": question["category"],
                "chosen": wants[user]["answer"],
                "rejected": wants[other]["answer"],
                "tier": question["tier"],
                "mirror": f"{name}-{other}",
                "split": couple["split"],
                "topic": question["topic"],
                "bearing_posts": [profiles[user][n - 1]["id"] for n in wants[user]["bearing"]],
            }
            yield {**row, "drift": True} if wants[user].get("drift") else row


def load_reviews() -> list[Review]:
    """Every judgment ever made on the benchmark, oldest round first, favorable or not."""
    raw = (files("prb.data") / "mirror" / "reviews.jsonl").read_bytes()
    return [orjson.loads(line) for line in raw.splitlines()]


def review_figures(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Solvability of the first and the final round by tier; quality differences per question, first and latest."""
    reviews = load_reviews()
    tiers = {pair.id: str(pair.tier) for pair in pairs}
    ratings = [review for review in reviews if review["kind"] == "rating"]
    first, latest = ({r["question"]: r for r in order} for order in (reversed(ratings), ratings))
    return {
        "solved_first_round": solved(reviews, "first", tiers),
        "solved_final_round": solved(reviews, "final", tiers),
        "quality_gap_first_round": gap_figures(first.values()),
        "quality_gap_latest": gap_figures(latest.values()),
        "mean_rating_latest": mean(value for review in latest.values() for value in mean_ratings(review)),
    }


def solved(reviews: Iterable[Review], name: str, tiers: Mapping[str, str]) -> dict[str, str]:
    """`right/rows` per tier and overall; rows rewritten since then count with the text they had."""
    rows = [r for r in reviews if r["kind"] == "pick" and r["round"] == name and r["row"] in tiers]
    seen = Counter(tiers[r["row"]] for r in rows)
    right = Counter(tiers[r["row"]] for r in rows if r["picked"] == "chosen")
    by_tier = {tier: f"{right[tier]}/{seen[tier]}" for tier in sorted(seen)}
    return {**by_tier, "all": f"{right.total()}/{seen.total()}"}


def gap_figures(ratings: Iterable[Review]) -> dict[str, float]:
    gaps = [quality_gap(review) for review in ratings]
    return {"mean": mean(gaps), "max": max(gaps), "over_half": sum(gap > EVEN + 1e-9 for gap in gaps)}


def quality_gap(review: Review) -> float:
    """|Δ| of the two answers' mean ratings; a signed mean over mirror rows would be 0 by construction."""
    a, b = mean_ratings(review)
    return abs(a - b)


def mean_ratings(review: Review) -> list[float]:
    return [mean(answer.values()) for answer in review["ratings"].values()]
