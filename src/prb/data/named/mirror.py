"""The embedded benchmark: one file per couple, two users whose needs conflict, and questions that both might ask.

A file holds each text once. Rows in the public format are unfolded from it: every question gives two rows with the same
answers and swapped labels, so a model that ignores the user scores exactly 50 %. Splits `test` and `dev` are written
couples with histories of 10 or 30-40 posts; in `hard` the histories have 120-160 posts, neutral ones included. In
`restraint` the couples of `test` ask what their histories must not decide: both have the same right answer, and each
one's wrong answer drags that user's taste in. Splits `train` and `validation` are composed from a bank of preferences,
see `composed`. The recorded blind review of the benchmark (can a reader tell, and are both answers good?) is beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from statistics import mean
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from prb.config import Count
from prb.data.named.composed import Composed, Lesson, draw_posts, read_neutral, runs_of
from prb.data.named.simulate import Dice
from prb.data.source import DATASETS, RawRow, Row, Source, dict_row
from prb.errors import BadSpec
from prb.types import RESTRAINT, Pair

VERSION = "2.3"
EVEN = 0.5
"""Questions whose answers differ by more than this in mean rating are counted as uneven."""
Review = Mapping[str, Any]
HARD_HISTORY = range(120, 161)
"""Posts per user in split `hard`."""


@dataclass(frozen=True)
class Mirror:
    """The written splits, or the composed one that was asked for."""

    name: str
    composed: Composed | None = None
    mentions: bool = False
    """Instead of the written rows, those of `mention_rows`."""

    def lessons(self) -> Iterator[Lesson]:
        """The labeled axes that rows are composed of; the written splits have none."""
        return self.composed.lessons() if self.composed else iter(())

    def rows(self) -> Iterator[RawRow]:
        if self.composed:
            rows = enumerate(self.composed.rows(), 1)
            yield from (dict_row(self.composed.split, line, row) for line, row in rows)
            return
        written = (("couples", unfold_couple), ("hard", unfold_hard), ("restraint", unfold_restraint))
        for part, unfold in (("restraint", mention_rows),) if self.mentions else written:
            folder = files("prb.data") / "mirror" / part
            for entry in sorted(folder.iterdir(), key=lambda e: e.name):
                couple = orjson.loads(entry.read_bytes())
                for line, row in enumerate(unfold(couple), 1):
                    yield dict_row(entry.name, line, row)


@DATASETS.register("mirror")
def mirror(
    split: Literal["train", "validation", "mention"] | None = None,
    users: Count = 600,
    seed: int = 0,
    axes: Count | None = None,
    half: Annotated[int, Field(ge=1, le=2)] | None = None,
) -> Source:
    """The embedded benchmark of mirror pairs (English, CC-BY-4.0): splits test, dev, hard and restraint.

    split=train or split=validation composes rows for so many users from a bank of preferences, for training;
    axes=15 uses so many of its axes, half=1 or half=2 one half of each axis's posts and questions. split=mention: the
    same answer twice, once with a mention of the user's taste before it.
    """
    if split is None:
        return Mirror("mirror")
    if split == "mention":
        return Mirror("mirror?split=mention", mentions=True)
    if users % 2:
        raise BadSpec(f"dataset 'mirror': users come in couples, so their number must be even, not {users}")
    fewer = "".join(f"&{option}={value}" for option, value in (("axes", axes), ("half", half)) if value)
    name = f"mirror?split={split}&users={users}&seed={seed}{fewer}"
    return Mirror(name, Composed(split, users, seed, axes, half))


def unfold_hard(couple: Row) -> Iterator[Row]:
    """Rows of a couple whose histories are filled up with neutral posts; their written posts keep their order."""
    profiles: dict[str, list[dict[str, str]]] = {}
    numbers: dict[str, dict[int, str]] = {}
    answers = [want["answer"] for question in couple["questions"] for want in question["wants"].values()]
    answers += [answer for question in couple["questions"] for answer in question.get("others", ())]
    taken = runs_of(*answers)
    for user, content in couple["people"].items():
        dice = Dice("hard", couple["couple"], user)
        neutral = draw_posts(dice, read_neutral(), taken)
        length, written = dice.pick(HARD_HISTORY), content["posts"]
        places = set(dice.shuffled(range(length))[: len(written)])
        queues = iter(written), iter(neutral)
        posts = [next(queues[place not in places]) for place in range(length)]
        profiles[user] = [{"id": f"{user}-{n:03}", "category": "", "text": p["text"]} for n, p in enumerate(posts, 1)]
        numbers[user] = {k: profiles[user][place]["id"] for k, place in enumerate(sorted(places), 1)}
    return mirror_rows(couple, profiles, numbers, "hard")


def unfold_couple(couple: Row) -> Iterator[Row]:
    profiles: dict[str, list[dict[str, str]]] = {}
    for user, content in couple["people"].items():
        posts = enumerate(content["posts"], 1)
        profiles[user] = [{"id": f"{user}-{n:02}", "category": p["category"], "text": p["text"]} for n, p in posts]
    numbers = {user: {n: post["id"] for n, post in enumerate(posts, 1)} for user, posts in profiles.items()}
    return mirror_rows(couple, profiles, numbers, couple["split"])


def unfold_restraint(content: Row) -> Iterator[Row]:
    """Rows of a couple of `test` that its histories must not decide, with the posts that withdraw a taste."""
    entry = files("prb.data") / "mirror" / "couples" / f"{content['couple']}.json"
    people, added = orjson.loads(entry.read_bytes())["people"], content.get("added", {})
    for number, question in enumerate(content["questions"], 1):
        for user, dragged_in in question["drags"].items():
            written, later = people[user]["posts"], added.get(user, [])
            posts = [{"id": f"{user}-{n:02}", **post} for n, post in enumerate([*written, *later], 1)]
            yield {
                "id": f"{content['couple']}-r{number}-{user}",
                "user": user,
                "question": question["question"],
                "profile": posts,
                "rubric_aspects": question["aspects"],
                "narrative": question["narrative"],
                "category": question["category"],
                "chosen": question["answer"],
                "rejected": dragged_in,
                "tier": f"{RESTRAINT}/{question['kind']}",
                "split": "restraint",
                "topic": question["topic"],
                "bearing_posts": [p["id"] for p in posts[len(written) :]] if question["kind"] == "withdrawn" else [],
            }


def mention_rows(content: Row) -> Iterator[Row]:
    """Minimal pairs made by rule: the right answer as it is, and with a mention of the user's taste before it."""
    for row in unfold_restraint(content):
        mention = f"Since you {content['tastes'][row['user']]}: {row['chosen']}"
        same = {"id": f"{row['id']}-mention", "rejected": mention, "tier": f"{RESTRAINT}/mention", "split": "mention"}
        yield {**row, **same, "bearing_posts": []}


def mirror_rows(
    couple: Row, profiles: dict[str, list[dict[str, str]]], posts: dict[str, dict[int, str]], split: str
) -> Iterator[Row]:
    """Every question under both users, the answers swapped; `posts` has the ids of users' own posts by number."""
    first, second = couple["people"]
    for number, question in enumerate(couple["questions"], 1):
        name, wants = f"{couple['couple']}-q{number}", question["wants"]
        for user, other in ((first, second), (second, first)):
            wrong = [wants[other]["answer"], *question.get("others", ())]
            row = {
                "id": f"{name}-{user}",
                "user": user,
                "question": question["question"],
                "profile": profiles[user],
                "rubric_aspects": wants[user]["aspects"],
                "narrative": wants[user]["narrative"],
                "category": question["category"],
                "chosen": wants[user]["answer"],
                "rejected": wrong if len(wrong) > 1 else wrong[0],
                "tier": question["tier"],
                "mirror": f"{name}-{other}",
                "split": split,
                "topic": question["topic"],
                "bearing_posts": [posts[user][n] for n in wants[user]["bearing"]],
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
