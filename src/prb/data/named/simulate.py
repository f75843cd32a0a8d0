"""Simulated users with a known taste, for testing methods: first as numbers, then in hand-written fragments of text.

Every answer has a value of -1, 0 or 1 for each attribute, every user a weight for each; a user prefers the first of two
answers with the Bradley-Terry probability `sigmoid(taste · (first - second) / noise)` (Bradley & Terry 1952). An answer
gives the same few tips in the manner its attributes ask for, each attribute in one of many surface forms. Posts never
state a taste: they praise or criticize how a text is written. Everything is a function of the settings and an index,
so any row can be made without the rows before it, and a million rows stream in constant memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field

from prb.config import Count, NonNegative, Share, Size
from prb.data.source import DATASETS, RawRow, Row, Source, dict_row
from prb.errors import BadSpec
from prb.prompts import fill
from prb.registry import Spec

ATTRIBUTES = ("brevity", "structure", "examples", "formality", "hedging", "warmth", "humour", "evidence")
LEVELS = (-1, -1, -1, 0, 0, 1, 1, 1)
FADING = 0.75
"""How much less a taste cares for each further attribute of its axis; unequal weights make ties rare."""
SPLITS = ("train", "test", "train", "validation", "train", "train", "test", "train", "train", "train")
"""Of ten blocks of users; a block holds every group once, so that each split is balanced exactly."""
TOPIC_SPLITS = ("train", "train", "train", "train", "validation", "test")
STEPS = (5, 7, 11, 13, 17, 19, 23, 25)
"""Coprime to the number of questions, so that no user is asked the same twice before all were asked."""
ASPECTS = 3

T = TypeVar("T")
Vector = tuple[float, ...]


class Dice:
    """Draws that depend on the key alone. `random()` is the one sequence that Python guarantees to keep."""

    def __init__(self, *key: object) -> None:
        self.random = Random("/".join(map(str, key))).random  # noqa: S311 - a simulation, not a secret

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        keys = [self.random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


@dataclass(frozen=True)
class World:
    """All settings of a simulated dataset."""

    persons: Count = 400
    groups: Annotated[int, Field(ge=1, le=2 * len(ATTRIBUTES))] = 4
    """Two per axis, with opposite tastes; 1 is a world without conflict."""
    pairs: Count = 8
    """Labeled pairs per user."""
    posts: Size = 6
    noise: NonNegative = 0.25
    """Temperature of the Bradley-Terry choice; 0 always picks the better answer."""
    individual: Share = 0.0
    """Share of a taste that is the user's own, 0 to 1: at 0 all of a group share one taste."""
    mirror: bool = False
    """Two users of opposite taste get the same questions and answers, with the labels swapped."""
    split: Literal["persons", "seen"] = "persons"
    """`persons`: no user is in two splits. `seen`: all users are in all three, with questions on new topics."""
    seed: int = 0

    def __post_init__(self) -> None:
        balanced = f"a multiple of {self.block}, to balance opposite tastes"
        rules = (
            (self.groups == 1 or self.groups % 2 == 0, f"groups must be 1 or an even number, not {self.groups}"),
            (not self.persons % self.block, f"persons must be {balanced}, not {self.persons}"),
            (self.pairs >= 3 or self.split != "seen", f"pairs must be at least 3 with split=seen, not {self.pairs}"),
            (not self.mirror or self.groups > 1, "mirror=true needs opposite tastes: groups must be at least 2"),
        )
        for holds, rule in rules:
            if not holds:
                raise BadSpec(f"dataset 'simulate': {rule}")

    @property
    def block(self) -> int:
        return max(2, self.groups)

    def split_of(self, user: int, number: int) -> str:
        if self.split == "persons":
            return SPLITS[user // self.block % len(SPLITS)]
        test, validation = max(1, self.pairs // 4), max(1, self.pairs // 8)
        left = self.pairs - 1 - number
        return "test" if left < test else "validation" if left < test + validation else "train"

    def drawn_by(self, user: int) -> str:
        """Whose draws decide questions and answers: the user's own, or under `mirror` the couple's."""
        return f"couple {user // 2}" if self.mirror else f"person {user}"


@DATASETS.register("simulate")
def simulate(world: World) -> Source:
    """Users with a known taste over named answer attributes, for testing methods: made up, any size."""
    return Simulated(world)


@dataclass(frozen=True)
class Simulated:
    world: World
    name: str = ""

    def rows(self) -> Iterator[RawRow]:
        world, line = self.world, 0
        for user in range(world.persons):
            weights = taste(world, user)
            profile = posts(world, user, weights)
            for number in range(world.pairs):
                line += 1
                yield dict_row("simulate", line, row(world, user, number, weights) | {"profile": profile})


# the truth


def world_of(spec: str | World) -> World:
    if isinstance(spec, World):
        return spec
    source = DATASETS.make(spec) if Spec.parse(spec).name == "simulate" else None
    if not isinstance(source, Simulated):
        raise BadSpec(f"{spec} is not simulated: the true tastes of its users are unknown")
    return source.world


def truth(spec: str | World) -> NDArray[np.float64]:
    """Tastes, users × `ATTRIBUTES`, unit rows; row n is user `p{n:06}`."""
    world = world_of(spec)
    return np.array([taste(world, user) for user in range(world.persons)])


def bayes_accuracy(spec: str | World, split: str | None = None) -> float:
    """The highest accuracy to expect, by a judge who knows every taste: the expectation over labels on these pairs."""
    world, best = world_of(spec), list[float]()
    for user in range(world.persons):
        weights = taste(world, user)
        for number in range(world.pairs):
            if split in (None, world.split_of(user, number)):
                chance = contest(world, user, number, weights).probability
                best.append(max(chance, 1 - chance))
    if not best:
        raise BadSpec(f"this world has no rows in split {split!r}")
    return math.fsum(best) / len(best)


# tastes and choices, as numbers


def taste(world: World, user: int) -> Vector:
    """A unit vector over `ATTRIBUTES`; users 2n and 2n+1 want the opposite of each other.

    An axis owns every n-th attribute, with fading weights and alternating signs; its two groups differ in sign.
    """
    axis, group_sign = user % world.groups // 2, 1 - 2 * (user % world.groups % 2)
    owned = {attribute: k for k, attribute in enumerate(range(axis, len(ATTRIBUTES), max(1, world.groups // 2)))}
    shared = _unit([group_sign * (-FADING) ** owned[a] if a in owned else 0.0 for a in range(len(ATTRIBUTES))])
    dice, sign = Dice(world.seed, "taste", user // 2), 1 - 2 * (user % 2)
    individual = _unit([sign * NormalDist().inv_cdf(dice.random() or 0.5) for _ in ATTRIBUTES])
    share = world.individual
    return _unit([(1 - share) * a + share * b for a, b in zip(shared, individual, strict=True)])


def _unit(vector: Sequence[float]) -> Vector:
    norm = math.hypot(*vector)
    return tuple(value / norm for value in vector)


class Contest(NamedTuple):
    """Two answers, as numbers, and the user's choice."""

    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    probability: float
    """That this user picks `chosen`; below one half where the noise won."""
    swapped: bool
    """Whether `chosen` was drawn second: the two texts are drawn separately."""


def contest(world: World, user: int, number: int, weights: Vector) -> Contest:
    dice = Dice(world.seed, "contest", world.drawn_by(user), number)
    first = tuple(dice.pick(LEVELS) for _ in ATTRIBUTES)
    second = first
    while second == first:
        second = tuple(dice.pick(LEVELS) for _ in ATTRIBUTES)
    p = preference(weights, first, second, world.noise)
    luck = dice.random()
    if world.mirror and user % 2:  # the same luck seen from the other side: the twin picks the other answer
        luck = 1 - luck
    if luck < p:
        return Contest(first, second, p, False)
    return Contest(second, first, 1 - p, True)


def preference(weights: Vector, first: Sequence[int], second: Sequence[int], noise: float) -> float:
    """Bradley-Terry probability that a user with these weights picks the first answer."""
    gain = math.fsum(w * (a - b) for w, a, b in zip(weights, first, second, strict=True))
    if noise == 0:
        return 0.5 if abs(gain) < 1e-12 else float(gain > 0)
    return 0.5 * (1 + math.tanh(gain / noise / 2))


# texts


class Topic(NamedTuple):
    category: str
    name: str
    tips: Sequence[str]


class Manner(NamedTuple):
    """How one attribute shows; index 0 is the pole of value 1, index 1 that of value -1."""

    wants: Sequence[str]
    forms: Sequence[Sequence[str]]
    posts: Sequence[Sequence[str]]


class Fragments(NamedTuple):
    topics: tuple[Topic, ...]
    manners: tuple[Manner, ...]
    """One per attribute."""
    questions: Sequence[str]
    elaborations: Sequence[str]
    links: Sequence[str]


@cache
def fragments() -> Fragments:
    content = orjson.loads((files("prb.data") / "simulate.json").read_bytes())
    topics = tuple(Topic(*item) for item in content["topics"])
    manners = tuple(Manner(**content["attributes"][name]) for name in ATTRIBUTES)
    return Fragments(topics, manners, content["questions"], content["elaborations"], content["links"])


@cache
def questions(split: str | None) -> tuple[tuple[Topic, str], ...]:
    """Every topic with every question; with a split, only the topics of that split."""
    of_split = [t for n, t in enumerate(fragments().topics) if split in (None, TOPIC_SPLITS[n % len(TOPIC_SPLITS)])]
    return tuple((topic, fill(text, topic=topic.name)) for topic in of_split for text in fragments().questions)


def row(world: World, user: int, number: int, weights: Vector) -> Row:
    choice, drawn_by = contest(world, user, number, weights), world.drawn_by(user)
    split = world.split_of(user, number)
    pool = questions(split if world.split == "seen" else None)
    dice = Dice(world.seed, "questions", drawn_by)
    start = int(dice.random() * len(pool))
    topic, question = pool[(start + number * dice.pick(STEPS)) % len(pool)]
    chosen, rejected = (
        answer(values, topic, Dice(world.seed, "answer", drawn_by, number, second))
        for values, second in ((choice.chosen, choice.swapped), (choice.rejected, not choice.swapped))
    )
    narrative, aspects = wishes(weights)
    made = {
        "id": f"p{user:06}-q{number:03}",
        "user": f"p{user:06}",
        "question": question,
        "profile": [],
        "rubric_aspects": aspects,
        "narrative": narrative,
        "category": topic.category,
        "chosen": chosen,
        "rejected": rejected,
        "split": split,
        "topic": topic.name,
        "groups": {"taste": f"g{user % world.groups}"},
        "attributes": {
            "chosen": dict(zip(ATTRIBUTES, choice.chosen, strict=True)),
            "rejected": dict(zip(ATTRIBUTES, choice.rejected, strict=True)),
        },
    }
    return {**made, "mirror": f"p{user ^ 1:06}-q{number:03}"} if world.mirror else made


def answer(values: Sequence[int], topic: Topic, dice: Dice) -> str:
    """The tips of a topic in the manner of these attribute values; 0 leaves no trace."""

    def joined(parts: Iterable[str]) -> str:
        return " ".join(filter(None, parts))

    def sentence(text: str) -> str:
        return f"{text[0].upper()}{text[1:]}."

    level = dict(zip(ATTRIBUTES, values, strict=True))
    phrase = {
        name: fill(dice.pick(manner.forms[level[name] < 0]), topic=topic.name) if level[name] else ""
        for name, manner in zip(ATTRIBUTES, fragments().manners, strict=True)
    }
    tips = dice.shuffled(topic.tips)[: {1: 1, 0: 2, -1: 3}[level["brevity"]]]
    more = dice.shuffled(fragments().elaborations)[:1] if level["brevity"] == -1 else []
    before = joined([phrase["warmth"], phrase["formality"], phrase["brevity"]])
    after = joined([*more, *dice.shuffled([phrase[name] for name in ("examples", "evidence", "hedging", "humour")])])
    if level["structure"] == 1:
        marks = dice.pick((("1.", "2.", "3."), ("-", "-", "-"), ("Step 1:", "Step 2:", "Step 3:")))
        lines = [f"{mark} {sentence(tip)}" for mark, tip in zip(marks, tips, strict=False)]
        return "\n".join(filter(None, (before, phrase["structure"], *lines, after)))
    core = joined(map(sentence, tips))
    if level["structure"] == -1:
        links = zip(dice.shuffled(fragments().links), tips[1:], strict=False)
        core = f"{sentence(tips[0] + ''.join(f', {link} {tip}' for link, tip in links))} {phrase['structure']}"
    return joined((before, core, after))


def posts(world: World, user: int, weights: Vector) -> list[dict[str, str]]:
    """Each post is about one attribute, drawn by weight: the more a user cares, the more often it comes up.

    By systematic sampling: each attribute as often as its share of |weight| says, up to less than one.
    """
    dice = Dice(world.seed, "posts", user)
    start, total, upto = dice.random(), sum(map(abs, weights)), 0.0
    drawn: list[int] = []
    for index, weight in enumerate(weights):
        upto += abs(weight) / total * world.posts
        while len(drawn) < world.posts and start + len(drawn) < upto:
            drawn.append(index)
    drawn += [len(weights) - 1] * (world.posts - len(drawn))
    made = []
    for n, index in enumerate(dice.shuffled(drawn), 1):
        topic = dice.pick(fragments().topics)
        text = fill(dice.pick(fragments().manners[index].posts[weights[index] < 0]), topic=topic.name)
        made.append({"id": f"p{user:06}-{n:02}", "category": topic.category, "text": text})
    return made


def wishes(weights: Vector) -> tuple[str, list[dict[str, str]]]:
    """The hidden part of a row: what this user cares about most, in words."""
    ranked = sorted(range(len(weights)), key=lambda i: -abs(weights[i]))
    strong = [i for i in ranked if abs(weights[i]) > 1e-9][:ASPECTS]
    wants = [fragments().manners[i].wants[weights[i] < 0] for i in strong]
    names = [("more " if weights[i] > 0 else "less ") + ATTRIBUTES[i] for i in strong]
    reason = "Their posts praise it, or complain where it is missing."
    aspects = [{"aspect": n, "evidence": want, "reason": reason} for n, want in zip(names, wants, strict=True)]
    return "What I look for: " + "; ".join(wants) + ".", aspects
