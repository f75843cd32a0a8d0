"""Users composed from a bank of preferences: any number of mirror rows to learn from.

The bank has one file per axis of everyday preference, such as plan or improvise. It holds two poles, posts that show or
state each, exceptions with a question about their situation, and questions with one answer per pole. A couple of users
is asked about one axis, on which they have opposite poles, or about situations in which one of them makes an exception
to a pole that both have; on a few other axes they mostly have the same pole. Posts of their poles, some exceptions and
neutral posts make up the histories. Everything is a function of the seed and the number of the couple.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import orjson

from prb.data.named.simulate import Dice
from prb.data.source import Row
from prb.text.words import word_runs

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
    folder = files("prb.data") / "mirror"
    read = [orjson.loads(entry.read_bytes()) for entry in (folder / "axes").iterdir() if entry.name.endswith(".json")]
    axes = {axis["axis"]: axis for axis in sorted(read, key=lambda a: a["axis"]) if axis["split"] == split}
    related: dict[str, set[str]] = {}
    for group in orjson.loads((folder / "related.json").read_bytes()):
        for name in group:
            related.setdefault(name, set()).update(group)
    return Bank(axes, read_neutral(), {name: frozenset(others) for name, others in related.items()})


def halved(bank: Bank, half: int) -> Bank:
    """One half of each axis's posts and questions and of the neutral posts: what is learned on one is new in the other.

    Posts that state a pole and posts that show it take turns in the bank, so they are dealt out two by two.
    """

    def part(items: list[Row], together: int = 1) -> list[Row]:
        return [item for n, item in enumerate(items) if n // together % 2 == half - 1]

    axes = {
        name: {
            **axis,
            "poles": [
                {**pole, "evidence": part(pole["evidence"], 2), "exceptions": part(pole["exceptions"])}
                for pole in axis["poles"]
            ],
            "questions": part(axis["questions"]),
        }
        for name, axis in bank.axes.items()
    }
    return bank._replace(axes=axes, neutral=part(bank.neutral))


class Lesson(NamedTuple):
    """An axis of the bank with labels: what shows its two poles, and what suits them."""

    axis: str
    posts: tuple[tuple[str, ...], tuple[str, ...]]
    """Of the first pole and of the second; without the exceptions."""
    answers: tuple[tuple[str, str, str], ...]
    """Question, answer for the first pole, answer for the second."""


@cache
def read_neutral() -> list[Row]:
    """Posts that show no preference."""
    return orjson.loads((files("prb.data") / "mirror" / "neutral.json").read_bytes())  # type: ignore[no-any-return]


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

    @property
    def bank(self) -> Bank:
        bank = read_bank(self.split)
        # in an order drawn once, so that a smaller number of axes is part of a larger one
        names = Dice("axes").shuffled(list(bank.axes))[: self.axes]
        bank = bank._replace(axes={name: axis for name, axis in bank.axes.items() if name in names})
        return halved(bank, self.half) if self.half else bank

    def lessons(self) -> Iterator[Lesson]:
        """The axes with their labels, which are not in the rows."""
        for name, axis in self.bank.axes.items():
            first, second = (tuple(post["text"] for post in pole["evidence"]) for pole in axis["poles"])
            answers = tuple((q["question"], *q["answers"]) for q in axis["questions"])
            yield Lesson(name, (first, second), answers)

    def rows(self) -> Iterator[Row]:
        bank = self.bank
        names = list(bank.axes)
        for couple in range(self.users // 2):
            # every axis once before any comes again, in another order each time
            turn, place = divmod(couple, len(names))
            axis = Dice(self.seed, self.split, "turn", turn).shuffled(names)[place]
            yield from self._couple(bank, couple, axis)

    def _couple(self, bank: Bank, number: int, asked: str) -> Iterator[Row]:
        dice = Dice(self.seed, self.split, "couple", number)
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
            self._history(bank, f"{couple}-{'ab'[side]}", {asked: poles[side], **others_of}, asked, taken, made)
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
        self,
        bank: Bank,
        user: str,
        poles: dict[str, int],
        asked: str,
        taken: frozenset[str],
        exceptions: list[Row] | None,
    ) -> tuple[str, list[Row], list[str], str]:
        """A user's posts in order, the ids of those that bear on the asked axis, and whether one states its pole.

        `exceptions` to the asked axis are given where the questions are about them, and drawn otherwise.
        """
        dice = Dice(self.seed, user)
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
