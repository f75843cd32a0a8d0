"""Settings of `prb train`: of heads on frozen features, and of whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from prb.config import (
    Count,
    DataConfig,
    EngineConfig,
    Name,
    NonNegative,
    OutputConfig,
    Positional,
    Positive,
    RankerName,
    Seed,
    Size,
    UserConfig,
    config,
)
from prb.errors import BadInput
from prb.registry import Spec, names_code

BelowOne = Annotated[float, Field(ge=0, lt=1)]
WHOLE_MODELS = ("reward-model", "dpo")
"""Methods of `FullConfig`; all others are heads."""
LORA_ALPHA = 2
"""LoRA's alpha, as a multiple of the rank."""
SHORTEST = 8
"""Tokens; less than this holds no question and answer."""


@config
class TrainConfig(OutputConfig, EngineConfig, DataConfig):
    """Train a small reward model that knows whose preference it judges."""

    verb: ClassVar[str] = "train"
    presentation: ClassVar[frozenset[str]] = OutputConfig.presentation | EngineConfig.presentation

    method: Positional[Name]
    """A method with its settings, such as `bilinear` or `bilinear?rank=16`; `prb train --help` lists them."""
    split: str | None = None
    """Which split to train on; default `train`, else `dev`; all rows where they carry no split."""
    features: Name = "static"
    """An encoder (`static`, `minilm`) or `hidden?lm=smollm2&layer=22&pool=mean`."""
    k: Size = 10
    """How many posts of the history a head is shown; evaluate with the same number."""
    ranker: RankerName = "embedding"
    """How the k posts are picked."""
    l2: NonNegative = 0.01
    """Penalty on squared weights, where a head is trained by Adam; `light` and `axes` have settings of their own."""
    lr: Positive = 0.003
    """Learning rate of Adam."""
    epochs: Count = 60
    """Maximum number of epochs."""
    patience: Count = 8
    """Stop after this many epochs without a lower loss on the validation users."""
    batch: Count = 512
    """Rows per step; the pairs of a user stay together."""
    validation: BelowOne = 0.2
    """Share of users held out for early stopping; 0 trains on all of them for all epochs."""
    sweep: bool = False
    """Choose the method's settings and l2 by cross-validation over the training users."""
    folds: Annotated[int, Field(ge=2)] = 5
    """Folds of that cross-validation."""
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
        """Folder of the trained head."""
        return self.folder(f"train-{self.method}")


@config
class FullConfig(OutputConfig, UserConfig, DataConfig):
    """Fine-tune an LLM, or a LoRA adapter on it, into a reward model. Needs a GPU for realistic sizes."""

    verb: ClassVar[str] = "train"

    method: Positional[Literal["reward-model", "dpo"]]
    """A classification head read by `classifier?path=`, or a policy read by `implicit?policy=`."""
    base: Name
    """Folder, hub id or pulled name of the model to start from."""
    split: str | None = None
    """Which split to train on; default `train`, else `dev`; all rows where they carry no split."""
    condition: Literal["none", "profile", "plan"] = "profile"
    """What the prompt shows of the user; evaluate under the same one."""
    max_length: Annotated[int, Field(ge=SHORTEST)] | None = None
    """Longest input in tokens; the oldest posts are cut first. Default: the limit of model and tokenizer."""
    lora: Size = 0
    """Rank of a LoRA adapter on all linear layers; 0 trains every weight."""
    merge: bool = True
    """Write base and adapter as one model; without it only the adapter is written."""
    epochs: Positive = 1.0
    """Passes over the rows."""
    lr: Positive | None = None
    """Peak learning rate of AdamW; default 1e-5, with LoRA 1e-4."""
    batch: Count = 8
    """Pairs per step and device."""
    accumulate: Count = 1
    """Gradient accumulation steps."""
    warmup: BelowOne = 0.05
    """Share of the steps in which the learning rate rises; then it falls linearly to 0."""
    beta: Positive = 0.1
    """KL penalty coefficient of DPO."""
    validation: BelowOne = 0.1
    """Share of users held out for the report; 0 trains on all of them."""
    save_every: Count = 200
    """Steps between checkpoints; an interrupted run loses at most this many."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: fp32 weights, computed in bf16 on a GPU. bf16: bf16 weights too, for LoRA on a large base."""
    device: Literal["auto", "cpu"] = "auto"
    """cpu: even if there is a GPU."""
    gradient_checkpointing: bool = False
    """Less memory, more time."""
    revision: str | None = None
    """Commit or tag of a hub repository."""
    trust_remote_code: bool = False
    """Run code that comes with the weights. Only for repositories you trust."""
    seed: Seed = 0
    """Fixes a fresh head, the adapter, the order of rows and which users are held out."""

    @model_validator(mode="after")
    def check_merge(self) -> Self:
        if not self.merge and not self.lora:
            raise BadInput("--no-merge is for LoRA: add --lora RANK")
        return self

    @property
    def target(self) -> Path:
        """Folder of the trained model."""
        return self.folder(f"train-{self.method}")

    @property
    def adapter(self) -> Path:
        """Folder of the LoRA adapter."""
        return self.target / "adapter"

    @property
    def model_spec(self) -> str:
        """What to give to `prb evaluate --model`."""
        model, more = (str(self.target), {}) if self.merge else (self.base, {"adapter": str(self.adapter)})
        more |= {"max_length": str(self.max_length)} if self.max_length else {}
        if self.method == "reward-model":
            return str(Spec("classifier", {"path": model, **more}))
        return str(Spec("implicit", {"policy": model, "reference": self.base, "beta": str(self.beta), **more}))
