"""The settings of `prb bon`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from prb.config import (
    Condition,
    Count,
    DataConfig,
    EngineConfig,
    Name,
    NonNegative,
    OutputConfig,
    PresetConfig,
    Repeated,
    Seed,
    Single,
    UserConfig,
    config,
)
from prb.errors import BadInput
from prb.failures import FailureConfig
from prb.prompts import PolicyPrompt

POLICY, GRADER = "policy: ", "grader: "
"""Prefixes that tell policy and grader from the reward models in the folder's list of weights."""


def reward_models(models: Mapping[str, str]) -> list[str]:
    """The names in a folder's `models` that are reward models."""
    return [name for name in models if not name.startswith((POLICY, GRADER))]


@config
class BonConfig(PresetConfig, OutputConfig, EngineConfig, FailureConfig, UserConfig, DataConfig):
    """What a reward model picks from N answers of a policy, graded against the user's rubric."""

    verb: ClassVar[str] = "bon"
    presentation: ClassVar[frozenset[str]] = (
        PresetConfig.presentation
        | OutputConfig.presentation
        | EngineConfig.presentation
        | FailureConfig.presentation
        | {"model", "best_of", "at_once"}
    )
    paper: ClassVar[Mapping[str, Any]] = {
        "n": 16,
        "k": 10,
        "condition": "profile",
        "temperature": 1.0,
        "top_p": 0.9,
        "max_tokens": 512,
        "policy_prompt": "paper",
    }
    paper_choices: ClassVar[Mapping[str, Any]] = {"policy": "transformers/Qwen/Qwen2.5-0.5B-Instruct"}

    @classmethod
    def restore(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """A repeated run keeps the models of its folder."""
        return {**super().restore(content), "model": reward_models(content.get("models", {}))}

    policy: Name
    """LLM that answers: `llamacpp/smollm2`, `transformers/FOLDER`, `openai/NAME;base_url=…`."""
    model: Repeated[Name] = ()
    """Reward model spec; repeat for several, or add some to a folder later. Default: the embedded ones."""
    grader: Name = "embedded"
    """Grader spec: `embedded`, or `llm?llm=SPEC`."""
    n: Count = 16
    """Answers sampled for each query."""
    best_of: Repeated[Count] = ()
    """Report best-of-k for this k; repeat for several. Default: 1, 2, 4, … N."""
    per_user: Count | None = None
    """At most this many rows per user; more users are more informative than more questions of the same users."""
    condition: Single[Condition] = "profile"
    """What policy and reward models are shown of the user."""
    policy_prompt: PolicyPrompt = "prb"
    """What the policy reads: the query as reward models read it, or instructions with the query, as in the paper."""
    temperature: NonNegative = 1.0
    """Sampling temperature of the policy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Nucleus sampling threshold of the policy."""
    max_tokens: Count = 512
    """Longest answer of the policy in tokens; longer ones are truncated and counted."""
    at_once: Count = 8
    """Answers requested in one call; a crash costs at most these. Use more for endpoints that batch requests."""
    seed: Seed = 0
    """Fixes samples, donors and resampling."""

    @model_validator(mode="after")
    def check_best_of(self) -> Self:
        if largest := max((k for k in self.best_of if k > self.n), default=None):
            raise BadInput(f"best_of must be at most n = {self.n}, not {largest}")
        return self
