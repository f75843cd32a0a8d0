"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347) of an LLM against a reward model.

Read top to bottom: the arithmetic; a step, which samples one answer per prompt, scores each with the reward model as in
evaluation, applies the KL penalty token by token, estimates advantages and takes clipped gradient steps; held-out
answers; the run.

There is no random state: the order of prompts, the noise of each answer and the minibatches are hashed from seed, step
and row, and dropout is off. So a step depends only on weights, optimizer and its number.

Left out, because verl has it (`--engine verl`): several GPUs, several answers per prompt, schedules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from prb import __version__
from prb.downstream.answers import Asking, ModelAbout
from prb.downstream.ppo import (
    ANSWERS,
    CHECKPOINT_EVERY,
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
from prb.errors import PrbError
from prb.grading import GRADERS, Grader, GraderAbout, answered, as_line, grade_answers
from prb.hashing import draw
from prb.llm import Request, Sampling
from prb.models import MODELS, check_scorer, execution_of
from prb.progress import Progress
from prb.prompts import policy_chat
from prb.registry import Spec
from prb.runs import SUMMARY, RunFolder, read_result, remove, write_lines, writing
from prb.stats.estimate import average, codes
from prb.stats.paired import difference
from prb.summary import DatasetAbout
from prb.training.config import CHECKPOINT
from prb.training.learning import load_state, save_state
from prb.types import Ask, Failure, Pair, Scorer
from prb.work import Breaker, CalledModel, ask_model, checked_reward, open_replies

EPSILON = 1e-8
ADAM_EPSILON = 1e-6
"""With torch's default of 1e-8, parameters with almost no gradient would take full steps."""
VALUE_WEIGHT = 0.1
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


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Mean 0 and variance 1 over what the mask keeps."""
    kept = values[mask.bool()].double()
    return values.sub(kept.mean()).div(kept.std(correction=0) + EPSILON).mul(mask)


# --- a step ---

BLANK = Answer([0], [0], "", truncated=False)
"""Placeholder for an answer without a reward; its tokens are masked out of everything."""


class Rollout(NamedTuple):
    """The answers of a step: one row per answer, one column per token."""

    tokens: TokenBatch
    scores: Tensor
    scored: Tensor
    """1 where there is a reward."""
    truncated: int
    cut: int
    first_failure: str

    @property
    def failed(self) -> int:
        return len(self.scored) - int(self.scored.sum())


class Targets(NamedTuple):
    """What a step learns from, computed before its first update; one column per token."""

    logp: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Trainer:
    def __init__(self, config: PpoConfig, prompts: Prompts, model: Scorer, learner: Learner, steps: int) -> None:
        self.config, self.prompts, self.model, self.learner, self.steps = config, prompts, model, learner, steps
        self.done = 0
        self.piece = min(config.minibatch, config.per_pass)
        self.device = learner.checkpoint.model.device
        self.net = learner.net.to(self.device).eval()  # with dropout, a token's probability would depend on the pass
        learner.reference.to(self.device)
        lm = [weight for name, weight in learner.trainable().items() if name.startswith("lm.")]
        critic = [weight for name, weight in learner.trainable().items() if not name.startswith("lm.")]
        groups = [{"params": lm, "lr": config.lr}, {"params": critic, "lr": CRITIC_RATE * config.lr}]
        self.optimizer = torch.optim.AdamW(groups, eps=ADAM_EPSILON, weight_decay=0.0, foreach=False)

    def autocast(self) -> torch.autocast:
        """Weights have 32 bits; GPUs compute in bf16."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda")

    def collect(self) -> Rollout:
        """One answer per prompt, each with its own noise, and its reward, asked for as in evaluation."""
        config, policy = self.config, self.learner.policy
        prompts = self.prompts.batch(self.done)
        views = self.prompts.views(prompts)
        fitted = [policy.fitted(view, config) for view in views]
        requests: list[Request | Failure] = []
        for prompt, fit in zip(prompts, fitted, strict=True):
            seed = draw(config.seed, "answer", self.done, prompt.item.id, bits=SEED_BITS)
            sampling = Sampling(temperature=1.0, max_tokens=config.max_tokens, seed=seed)
            made = fit if isinstance(fit, Failure) else Request(policy_chat(fit[0], config.policy_prompt), sampling)
            requests.append(made)
        with self.autocast():
            answers = policy.write(requests)

        asks = {
            n: Ask(view.reward, answer.text)
            for n, (view, answer) in enumerate(zip(views, answers, strict=True))
            if isinstance(view, Views) and isinstance(answer, Answer) and answer.text
        }
        replies = ask_model(self.model, "score", list(asks.values())) if asks else []
        scored_answers = dict(zip(asks, map(checked_reward, replies), strict=True))
        empty = Failure("empty answer") if config.empty_reward is None else config.empty_reward
        rewards = [
            answer if isinstance(answer, Failure) else scored_answers.get(n, empty) for n, answer in enumerate(answers)
        ]

        kept = [
            BLANK if isinstance(answer, Failure) or isinstance(reward, Failure) else answer
            for answer, reward in zip(answers, rewards, strict=True)
        ]
        padded = pad_batch([a.prompt for a in kept], [a.tokens for a in kept])
        tokens = TokenBatch(*(tensor.to(self.device) for tensor in padded))
        scored = torch.tensor([float(a is not BLANK) for a in kept], device=self.device)
        return Rollout(
            tokens=tokens._replace(mask=tokens.mask * scored[:, None]),
            scores=torch.tensor([0.0 if isinstance(r, Failure) else float(r) for r in rewards], device=self.device),
            scored=scored,
            truncated=sum(a.truncated for a in kept),
            cut=sum(not isinstance(fit, Failure) and fit[1] > 0 for fit in fitted),
            first_failure=next((str(r) for r in rewards if isinstance(r, Failure)), ""),
        )

    def step(self, rollout: Rollout) -> CurveRow:
        """Learn from the answers of a step: some clipped updates per pass over the batch."""
        config, rewards = self.config, rollout.scores[rollout.scored.bool()].double()
        targets, kl, entropy = self.targets(rollout)
        updates = []
        for epoch in range(config.epochs):
            seed = draw(config.seed, "order", self.done, epoch, bits=SEED_BITS)
            order = torch.randperm(len(rollout.scores), generator=torch.Generator().manual_seed(seed))
            updates += [self.update(rollout.tokens, targets, rows) for rows in torch.split(order, config.minibatch)]
        self.done += 1
        tokens = float(rollout.tokens.mask.sum())
        return CurveRow(
            step=self.done,
            reward=float(rewards.mean()),
            kl=kl / len(rewards),
            length=tokens / len(rewards),
            entropy=entropy / tokens,
            **{name: sum(losses[name] for losses in updates) / len(updates) for name in updates[0]},
            samples=len(rollout.scores),
            failed=rollout.failed,
            truncated=rollout.truncated,
            cut=rollout.cut,
        )

    @torch.no_grad()
    def targets(self, rollout: Rollout) -> tuple[Targets, float, float]:
        """What the answers are worth, token by token; sums of KL and entropy over all tokens."""
        tokens, scores, recipe, parts = rollout.tokens, rollout.scores, self.config.recipe, []
        mask = tokens.mask
        for rows in torch.split(torch.arange(len(scores)), self.piece):
            part = tokens.rows(rows)
            with self.autocast():
                stats = self.net(part)
            with self.learner.as_reference() as lm, self.autocast():
                reference, _ = self.learner.net.answer_logp(run(lm, part)[0], part)
            missing = mask.shape[1] - part.mask.shape[1]
            columns = (stats.logp, stats.entropy, stats.value, reference)
            parts.append([torch.nn.functional.pad(column * part.mask, (0, missing)) for column in columns])
        logp, entropy, value, reference = (torch.cat(columns) for columns in zip(*parts, strict=True))
        self.refuse_nan("the log-probabilities or values of the answers", logp, value, reference)
        if recipe.whiten_rewards:
            scores = whiten(scores, rollout.scored)
        rewards = token_rewards(scores, logp, reference, mask, kl=self.config.kl)
        advantage = advantages(rewards, value, mask, lam=recipe.lam)
        kl, total_entropy = float(((logp - reference) * mask).sum()), float((entropy * mask).sum())
        return Targets(logp, value, whiten(advantage, mask), returns=advantage + value), kl, total_entropy

    def update(self, tokens: TokenBatch, targets: Targets, rows: Tensor) -> dict[str, float]:
        """One optimizer step. The loss of a piece is its share of the mean over the tokens of the whole minibatch."""
        count, sums = max(float(tokens.mask[rows].sum()), 1.0), []
        for piece in torch.split(rows, self.piece):
            part = tokens.rows(piece)
            with self.autocast():
                now = self.net(part)
            old = Targets(*(column[piece, : part.mask.shape[1]] for column in targets))
            per_token = {
                "policy_loss": policy_loss(now.logp, old.logp, old.advantage, clip=CLIP),
                "value_loss": value_loss(now.value, old.value, old.returns, clip=self.config.recipe.value_clip),
                "clip_fraction": clipped(now.logp, old.logp, clip=CLIP),
            }
            losses = {name: (values * part.mask).sum() for name, values in per_token.items()}
            loss = (losses["policy_loss"] + VALUE_WEIGHT * losses["value_loss"]) / count
            loss.backward()  # type: ignore[no-untyped-call]
            sums.append(torch.stack([value.detach() for value in losses.values()]))
        means = (torch.stack(sums).sum(0) / count).tolist()
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), MAX_GRAD_NORM)
        self.refuse_nan(f"the gradient (policy loss {means[0]:g}, value loss {means[1]:g})", norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {**dict(zip(losses, means, strict=True)), "grad_norm": float(norm)}

    def refuse_nan(self, what: str, *tensors: Tensor) -> None:
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise PrbError(
                f"step {self.done + 1}: there is a NaN or an infinity in {what}; the last checkpoint is kept, but the "
                "same command would fail again: try a lower --lr, with another --out"
            )


def learn(trainer: Trainer, out: Path, progress: Progress) -> tuple[list[CurveRow], str | None]:
    """All steps that are left; returns the curves of all steps and, if it stopped before the last one, the reason."""
    limit, weights = trainer.config.recipe.stop_kl, trainer.learner.trainable()
    curves = [CurveRow(**row) for row in load_state(out / CHECKPOINT, weights, trainer.optimizer, progress) or ()]
    trainer.done = len(curves)
    if curves:
        progress.note(f"resuming after step {trainer.done}")
    progress.begin("PPO", total=trainer.steps, done=trainer.done)

    def diverged() -> str | None:
        if not curves or limit is None or curves[-1].kl <= limit:
            return None
        return f"KL {curves[-1].kl:.1f} nats per answer at step {curves[-1].step}, more than {limit:g}"

    stopped = diverged()
    while stopped is None and trainer.done < trainer.steps:
        rollout = trainer.collect()
        refuse_failures(curves, rollout)
        row = trainer.step(rollout)
        curves.append(row)
        stopped = diverged()
        write_curves(out / CURVES, curves)
        if stopped or trainer.done == trainer.steps or trainer.done % CHECKPOINT_EVERY == 0:
            save_state(out / CHECKPOINT, weights, trainer.optimizer, curves)
            measured = f"reward {row.reward:.3f}, KL {row.kl:.2f}, {row.length:.0f} tokens"
            progress.note(f"step {trainer.done} of {trainer.steps}: {measured}")
        progress.advance()
    if stopped:
        progress.note(f"stopped early: {stopped}")
    return curves, stopped


def refuse_failures(curves: Sequence[CurveRow], rollout: Rollout) -> None:
    """Answers without a reward are dropped; too many of them mean that something is wrong with the reward model."""
    samples, failed = len(rollout.scored), rollout.failed
    if samples > failed:
        for row in reversed(curves):
            if samples >= RECENT:
                break
            samples, failed = samples + row.samples, failed + row.failed
        if samples < MIN_COUNTED or failed <= MAX_FAILED * samples:
            return
    raise PrbError(
        f"{failed} of the last {samples} answers got no reward, more than {MAX_FAILED:.0%}; "
        f"the first reason in this step: {rollout.first_failure}"
    )


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
    reward: CalledModel
    grader: tuple[CalledModel, Grader] | None
    asking: Asking

    def answer(self, stage: Stage) -> list[Line]:
        """The lines of a stage; what has no reply yet is asked for."""
        config, policy = self.config, self.learner.policy
        prompts = {prompt.item.id: prompt for prompt in self.prompts.held_out}
        views = dict(zip(prompts, self.prompts.views(self.prompts.held_out), strict=True))
        fitted = {pair: policy.fitted(view, config) for pair, view in views.items()}
        queries = {pair: fit if isinstance(fit, Failure) else fit[0] for pair, fit in fitted.items()}
        asked = CalledModel.of(f"{config.policy} {stage} training", policy, "complete", from_caller=True)
        sampling = Sampling(temperature=1.0, max_tokens=config.max_tokens, seed=config.seed)
        places = [(pair, 0) for pair in prompts]
        samples = self.asking.sample(asked, places, sampling, config.policy_prompt, lambda _: queries)
        texts = {pair: [sample.text] for (pair, _), sample in samples.items() if sample.text is not None}
        rewarded = {pair: view.reward for pair, view in views.items() if isinstance(view, Views)}
        scores = self.asking.score(self.reward, texts, lambda _: rewarded)
        grades = {}
        if self.grader:
            items, masked = {pair: prompts[pair].item for pair in texts}, config.masks(self.grader[1])
            gradable = {
                (pair, 0): answered(item, texts[pair][0], masked=masked)
                for pair, item in items.items()
                if isinstance(item, Pair) and item.rubric
            }
            asking, ungraded = self.asking, Failure("no rubric to grade by")
            graded = grade_answers(self.grader[0], gradable, asking.replies, asking.breaker, asking.progress)
            grades = {**{(pair, 0): ungraded for pair in items}, **graded}
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

    def summary(self, before: Sequence[Line], after: Sequence[Line]) -> HeldOutSummary:
        clusters, seed = codes([line["cluster"] for line in before]), self.config.seed

        def change(name: Literal["reward", "grade"]) -> Change:
            columns = [
                np.array([line[name]["score"] if line[name] else None for line in lines], dtype=np.float64)
                for lines in (before, after)
            ]
            first, last = (average(column, clusters, (-math.inf, math.inf)) for column in columns)
            return Change(first, last, difference(columns[1], columns[0], clusters, seed=seed))

        if not before:
            return HeldOutSummary(prompts=0)
        graded = change("grade") if self.grader else None
        return HeldOutSummary(prompts=len(before), reward=change("reward"), grade=graded)


# --- the run: a folder that the same command resumes ---


def train(config: PpoConfig, *, reward: Scorer | None, grader: Grader | None, progress: Progress) -> FinishedPpo:
    """`replies.jsonl` and `curves.csv` grow with the run, the checkpoint exists while it trains; `answers.jsonl`,
    `policy/` and `summary.json` when it is done."""
    if reward is None:
        MODELS.check(Spec.parse(config.model))
    model = check_scorer(config.model, MODELS.make(config.model) if reward is None else reward, "PPO needs")
    judge = GRADERS.make(config.grader) if grader is None and config.grader and config.holdout else grader
    progress.begin(f"checking {config.dataset}")
    prompts = load_prompts(config, model)
    data, out = prompts.dataset, config.folder("ppo")
    identity = {
        "prb": __version__,
        "ppo": config.saved(),
        "dataset": {"name": data.name, "split": data.split, "fingerprint": data.fingerprint},
        "planner": prompts.policy.planner.fingerprint,
    }
    with RunFolder(out, identity) as folder:
        if (out / SUMMARY).exists():
            remove(out / CHECKPOINT)
            return FinishedPpo(out, read_result(out, SUMMARY))
        progress.begin(f"loading {config.policy}")
        learner = load_learner(config)
        steps = config.steps or math.ceil(len(prompts.train) / config.batch)
        trainer = Trainer(config, prompts, model, learner, steps)
        folder.confirm_model(f"policy: {config.policy}", learner.policy.fingerprint)
        folder.confirm_model(config.model, model.fingerprint, execution_of(model))
        if judge:
            folder.confirm_model(f"grader: {config.grader}", judge.fingerprint)
        asked = CalledModel.of(config.model, model, "score", from_caller=reward is not None)
        graded_by = None
        if judge:
            graded_by = CalledModel.of(config.grader or "", judge, "grade", from_caller=grader is not None), judge
        with open_replies(out, progress) as replies:
            held_out = HeldOut(config, prompts, learner, asked, graded_by, Asking(replies, Breaker(), progress))
            before = held_out.answer("before")  # what is missing can be asked for: the weights are still the first ones
            curves, stopped = learn(trainer, out, progress)
            after = held_out.answer("after")
        summary: dict[str, Any] = msgspec.to_builtins(
            PpoSummary(
                dataset=DatasetAbout(data.name, data.split, data.fingerprint, data.left_out),
                condition=config.condition,
                policy=ModelAbout(config.policy, learner.policy.fingerprint),
                model=ModelAbout(config.model, model.fingerprint),
                grader=GraderAbout.of(config.grader or "", judge) if judge else None,
                train=TrainingSummary(
                    prompts=len(prompts.train),
                    steps=trainer.done,
                    stopped=stopped,
                    **{n: sum(getattr(row, n) for row in curves) for n in ("samples", "failed", "truncated", "cut")},
                    first=curves[0],
                    last=curves[-1],
                ),
                held_out=held_out.summary(before, after),
            )
        )
        write_lines(out / ANSWERS, [*before, *after])
        with writing(out / POLICY):
            learner.save(out / POLICY)
        write_curves(out / CURVES, curves)  # a resumed run has them from its checkpoint
        folder.finish({SUMMARY: summary})
        remove(out / CHECKPOINT)
        return FinishedPpo(out, summary)
