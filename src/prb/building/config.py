"""The settings of `prb build`, and its vocabulary: stages, roles and gates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from prb.config import Count, MaskingConfig, Name, OutputConfig, Place, Rare, Repeated, Seed, config
from prb.errors import BadInput, unknown
from prb.registry import Spec
from prb.work import FailureConfig

Stage = Literal["rubric", "couple", "negative", "answer", "grade", "quality", "blind"]
Role = Literal["write", "grade", "judge"]


class Job(NamedTuple):
    role: Role
    prompt: str
    """Name of its file."""


STAGES: dict[Stage, Job] = {
    "rubric": Job("write", "build_rubric"),
    "couple": Job("judge", "build_couple"),
    "negative": Job("write", "build_oppose"),
    "answer": Job("write", "build_answer"),
    "grade": Job("grade", "grade_all"),
    "quality": Job("judge", "build_quality"),
    "blind": Job("judge", "judge_pairwise"),
}
"""In the order in which they run."""
ROLES: tuple[Role, ...] = get_args(Role)
ASPECTS = (2, 6)
"""Smallest and largest number of aspects of a rubric that is written; one answer cannot meet many more."""
CANDIDATES = 2
ROUNDS = 3
"""The most attempts at a pair that fails a gate or that a user-blind model can predict."""


class Limit(NamedTuple):
    """A number that a gate compares with, and the range it may be in."""

    value: float
    least: float = 0.0
    most: float = 1.0


class Gate(NamedTuple):
    requires: str
    optional: bool = False
    """Whether `NAME=off` switches it off."""
    limits: Mapping[str, Limit] = {}


GATES = {
    "input": Gate("the record has posts, and a narrative or a rubric", limits={"posts": Limit(1, 0, 1000)}),
    "duplicate": Gate(
        "no earlier record has nearly the same question and narrative", optional=True, limits={"cosine": Limit(0.95)}
    ),
    "couple": Gate(
        "two users with similar questions have conflicting wishes and become mirror rows; else both stay alone",
        limits={"cosine": Limit(0.75)},
    ),
    "rubric": Gate("a rubric was written whose evidence is quoted from the narrative"),
    "negative": Gate("an opposite wish was written for each aspect"),
    "answer": Gate("an answer was written that is neither empty nor cut off"),
    "refusal": Gate("the answer is not a refusal", optional=True),
    "wording": Gate(
        "the answer shares no run of words with rubric or narrative", optional=True, limits={"words": Limit(5, 2, 100)}
    ),
    "aspects": Gate("chosen meets every aspect (1 or 2) and rejected none (0), graded blind", optional=True),
    "length": Gate("both answers have about the same length", optional=True, limits={"gap": Limit(0.15)}),
    "form": Gate("both answers are lists, or neither is", optional=True),
    "quality": Gate(
        "both answers are good and equally good, judged without rubric and profile, in both orders",
        optional=True,
        limits={"floor": Limit(3.5, 1, 5), "margin": Limit(0.5, 0, 4)},
    ),
    "blind-judge": Gate(
        "the accuracy of a user-blind judge on the set is within the limit", optional=True, limits={"limit": Limit(0.6)}
    ),
    "blind-learner": Gate(
        "the accuracy of a user-blind learner on the set is within the limit",
        optional=True,
        limits={"limit": Limit(0.6)},
    ),
    "endpoint": Gate("the model's endpoint replied; running the same command again retries failed calls"),
}
"""In the order in which a record meets them."""
OFF = "=off"


def gate_limits(changes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The limits of every gate that is applied, after changes such as `quality?floor=3` and `length=off`."""
    limits = {name: {key: limit.value for key, limit in gate.limits.items()} for name, gate in GATES.items()}
    for text in changes:
        if text.endswith(OFF):
            optional = [name for name, gate in GATES.items() if gate.optional]
            if (name := text.removesuffix(OFF)) not in optional:
                raise unknown("gate that can be switched off", name, optional)
            limits.pop(name, None)
            continue
        spec = Spec.parse(text)
        if spec.name not in GATES:
            raise unknown("gate", spec.name, GATES)
        if not spec.options:
            raise BadInput(f"gate {text!r} changes nothing; `{spec.name}{OFF}` switches it off")
        for key, value in spec.options.items():
            allowed = GATES[spec.name].limits
            if key not in allowed:
                hint = f"it takes: {', '.join(allowed) or 'none'}"
                raise unknown(f"limit of gate {spec.name!r}", key, allowed, hint=hint)
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not allowed[key].least <= number <= allowed[key].most:
                raise BadInput(
                    f"gate {text!r}: {key} must be a number from {allowed[key].least:g} to {allowed[key].most:g}"
                )
            limits.get(spec.name, {})[key] = number
    return limits


@config
class BuildConfig(OutputConfig, FailureConfig, MaskingConfig):
    """Build a personalized benchmark from users' records: a rubric and two good answers each, every pair verified."""

    verb: ClassVar[str] = "build"

    input: Name
    """Records: a .jsonl or .parquet file, a folder of them, or `lampqa?path=FOLDER`, LaMP-QA as published."""
    llm: Name
    """LLM for every role, e.g. `openai/gpt-5?usd_in=1.25&usd_out=10&max_usd=20`."""
    out: Place = field()
    """Folder of the build; the same command resumes it."""
    write_llm: Name | None = None
    """LLM that writes rubrics and answers, instead of --llm."""
    grade_llm: Name | None = None
    """LLM that grades answers against the rubric, instead of --llm."""
    judge_llm: Name | None = None
    """LLM that judges general quality, couples and user-blind accuracy, instead of --llm."""
    mode: Literal["oppose", "avoid"] = "oppose"
    """oppose: the rejected answer suits a user with opposite wishes; avoid: it ignores the wishes, as in the paper."""
    mirror: bool = True
    """Turn records with similar questions and conflicting rubrics into mirror rows with swapped labels."""
    limit: Count | None = None
    """Only the first N records."""
    words: Annotated[int, Field(ge=10)] = 120
    """Target length of both answers."""
    gate: Repeated[str] = ()
    """Change a gate, as in `quality?floor=3&margin=1`, or switch it off: `length=off`; repeatable. All of them:
    docs/tables/gates.md."""
    seed: Rare[Seed] = 0
    """Fixes the sampling of answers."""

    @model_validator(mode="after")
    def check_gates(self) -> Self:
        gate_limits(self.gate)
        return self

    def spec_of(self, role: Role) -> str:
        spec: str | None = getattr(self, f"{role}_llm")
        return spec or self.llm
