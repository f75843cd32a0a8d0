"""Everything `prb evaluate` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

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
from prb.errors import BadInput, unknown
from prb.hooks import HookConfig
from prb.registry import Spec, split_alias, typed_options
from prb.work import FailureConfig

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
        """What the models are called in outcomes and tables."""
        return tuple(split_alias(model)[0] for model in self.models)
