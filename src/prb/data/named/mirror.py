"""The embedded benchmark: pairs of users whose needs conflict, and questions that both might ask.

Splits `test` and `dev` are written couples, one file each, with histories of 10 or 30-40 posts; in `hard` the histories
have 120-160 posts, neutral ones included. A file holds each text once. Rows in the public format are unfolded from it:
every question gives two rows with the same answers and swapped labels, so a model that ignores the user scores exactly
50 %. In `restraint` the couples of `test` ask what their histories must not decide: both have the same right answer,
and each one's wrong answer drags that user's taste in. The recorded blind review is beside it, in `reviews.jsonl`.

Splits `train` and `validation` are composed from a bank of preferences: any number of mirror rows to learn from. The
bank has one file per axis of everyday preference, such as plan or improvise. It holds two poles, posts that show or
state each, exceptions with a question about their situation, and questions with one answer per pole. A couple of users
is asked about one axis, on which they have opposite poles, or about situations in which one of them makes an exception
to a pole that both have; on a few other axes they mostly have the same pole. Posts of their poles, some exceptions and
neutral posts make up the histories. Everything is a function of the seed and the number of the couple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import orjson
from pydantic import Field

from prb.config import Count
from prb.data.named.simulate import Dice
from prb.data.source import DATASETS, RawRow, Row, RowSource, Source, dict_row
from prb.errors import BadSpec
from prb.text.words import word_runs
from prb.types import RESTRAINT

VERSION = "2.3"
HOME = files("prb.data") / "mirror"


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
        unfold = {"couples": unfold_couple, "hard": unfold_hard, "restraint": unfold_restraint}
        return RowSource(partial(written_rows, unfold))
    if split == "mention":
        return RowSource(partial(written_rows, {"restraint": unfold_mention}))
    if users % 2:
        raise BadSpec(f"dataset 'mirror': users come in couples, so their number must be even, not {users}")
    return Composed(split, users, seed, axes, half)


# written couples

Histories = dict[str, tuple[list[dict[str, str]], list[str]]]
"""By user: all posts, and the ids of those that were written for the couple."""
HARD_HISTORY = range(120, 161)
"""Posts per user in split `hard`."""


def written_rows(unfold: Mapping[str, Callable[[Row], Iterator[Row]]]) -> Iterator[RawRow]:
    """The rows of some folders of the benchmark, with what makes rows of a file."""
    for folder, rows_of in unfold.items():
        for entry in sorted((HOME / folder).iterdir(), key=lambda e: e.name):
            for line, row in enumerate(rows_of(orjson.loads(entry.read_bytes())), 1):
                yield dict_row(entry.name, line, row)


def unfold_hard(couple: Row) -> Iterator[Row]:
    """Rows of a couple whose histories are filled up with neutral posts; their written posts keep their order."""
    histories: Histories = {}
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
        profile = [{"id": f"{user}-{n:03}", "category": "", "text": p["text"]} for n, p in enumerate(posts, 1)]
        histories[user] = profile, [profile[place]["id"] for place in sorted(places)]
    return mirror_rows(couple, histories, "hard")


def unfold_couple(couple: Row) -> Iterator[Row]:
    histories: Histories = {}
    for user, content in couple["people"].items():
        posts = enumerate(content["posts"], 1)
        profile = [{"id": f"{user}-{n:02}", "category": p["category"], "text": p["text"]} for n, p in posts]
        histories[user] = profile, [post["id"] for post in profile]
    return mirror_rows(couple, histories, couple["split"])


def unfold_restraint(content: Row) -> Iterator[Row]:
    """Rows of a couple of `test` that its histories must not decide, with the posts that withdraw a taste."""
    couple = orjson.loads((HOME / "couples" / f"{content['couple']}.json").read_bytes())
    people, added = couple["people"], content.get("added", {})
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


def unfold_mention(content: Row) -> Iterator[Row]:
    """Minimal pairs made by rule: the right answer as it is, and with a mention of the user's taste before it."""
    for row in unfold_restraint(content):
        mention = f"Since you {content['tastes'][row['user']]}: {row['chosen']}"
        same = {"id": f"{row['id']}-mention", "rejected": mention, "tier": f"{RESTRAINT}/mention", "split": "mention"}
        yield {**row, **same, "bearing_posts": []}


def mirror_rows(couple: Row, histories: Histories, split: str) -> Iterator[Row]:
    """Every question under both users, the answers swapped."""
    first, second = couple["people"]
    for number, question in enumerate(couple["questions"], 1):
        name, wants = f"{couple['couple']}-q{number}", question["wants"]
        for user, other in ((first, second), (second, first)):
            wrong, (profile, written) = [wants[other]["answer"], *question.get("others", ())], histories[user]
            row = {
                "id": f"{name}-{user}",
                "user": user,
                "question": question["question"],
                "profile": profile,
                "rubric_aspects": wants[user]["aspects"],
                "narrative": wants[user]["narrative"],
                "category": question["category"],
                "chosen": wants[user]["answer"],
                "rejected": wrong if len(wrong) > 1 else wrong[0],
                "tier": question["tier"],
                "mirror": f"{name}-{other}",
                "split": split,
                "topic": question["topic"],
                "bearing_posts": [written[n - 1] for n in wants[user]["bearing"]],
            }
            yield {**row, "drift": True} if wants[user].get("drift") else row


# users composed from a bank of preferences

SHARED_WORDS = 4
"""Words in a row that an answer must not share with a post of the history it is judged by."""
OTHER_AXES = range(4, 8)
"""How many axes a user shows beside the one they are asked about."""
POSTS_PER_AXIS = range(1, 4)
HISTORY = range(10, 41)
"""Posts per user."""
SAME_POLE, EXCEPTION = 0.8, 0.3
"""How often twins agree on another axis, and how often an axis comes with one of its exceptions."""
SITUATIONAL = 1 / 3
"""Share of the couples who are asked about the situations of one user's exceptions."""
QUESTIONS_PER_COUPLE = 2
LAST_DAY = date(2026, 6, 30)


class Bank(NamedTuple):
    """The axes of one split, and what goes between their posts."""

    axes: dict[str, Row]
    neutral: list[Row]
    related: dict[str, frozenset[str]]
    """Axes too close to each other to be mixed in one user."""


@cache
def read_bank(split: str) -> Bank:
    read = [orjson.loads(entry.read_bytes()) for entry in (HOME / "axes").iterdir() if entry.name.endswith(".json")]
    axes = {axis["axis"]: axis for axis in sorted(read, key=lambda a: a["axis"]) if axis["split"] == split}
    related: dict[str, set[str]] = {}
    for group in orjson.loads((HOME / "related.json").read_bytes()):
        for name in group:
            related.setdefault(name, set()).update(group)
    return Bank(axes, read_neutral(), {name: frozenset(others) for name, others in related.items()})


@cache
def read_neutral() -> list[Row]:
    """Posts that show no preference."""
    return orjson.loads((HOME / "neutral.json").read_bytes())  # type: ignore[no-any-return]


class Lesson(NamedTuple):
    """An axis of the bank with labels: what shows its two poles, and what suits them."""

    axis: str
    posts: tuple[tuple[str, ...], tuple[str, ...]]
    """Of the first pole and of the second; without the exceptions."""
    answers: tuple[tuple[str, str, str], ...]
    """Question, answer for the first pole, answer for the second."""
    exceptions: tuple[tuple[int, str, str, str], ...] = ()
    """Pole (0 or 1), a post that makes an exception to it, and two answers to a question about that situation: for the
    first pole and for the second. The exception asks for the answer for the other pole."""


def runs_of(*texts: str) -> frozenset[str]:
    return frozenset().union(*(word_runs(text, SHARED_WORDS) for text in texts))


def draw_posts(dice: Dice, posts: list[Row], taken: frozenset[str]) -> list[Row]:
    """In a drawn order, without those that hold one of these runs of words."""
    return [post for post in dice.shuffled(posts) if not word_runs(post["text"], SHARED_WORDS) & taken]


@dataclass(frozen=True)
class Composed:
    """`users` composed users, two per couple, of the axes of a split."""

    split: str
    users: int
    seed: int
    axes: int | None = None
    """How many of the axes; all by default."""
    half: int | None = None
    """1 or 2: only this half of each axis's posts and questions."""
    name: str = ""

    @cached_property
    def bank(self) -> Bank:
        """What the split has; of `half`, posts and questions of which none is in the other half.

        Posts that state a pole and posts that show it take turns in the bank, so they are dealt out two by two.
        """
        bank = read_bank(self.split)
        # in an order drawn once, so that a smaller number of axes is part of a larger one
        names = Dice("axes").shuffled(list(bank.axes))[: self.axes]
        axes = {name: axis for name, axis in bank.axes.items() if name in names}
        half = self.half
        if half is None:
            return bank._replace(axes=axes)

        def part(items: list[Row], together: int = 1) -> list[Row]:
            return [item for n, item in enumerate(items) if n // together % 2 == half - 1]

        for name, axis in axes.items():
            poles = [
                {**pole, "evidence": part(pole["evidence"], 2), "exceptions": part(pole["exceptions"])}
                for pole in axis["poles"]
            ]
            axes[name] = {**axis, "poles": poles, "questions": part(axis["questions"])}
        return bank._replace(axes=axes, neutral=part(bank.neutral))

    def lessons(self) -> Iterator[Lesson]:
        """The axes with their labels, which are not in the rows."""
        for name, axis in self.bank.axes.items():
            first, second = (tuple(post["text"] for post in pole["evidence"]) for pole in axis["poles"])
            answers = tuple((q["question"], *q["answers"]) for q in axis["questions"])
            exceptions = tuple(
                (side, post["text"], *post["question"]["answers"])
                for side, pole in enumerate(axis["poles"])
                for post in pole["exceptions"]
            )
            yield Lesson(name, (first, second), answers, exceptions)

    def neutral(self) -> list[str]:
        return [post["text"] for post in self.bank.neutral]

    def rows(self) -> Iterator[RawRow]:
        line, names = 0, list(self.bank.axes)
        for couple in range(self.users // 2):
            # every axis once before any comes again, in another order each time
            turn, place = divmod(couple, len(names))
            axis = Dice(self.seed, self.split, "turn", turn).shuffled(names)[place]
            for row in self._couple(couple, axis):
                line += 1
                yield dict_row(self.split, line, row)

    def _couple(self, number: int, asked: str) -> Iterator[Row]:
        bank, dice = self.bank, Dice(self.seed, self.split, "couple", number)
        axis = bank.axes[asked]
        situational = dice.random() < SITUATIONAL
        poles = (dice.pick((0, 1)),) * 2 if situational else (0, 1)
        exceptions = axis["poles"][poles[0]]["exceptions"] if situational else None
        asked_about = [post["question"] for post in exceptions] if exceptions else axis["questions"]
        questions = dice.shuffled(asked_about)[:QUESTIONS_PER_COUPLE]
        taken = runs_of(*(answer for question in questions for answer in question["answers"]))
        others: list[str] = []
        for name in dice.shuffled([name for name in bank.axes if name != asked]):
            near = bank.related.get(name, frozenset())
            if asked not in near and not near & set(others):
                others.append(name)
        others = others[: dice.pick(OTHER_AXES)]
        first = {name: dice.pick((0, 1)) for name in others}
        second = {name: pole if dice.random() < SAME_POLE else 1 - pole for name, pole in first.items()}
        couple = f"{self.split}-{self.seed}-{number:05}"
        histories = [
            self._history(f"{couple}-{'ab'[side]}", {asked: poles[side], **others_of}, asked, taken, made)
            for side, (others_of, made) in enumerate(((first, exceptions), (second, exceptions and [])))
        ]
        for n, question in enumerate(questions, 1):
            for side, (user, profile, bearing, tier) in enumerate(histories):
                suits = 1 - poles[side] if situational and side == 0 else poles[side]
                pole = axis["poles"][suits]
                yield {
                    "id": f"{couple}-q{n}-{'ab'[side]}",
                    "user": user,
                    "question": question["question"],
                    "profile": profile,
                    "rubric_aspects": pole["aspects"],
                    "narrative": pole["narrative"].replace("{topic}", question["topic"]),
                    "category": question["category"],
                    "chosen": question["answers"][suits],
                    "rejected": question["answers"][1 - suits],
                    "tier": "situational" if situational else tier,
                    "mirror": f"{couple}-q{n}-{'ba'[side]}",
                    "split": self.split,
                    "topic": question["topic"],
                    "axis": asked,
                    "bearing_posts": bearing,
                }

    def _history(
        self, user: str, poles: dict[str, int], asked: str, taken: frozenset[str], exceptions: list[Row] | None
    ) -> tuple[str, list[Row], list[str], str]:
        """A user's posts in order, the ids of those that bear on the asked axis, and whether one states its pole.

        `exceptions` to the asked axis are given where the questions are about them, and drawn otherwise.
        """
        bank, dice = self.bank, Dice(self.seed, user)
        posts: list[tuple[str, Row]] = []
        for name, side in poles.items():
            pole = bank.axes[name]["poles"][side]
            evidence = draw_posts(dice, pole["evidence"], taken)
            posts += [(name, post) for post in evidence[: dice.pick(POSTS_PER_AXIS)]]
            if name == asked and exceptions is not None:
                posts += [(name, post) for post in exceptions]
            elif dice.random() < EXCEPTION:
                posts += [(name, post) for post in draw_posts(dice, pole["exceptions"], taken)[:1]]
        length = max(dice.pick(HISTORY), len(posts))
        neutral = draw_posts(dice, bank.neutral, taken)
        posts += [("", post) for post in neutral[: length - len(posts)]]
        day = LAST_DAY - timedelta(days=dice.pick(range(21)))
        profile: list[Row] = []
        bearing, stated = [], False
        for n, (name, post) in enumerate(dice.shuffled(posts), 1):
            made = {"id": f"{user}-{n:02}", "category": "", "text": post["text"]}
            made["date"] = (day - timedelta(days=9 * (len(posts) - n) + dice.pick(range(9)))).isoformat()
            profile.append(made)
            if name == asked:
                bearing.append(made["id"])
                stated = stated or post.get("kind") == "stated"
        return user, profile, bearing, "stated" if stated else "implied"
