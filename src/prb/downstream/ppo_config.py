"""Everything `prb ppo` can be told. One class is the Python API, the flags and the saved `config.json`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson
import tyro

from prb.config import Condition
from prb.errors import BadInput
from prb.llm import check_llm, parse_llm


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """Train a policy against a reward model, then grade what comes out on held-out prompts."""

    policy: str
    """What is trained: `transformers/smollm2`, `transformers/FOLDER` or a hub id after the slash."""
    model: str
    """Reward model spec, as in `prb evaluate`; it must score answers, not only compare them."""
    dataset: str = "mirror"
    """A name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    split: str | None = None
    """Prompts to train on; `train` where rows carry a split, else all rows but the held-out ones."""
    limit: int | None = None
    """Only the first N rows of the split."""
    condition: Condition = "profile"
    """What policy and reward model are shown of the person."""
    k: int = 10
    """How many posts of the history are shown."""
    budget: int | None = None
    """At most this many tokens of posts, estimated as characters / 4."""
    ranker: Literal["embedding", "bm25", "recency"] = "embedding"
    """How the k posts are picked."""
    planner: str = "extractive"
    """How condition `plan` infers what the person wants."""
    mask_pii: Literal["auto", "on", "off"] = "auto"
    """Mask personal data in what the reward model and the grader read; auto: only if texts leave the machine."""
    steps: int | None = None
    """Batches of answers to learn from; default one pass over the prompts."""
    batch: int = 32
    """Answers a step, one a prompt."""
    minibatch: int = 8
    """Answers an update of the weights."""
    accumulate: int = 1
    """Forward passes a minibatch is cut into; the gradient stays that of the whole."""
    epochs: int = 2
    """Passes over each batch."""
    lr: float = 1e-5
    """Learning rate of the policy."""
    critic_lr: float | None = None
    """Learning rate of the value head (and its own trunk); default ten times --lr."""
    max_grad_norm: float = 1.0
    """Longer gradients are cut to this length."""
    kl: float = 0.05
    """Price of each nat away from the reference policy, in units of reward; 0: none."""
    kl_target: float | None = None
    """Adapt the price so that an answer stays about this many nats away; default: the price is fixed."""
    kl_horizon: int = 10_000
    """Answers over which an adaptive price may move by its own size."""
    stop_kl: float | None = 50.0
    """Stop when answers are on average this many nats away from the reference."""
    gamma: float = 1.0
    """Discount a token."""
    lam: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """How far a token's probability ratio may be pushed."""
    value_clip: float | None = 0.2
    """How far a value may be pushed in one update; `None`: any distance."""
    value_weight: float = 0.1
    """Weight of the value loss."""
    critic: Literal["trunk", "separate"] = "trunk"
    """Value head on the policy's own last layer, or on a second copy of the model."""
    whiten: Literal["both", "advantages", "rewards", "none"] = "both"
    """Bring rewards (over a batch's answers) and advantages (over its tokens) to mean 0 and variance 1."""
    lora: int = 0
    """Rank of LoRA adapters on all linear layers; 0: train all weights."""
    max_new_tokens: int = 128
    """Longest answer."""
    max_prompt: int = 1024
    """Longest prompt the policy reads in tokens; what does not fit loses the oldest posts first."""
    temperature: float = 1.0
    """Of the answers, in training and on held-out prompts."""
    seed: int = 0
    """Fixes prompts' order, every answer's noise, minibatches, adapters and resampling."""
    holdout: int = 64
    """Held-out prompts (of split `test` where there is one) answered before and after; 0: none."""
    grader: str | None = "embedded"
    """Grades held-out answers against the rubric; `None`: only the reward model's own word."""
    checkpoint_every: int = 10
    """Steps; a crash costs at most so many."""
    tracker: Literal["none", "trackio", "wandb"] = "none"
    """Where else curves go. wandb sends them to its server."""
    engine: Literal["local", "verl"] = "local"
    """Here (`accelerate launch -m prb ppo …` for several GPUs), or by verl on a Ray cluster."""
    reward_url: str = "http://127.0.0.1:8300"
    """With --engine verl: the `prb serve` that gives the rewards; PRB_SERVE_TOKEN is its token."""
    nodes: int = 1
    """With --engine verl: machines."""
    gpus: int = 1
    """With --engine verl: GPUs a machine."""
    rollout: Literal["vllm", "sglang"] = "vllm"
    """With --engine verl: what writes the answers."""
    override: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """With --engine verl: a setting of verl's own, `key=value`; repeat for several."""
    launch: bool = True
    """With --engine verl: start it; else only write its files."""
    out: Path | None = None
    """Run folder; the same command resumes it. Default: runs/ppo-<digest of these settings>."""
    json: bool = False
    """Print summary.json to stdout instead of a table."""
    quiet: bool = False
    """No progress."""


PRESENTATION = frozenset({"out", "json", "quiet", "tracker", "launch", "reward_url"})
"""Settings that change no result, so a resumed run may differ in them."""

LEAST: dict[str, float] = {
    "limit": 1,
    "k": 0,
    "budget": 0,
    "steps": 1,
    "batch": 2,
    "minibatch": 1,
    "accumulate": 1,
    "epochs": 1,
    "lora": 0,
    "max_new_tokens": 1,
    "max_prompt": 8,
    "holdout": 0,
    "checkpoint_every": 1,
    "kl": 0,
    "kl_horizon": 1,
    "value_weight": 0,
    "lr": 0,
    "critic_lr": 0,
    "nodes": 1,
    "gpus": 1,
}
ABOVE_ZERO = ("temperature", "clip", "value_clip", "kl_target", "stop_kl", "max_grad_norm")


def complete(config: PpoConfig) -> PpoConfig:
    """Defaults filled in and every setting checked, before anything expensive happens."""
    for name, least in LEAST.items():
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise BadInput(f"{_flag(name)} {value}: wants {least} or more")
    for name in ABOVE_ZERO:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise BadInput(f"{_flag(name)} {value}: wants more than 0")
    for name in ("gamma", "lam"):
        if not 0 <= getattr(config, name) <= 1:
            raise BadInput(f"{_flag(name)} {getattr(config, name)}: wants 0 to 1")
    for outer, inner in (("batch", "minibatch"), ("minibatch", "accumulate")):
        if getattr(config, outer) % getattr(config, inner):
            raise BadInput(f"{_flag(outer)} {getattr(config, outer)} is no multiple of {_flag(inner)}")
    if config.kl_target is not None and not config.kl:
        raise BadInput("--kl-target adapts --kl, and --kl 0 stays 0: give a first price above 0")
    _check_policy(config.policy)
    config = replace(config, critic_lr=10 * config.lr if config.critic_lr is None else config.critic_lr)
    return config if config.out else replace(config, out=Path("runs") / f"ppo-{_digest(config)}")


def _check_policy(spec: str) -> None:
    check_llm(spec)
    if parse_llm(spec).name != "transformers":
        raise BadInput(f"--policy {spec}: only weights that transformers loads can be trained: transformers/…")


def settings_of(config: PpoConfig) -> dict[str, Any]:
    """What may change a result, as JSON can hold it."""
    return {key: value for key, value in asdict(config).items() if key not in PRESENTATION}


def _digest(config: PpoConfig) -> str:
    return hashlib.sha256(orjson.dumps(settings_of(config), option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
