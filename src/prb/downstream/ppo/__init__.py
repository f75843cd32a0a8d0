"""PPO: train a policy against a reward model, here or by verl, then grade held-out answers.

Here are the settings, the files of a run and its summary; the algorithm and the run are in `loop`, prompts and networks
in `policy`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from msgspec import Struct
from pydantic import Field, model_validator

from prb import __version__
from prb.config import (
    ConditionName,
    Count,
    Name,
    NonNegative,
    OutputConfig,
    PresetConfig,
    Rare,
    Seed,
    Single,
    Size,
    UserConfig,
    config,
)
from prb.downstream.answers import ModelAbout
from prb.errors import BadInput, explain_import
from prb.grading import Grader, GraderAbout
from prb.llm import LLMS, check_llm, parse_llm
from prb.progress import SILENT, Progress
from prb.registry import Spec, typed_options
from prb.runs import Finished, draft
from prb.summary import DatasetAbout
from prb.types import Difference, Estimate, Scorer


class Recipe(NamedTuple):
    """In what our defaults differ from the paper's scripts, which leave it to verl."""

    lam: float
    """λ of generalized advantage estimation."""
    value_clip: float
    separate_critic: bool
    """A value head on a second copy of the model instead of on the policy's own last layer."""
    whiten_rewards: bool
    """Rewards have mean 0 and variance 1 over the answers of a batch; advantages always do, over its tokens."""
    stop_kl: float | None
    """Stop when answers are on average this many nats away from the reference."""


OURS = Recipe(lam=0.95, value_clip=0.2, separate_critic=False, whiten_rewards=True, stop_kl=50.0)
PAPER = Recipe(lam=1.0, value_clip=0.5, separate_critic=True, whiten_rewards=False, stop_kl=None)
CLIP = 0.2
"""Clip range of a token's probability ratio."""
CRITIC_RATE = 10
"""Learning rate of the value head, and of its own trunk, as a multiple of the policy's."""
MAX_GRAD_NORM = 1.0
CHECKPOINT_EVERY = 10
"""Steps between checkpoints; a crash costs at most these."""


@dataclass(frozen=True)
class Verl:
    """The options of `--engine verl?gpus=8&nodes=2`."""

    gpus: Count = 1
    nodes: Count = 1
    rollout: Literal["vllm", "sglang"] = "vllm"
    """The inference engine that samples answers."""
    url: str = "http://127.0.0.1:8300"
    """The `prb serve` that gives the rewards; PRB_SERVE_TOKEN is its token."""


@config
class PpoConfig(PresetConfig, OutputConfig, UserConfig):
    """Train a policy against a reward model, then grade what comes out on held-out prompts."""

    verb: ClassVar[str] = "ppo"
    presentation: ClassVar[frozenset[str]] = frozenset({"engine"})
    paper: ClassVar[Mapping[str, Any]] = {
        "k": 10,
        "condition": "profile",
        "steps": None,
        "batch": 128,
        "minibatch": 16,
        "epochs": 1,
        "lr": 5e-7,
        "kl": 0.0,
        "lora": 0,
        "max_tokens": 512,
        "max_prompt": 8192,
    }
    """One pass over the prompts; what the scripts leave to verl has verl's defaults, see `PAPER`."""
    paper_choices: ClassVar[Mapping[str, Any]] = {"policy": "transformers/Qwen/Qwen2.5-0.5B-Instruct"}

    policy: Name
    """What is trained: `transformers/smollm2`, `transformers/FOLDER` or a hub id after the slash; `?batch=N` answers
    share a forward pass."""
    model: Name
    """Reward model spec, as in `prb evaluate`; it must score answers, not only compare them."""
    dataset: Name = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    split: Rare[str | None] = None
    """Prompts to train on; `train` where rows carry a split, else all rows but the held-out ones."""
    limit: Rare[Count | None] = None
    """At most N rows of the split, spread over clusters; twins stay together."""
    condition: Single[ConditionName] = "profile"
    """What policy and reward model are shown of the user."""
    steps: Count | None = None
    """Batches of answers to learn from; default: one pass over the prompts."""
    batch: Annotated[int, Field(ge=2)] = 32
    """Answers per step, one per prompt."""
    minibatch: Rare[Count] = 8
    """Answers per update of the weights."""
    epochs: Rare[Count] = 2
    """Passes over each batch."""
    lr: NonNegative = 1e-5
    """Learning rate of the policy; that of the critic is ten times as high."""
    kl: NonNegative = 0.05
    """KL penalty coefficient: reward lost per nat away from the reference policy; 0: no penalty."""
    lora: Size = 0
    """Rank of LoRA adapters on all linear layers; 0: train all weights."""
    max_tokens: Count = 128
    """Longest answer in tokens."""
    max_prompt: Rare[Annotated[int, Field(ge=8)]] = 1024
    """Longest prompt of the policy in tokens; a longer one loses its oldest posts first."""
    seed: Seed = 0
    """Fixes the order of prompts, the noise of every answer, minibatches, adapters and resampling."""
    holdout: Size = 64
    """Held-out prompts (of split `test` where there is one) answered before and after training; 0: none."""
    grader: str | None = "embedded"
    """Grades held-out answers against the rubric; `None`: only the reward model scores them."""
    empty_reward: Rare[float | None] = None
    """The reward of an answer without text, which no model can score. Default: such an answer is dropped, and with
    --engine verl it gets the lowest reward seen so far."""
    engine: Name = "local"
    """`local`: this process, one GPU or the CPU. `verl?gpus=8&nodes=2&url=…`: write the files with which verl trains on
    a Ray cluster, with rewards from the `prb serve` at url; `rollout=sglang`."""

    @model_validator(mode="after")
    def check_sizes(self) -> Self:
        if self.batch % self.minibatch:
            raise BadInput(f"batch must be a multiple of minibatch ({self.minibatch}), not {self.batch}")
        if Spec.parse(self.engine).name not in ("local", "verl") or self.engine.startswith("local?"):
            raise BadInput(f"engine must be local or verl?gpus=…, not {self.engine!r}")
        _ = self.verl  # what is wrong with its options is said before anything is loaded
        return self

    @property
    def recipe(self) -> Recipe:
        return PAPER if self.preset == "paper" else OURS

    @property
    def verl(self) -> Verl | None:
        spec = Spec.parse(self.engine)
        return Verl(**typed_options(Verl, spec, "engine")) if spec.name == "verl" else None

    @property
    def weights(self) -> dict[str, Any]:
        """What the policy's spec says: `model`, `loading`, and other options that are given."""
        return LLMS.check(parse_llm(self.policy))

    @property
    def per_pass(self) -> int:
        """Answers per forward pass."""
        return int(self.weights.get("batch", 8))


CURVES, POLICY, ANSWERS = "curves.csv", "policy", "answers.jsonl"
Stage = Literal["before", "after"]
"""Of training: when a held-out answer was sampled."""


@dataclass(frozen=True)
class CurveRow:
    """A step: means over its answers, over their tokens, or over its updates."""

    step: int
    reward: float
    kl: float
    """Nats away from the reference per answer."""
    length: float
    entropy: float
    policy_loss: float
    value_loss: float
    clip_fraction: float
    grad_norm: float
    samples: int
    failed: int
    truncated: int
    cut: int
    """Prompts that were cut to fit."""


def write_curves(path: Path, rows: Sequence[CurveRow]) -> None:
    """Rewritten as a whole, so that a reader never sees half a line; floats keep all their digits."""
    with draft(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(CurveRow.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: repr(value) for key, value in asdict(row).items()} for row in rows)


def read_curves(path: Path, up_to: int) -> list[dict[str, float]]:
    """The rows up to a step, as tables and figures take them."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        return [{**row, "step": int(row["step"])} for row in rows if row["step"] <= up_to]
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


class HeldOutScore(Struct, frozen=True):
    score: float | None


class HeldOutAnswer(Struct, frozen=True):
    """What is read of a line of `answers.jsonl`."""

    stage: Stage
    cluster: str
    grade: HeldOutScore | None


class Change(Struct, frozen=True):
    """Rewards or grades of held-out answers before and after training, and the paired difference."""

    before: Estimate
    after: Estimate
    difference: Difference


class HeldOutSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    prompts: int
    reward: Change | None = None
    grade: Change | None = None


class TrainingSummary(Struct, frozen=True, kw_only=True):
    prompts: int
    steps: int
    stopped: str | None
    """Why it ended before its last step."""
    samples: int
    failed: int
    truncated: int
    cut: int
    first: CurveRow
    last: CurveRow


class PpoSummary(Struct, frozen=True, kw_only=True):
    prb: str = __version__
    dataset: DatasetAbout
    condition: str
    policy: ModelAbout
    model: ModelAbout
    grader: GraderAbout | None
    train: TrainingSummary
    held_out: HeldOutSummary


@dataclass(frozen=True)
class FinishedPpo(Finished):
    message: str = ""
    """What verl was given and did; it writes no summary."""


def ppo(
    config: PpoConfig, *, reward: Scorer | None = None, grader: Grader | None = None, progress: Progress = SILENT
) -> FinishedPpo:
    """Run or resume, by the engine of `config`. `reward` and `grader` take the place of what the config names."""
    check_llm(config.policy)
    if parse_llm(config.policy).name != "transformers":
        raise BadInput(f"policy {config.policy}: only weights that transformers loads can be trained: transformers/…")
    try:
        from prb.downstream.ppo.loop import train
        from prb.downstream.verl import run_verl
    except ImportError as error:
        raise explain_import("PPO", error) from None
    if config.verl:
        if reward is not None or grader is not None:
            raise BadInput("engine verl takes its rewards from its url and grades nothing: give no objects")
        return run_verl(config, config.verl, progress=progress)
    return train(config, reward=reward, grader=grader, progress=progress)
