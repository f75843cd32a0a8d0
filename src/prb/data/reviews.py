"""The recorded blind review of the embedded benchmark: can a reader tell, and are both answers good?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files
from statistics import mean
from typing import Any

import orjson

from prb.types import Pair

Review = Mapping[str, Any]


def load_reviews() -> list[Review]:
    """Every judgement ever made on the set, oldest round first, whether or not it was kind."""
    raw = (files("prb.data") / "mirror" / "reviews.jsonl").read_bytes()
    return [orjson.loads(line) for line in raw.splitlines()]


def review_figures(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Solvability of the first and the final round by tier; quality differences per question, first and latest."""
    reviews = load_reviews()
    tiers = {pair.id: str(pair.tier) for pair in pairs}
    first: dict[str, Review] = {}
    latest: dict[str, Review] = {}
    for review in reviews:
        if review["kind"] == "rating":
            first.setdefault(review["question"], review)
            latest[review["question"]] = review
    return {
        "solved_first_round": solved(reviews, "first", tiers),
        "solved_final_round": solved(reviews, "final", tiers),
        "quality_gap_first_round": gap_figures(first.values()),
        "quality_gap_latest": gap_figures(latest.values()),
        "mean_rating_latest": mean(value for review in latest.values() for value in _means(review)),
    }


def solved(reviews: Iterable[Review], name: str, tiers: Mapping[str, str]) -> dict[str, str]:
    """`right/rows` for each tier and in all; rows rewritten since count with the text they had then."""
    rows = [r for r in reviews if r["kind"] == "pick" and r["round"] == name and r["row"] in tiers]
    seen = Counter(tiers[r["row"]] for r in rows)
    right = Counter(tiers[r["row"]] for r in rows if r["picked"] == "chosen")
    by_tier = {tier: f"{right[tier]}/{seen[tier]}" for tier in sorted(seen)}
    return {**by_tier, "all": f"{right.total()}/{seen.total()}"}


def gap_figures(ratings: Iterable[Review]) -> dict[str, float]:
    gaps = [quality_gap(review) for review in ratings]
    return {"mean": mean(gaps), "max": max(gaps), "over_half": sum(gap > 0.5 + 1e-9 for gap in gaps)}


def quality_gap(review: Review) -> float:
    """|Δ| of the two answers' mean ratings; an average over mirror rows would be 0 by construction."""
    a, b = _means(review)
    return abs(a - b)


def _means(review: Review) -> tuple[float, float]:
    a, b = (mean(answer.values()) for answer in review["ratings"].values())
    return a, b
