"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347) of an LLM against a reward model.

Read top to bottom: the arithmetic; a step, which samples one answer per prompt, scores each with the reward model as in
evaluation, applies the KL penalty token by token, estimates advantages and takes clipped gradient steps; checkpoints;
held-out answers; the run.

There is no random state: the order of prompts, the noise of each answer and the minibatches are hashed from seed, step
and row, and dropout is off. So a step depends only on weights, optimizer and its number. With several processes each
takes its share of every batch, and all averages are over the tokens of all processes.

Left out, because verl has it (`--engine verl`): models larger than one GPU, several answers per prompt, schedules.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prb import __version__
from prb.downstream.answers import Asking, GraderAbout, ModelAbout, Place
from prb.downstream.ppo import (
    ANSWERS,
    CHECKPOINT_EVERY,
    CHECKPOINTS,
    CLIP,
    CRITIC_RATE,
    CURVES,
    MAX_GRAD_NORM,
    POLICY,
    Change,
    CurveRow,
    FinishedPpo,
    HeldOutSummary,
    PpoConfig,
    PpoSummary,
    Stage,
    TrainingSummary,
    write_curves,
)
from prb.downstream.ppo.policy import (
    SEED_BITS,
    Answer,
    Learner,
    Prompts,
    TokenBatch,
    Views,
    load_learner,
    load_prompts,
    pad_batch,
    run,
)
from prb.errors import BadInput, MissingExtra, PrbError
from prb.grading import GRADERS, Grader, Grades, answered, as_line
from prb.hashing import draw
from prb.llm import Request, Sampling, parse_llm
from prb.models import MODELS, check_scorer, execution_of
from prb.progress import SILENT, Progress
from prb.prompts import policy_chat
from prb.registry import Spec
from prb.runs import SUMMARY, RunFolder, draft, read_json, read_result, write_json, write_lines, writing
from prb.stats.estimate import Floats, Ints, codes, totals
from prb.stats.paired import bootstrap_interval, difference
from prb.summary import DatasetAbout
from prb.types import Ask, Estimate, Failure, Item, Pair, Scorer
from prb.work import Asked, Breaker, ask_model, checked_reward, open_replies

EPSILON = 1e-8
ADAM_EPSILON = 1e-6
"""With torch's default of 1e-8, parameters with almost no gradient would take full steps."""
VALUE_WEIGHT = 0.1
"""Weight of the value loss."""
MAX_FAILED = 0.05
"""A larger share of answers without a reward stops the run …"""
MIN_COUNTED = 20
"""… once there are this many answers …"""
RECENT = 200
"""… in the latest steps that together have this many."""


# --- the arithmetic ---


def token_rewards(scores: Tensor, logp: Tensor, reference: Tensor, mask: Tensor, *, kl: float) -> Tensor:
    """The reward on the last token, and the KL penalty on every token (Ziegler et al. 2019, arXiv 1909.08593)."""
    rewards = -kl * (logp - reference) * mask
    last = mask.sum(1).long() - 1
    answered = last >= 0  # an answer without a reward has no tokens left to put it on
    rewards[answered, last[answered]] += scores[answered]
    return rewards


def advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, lam: float) -> Tensor:
    """Generalized advantage estimation without a discount (Schulman et al. 2015, arXiv 1506.02438); the value after the
    last token is 0."""
    values = values * mask
    result = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        next_value = values[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(following)
        delta = rewards[:, t] + next_value - values[:, t]
        following = (delta + lam * following) * mask[:, t]
        result[:, t] = following
    return result


def policy_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """The clipped surrogate (Schulman et al. 2017, arXiv 1707.06347)."""
    ratio = (logp - old_logp).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Half the squared error, or that of a value clipped around the old one if it is larger."""
    near = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - returns).square(), (near - returns).square())


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


# --- a step ---

BLANK = Answer([0], [0], "", truncated=False)
"""Placeholder for an answer without a reward; its tokens are masked out of everything."""


class Counts(NamedTuple):
    """Of a step, summed over all processes."""

    samples: float
    failed: float
    truncated: float
    cut: float
    tokens: float
    reward: float
    squares: float

    @property
    def scored(self) -> float:
        return max(self.samples - self.failed, 1)


@dataclass(frozen=True)
class Rollout:
    """The answers of a step: one row per answer, one column per token."""

    tokens: TokenBatch
    scores: Tensor
    """Rewards; 0 where there is none."""
    scored: Tensor
    """1 where there is a reward."""
    counts: Counts
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
        self.done = 0
        self.world = int(accelerator.num_processes)
        self.micro = min(config.minibatch // self.world, config.per_pass)
        """Answers per forward pass."""
        lm = [p for name, p in trainable(learner.net).items() if name.startswith("lm.")]
        critic = [p for name, p in trainable(learner.net).items() if not name.startswith("lm.")]
        groups: list[dict[str, Any]] = [
            {"params": lm, "lr": config.lr},
            {"params": critic, "lr": CRITIC_RATE * config.lr},
        ]
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
        mean = counts.reward / counts.scored
        return CurveRow(
            step=self.done,
            reward=mean,
            reward_std=max(counts.squares / counts.scored - mean * mean, 0.0) ** 0.5,
            kl=targets.kl,
            length=counts.tokens / counts.scored,
            entropy=targets.entropy,
            **losses,  # type: ignore[arg-type]
            **{name: int(getattr(counts, name)) for name in ("samples", "failed", "truncated", "cut")},
        )

    def collect(self) -> Rollout:
        """One answer per prompt, each with its own noise, and its reward."""
        config, policy = self.config, self.learner.policy
        prompts = self.prompts.batch(self.done)[self.accelerator.process_index :: self.world]
        views = self.prompts.views(prompts)
        fitted = [policy.fitted(view, config) for view in views]
        requests: dict[int, Request] = {}
        for n, fit in enumerate(fitted):
            if not isinstance(fit, Failure):
                seed = draw(config.seed, "answer", self.done, prompts[n].item.id, bits=SEED_BITS)
                sampling = Sampling(temperature=1.0, max_tokens=config.max_tokens, seed=seed)
                requests[n] = Request(policy_chat(fit[0], config.policy_prompt), sampling)
        with self.accelerator.autocast():
            written = dict(zip(requests, policy.write(list(requests.values())), strict=True))
        answers = [fit if isinstance(fit, Failure) else written[n] for n, fit in enumerate(fitted)]
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
        cut = sum(not isinstance(fit, Failure) and fit[1] > 0 for fit in fitted)
        failed, truncated = sum(a is BLANK for a in kept), sum(a.truncated for a in kept)
        local: list[Any] = [len(kept), failed, truncated, cut, tokens.mask.sum(), scores.sum(), scores.square().sum()]
        counts = Counts(*self.total(torch.tensor([float(n) for n in local], dtype=torch.float64)).tolist())
        failure = next((str(r) for r in rewards if isinstance(r, Failure)), "")
        return Rollout(tokens, scores.float().to(device), scored, counts, failure)

    def rewards(self, views: Sequence[Views | Failure], answers: Sequence[Answer | Failure]) -> list[float | Failure]:
        """The reward of each answer, asked for as in evaluation."""
        empty = self.config.empty_reward
        rewards: list[float | Failure] = [
            answer if isinstance(answer, Failure) else Failure("empty answer") if empty is None else empty
            for answer in answers
        ]
        asks = {
            n: Ask(view.reward, answer.text)
            for n, (view, answer) in enumerate(zip(views, answers, strict=True))
            if isinstance(answer, Answer) and answer.text and isinstance(view, Views)
        }
        for n, reward in zip(asks, ask_model(self.model, "score", list(asks.values())) if asks else (), strict=True):
            rewards[n] = checked_reward(reward)
        return rewards

    @torch.no_grad()
    def targets(self, rollout: Rollout) -> Targets:
        """What the answers are worth, token by token."""
        parts = [
            self.evaluate(rollout.tokens, rows) for rows in torch.split(torch.arange(len(rollout.scores)), self.micro)
        ]
        logp, entropy, value, reference = (torch.cat(columns) for columns in zip(*parts, strict=True))
        self.refuse_nan("the log-probabilities or values of the answers", logp, value, reference)
        mask, scores, recipe = rollout.tokens.mask, rollout.scores, self.config.recipe
        if recipe.whiten_rewards:
            scores = whiten(scores, rollout.scored, self.total(moments(scores, rollout.scored)))
        rewards = token_rewards(scores, logp, reference, mask, kl=self.config.kl)
        advantage = advantages(rewards, value, mask, lam=recipe.lam)
        returns = advantage + value
        advantage = whiten(advantage, mask, self.total(moments(advantage, mask)))
        sums = self.total(torch.stack([((logp - reference) * mask).sum(), (entropy * mask).sum()]).double())
        kl, entropy_sum = sums.tolist()
        mean_entropy = entropy_sum / max(rollout.counts.tokens, 1)
        return Targets(logp, value, advantage, returns, kl=kl / rollout.counts.scored, entropy=mean_entropy)

    def evaluate(self, tokens: TokenBatch, rows: Tensor) -> list[Tensor]:
        """Log-probability, entropy, value and the reference's log-probability of the tokens of some rows."""
        part = tokens.rows(rows)
        stats = self.net(part)
        with self.learner.as_reference() as lm, self.accelerator.autocast():
            reference, _ = self.learner.net.answer_logp(run(lm, part)[0], part)
        missing = tokens.mask.shape[1] - part.mask.shape[1]
        columns = (stats.logp, stats.entropy, stats.value, reference)
        return [torch.nn.functional.pad(column * part.mask, (0, missing)) for column in columns]

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
                loss = losses["policy_loss"] + VALUE_WEIGHT * losses["value_loss"]
                self.accelerator.backward(loss * self.world / tokens)  # gradients of the processes are averaged
            sums.append(torch.stack([value.detach() for value in losses.values()]))
        means = (self.total(torch.stack(sums).sum(0)) / tokens).tolist()
        norm = torch.as_tensor(self.accelerator.clip_grad_norm_(self.net.parameters(), MAX_GRAD_NORM))
        self.refuse_nan(f"the gradient (policy loss {means[0]:g}, value loss {means[1]:g})", norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {**dict(zip(losses, means, strict=True)), "grad_norm": float(norm)}

    def losses(self, tokens: TokenBatch, targets: Targets, rows: Tensor) -> dict[str, Tensor]:
        """Sums over the tokens of these rows."""
        width, now = tokens.mask.shape[1], self.net(tokens)
        logp, value, advantage, returns = (
            column[rows, :width] for column in (targets.logp, targets.value, targets.advantage, targets.returns)
        )
        per_token = {
            "policy_loss": policy_loss(now.logp, logp, advantage, clip=CLIP),
            "value_loss": value_loss(now.value, value, returns, clip=self.config.recipe.value_clip),
            "clip_fraction": clipped(now.logp, logp, clip=CLIP),
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


# --- checkpoints: safetensors and JSON, no pickles ---

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
        write_json(part / STATE, {"step": trainer.done, "curves": list(curves)})
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)


def restore_checkpoint(folder: Path, trainer: Trainer) -> list[CurveRow]:
    """Put the trainer where the latest checkpoint was, if there is one; returns the curves so far."""
    complete = sorted(path for path in folder.glob("*") if path.name.isdigit())
    if not complete:
        return []
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
        trainer.done = int(state["step"])
    except (BadInput, OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise BadInput(f"{latest} cannot be read ({error}); remove {folder} to train again from the start") from None
    return curves


# --- held-out answers ---

Line = dict[str, Any]
"""Of `answers.jsonl`."""


@dataclass(frozen=True)
class HeldOut:
    """What training did to answers on held-out prompts: one line of `answers.jsonl` per prompt and stage (before,
    after), and their comparison."""

    config: PpoConfig
    prompts: Prompts
    learner: Learner
    reward: Asked
    grader: tuple[Asked, Grader] | None
    asking: Asking

    def answer(self, stage: Stage) -> list[Line]:
        """The lines of a stage; what has no reply yet is asked for."""
        config, policy = self.config, self.learner.policy
        prompts = {prompt.item.id: prompt for prompt in self.prompts.held_out}
        views = dict(zip(prompts, self.prompts.views(self.prompts.held_out), strict=True))
        fitted = {pair: policy.fitted(view, config) for pair, view in views.items()}
        queries = {pair: fit if isinstance(fit, Failure) else fit[0] for pair, fit in fitted.items()}
        asked = Asked.of(f"{config.policy} {stage} training", policy, "complete", given=True)
        sampling = Sampling(temperature=1.0, max_tokens=config.max_tokens, seed=config.seed)
        places = [(pair, 0) for pair in prompts]
        samples = self.asking.sample(asked, places, sampling, config.policy_prompt, lambda _: queries)
        texts = {pair: sample.text for (pair, _), sample in samples.items() if sample.text is not None}
        rewarded = {pair: view.reward for pair, view in views.items() if isinstance(view, Views)}
        scores = self.asking.score(self.reward, {pair: [text] for pair, text in texts.items()}, lambda _: rewarded)
        gradable = {pair: (prompts[pair].item, text) for pair, text in texts.items()}
        grades = self._grade(*self.grader, gradable) if self.grader else {}
        return [
            {
                "stage": stage,
                **msgspec.to_builtins(samples[pair, 0]),
                "cluster": prompt.cluster,
                "reward": {"score": line.score, "failure": line.failure} if (line := scores.get((pair, 0))) else None,
                "grade": as_line(grade) if (grade := grades.get((pair, 0))) else None,
            }
            for pair, prompt in prompts.items()
        ]

    def _grade(
        self, asked: Asked, grader: Grader, answers: Mapping[str, tuple[Item, str]]
    ) -> dict[Place, Grades | Failure]:
        masked = self.config.masks(grader)
        gradable = {
            (pair, 0): answered(item, text, masked=masked)
            for pair, (item, text) in answers.items()
            if isinstance(item, Pair) and item.rubric
        }
        others = {(pair, 0): Failure("no rubric to grade by") for pair in answers if (pair, 0) not in gradable}
        return {**others, **self.asking.grade(asked, gradable)}

    def summary(self, before: Sequence[Line], after: Sequence[Line]) -> HeldOutSummary:
        if not before:
            return HeldOutSummary(prompts=0)
        clusters, seed = codes([line["cluster"] for line in before]), self.config.seed

        def change(name: Literal["reward", "grade"]) -> Change:
            first, last = (
                np.array([line[name]["score"] if line[name] else None for line in lines], dtype=np.float64)
                for lines in (before, after)
            )
            compared = difference(last, first, clusters, seed=seed)
            return Change(_mean(first, clusters, seed), _mean(last, clusters, seed), compared)

        graded = None if self.grader is None else change("grade")
        return HeldOutSummary(prompts=len(before), reward=change("reward"), grade=graded)


def _mean(values: Floats, clusters: Ints, seed: int) -> Estimate:
    known = ~np.isnan(values)
    n, failed = int(known.sum()), int((~known).sum())
    if not n:
        return Estimate(value=None, low=None, high=None, n=n, failed=failed)
    low, high = bootstrap_interval(totals(values[known], clusters[known]), seed=seed)
    return Estimate(value=float(values[known].mean()), low=low, high=high, n=n, failed=failed)


# --- the run: a folder that the same command resumes ---


def train(config: PpoConfig, *, reward: Scorer | None, grader: Grader | None, progress: Progress) -> FinishedPpo:
    """`replies.jsonl` and `curves.csv` grow with the run, `checkpoints/` exists while it trains; `answers.jsonl`,
    `policy/` and `summary.json` when it is done."""
    if reward is None:
        MODELS.check(Spec.parse(config.model))
    accelerator = make_accelerator(config)  # first: it gives each process its GPU, where its models then go
    model = check_scorer(config.model, MODELS.make(config.model) if reward is None else reward, "PPO needs")
    is_given = grader is not None
    if grader is None and config.grader and config.holdout:
        grader = GRADERS.make(config.grader)
    main = accelerator.is_main_process  # the one process that writes and reports progress
    progress = progress if main else SILENT
    progress.begin(f"checking {config.dataset}")
    prompts = load_prompts(config, model)
    data, out = prompts.dataset, config.folder("ppo")
    identity = {
        "prb": __version__,
        "ppo": config.saved(),
        "dataset": {"name": data.name, "split": data.split, "fingerprint": data.fingerprint},
        "planner": prompts.policy.planner.fingerprint,
    }
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(out, identity)) if main else None
        accelerator.wait_for_everyone()
        if (out / SUMMARY).exists():
            if main:
                shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
            return FinishedPpo(out, read_result(out, SUMMARY), main_process=main)
        progress.begin(f"loading {config.policy}")
        learner = load_learner(config)
        trainer = Trainer(
            config, prompts, model, learner, accelerator, config.steps or math.ceil(len(prompts.train) / config.batch)
        )
        if folder is None:
            accelerator.wait_for_everyone()  # while the main process answers
            learn(trainer, restore_checkpoint(out / CHECKPOINTS, trainer), None, progress)
            accelerator.wait_for_everyone()
            return FinishedPpo(out, {}, main_process=False)
        folder.confirm_model(f"policy: {config.policy}", learner.policy.fingerprint)
        folder.confirm_model(config.model, model.fingerprint, execution_of(model))
        if grader is not None:
            folder.confirm_model(f"grader: {config.grader}", grader.fingerprint)
        replies = stack.enter_context(open_replies(out, progress))
        asking = Asking(replies, Breaker(), progress)
        asked = Asked.of(config.model, model, "score", given=reward is not None)
        graded_by = (Asked.of(config.grader or "", grader, "grade", given=is_given), grader) if grader else None
        return FinishedPpo(out, run_whole(trainer, HeldOut(config, prompts, learner, asked, graded_by, asking), folder))


def run_whole(trainer: Trainer, held_out: HeldOut, folder: RunFolder) -> dict[str, Any]:
    """Held-out answers, training, held-out answers again, summary: the work of the process that writes."""
    config, learner, accelerator, out = trainer.config, trainer.learner, trainer.accelerator, folder.folder
    progress, data, grader = held_out.asking.progress, trainer.prompts.dataset, held_out.grader
    before = held_out.answer("before")  # what is missing can be asked for: the weights are still the first ones
    accelerator.wait_for_everyone()
    curves = restore_checkpoint(out / CHECKPOINTS, trainer)
    if curves:
        progress.note(f"resuming after step {trainer.done}")
    stopped = learn(trainer, curves, out, progress)
    after = held_out.answer("after")
    summary = PpoSummary(
        dataset=DatasetAbout(data.name, data.split, data.fingerprint, data.left_out),
        condition=config.condition,
        policy=ModelAbout(config.policy, learner.policy.fingerprint),
        model=ModelAbout(config.model, trainer.model.fingerprint),
        grader=GraderAbout.of(config.grader or "", grader[1]) if grader else None,
        train=TrainingSummary(
            prompts=len(trainer.prompts.train),
            steps=trainer.done,
            stopped=stopped,
            **{n: sum(getattr(row, n) for row in curves) for n in ("samples", "failed", "truncated", "cut")},
            first=curves[0],
            last=curves[-1],
        ),
        held_out=held_out.summary(before, after),
    )
    write_lines(out / ANSWERS, [*before, *after])
    with writing(out / POLICY):
        learner.save(out / POLICY)
    write_curves(out / CURVES, curves)  # a resumed run has them from its checkpoint
    folder.finish({SUMMARY: (content := msgspec.to_builtins(summary))})
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    accelerator.wait_for_everyone()
    return dict(content)


def make_accelerator(config: PpoConfig) -> Any:
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError:
        raise MissingExtra("PPO", "torch") from None
    cpu = parse_llm(config.policy).options.get("device") == "cpu" or not torch.cuda.is_available()
    timeout = InitProcessGroupKwargs(timeout=timedelta(days=1))  # others wait while one process answers and grades
    accelerator = Accelerator(cpu=cpu, mixed_precision="no" if cpu else "bf16", kwargs_handlers=[timeout])
    if config.minibatch % accelerator.num_processes:
        raise BadInput(f"minibatch {config.minibatch} cannot be split into {accelerator.num_processes} processes")
    return accelerator


def learn(trainer: Trainer, curves: list[CurveRow], out: Path | None, progress: Progress) -> str | None:
    """All steps that are left, appended to the curves; the reason, if it stops before the last one."""
    progress.begin("PPO", total=trainer.steps, done=trainer.done)
    limit = trainer.config.recipe.stop_kl
    stopped = diverged(curves, limit)
    while stopped is None and trainer.done < trainer.steps:
        rollout = trainer.collect()
        refuse_failures(curves, rollout)
        curves.append(trainer.step(rollout))
        stopped = diverged(curves, limit)
        if out is not None:
            write_curves(out / CURVES, curves)
            if stopped or trainer.done == trainer.steps or trainer.done % CHECKPOINT_EVERY == 0:
                save_checkpoint(out / CHECKPOINTS, trainer, curves)
                row = curves[-1]
                measured = f"reward {row.reward:.3f}, KL {row.kl:.2f}, {row.length:.0f} tokens"
                progress.note(f"step {trainer.done} of {trainer.steps}: {measured}")
        progress.advance()
    if stopped:
        progress.note(f"stopped early: {stopped}")
    return stopped


def diverged(curves: Sequence[CurveRow], limit: float | None) -> str | None:
    if not curves or limit is None or curves[-1].kl <= limit:
        return None
    return f"KL {curves[-1].kl:.1f} nats per answer at step {curves[-1].step}, more than {limit:g}"


def refuse_failures(curves: Sequence[CurveRow], rollout: Rollout) -> None:
    """Answers without a reward are dropped; too many of them mean that something is wrong with the reward model."""
    samples, failed = rollout.counts.samples, rollout.counts.failed
    if samples > failed:
        for row in reversed(curves):
            if samples >= RECENT:
                break
            samples, failed = samples + row.samples, failed + row.failed
        if samples < MIN_COUNTED or failed <= MAX_FAILED * samples:
            return
    raise PrbError(
        f"{failed:.0f} of the last {samples:.0f} answers got no reward, more than {MAX_FAILED:.0%}; "
        f"the first reason in this step: {rollout.first_failure}"
    )
