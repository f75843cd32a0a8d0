"""Everything `prb evaluate` can be told, and what `--require` and `--max-failed` make of its summary."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import model_validator

from prb.config import (
    ConditionName,
    Count,
    DataConfig,
    EngineConfig,
    Name,
    OutputConfig,
    Place,
    PositionalOrFlag,
    Rare,
    Repeated,
    Seed,
    UserConfig,
    config,
)
from prb.data.load import Shard
from prb.errors import BadInput, BadSpec, GateFailed, unknown
from prb.hooks import HookConfig
from prb.registry import Spec, split_alias, typed_options
from prb.summary import CONDITIONS, METRICS, Metric, Summary
from prb.work import FailureConfig, count_reasons, refuse_failures

DEFAULT_CONDITIONS: tuple[ConditionName, ...] = ("none", "profile", "shuffled", "oracle")
DEFAULT_MODELS = ("random", "length", "constant", "lexical", "embedding", "aspect-match")
PERSONAL, READER = "personal (SmolLM2 head, recorded):=personal-recorded", "reader (LLM, recorded):=reader"
RECORDED_MODELS = {"test": (PERSONAL, READER), "hard": (READER,), "restraint": (PERSONAL, READER)}
"""By split of `mirror`, models whose scores were recorded: the embedded head (minutes, needs torch) and LLM readers.
Added to the defaults, so that a first table shows what is possible."""


@dataclass(frozen=True)
class Paper:
    """`--protocol 'paper?prompt=PATH'`."""

    prompt: Path | None = None


@config
class EvaluateConfig(OutputConfig, EngineConfig, HookConfig, FailureConfig, UserConfig, DataConfig):
    """Score reward models on a personalized benchmark. Without arguments: the embedded benchmark and models."""

    verb: ClassVar[str] = "evaluate"
    presentation: ClassVar[frozenset[str]] = frozenset({"require", "full", "batch", "license"})

    dataset: PositionalOrFlag[Name] = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    model: Repeated[Name] = ()
    """Model spec such as `embedding` or `embedding?encoder=minilm`, or `mine.py:Class`. Default: all embedded models.
    `short:=spec` names it `short` in tables."""
    condition: Repeated[ConditionName] = ()
    """What the model is shown of the user. Default: none, profile, shuffled and oracle."""
    task: Rare[Literal["pairs", "ratings"]] = "pairs"
    """Chosen/rejected pairs, or answers with each user's own rating in 0..1."""
    orders: Rare[Literal["both", "one"]] = "both"
    """Ask comparers in both answer orders, or in one drawn by a hash of the pair."""
    protocol: Rare[str] = "prb"
    """`paper`: the procedure of the paper's released scripts, faults included, to compare with published numbers.
    `paper?prompt=PATH`: with its prompts/ folder, or a file with the slots {question}, {answer_a} and {answer_b} (or
    {Response_A} and {Response_B})."""
    trained: Rare[Literal["leave-out", "count"]] = "leave-out"
    """Rows on which a model was trained, as the card of its folder says: not measured, or counted like all others."""
    batch: Rare[Count] = 64
    """Rows per batch; a crash loses at most the batches under way."""
    seed: Rare[Seed] = 0
    """Fixes donors, answer orders and resampling."""
    shard: Rare[str | None] = None
    """`i/n`: evaluate only part i of n (from 1). Clusters stay whole, and parts are about equally large; `prb merge`
    combines them."""
    license: Rare[Place | None] = None
    """A file of `prb grade --license`: also report accuracy by people's labels, which correct those of the rows."""
    require: str | None = None
    """Exit 1 unless this holds, e.g. "accuracy>0.6,embedding:control.low>0"; a
    clause without `model:` must hold for every model."""
    full: bool = False
    """Print all numbers: every condition with its interval, gain, control, twins, failures."""

    @model_validator(mode="after")
    def check_shard_and_protocol(self) -> Self:
        if self.shard is not None:
            Shard.parse(self.shard)
            if self.paper:
                raise BadInput("--shard cannot be used with --protocol paper, whose answer orders depend on all rows")
        if self.paper and self.engine != "local":
            raise BadInput("--engine cannot be used with --protocol paper: the released scripts run in one process")
        return self

    def saved(self) -> dict[str, Any]:
        """Without `shard` where there is none, as in runs of earlier versions."""
        saved = super().saved()
        if self.shard is None:
            del saved["shard"]
        return saved

    @property
    def paper(self) -> Paper | None:
        """The paper's own procedure, if it is followed."""
        spec = Spec.parse(self.protocol)
        if spec.name == "paper":
            return Paper(**typed_options(Paper, spec, "protocol"))
        if self.protocol != "prb":
            raise unknown("protocol", self.protocol, ("prb", "paper"))
        return None

    @property
    def models(self) -> tuple[str, ...]:
        """The models, or the embedded ones that suit the data."""
        fits = self.dataset == "mirror" and self.task == "pairs" and not self.paper
        recorded = RECORDED_MODELS.get(self.split or "test", ()) if fits else ()
        return tuple(dict.fromkeys(self.model)) or (*DEFAULT_MODELS, *recorded)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(split_alias(model)[0] for model in self.models)


# --- what a finished run must hold ---
_CLAUSE = re.compile(
    r"(?:(.+):)?([\w-]+)(?:@([\w-]+))?(?:\.(low|high|p|p_holm|failed|n))?"
    r"\s*(>=|<=|>|<)\s*(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)"
)
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
COUNTS = ("failed", "n")
"""Parts of an estimate that are not shares."""


class Requirement(NamedTuple):
    text: str
    model: str | None
    """None: every model of the run."""
    metric: Metric
    condition: str | None
    part: str
    compare: str
    bound: float


def check_requirements(text: str, conditions: Sequence[str], models: Sequence[str]) -> None:
    for requirement in parse_requirements(text):
        if requirement.model is not None and requirement.model not in models:
            raise unknown("model of this run", requirement.model, models)
        for condition in requirement.metric.needs or (requirement.condition,):
            if condition is not None and condition not in conditions:
                raise BadSpec(f"--require: {requirement.text} needs condition {condition!r}, which is not run")


def parse_requirements(text: str) -> Iterator[Requirement]:
    if not text.strip(", "):
        raise BadSpec("--require is empty, so that it would always hold; write for example accuracy>0.6")
    for clause in filter(None, map(str.strip, text.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if not match:
            like = "accuracy>0.6, control.low>0 or embedding:accuracy@none<=0.55"
            raise BadSpec(f"--require: {clause!r} is not like {like}")
        model, key, condition, part, compare, number = match.groups()
        metric = METRICS.look_up(key)
        if condition is not None:
            CONDITIONS.look_up(condition)
        bound = float(number)
        if part not in COUNTS and metric.unit != "number" and abs(bound) > 1:
            hint = f"; for {number} % write {bound / 100:g}" if abs(bound) <= 100 else ""
            raise BadSpec(f"--require: {clause}: {key} is a share, at most 1{hint}")
        yield Requirement(clause, model, metric, condition, part or "value", compare, bound)


def require(text: str, summary: Summary) -> None:
    """Every requirement must hold for its model, or for every model of the run; a value that is not there fails it."""
    broken = []
    for requirement in parse_requirements(text):
        metric, missing = requirement.metric, True
        # without a condition, under `profile` where that was run, since that is how a model is used
        condition = metric.needs[0] if metric.needs else requirement.condition or summary.shown
        for model in summary.models if requirement.model is None else [requirement.model]:
            result, contrasts = summary.result(model, condition), summary.contrasts_of(model)
            if result is None or metric.key not in (contrasts if metric.needs else result.metrics):
                continue
            missing, who = False, model if metric.needs else f"{model} under {condition}"
            estimate = contrasts[metric.key] if metric.needs else result.estimate(metric.key)
            value = getattr(estimate, requirement.part, None)
            why = f" (it {result.position_warning})" if result.position_warning else ""
            if value is None:
                broken.append(f"{requirement.text}: {who} has no value{why}")
            elif not _COMPARE[requirement.compare](value, requirement.bound):
                broken.append(f"{requirement.text}: {who} has {value:.4f}{why}")
        if missing:
            broken.append(f"{requirement.text}: the run has no such result")
    if broken:
        raise GateFailed("requirements not met:\n  " + "\n  ".join(broken))


def check_failures(summary: Summary, max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of a model's rows failed under a condition.

    Rows that were not measured do not count, but a model of which nothing was measured is a failure.
    """
    counted = [(f"{r.model} under {r.condition}", r.failed, r.measured, r.failures) for r in summary.results]
    empty = []
    for model in summary.models:
        results = [result for result in summary.results if result.model == model]
        if not any(result.measured for result in results):
            empty.append(f"{model}: nothing was measured ({count_reasons(results[-1].not_measured)})")
    refuse_failures(counted, max_failed, empty)
