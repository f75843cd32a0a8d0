"""People with a known taste: who they are, what they are asked, which answer they pick. Pure; no text yet.

Every answer has a value of -1, 0 or 1 for each attribute, every person a weight for each; a person prefers the
first of two answers with the Bradley-Terry probability `sigmoid(taste · (first - second) / noise)`
(Bradley & Terry 1952). Everything is a function of the settings and an index, so any row can be made
without the rows before it, and nothing has to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from prb.errors import BadSpec

ATTRIBUTES = ("brevity", "structure", "examples", "formality", "hedging", "warmth", "humour", "evidence")
SPLITS = ("train", "test", "train", "validation", "train", "train", "test", "train", "train", "train")
"""Of ten blocks of people; a block holds every group once, so that each split is balanced exactly."""
LEVELS = (-1, -1, -1, 0, 0, 1, 1, 1)
FADING = 0.75
"""How much less a taste cares for each further attribute of its axis; unequal weights make ties rare."""

T = TypeVar("T")
Vector = tuple[float, ...]


class Dice:
    """Draws that depend on the key alone. `random()` is the one sequence that Python promises to keep."""

    def __init__(self, *key: object) -> None:
        self.random = Random("/".join(map(str, key))).random  # noqa: S311 - a simulation, not a secret

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        keys = [self.random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]

    def gauss(self) -> float:
        return NormalDist().inv_cdf(self.random() or 0.5)


@dataclass(frozen=True)
class World:
    """All that decides a simulated dataset."""

    persons: int = 400
    groups: int = 4
    """Two of each axis, with opposite tastes; 1 is a world without conflict."""
    pairs: int = 8
    """Labelled pairs a person."""
    posts: int = 6
    noise: float = 0.25
    """Temperature of the Bradley-Terry choice; 0 always takes the better answer."""
    individual: float = 0.0
    """Share of a taste that is the person's own, 0 to 1: 0 is the group's taste, 1 nothing but one's own."""
    mirror: bool = False
    """Two people of opposite taste get the same questions and answers, with the labels swapped."""
    split: Literal["persons", "seen"] = "persons"
    """`persons`: nobody is in two splits. `seen`: everybody is in all three, with questions on new topics."""
    seed: int = 0

    def __post_init__(self) -> None:
        axes = len(ATTRIBUTES)
        if self.groups != 1 and (self.groups < 2 or self.groups % 2 or self.groups > 2 * axes):
            raise _bad(f"groups={self.groups} wants 1 or an even number up to {2 * axes}")
        if self.persons < self.block or self.persons % self.block:
            raise _bad(f"persons={self.persons} wants a multiple of {self.block}, so that opposite tastes balance")
        if self.pairs < (3 if self.split == "seen" else 1) or self.posts < 0:
            raise _bad(f"pairs={self.pairs}, posts={self.posts}: wants pairs from 1 (split=seen: from 3), posts from 0")
        if not (0 <= self.noise < math.inf and 0 <= self.individual <= 1):
            raise _bad(f"noise={self.noise}, individual={self.individual}: wants noise from 0, individual from 0 to 1")
        if self.mirror and self.groups == 1:
            raise _bad("mirror=true wants opposite tastes: groups=2 or more")

    @property
    def block(self) -> int:
        return max(2, self.groups)

    def split_of(self, person: int, number: int) -> str:
        if self.split == "persons":
            return SPLITS[person // self.block % len(SPLITS)]
        held_out = max(1, self.pairs // 4), max(1, self.pairs // 8)
        left = self.pairs - 1 - number
        return "test" if left < held_out[0] else "validation" if left < sum(held_out) else "train"


def _bad(what: str) -> BadSpec:
    return BadSpec(f"dataset 'simulate': {what}")


def group_of(world: World, person: int) -> str:
    return f"g{person % world.groups}"


def taste(world: World, person: int) -> Vector:
    """A unit vector over `ATTRIBUTES`; persons 2n and 2n+1 want the opposite of each other."""
    sign = 1 - 2 * (person % 2)
    shared = group_taste(world.groups, person % world.groups)
    dice = Dice(world.seed, "taste", person // 2)
    own = unit([sign * dice.gauss() for _ in ATTRIBUTES])
    share = world.individual
    return unit([(1 - share) * a + share * b for a, b in zip(shared, own, strict=True)])


def group_taste(groups: int, group: int) -> Vector:
    """An axis owns every n-th attribute, with fading weights and alternating signs; its two groups differ in sign."""
    axes = max(1, groups // 2)
    axis, sign = group // 2, 1 - 2 * (group % 2)
    rank = {attribute: k for k, attribute in enumerate(range(axis, len(ATTRIBUTES), axes))}
    return unit([sign * (-FADING) ** rank[a] if a in rank else 0.0 for a in range(len(ATTRIBUTES))])


def unit(vector: Sequence[float]) -> Vector:
    norm = math.hypot(*vector)
    return tuple(value / norm for value in vector)


class Contest(NamedTuple):
    """Two answers as this person sees them."""

    person: int
    number: int
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    probability: float
    """That this person picks `chosen`; below one half where the noise won."""
    swapped: bool
    """Whether `chosen` was drawn second: the texts of the two are drawn apart."""


def contest(world: World, person: int, number: int, weights: Vector | None = None) -> Contest:
    weights = weights or taste(world, person)
    dice = Dice(world.seed, "contest", source_of(world, person), number)
    first = tuple(dice.pick(LEVELS) for _ in ATTRIBUTES)
    second = first
    while second == first:
        second = tuple(dice.pick(LEVELS) for _ in ATTRIBUTES)
    p = preference(weights, first, second, world.noise)
    luck = dice.random()
    if world.mirror and person % 2:  # the same luck seen from the other side: the twin picks the other answer
        luck = 1 - luck
    if luck < p:
        return Contest(person, number, first, second, p, False)
    return Contest(person, number, second, first, 1 - p, True)


def source_of(world: World, person: int) -> str:
    """Whose draws decide questions and answers: one's own, or under `mirror` the couple's."""
    return f"couple {person // 2}" if world.mirror else f"person {person}"


def preference(weights: Vector, first: Sequence[int], second: Sequence[int], noise: float) -> float:
    """Bradley-Terry probability that somebody with these weights picks the first answer."""
    gain = math.fsum(w * (a - b) for w, a, b in zip(weights, first, second, strict=True))
    if noise == 0:
        return 0.5 if abs(gain) < 1e-12 else float(gain > 0)
    return 0.5 * (1 + math.tanh(gain / noise / 2))


def contests(world: World, split: str | None = None) -> Iterator[Contest]:
    """Every labelled pair as numbers, in the order of the rows, without any text."""
    for person in range(world.persons):
        weights = taste(world, person)
        for number in range(world.pairs):
            if split in (None, world.split_of(person, number)):
                yield contest(world, person, number, weights)


def tastes(world: World) -> NDArray[np.float64]:
    """The truth: persons × attributes, unit rows."""
    return np.array([taste(world, person) for person in range(world.persons)])


def bayes_accuracy(world: World, split: str | None = None) -> float:
    """What somebody who knows every taste would score: the expectation over labels, on exactly these pairs."""
    best = [max(c.probability, 1 - c.probability) for c in contests(world, split)]
    if not best:
        raise BadSpec(f"this world has no rows in split {split!r}")
    return math.fsum(best) / len(best)
