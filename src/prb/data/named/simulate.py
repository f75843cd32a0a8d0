"""Simulated people as a dataset: the numbers of `data/simulate.py` told in hand-written fragments (`simulate.json`).

An answer says the same few tips in the manner its attributes ask for, each attribute in one of many surface forms.
A person's posts never state a taste: they praise or complain about how somebody wrote. Rows are made one at a time,
so a million of them stream in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from prb.data import simulate as numbers
from prb.data.registry import DATASETS
from prb.data.simulate import ATTRIBUTES, Contest, Dice, Vector, World, contest, group_of, source_of, taste
from prb.data.source import RawRow, Source, dict_row
from prb.errors import BadSpec
from prb.prompts import fill
from prb.registry import Spec

ASPECTS = 3
STEPS = (5, 7, 11, 13, 17, 19, 23, 25)
"""No common factor with the number of questions, so nobody is asked the same twice before all were asked."""
TOPIC_SPLITS = ("train", "train", "train", "train", "validation", "test")


class Simulated(NamedTuple):
    name: str
    world: World

    def rows(self) -> Iterator[RawRow]:
        line = 0
        for person in range(self.world.persons):
            weights = taste(self.world, person)
            profile = posts(self.world, person, weights)
            for number in range(self.world.pairs):
                line += 1
                yield dict_row(
                    "simulate", line, row(self.world, contest(self.world, person, number, weights), weights, profile)
                )


@DATASETS.register("simulate")
def simulate(world: World) -> Source:
    """People with a known taste over named answer attributes, for testing methods: made up, any size."""
    changed = {k: v for k, v in vars(world).items() if v != getattr(World, k)}
    name = "&".join(f"{key}={str(value).lower()}" for key, value in changed.items())
    return Simulated(f"simulate?{name}" if name else "simulate", world)


def world_of(spec: str | World) -> World:
    if isinstance(spec, World):
        return spec
    if Spec.parse(spec).name != "simulate":
        raise BadSpec(f"{spec} is not simulated: nobody knows the true tastes of its people")
    source = DATASETS.make(spec)
    assert isinstance(source, Simulated)
    return source.world


def truth(spec: str | World) -> NDArray[np.float64]:
    """Tastes, persons × `ATTRIBUTES`, unit rows; person n is user `p{n:06}`."""
    return numbers.tastes(world_of(spec))


def bayes_accuracy(spec: str | World, split: str | None = None) -> float:
    """The accuracy nobody can beat: knowing every taste, in expectation over the noise, on exactly these pairs."""
    return numbers.bayes_accuracy(world_of(spec), split)


class Topic(NamedTuple):
    category: str
    name: str
    tips: Sequence[str]


class Manner(NamedTuple):
    """How one attribute shows; index 0 is the pole of value 1, index 1 that of value -1."""

    wants: Sequence[str]
    forms: Sequence[Sequence[str]]
    posts: Sequence[Sequence[str]]


@cache
def fragments() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((files("prb.data") / "simulate.json").read_bytes())
    return found


@cache
def topics() -> tuple[Topic, ...]:
    return tuple(Topic(*item) for item in fragments()["topics"])


@cache
def manners() -> tuple[Manner, ...]:
    return tuple(Manner(**fragments()["attributes"][name]) for name in ATTRIBUTES)


@cache
def questions(split: str | None) -> tuple[tuple[Topic, str], ...]:
    """Every topic with every question; with a split, those on the topics it owns."""
    own = [t for n, t in enumerate(topics()) if split in (None, TOPIC_SPLITS[n % len(TOPIC_SPLITS)])]
    return tuple((topic, fill(text, topic=topic.name)) for topic in own for text in fragments()["questions"])


def row(world: World, found: Contest, weights: Vector, profile: list[dict[str, str]]) -> dict[str, Any]:
    person, number = found.person, found.number
    topic, question = asked(world, person, number)
    texts = [
        answer(values, topic, Dice(world.seed, "answer", source_of(world, person), number, drawn))
        for values, drawn in ((found.chosen, found.swapped), (found.rejected, not found.swapped))
    ]
    narrative, aspects = wishes(weights)
    user = f"p{person:06}"
    made = {
        "id": f"{user}-q{number:03}",
        "user": user,
        "question": question,
        "profile": profile,
        "rubric_aspects": aspects,
        "narrative": narrative,
        "category": topic.category,
        "chosen": texts[0],
        "rejected": texts[1],
        "split": world.split_of(person, number),
        "topic": topic.name,
        "groups": {"taste": group_of(world, person)},
        "attributes": {
            "chosen": dict(zip(ATTRIBUTES, found.chosen, strict=True)),
            "rejected": dict(zip(ATTRIBUTES, found.rejected, strict=True)),
        },
    }
    return {**made, "mirror": f"p{person ^ 1:06}-q{number:03}"} if world.mirror else made


def asked(world: World, person: int, number: int) -> tuple[Topic, str]:
    pool = questions(world.split_of(person, number) if world.split == "seen" else None)
    dice = Dice(world.seed, "questions", source_of(world, person))
    start = int(dice.random() * len(pool))
    return pool[(start + number * dice.pick(STEPS)) % len(pool)]


def answer(values: Sequence[int], topic: Topic, dice: Dice) -> str:
    """The tips of a topic, in the manner of these attribute values; 0 leaves no trace."""
    said = {name: say(name, value, topic, dice) for name, value in zip(ATTRIBUTES, values, strict=True)}
    level = dict(zip(ATTRIBUTES, values, strict=True))
    tips = dice.shuffled(topic.tips)[: {1: 1, 0: 2, -1: 3}[level["brevity"]]]
    more = dice.shuffled(fragments()["elaborations"])[:1] if level["brevity"] == -1 else []
    before = [said["warmth"], said["formality"], said["brevity"]]
    after = [*more, *dice.shuffled([said[name] for name in ("examples", "evidence", "hedging", "humour")])]
    core = body(tips, level["structure"], said["structure"], dice)
    gap = "\n" if level["structure"] == 1 else " "
    return gap.join(part for part in (_joined(before), core, _joined(after)) if part)


def say(name: str, value: int, topic: Topic, dice: Dice) -> str:
    forms = manners()[ATTRIBUTES.index(name)].forms
    return fill(dice.pick(forms[value < 0]), topic=topic.name) if value else ""


def body(tips: Sequence[str], structure: int, said: str, dice: Dice) -> str:
    if structure == 1:
        marks = dice.pick((("1.", "2.", "3."), ("-", "-", "-"), ("Step 1:", "Step 2:", "Step 3:")))
        lines = [f"{mark} {_sentence(tip)}" for mark, tip in zip(marks, tips, strict=False)]
        return "\n".join([said, *lines])
    if structure == 0:
        return _joined([_sentence(tip) for tip in tips])
    links = dice.shuffled(fragments()["links"])
    flowing = tips[0] + "".join(f", {link} {tip}" for link, tip in zip(links, tips[1:], strict=False))
    return f"{_sentence(flowing)} {said}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _joined(parts: Sequence[str]) -> str:
    return " ".join(filter(None, parts))


def posts(world: World, person: int, weights: Vector) -> list[dict[str, str]]:
    """Each post is about one attribute, drawn by weight: the more somebody cares, the more often it comes up."""
    dice = Dice(world.seed, "posts", person)
    made = []
    for n, index in enumerate(dice.shuffled(_systematic(weights, world.posts, dice.random())), 1):
        topic = dice.pick(topics())
        text = fill(dice.pick(manners()[index].posts[weights[index] < 0]), topic=topic.name)
        made.append({"id": f"p{person:06}-{n:02}", "category": topic.category, "text": text})
    return made


def _systematic(weights: Vector, count: int, start: float) -> list[int]:
    """Systematic sampling: every index as often as its share of |weight| says, up to less than one."""
    drawn: list[int] = []
    total, upto = sum(map(abs, weights)), 0.0
    for index, weight in enumerate(weights):
        upto += abs(weight) / total * count
        while len(drawn) < count and start + len(drawn) < upto:
            drawn.append(index)
    return drawn + [len(weights) - 1] * (count - len(drawn))


def wishes(weights: Vector) -> tuple[str, list[dict[str, str]]]:
    """The hidden part of a row: what this person cares for most, in words."""
    ranked = sorted(range(len(weights)), key=lambda i: -abs(weights[i]))
    strong = [i for i in ranked if abs(weights[i]) > 1e-9][:ASPECTS]
    wants = [manners()[i].wants[weights[i] < 0] for i in strong]
    narrative = "What I look for: " + "; ".join(wants) + "."
    names = [("more " if weights[i] > 0 else "less ") + ATTRIBUTES[i] for i in strong]
    aspects = [
        {"aspect": name, "evidence": want, "reason": "Their posts praise it, or complain where it is missing."}
        for name, want in zip(names, wants, strict=True)
    ]
    return narrative, aspects
