"""Settings of `prb train`: of heads on frozen features, and of whole models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from prb.config import (
    Count,
    EngineConfig,
    Name,
    OutputConfig,
    Positional,
    Positive,
    Rare,
    Seed,
    Settings,
    Size,
    UserConfig,
    config,
)
from prb.errors import BadInput
from prb.registry import Spec, names_code, typed_options

BelowOne = Annotated[float, Field(ge=0, lt=1)]
WHOLE_MODELS = ("reward-model", "dpo")
"""Methods of `FullConfig`; all others are heads."""
CHECKPOINT = "checkpoint.safetensors"
"""Where the state of an unfinished training is, in its folder."""
LORA_ALPHA = 2
"""LoRA's alpha, as a multiple of the rank."""


@config
class TrainingRows(Settings):
    """Which rows."""

    dataset: Name = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split to train on; default `train`, else `dev`; all rows where they carry no split."""
    limit: Count | None = None
    """At most N rows of the split, spread over clusters; twins stay together."""


@config
class TrainConfig(OutputConfig, EngineConfig, TrainingRows):
    """Train a small reward model that knows whose preference it judges."""

    verb: ClassVar[str] = "train"

    method: Positional[Name]
    """A method with its settings, such as `bilinear` or `bilinear?rank=16`; `prb train --help` lists them."""
    features: Name = "static"
    """An encoder (`static`, `minilm`) or `hidden?lm=smollm2&layer=22&pool=mean`."""
    k: Size = 10
    """How many posts of the history a head is shown; evaluate with the same number."""
    epochs: Count = 60
    """Maximum number of epochs."""
    validation: Rare[BelowOne] = 0.2
    """Share of users held out for early stopping; 0 trains on all of them for all epochs."""
    sweep: bool = False
    """Choose the method's settings and the L2 penalty by cross-validation over the training users."""
    seed: Seed = 0
    """Fixes initial weights, order, noise and which users are held out."""

    @model_validator(mode="after")
    def check_specs(self) -> Self:
        from prb.models.personal.features import check_features
        from prb.models.personal.methods import METHODS

        for spec in (self.method, self.features):
            if names_code(spec):
                raise BadInput(f"{spec!r} would run code, but a head can only name registered methods and features")
        METHODS.check(Spec.parse(self.method))
        check_features(self.features)
        return self

    @property
    def target(self) -> Path:
        return self.folder(f"train-{self.method}")


@dataclass(frozen=True)
class Base:
    """The options of a base model: `Qwen/Qwen3-0.6B?dtype=bf16&max_length=4096`."""

    max_length: Annotated[int, Field(ge=8)] | None = None
    """Longest input in tokens; the oldest posts are cut first. Default: the limit of model and tokenizer."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: fp32 weights, computed in bf16 on a GPU. bf16: bf16 weights too, for LoRA on a large base."""
    device: Literal["auto", "cpu"] = "auto"
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Dpo:
    """The options of method `dpo`."""

    beta: Positive = 0.1
    """KL penalty coefficient."""


@config
class FullConfig(OutputConfig, UserConfig, TrainingRows):
    """Fine-tune an LLM, or a LoRA adapter on it, into a reward model. Needs a GPU for realistic sizes."""

    verb: ClassVar[str] = "train"

    method: Positional[Name]
    """`reward-model`: a head of one logit, read by `classifier?path=`; `dpo?beta=0.1`: a policy, read by `implicit`."""
    base: Name
    """Folder, hub id or pulled name of the model to start from, with options: `?dtype=bf16&max_length=4096`, `device`,
    `revision`, `trust_remote_code`."""
    condition: Literal["none", "profile", "plan"] = "profile"
    """What the prompt shows of the user; evaluate under the same one."""
    lora: Size = 0
    """Rank of a LoRA adapter on all linear layers; 0 trains every weight."""
    epochs: Positive = 1.0
    """Passes over the rows."""
    lr: Positive | None = None
    """Peak learning rate of AdamW; default 1e-5, with LoRA 1e-4."""
    batch: Count = 8
    """Pairs per update and device."""
    validation: Rare[BelowOne] = 0.1
    """Share of users held out for the report; 0 trains on all of them."""
    seed: Seed = 0
    """Fixes a fresh head, the adapter, the order of rows and which users are held out."""

    @model_validator(mode="after")
    def check_specs(self) -> Self:
        if self.kind not in WHOLE_MODELS:
            raise BadInput(f"method must be {' or '.join(WHOLE_MODELS)}, not {self.kind!r}")
        _ = self.options  # what is wrong with options is said before anything is loaded
        typed_options(Dpo if self.kind == "dpo" else lambda: None, Spec.parse(self.method), "method")
        return self

    @property
    def kind(self) -> str:
        return Spec.parse(self.method).name

    @property
    def dpo(self) -> Dpo:
        return Dpo(**typed_options(Dpo, Spec.parse(self.method), "method"))

    @property
    def source(self) -> str:
        """Folder, hub id or pulled name of the base."""
        return Spec.parse(self.base).name

    @property
    def options(self) -> Base:
        return Base(**typed_options(Base, Spec.parse(self.base), "base"))

    @property
    def target(self) -> Path:
        return self.folder(f"train-{self.method}")


def config_of(method: str) -> type[TrainConfig | FullConfig]:
    """The settings that a method takes."""
    return FullConfig if Spec.parse(method).name in WHOLE_MODELS else TrainConfig
