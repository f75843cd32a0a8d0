"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347) of an LLM against a reward model.

Read top to bottom: a step samples one answer per prompt, scores each with the reward model as in evaluation, applies
the KL penalty token by token, estimates advantages, and takes clipped gradient steps.

There is no random state: the order of prompts, the noise of each answer and the minibatches are hashed from seed, step
and row, and dropout is off. So a step depends only on weights, optimizer, KL penalty coefficient and its number. With
several processes each takes its share of every batch, and all averages are over the tokens of all processes.

Left out, because verl has it (`--engine verl`): models larger than one GPU, several answers per prompt, schedules.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prb.downstream.candidates import Candidates, score_candidates
from prb.downstream.ppo import CurveRow, PpoConfig
from prb.downstream.ppo.policy import SEED_BITS, Answer, Learner, Prompt, Prompts, TokenBatch, Views, pad_batch, run
from prb.errors import BadInput, PrbError
from prb.hashing import draw
from prb.llm import Request, Sampling
from prb.prompts import policy_chat
from prb.runs import draft, read_json, write_json
from prb.types import Failure, Scorer

EPSILON = 1e-8
MAX_KL_ERROR = 0.2
"""How far one batch may move the KL penalty coefficient, as in Ziegler et al."""


def token_rewards(scores: Tensor, logp: Tensor, reference: Tensor, mask: Tensor, *, kl: float) -> Tensor:
    """The reward on the last token, and the KL penalty on every token (Ziegler et al. 2019, arXiv 1909.08593)."""
    rewards = -kl * (logp - reference) * mask
    last = mask.sum(1).long() - 1
    answered = last >= 0  # an answer without a reward has no tokens left to put it on
    rewards[answered, last[answered]] += scores[answered]
    return rewards


def advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2015, arXiv 1506.02438); the value after the last token is
    0."""
    values = values * mask
    result = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        next_value = values[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(following)
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = (delta + gamma * lam * following) * mask[:, t]
        result[:, t] = following
    return result


def policy_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """The clipped surrogate (Schulman et al. 2017, arXiv 1707.06347)."""
    ratio = (logp - old_logp).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error; with a clip, the larger of it and that of a value clipped around the old one."""
    error = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error


def clipped(logp: Tensor, old_logp: Tensor, *, clip: float) -> Tensor:
    """1 where the probability ratio is outside the clip range."""
    return ((logp - old_logp).exp() - 1).abs().gt(clip).float()


def update_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Estimated KL between the policy that sampled and the updated one: r − 1 − log r, never negative."""
    log_ratio = logp - old_logp
    return log_ratio.exp() - 1 - log_ratio


def moments(values: Tensor, mask: Tensor) -> Tensor:
    """Count, sum and sum of squares: what whitening needs, and what several processes can add up."""
    kept = values[mask.bool()].double()
    return torch.stack([torch.tensor(float(len(kept)), device=kept.device).double(), kept.sum(), kept.square().sum()])


def whiten(values: Tensor, mask: Tensor, sums: Tensor) -> Tensor:
    """Mean 0 and variance 1 over everything that `sums` (see `moments`) covers."""
    count, total, squares = sums.tolist()
    mean = total / max(count, 1)
    variance = max(squares / max(count, 1) - mean * mean, 0.0)
    return values.sub(mean).div(variance**0.5 + EPSILON).mul(mask)


def next_kl(kl: float, measured: float, *, target: float, samples: int, horizon: int) -> float:
    """The proportional controller of Ziegler et al. 2019 (arXiv 1909.08593): the coefficient grows while answers are
    further than `target` from the reference, and shrinks while they are nearer."""
    error = min(max(measured / target - 1, -MAX_KL_ERROR), MAX_KL_ERROR)
    return kl * (1 + error * samples / horizon)


BLANK = Answer([0], [0], "", truncated=False)
"""Placeholder for an answer without a reward; its tokens are masked out of everything."""
COUNTS = ("samples", "failed", "truncated", "cut", "tokens", "reward", "squares")
ADAM_EPSILON = 1e-6
"""With torch's default of 1e-8, parameters with almost no gradient would take full steps."""


@dataclass(frozen=True)
class Rollout:
    """The answers of a step: one row per answer, one column per token."""

    tokens: TokenBatch
    scores: Tensor
    """Rewards; 0 where there is none."""
    scored: Tensor
    """1 where there is a reward."""
    counts: dict[str, float]
    """Summed over all processes."""
    first_failure: str


@dataclass(frozen=True)
class Targets:
    """What a step learns from, computed before its first update."""

    logp: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    kl: float
    """Nats away from the reference per answer."""
    entropy: float


class Trainer:
    def __init__(
        self, config: PpoConfig, prompts: Prompts, model: Scorer, learner: Learner, accelerator: Any, steps: int
    ) -> None:
        self.config, self.prompts, self.model = config, prompts, model
        self.learner, self.accelerator, self.steps = learner, accelerator, steps
        self.done, self.kl = 0, config.kl
        self.world = int(accelerator.num_processes)
        self.micro = config.minibatch // config.accumulate // self.world
        """Answers per forward pass."""
        lm = [p for name, p in trainable(learner.net).items() if name.startswith("lm.")]
        critic = [p for name, p in trainable(learner.net).items() if not name.startswith("lm.")]
        groups: list[dict[str, Any]] = [{"params": lm, "lr": config.lr}, {"params": critic, "lr": config.critic_rate}]
        optimizer = torch.optim.AdamW(groups, eps=ADAM_EPSILON, weight_decay=0.0, foreach=False)
        net, self.optimizer = accelerator.prepare(learner.net, optimizer)
        self.net = net.eval()  # with dropout, a token's probability would depend on the pass that computed it
        learner.reference.to(accelerator.device)

    def step(self, rollout: Rollout) -> CurveRow:
        """Learn from the answers of a step."""
        targets = self.targets(rollout)
        losses = self.learn(rollout, targets)
        self.done += 1
        counts = rollout.counts
        answers = max(counts["samples"] - counts["failed"], 1)
        mean = counts["reward"] / answers
        row = CurveRow(
            step=self.done,
            reward=mean,
            reward_std=max(counts["squares"] / answers - mean * mean, 0.0) ** 0.5,
            kl=targets.kl,
            kl_price=self.kl,
            length=counts["tokens"] / answers,
            entropy=targets.entropy,
            **losses,  # type: ignore[arg-type]
            **{name: int(counts[name]) for name in ("samples", "failed", "truncated", "cut")},
        )
        if self.config.kl_target is not None:
            target, horizon = self.config.kl_target, self.config.kl_horizon
            self.kl = next_kl(self.kl, targets.kl, target=target, samples=self.config.batch, horizon=horizon)
        return row

    # answers and rewards

    def collect(self) -> Rollout:
        prompts = self.prompts.batch(self.done)[self.accelerator.process_index :: self.world]
        views = self.prompts.views(prompts)
        answers, cut = self.answer(prompts, views)
        rewards = self.rewards(views, answers)
        kept = [
            BLANK if isinstance(answer, Failure) or isinstance(reward, Failure) else answer
            for answer, reward in zip(answers, rewards, strict=True)
        ]
        device = self.accelerator.device
        tokens = TokenBatch(*(t.to(device) for t in pad_batch([a.prompt for a in kept], [a.tokens for a in kept])))
        scored = torch.tensor([float(a is not BLANK) for a in kept], device=device)
        tokens = tokens._replace(mask=tokens.mask * scored[:, None])
        scores = torch.tensor([0.0 if isinstance(r, Failure) else float(r) for r in rewards], dtype=torch.float64)
        failed, truncated = sum(a is BLANK for a in kept), sum(a.truncated for a in kept)
        local: list[Any] = [len(kept), failed, truncated, cut, tokens.mask.sum(), scores.sum(), scores.square().sum()]
        counts = self.total(torch.tensor([float(n) for n in local], dtype=torch.float64)).tolist()
        failure = next((str(r) for r in rewards if isinstance(r, Failure)), "")
        return Rollout(tokens, scores.float().to(device), scored, dict(zip(COUNTS, counts, strict=True)), failure)

    def answer(self, prompts: Sequence[Prompt], views: Sequence[Views | Failure]) -> tuple[list[Answer | Failure], int]:
        """One answer per prompt, each with its own noise; and how many prompts had to be cut."""
        config, policy = self.config, self.learner.policy
        fitted = policy.fit_views(views, config)
        requests: dict[int, Request] = {}
        for n, fit in enumerate(fitted):
            if not isinstance(fit, Failure):
                seed = draw(config.seed, "answer", self.done, prompts[n].item.id, bits=SEED_BITS)
                sampling = Sampling(temperature=config.temperature, max_tokens=config.max_new_tokens, seed=seed)
                requests[n] = Request(policy_chat(fit[0], config.policy_prompt), sampling)
        with self.accelerator.autocast():
            written = dict(zip(requests, policy.write(list(requests.values())), strict=True))
        answers = [fit if isinstance(fit, Failure) else written[n] for n, fit in enumerate(fitted)]
        return answers, sum(not isinstance(fit, Failure) and fit[1] > 0 for fit in fitted)

    def rewards(self, views: Sequence[Views | Failure], answers: Sequence[Answer | Failure]) -> list[float | Failure]:
        """The reward of each answer, asked for as in evaluation."""
        empty = self.config.empty_reward
        rewards: list[float | Failure] = [
            answer if isinstance(answer, Failure) else Failure("empty answer") if empty is None else empty
            for answer in answers
        ]
        candidates = [
            Candidates(str(n), view.reward, [answer.text])
            for n, (view, answer) in enumerate(zip(views, answers, strict=True))
            if isinstance(answer, Answer) and answer.text and isinstance(view, Views)
        ]
        for line in score_candidates(self.config.model, self.model, candidates) if candidates else ():
            rewards[int(line.pair)] = Failure(line.failure or "") if line.score is None else line.score
        return rewards

    # what the answers are worth

    @torch.no_grad()
    def targets(self, rollout: Rollout) -> Targets:
        parts = [
            self.evaluate(rollout.tokens, rows) for rows in torch.split(torch.arange(len(rollout.scores)), self.micro)
        ]
        logp, entropy, value, reference = (torch.cat(columns) for columns in zip(*parts, strict=True))
        self.refuse_nan("the log-probabilities or values of the answers", logp, value, reference)
        mask, scores, config = rollout.tokens.mask, rollout.scores, self.config
        if config.whiten in ("both", "rewards"):
            scores = whiten(scores, rollout.scored, self.total(moments(scores, rollout.scored)))
        rewards = token_rewards(scores, logp, reference, mask, kl=self.kl)
        advantage = advantages(rewards, value, mask, gamma=config.gamma, lam=config.lam)
        returns = advantage + value
        if config.whiten in ("both", "advantages"):
            advantage = whiten(advantage, mask, self.total(moments(advantage, mask)))
        sums = self.total(torch.stack([((logp - reference) * mask).sum(), (entropy * mask).sum()]).double())
        kl, entropy_sum = sums.tolist()
        answers = max(rollout.counts["samples"] - rollout.counts["failed"], 1)
        mean_entropy = entropy_sum / max(rollout.counts["tokens"], 1)
        return Targets(logp, value, advantage, returns, kl=kl / answers, entropy=mean_entropy)

    def evaluate(self, tokens: TokenBatch, rows: Tensor) -> list[Tensor]:
        """Log-probability, entropy, value and the reference's log-probability of the tokens of some rows."""
        part = tokens.rows(rows)
        stats = self.net(part)
        with self.learner.as_reference() as lm, self.accelerator.autocast():
            reference, _ = self.learner.net.answer_logp(run(lm, part)[0], part)
        missing = tokens.mask.shape[1] - part.mask.shape[1]
        columns = (stats.logp, stats.entropy, stats.value, reference)
        return [torch.nn.functional.pad(column * part.mask, (0, missing)) for column in columns]

    # learning

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, float]:
        """Clipped steps over the batch; the means of their losses."""
        size, updates = self.config.minibatch // self.world, []
        for epoch in range(self.config.epochs):
            seed = draw(self.config.seed, "order", self.done, epoch, bits=SEED_BITS)
            order = torch.randperm(len(rollout.scores), generator=torch.Generator().manual_seed(seed))
            updates += [self.update(rollout, targets, rows) for rows in torch.split(order, size)]
        return {name: sum(losses[name] for losses in updates) / len(updates) for name in updates[0]}

    def update(self, rollout: Rollout, targets: Targets, rows: Tensor) -> dict[str, float]:
        """One optimizer step. The loss of a piece is its share of the mean over the tokens of the whole minibatch."""
        tokens = max(float(self.total(rollout.tokens.mask[rows].sum())), 1.0)
        sums, pieces = [], torch.split(rows, self.micro)
        for n, piece in enumerate(pieces):
            with nullcontext() if n == len(pieces) - 1 else self.accelerator.no_sync(self.net):
                losses = self.losses(rollout.tokens.rows(piece), targets, piece)
                loss = losses["policy_loss"] + self.config.value_weight * losses["value_loss"]
                self.accelerator.backward(loss * self.world / tokens)  # gradients of the processes are averaged
            sums.append(torch.stack([value.detach() for value in losses.values()]))
        means = (self.total(torch.stack(sums).sum(0)) / tokens).tolist()
        norm = torch.as_tensor(self.accelerator.clip_grad_norm_(self.net.parameters(), self.config.max_grad_norm))
        self.refuse_nan(f"the gradient (policy loss {means[0]:g}, value loss {means[1]:g})", norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {**dict(zip(losses, means, strict=True)), "grad_norm": float(norm)}

    def losses(self, tokens: TokenBatch, targets: Targets, rows: Tensor) -> dict[str, Tensor]:
        """Sums over the tokens of these rows."""
        config, width, now = self.config, tokens.mask.shape[1], self.net(tokens)
        logp, value, advantage, returns = (
            column[rows, :width] for column in (targets.logp, targets.value, targets.advantage, targets.returns)
        )
        per_token = {
            "policy_loss": policy_loss(now.logp, logp, advantage, clip=config.clip),
            "value_loss": value_loss(now.value, value, returns, clip=config.value_clip),
            "clip_fraction": clipped(now.logp, logp, clip=config.clip),
            "update_kl": update_kl(now.logp, logp),
        }
        return {name: (losses * tokens.mask).sum() for name, losses in per_token.items()}

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        summed: Tensor = self.accelerator.reduce(values.to(self.accelerator.device), reduction="sum")
        return summed

    def refuse_nan(self, what: str, *tensors: Tensor) -> None:
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise PrbError(
                f"step {self.done + 1}: there is a NaN or an infinity in {what}; the last checkpoint is kept, but the "
                "same command would fail again: try a lower --lr, with another --out"
            )


# Checkpoints: safetensors and JSON, no pickles. All draws are hashed from the step, so there is no random state.

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


def trainable(model: Any) -> dict[str, Tensor]:
    """The parameters that training changes, by name; tied weights once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_checkpoint(folder: Path, trainer: Trainer, curves: Sequence[CurveRow]) -> None:
    """Everything that the next step depends on: whole or not there; the checkpoints before it are removed."""
    state = trainer.optimizer.state_dict()["state"]
    optimizer = {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}
    target = folder / f"{trainer.done:08d}"
    with draft(target) as part:
        part.mkdir(parents=True)
        for name, tensors in ((WEIGHTS, trainable(trainer.learner.net)), (OPTIMIZER, optimizer)):
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, part / name)
        write_json(part / STATE, {"step": trainer.done, "kl": trainer.kl, "curves": list(curves)})
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)


def restore_checkpoint(folder: Path, trainer: Trainer) -> list[CurveRow] | None:
    """Put the trainer where the latest checkpoint was; returns the curves so far, or `None` if there is none."""
    complete = sorted(path for path in folder.glob("*") if path.name.isdigit())
    if not complete:
        return None
    latest = complete[-1]
    try:
        state = read_json(latest / STATE)
        weights, optimizer = load_file(latest / WEIGHTS), load_file(latest / OPTIMIZER)
        curves = [CurveRow(**row) for row in state["curves"]]
        with torch.no_grad():
            for name, parameter in trainable(trainer.learner.net).items():
                parameter.copy_(weights[name])
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in optimizer.items():
            number, name = key.split(".", 1)
            moments.setdefault(int(number), {})[name] = value
        trainer.optimizer.load_state_dict({**trainer.optimizer.state_dict(), "state": moments})
        trainer.done, trainer.kl = int(state["step"]), float(state["kl"])
    except (BadInput, OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise BadInput(f"{latest} cannot be read ({error}); remove {folder} to train again from the start") from None
    return curves
