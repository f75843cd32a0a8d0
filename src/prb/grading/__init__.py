"""Grading answers against a user's rubric. Graders may see the rubric and the narrative; reward models may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Protocol, Self, TypeGuard, TypeVar

from msgspec import Struct
from pydantic import model_validator

from prb.config import Count, DataConfig, EngineConfig, MaskingConfig, Name, OutputConfig, Place, Seed, config
from prb.errors import BadInput
from prb.progress import Progress, Tally
from prb.registry import Registry
from prb.text.pii import mask
from prb.types import Aspect, Failure, Pair
from prb.work import Breaker, Call, CalledModel, FailureConfig, Replies, Reply, ask_missing, call_key, chunks

K = TypeVar("K")
TOP = 2
"""An aspect is graded 0 (not met), 1 (partly met) or 2 (met)."""
NEGATIVE = "This must not be in the answer: grade 2 if it is there, 0 if it is not."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer to grade, with all that a grader may know about what the user wanted."""

    question: str
    answer: str
    rubric: tuple[Aspect, ...]
    narrative: str = ""
    pair: str = ""
    """Id of the row, for grades that were given elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """One grade per aspect, 0 to 2, in the rubric's order."""

    aspects: tuple[float, ...]
    rubric: tuple[Aspect, ...] = field(default=(), compare=False, repr=False)
    """What was graded; without it every aspect counts the same."""
    tokens: int = 0
    cost: float = 0.0
    text: tuple[str, ...] = ()
    """What an LLM wrote, one entry per call."""

    def as_reply(self) -> dict[str, Any]:
        """As `replies.jsonl` has it."""
        return {"value": list(self.aspects), "tokens": self.tokens, "cost": self.cost, "text": list(self.text)}

    @property
    def score(self) -> float:
        """Σ / 2n, 0 to 1, as LaMP-QA defines it; twice this is the mean grade.

        With weights it is their mean; a negative aspect counts as far as it is absent; a required one that is missed
        altogether makes it 0.
        """
        rubric = self.rubric or (Aspect(""),) * len(self.aspects)
        met = [TOP - grade if a.negative else grade for grade, a in zip(self.aspects, rubric, strict=True)]
        if any(a.required and not grade for grade, a in zip(met, rubric, strict=True)):
            return 0.0
        weighted = sum(a.weight * grade for grade, a in zip(met, rubric, strict=True))
        return weighted / (TOP * sum(a.weight for a in rubric))


class Grader(Protocol):
    fingerprint: str
    remote: bool
    """Whether texts leave the machine."""

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]: ...


def shown(aspect: Aspect) -> tuple[str, ...]:
    """What a grader reads of an aspect; how much it counts is not its business."""
    return (*aspect[:3], NEGATIVE) if aspect.negative else aspect[:3]


def ungradable(answered: Answered) -> Failure | None:
    """Why no grader can grade this, if so."""
    if not answered.rubric:
        return Failure("no rubric", "there is nothing to grade against")
    return None if answered.answer.strip() else Failure("empty answer")


def grades_of(reply: Reply, answered: Answered) -> Grades | Failure:
    """A grader's reply. A grader may come from another package: anything but one grade per aspect is a failure."""
    if failure := reply.as_failure:
        return failure
    if not is_graded(reply.value) or len(reply.value) != len(answered.rubric):
        return Failure("no grades", f"the grader returned {reply.value!r:.100} for {len(answered.rubric)} aspects")
    aspects = tuple(map(float, reply.value))
    text = tuple(reply.text)
    return Grades(aspects=aspects, rubric=answered.rubric, tokens=reply.tokens, cost=reply.cost, text=text)


def grade_answers(
    asked: CalledModel, answers: Mapping[K, Answered], replies: Replies, breaker: Breaker, progress: Progress
) -> dict[K, Grades | Failure]:
    """What a grader says of each answer; it is asked about what has no reply yet."""
    progress.begin(f"grading by {asked.name}", total=len(answers))
    start, planned = asked.key_start(), []
    for key, a in answers.items():
        rubric = chain.from_iterable(map(shown, a.rubric))
        planned.append((key, Call(call_key(start, a.question, a.answer, a.narrative, "", *rubric), a)))
    batches = ((batch, [call for _, call in batch]) for batch in chunks(planned, asked.batch))
    graded, tally = dict[K, Grades | Failure](), Tally(progress)
    for batch in ask_missing(batches, replies, asked, breaker):
        results = [grades_of(replies[call.key], call.ask) for _, call in batch]
        graded |= {key: result for (key, _), result in zip(batch, results, strict=True)}
        tally.add([r if isinstance(r, Failure) else None for r in results], [r.cost for r in results])
        progress.advance(len(batch))
    return graded


def is_graded(values: Any) -> TypeGuard[list[float]]:
    if not isinstance(values, list) or not values:
        return False
    return all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= TOP for v in values)


def as_line(graded: Grades | Failure) -> dict[str, Any]:
    """The form it has in a file. What a failure cost is included."""
    used = {"tokens": graded.tokens, "cost": graded.cost}
    if isinstance(graded, Failure):
        return {"score": None, "aspects": None, "failure": str(graded), **used, "text": ()}
    return {"score": graded.score, "aspects": graded.aspects, "failure": None, **used, "text": graded.text}


def answered(pair: Pair, answer: str, *, masked: bool = False) -> Answered:
    """What a grader sees of a row. Masking applies to the user's words; the answer is not theirs."""
    clean = mask if masked else str
    rubric = tuple([aspect.mapped(mask) for aspect in pair.rubric]) if masked else pair.rubric
    question, narrative = clean(pair.question), clean(pair.narrative)
    return Answered(question=question, answer=answer, rubric=rubric, narrative=narrative, pair=pair.id)


GRADERS: Registry[Grader] = Registry("grader", package="prb.grading", group="prb.graders")


class GraderAbout(Struct, frozen=True):
    spec: str
    fingerprint: str | None = None
    validity: str | None = None

    @classmethod
    def of(cls, spec: str, grader: Grader) -> Self:
        return cls(spec, grader.fingerprint, getattr(grader, "validity", None))

    @property
    def trust(self) -> str:
        """Whose grades these are and how far they can be trusted; shown wherever they are."""
        return f"Graded by {self.spec}. {self.validity or 'Its validity has not been measured.'}"


def make_grader(spec: str) -> Grader:
    """What `GRADERS.make` makes, as a function that another process can be told to call."""
    return GRADERS.make(spec)


@config
class GradeConfig(OutputConfig, EngineConfig, FailureConfig, MaskingConfig, DataConfig):
    """Grade answers against each user's rubric (--answers), or measure how good a grader is (--validate). May a judge
    stand in for people? `prb grade --license FILE --help`."""

    verb: ClassVar[str] = "grade"

    grader: Name = "embedded"
    """Grader spec: `embedded`, `recorded`, `llm?llm=openai/gpt-5`, `llm?llm=SPEC&way=each`."""
    answers: Place | None = None
    """JSONL with one {"pair": id of a row, "answer": text} per line."""
    validate: bool = False
    """Grade the chosen and the rejected answer of every row, and report how often the chosen one scores higher."""
    human: Place | None = None
    """With --validate: JSONL with grades by human annotators, {"pair": id, "answer": text, "grades": [0, 2, 1]}."""
    limit: Count | None = None
    """At most N rows, spread over clusters, twins together; with --answers the first N answers."""
    seed: Seed = 0
    """Fixes resampling."""

    @model_validator(mode="after")
    def check_mode(self) -> Self:
        if self.validate == (self.answers is not None):
            raise BadInput("prb grade needs one of --answers FILE and --validate")
        if self.human and not self.validate:
            raise BadInput("--human can only be used with --validate, or with --license JUDGE")
        return self
