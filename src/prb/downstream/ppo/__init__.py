"""PPO: train a policy against a reward model, here or by verl, then grade held-out answers.

Here are the settings, the files of a run and what its summary says; the loop and its arithmetic are in `loop`, prompts
and networks in `policy`, the run folder in `run`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import Field, model_validator

from prb.config import (
    Condition,
    Count,
    Masking,
    Name,
    NonNegative,
    OutputConfig,
    Positive,
    PresetConfig,
    Repeated,
    Seed,
    Share,
    Single,
    Size,
    UserConfig,
    config,
)
from prb.errors import BadInput, explain_import
from prb.grading import Grader
from prb.llm import check_llm, parse_llm
from prb.progress import SILENT, Progress
from prb.prompts import PolicyPrompt
from prb.runs import Finished, draft
from prb.stats.paired import Difference
from prb.types import Estimate, Scorer


@config
class PpoConfig(PresetConfig, OutputConfig, UserConfig):
    """Train a policy against a reward model, then grade what comes out on held-out prompts."""

    verb: ClassVar[str] = "ppo"
    presentation: ClassVar[frozenset[str]] = frozenset({"launch", "reward_url"})
    paper: ClassVar[Mapping[str, Any]] = {
        "k": 10,
        "condition": "profile",
        "policy_prompt": "paper",
        "steps": None,
        "batch": 128,
        "minibatch": 16,
        "epochs": 1,
        "lr": 5e-7,
        "critic_lr": 5e-6,
        "max_grad_norm": 1.0,
        "kl": 0.0,
        "kl_target": None,
        "stop_kl": None,
        "gamma": 1.0,
        "lam": 1.0,
        "clip": 0.2,
        "value_clip": 0.5,
        "critic": "separate",
        "whiten": "advantages",
        "lora": 0,
        "max_new_tokens": 512,
        "max_prompt": 8192,
        "temperature": 1.0,
    }
    """One pass over the prompts; what the scripts leave to verl has verl's defaults."""
    paper_choices: ClassVar[Mapping[str, Any]] = {"policy": "transformers/Qwen/Qwen2.5-0.5B-Instruct"}

    policy: Name
    """What is trained: `transformers/smollm2`, `transformers/FOLDER` or a hub id after the slash."""
    model: Name
    """Reward model spec, as in `prb evaluate`; it must score answers, not only compare them."""
    dataset: Name = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    split: str | None = None
    """Prompts to train on; `train` where rows carry a split, else all rows but the held-out ones."""
    limit: Count | None = None
    """At most N rows of the split, spread over clusters; twins stay together."""
    condition: Single[Condition] = "profile"
    """What policy and reward model are shown of the user."""
    mask_pii: Masking = "auto"
    """Mask personal data in what reward model and grader read; auto: only if they are on other machines."""
    policy_prompt: PolicyPrompt = "prb"
    """What the policy reads: the query as reward models read it, or instructions with the query, as in the paper."""
    steps: Count | None = None
    """Batches of answers to learn from; default: one pass over the prompts."""
    batch: Annotated[int, Field(ge=2)] = 32
    """Answers per step, one per prompt."""
    minibatch: Count = 8
    """Answers per update of the weights."""
    accumulate: Count = 1
    """Forward passes that a minibatch is split into; the gradient is that of the whole."""
    epochs: Count = 2
    """Passes over each batch."""
    lr: NonNegative = 1e-5
    """Learning rate of the policy."""
    critic_lr: NonNegative | None = None
    """Learning rate of the value head (and of its own trunk); default: ten times --lr."""
    max_grad_norm: Positive = 1.0
    """Gradients are clipped to this norm."""
    kl: NonNegative = 0.05
    """KL penalty coefficient: reward lost per nat away from the reference policy; 0: no penalty."""
    kl_target: Positive | None = None
    """Adapt the KL penalty coefficient so that answers stay about this many nats away; default: it is fixed. Not
    with --engine verl, which counts per token."""
    kl_horizon: Count = 10_000
    """Answers over which an adaptive coefficient may change by its own size."""
    stop_kl: Positive | None = 50.0
    """Stop when answers are on average this many nats away from the reference."""
    gamma: Share = 1.0
    """Discount factor per token."""
    lam: Share = 0.95
    """λ of generalized advantage estimation."""
    clip: Positive = 0.2
    """Clip range of a token's probability ratio."""
    value_clip: Positive | None = 0.2
    """Clip range of a value in one update; `None`: not clipped."""
    value_weight: NonNegative = 0.1
    """Weight of the value loss."""
    critic: Literal["trunk", "separate"] = "trunk"
    """Value head on the policy's own last layer, or on a second copy of the model."""
    whiten: Literal["both", "advantages", "rewards", "none"] = "both"
    """Normalize rewards (over the answers of a batch) and advantages (over its tokens) to mean 0 and variance 1."""
    lora: Size = 0
    """Rank of LoRA adapters on all linear layers; 0: train all weights."""
    max_new_tokens: Count = 128
    """Longest answer in tokens."""
    max_prompt: Annotated[int, Field(ge=8)] = 1024
    """Longest prompt of the policy in tokens; a longer one loses its oldest posts first."""
    temperature: Positive = 1.0
    """Sampling temperature, in training and on held-out prompts."""
    seed: Seed = 0
    """Fixes the order of prompts, the noise of every answer, minibatches, adapters and resampling."""
    holdout: Size = 64
    """Held-out prompts (of split `test` where there is one) answered before and after training; 0: none."""
    grader: str | None = "embedded"
    """Grades held-out answers against the rubric; `None`: only the reward model scores them."""
    checkpoint_every: Count = 10
    """Steps between checkpoints; a crash costs at most these."""
    engine: Literal["local", "verl"] = "local"
    """Train in this process (`accelerate launch -m prb ppo …` for several GPUs), or by verl on a Ray cluster."""
    reward_url: str = "http://127.0.0.1:8300"
    """With --engine verl: the `prb serve` that gives the rewards; PRB_SERVE_TOKEN is its token."""
    empty_reward: float | None = None
    """The reward of an answer without text, which no model can score. Default: such an answer is dropped, and with
    --engine verl it gets the lowest reward seen so far."""
    nodes: Count = 1
    """With --engine verl: number of machines."""
    gpus: Count = 1
    """With --engine verl: GPUs per machine."""
    rollout: Literal["vllm", "sglang"] = "vllm"
    """With --engine verl: the inference engine that samples answers."""
    override: Repeated[str] = ()
    """With --engine verl: a setting of verl itself, `key=value`; repeat for several."""
    launch: bool = True
    """With --engine verl: start it; else only write its files."""

    @model_validator(mode="after")
    def check_sizes(self) -> Self:
        for outer, inner in (("batch", "minibatch"), ("minibatch", "accumulate")):
            if getattr(self, outer) % getattr(self, inner):
                raise BadInput(
                    f"{outer} must be a multiple of {inner} ({getattr(self, inner)}), not {getattr(self, outer)}"
                )
        if self.kl_target is not None and not self.kl:
            raise BadInput("kl_target adapts kl, and a kl of 0 stays 0: start from a kl greater than 0")
        return self

    @property
    def critic_rate(self) -> float:
        return 10 * self.lr if self.critic_lr is None else self.critic_lr

    def saved(self) -> dict[str, Any]:
        return {**super().saved(), "critic_lr": self.critic_rate}


CURVES, CHECKPOINTS, POLICY, ANSWERS = "curves.csv", "checkpoints", "policy", "answers.jsonl"
Stage = Literal["before", "after"]
"""Of training: when a held-out answer was sampled."""
LARGEST_SCORE = 1e100


@dataclass(frozen=True)
class CurveRow:
    """A step: means over its answers, over their tokens, or over its updates."""

    step: int
    reward: float
    reward_std: float
    kl: float
    """Nats away from the reference per answer."""
    kl_price: float
    """The KL penalty coefficient."""
    length: float
    """Tokens per answer."""
    entropy: float
    policy_loss: float
    value_loss: float
    clip_fraction: float
    update_kl: float
    grad_norm: float
    samples: int
    failed: int
    """Answers without a reward."""
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
    if not path.exists():
        raise BadInput(f"{path.parent} is incomplete: it has no {path.name}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        return [{**row, "step": int(row["step"])} for row in rows if row["step"] <= up_to]
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


class Scored(msgspec.Struct, frozen=True):
    """A reward or a grade, or why there is none."""

    score: Annotated[float, msgspec.Meta(ge=-LARGEST_SCORE, le=LARGEST_SCORE)] | None
    failure: str | None = None


class HeldOutAnswer(msgspec.Struct, frozen=True):
    """What is read of a line of `answers.jsonl`."""

    stage: Stage
    pair: str
    cluster: str
    reward: Scored | None
    grade: Scored | None
    failure: str | None


_ANSWER = msgspec.json.Decoder(HeldOutAnswer)


def read_answers(path: Path) -> dict[tuple[Stage, str], HeldOutAnswer]:
    """Held-out answers by stage and pair. A line that cannot be read is left out: its answer is owed again."""
    answers: dict[tuple[Stage, str], HeldOutAnswer] = {}
    if not path.exists():
        return answers
    with path.open("rb") as file:
        for line in file:
            with suppress(msgspec.DecodeError):
                answer = _ANSWER.decode(line)
                answers[answer.stage, answer.pair] = answer
    return answers


@dataclass(frozen=True)
class Change:
    """Rewards or grades of held-out answers before and after training, and the paired difference."""

    before: Estimate
    after: Estimate
    difference: Difference


class HeldOutSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    prompts: int
    reward: Change | None = None
    grade: Change | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
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


@dataclass(frozen=True, kw_only=True)
class PpoSummary:
    """The content of `summary.json`."""

    prb: str
    dataset: dict[str, Any]
    condition: str
    policy: dict[str, str]
    model: dict[str, str]
    grader: dict[str, Any] | None
    train: TrainingSummary
    held_out: HeldOutSummary


@dataclass(frozen=True)
class FinishedPpo(Finished):
    message: str = ""
    """What verl was given and did; it writes no summary."""
    main_process: bool = True
    """False in all but one of several processes: those write and print nothing."""


def ppo(
    config: PpoConfig, *, reward: Scorer | None = None, grader: Grader | None = None, progress: Progress = SILENT
) -> FinishedPpo:
    """Run or resume, by the engine of `config`. `reward` and `grader` take the place of what the config names."""
    check_llm(config.policy)
    if parse_llm(config.policy).name != "transformers":
        raise BadInput(f"policy {config.policy}: only weights that transformers loads can be trained: transformers/…")
    try:
        from prb.downstream.ppo.run import train
        from prb.downstream.verl import run_verl
    except ImportError as error:
        raise explain_import("PPO", error) from None
    if config.engine == "verl":
        if reward is not None or grader is not None:
            raise BadInput("engine verl takes its rewards from reward_url and grades nothing: give no objects")
        return run_verl(config, progress=progress)
    return train(config, reward=reward, grader=grader, progress=progress)
