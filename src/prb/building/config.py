"""The settings of `prb build`, and its vocabulary: stages, roles and gates."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from prb.config import (
    Count,
    MaskingConfig,
    Name,
    NonNegative,
    OutputConfig,
    Place,
    Repeated,
    Seed,
    Share,
    Size,
    config,
)
from prb.errors import BadInput, unknown
from prb.failures import FailureConfig

Stage = Literal["rubric", "couple", "negative", "answer", "grade", "quality", "blind"]
STAGES: tuple[Stage, ...] = ("rubric", "couple", "negative", "answer", "grade", "quality", "blind")
"""In the order in which they run."""
Role = Literal["write", "grade", "judge"]
ROLES: dict[Stage, Role] = {
    "rubric": "write",
    "negative": "write",
    "couple": "judge",
    "answer": "write",
    "grade": "grade",
    "quality": "judge",
    "blind": "judge",
}
PROMPTS: dict[Stage, str] = {
    "rubric": "build_rubric",
    "negative": "build_oppose",
    "couple": "build_couple",
    "answer": "build_answer",
    "grade": "grade_all",
    "quality": "build_quality",
    "blind": "judge_pairwise",
}
GATES = {
    "input": "the record has posts, and a narrative or a rubric",
    "duplicate": "no earlier record has nearly the same question and narrative",
    "couple": "two users with similar questions have conflicting wishes and become mirror rows; else both stay alone",
    "rubric": "a rubric was written whose evidence is quoted from the narrative",
    "negative": "an opposite wish was written for each aspect",
    "answer": "an answer was written that is neither empty nor cut off",
    "refusal": "the answer is not a refusal",
    "wording": "the answer shares no run of words with rubric or narrative",
    "aspects": "chosen meets every aspect (1 or 2) and rejected none (0), graded blind",
    "length": "both answers have about the same length",
    "form": "both answers are lists, or neither is",
    "quality": "both answers are good and equally good, judged without rubric and profile, in both orders",
    "blind-judge": "the accuracy of a user-blind judge on the set is within the limit",
    "blind-learner": "the accuracy of a user-blind learner on the set is within the limit",
    "endpoint": "the model's endpoint replied; running the same command again retries failed calls",
}
"""In the order in which a record meets them, each with what it requires."""
SKIPPABLE = (
    "duplicate",
    "refusal",
    "wording",
    "aspects",
    "length",
    "form",
    "quality",
    "blind-judge",
    "blind-learner",
)
MAX_ASPECTS = 12
"""Longer rubrics cannot be met by one answer of usual length."""
AspectCount = Annotated[int, Field(ge=1, le=MAX_ASPECTS)]


@config
class BuildConfig(OutputConfig, FailureConfig, MaskingConfig):
    """Build a personalized benchmark from users' records: a rubric and two good answers each, every pair verified."""

    verb: ClassVar[str] = "build"
    presentation: ClassVar[frozenset[str]] = frozenset(
        {"max_usd", "max_total_tokens", "batch", "until", "redo", "dry_run"}
    )

    input: Name
    """Records: a .jsonl or .parquet file, a folder of them, or lampqa:FOLDER with LaMP-QA files as published."""
    llm: Name
    """LLM for every role, e.g. `openai/gpt-5;usd_in=1.25;usd_out=10`."""
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
    aspects: tuple[AspectCount, AspectCount] = (2, 6)
    """Smallest and largest number of aspects of a rubric."""
    words: Annotated[int, Field(ge=10)] = 120
    """Target length of both answers."""
    candidates: Count = 2
    """Answers written for each side of a pair."""
    rounds: Count = 3
    """The most attempts at a pair that fails a gate or that a user-blind model can predict."""
    temperature: NonNegative = 0.8
    """Sampling temperature of the answers; everything else is generated at 0."""
    max_tokens: Annotated[int, Field(ge=16)] = 1024
    """Length limit of a reply."""
    max_gap: Share = 0.15
    """Largest difference in length (characters) of the two answers, as a share of the longer one."""
    shared_words: Annotated[int, Field(ge=2)] = 5
    """Answers must not share this many consecutive words with rubric or narrative."""
    min_posts: Size = 1
    """Records with fewer posts are rejected: there is nothing to infer wishes from."""
    quality_floor: Annotated[float, Field(ge=1, le=5)] = 3.5
    """Smallest mean rating (1-5) of both answers, judged without rubric and profile."""
    quality_margin: NonNegative = 0.5
    """Largest difference of the two ratings."""
    blind_limit: Share = 0.6
    """Largest accuracy of a user-blind judge and of a user-blind learner."""
    duplicate: Share = 0.95
    """Cosine from which two records count as duplicates."""
    similar: Share = 0.75
    """Cosine from which the questions of two users may become mirror rows."""
    skip_gate: Repeated[str] = ()
    """Do not apply this gate; repeatable. docs/build.md lists the names."""
    skip_bad: bool = False
    """Use the good records of a file with errors; the others become rejects."""
    max_usd: NonNegative | None = None
    """Stop before this is exceeded; needs prices (usd_in, usd_out) in the LLM specs."""
    max_total_tokens: Size | None = None
    """Stop before more tokens than this are read and written."""
    batch: Count = 64
    """Requests per batch; a crash costs at most one batch."""
    seed: Seed = 0
    """Fixes the sampling of answers."""
    until: Stage | None = None
    """Stop after this stage."""
    redo: Stage | None = None
    """Repeat this stage and what depends on it; everything else comes from the log."""
    dry_run: bool = False
    """Only estimate calls, tokens and dollars."""

    @model_validator(mode="after")
    def check_aspects_and_gates(self) -> Self:
        if self.aspects[0] > self.aspects[1]:
            raise BadInput(f"aspects {self.aspects[0]} {self.aspects[1]}: the first number must not exceed the second")
        for name in self.skip_gate:
            if name not in SKIPPABLE:
                raise unknown("gate that can be skipped", name, SKIPPABLE)
        return self

    def spec_of(self, role: Role) -> str:
        spec: str | None = getattr(self, f"{role}_llm")
        return spec or self.llm
