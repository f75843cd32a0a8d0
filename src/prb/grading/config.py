"""The settings of `prb grade`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from prb.config import Count, DataConfig, EngineConfig, MaskingConfig, Name, OutputConfig, Place, Seed, config
from prb.errors import BadInput
from prb.failures import FailureConfig


@config
class GradeConfig(OutputConfig, EngineConfig, FailureConfig, MaskingConfig, DataConfig):
    """Grade answers against each user's rubric (--answers), or measure how good a grader is (--validate)."""

    verb: ClassVar[str] = "grade"
    presentation: ClassVar[frozenset[str]] = (
        OutputConfig.presentation | EngineConfig.presentation | FailureConfig.presentation | {"batch"}
    )

    grader: Name = "embedded"
    """Grader spec: `embedded`, `embedded?encoder=minilm`, `llm?llm=openai/gpt-5`, `llm?llm=SPEC&way=each`."""
    answers: Place | None = None
    """JSONL with one {"pair": id of a row, "answer": text} per line."""
    validate: bool = False
    """Grade the chosen and the rejected answer of every row, and report how often the chosen one scores higher."""
    human: Place | None = None
    """With --validate: JSONL with grades by human annotators, {"pair": id, "answer": text, "grades": [0, 2, 1]}."""
    retest: bool = False
    """With --validate: grade everything twice under different seeds, and report how often the grades agree."""
    limit: Count | None = None
    """At most N rows, spread over clusters, twins together; with --answers the first N answers."""
    batch: Count = 32
    """Answers per batch; a crash costs at most one batch."""
    seed: Seed = 0
    """Fixes resampling."""

    @model_validator(mode="after")
    def check_mode(self) -> Self:
        if self.validate == (self.answers is not None):
            raise BadInput("prb grade needs either --answers FILE or --validate")
        if (self.human or self.retest) and not self.validate:
            raise BadInput("--human and --retest can only be used with --validate")
        return self
