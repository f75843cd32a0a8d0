"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) of a language model against a reward model.

Read top to bottom: a step draws one answer a prompt with the person's posts in it, has the reward model score each as
in evaluation, prices the distance from the reference token by token, estimates advantages, and takes clipped steps.
The arithmetic is in `ppo_losses`, the networks in `policy`, folders and resuming in `ppo_run`.

Nothing is drawn from a global state: prompts' order, each answer's noise and the minibatches are hashed from seed, step
and row, and dropout is off; so what a step does depends on weights, optimizer, price of KL and its number alone. With
several processes each takes its share of every batch, and all that is averaged is averaged over everybody's tokens.

Left out, because verl has it (`--engine verl`): models larger than one GPU, several answers a prompt, schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prb.downstream.candidates import Candidates, score_candidates
from prb.downstream.policy import Answer, Learner, Texts, chat, rectangle, run
from prb.downstream.ppo_config import PpoConfig
from prb.downstream.ppo_files import trainable
from prb.downstream.ppo_losses import (
    advantages,
    clipped,
    moments,
    next_kl,
    policy_loss,
    token_rewards,
    update_kl,
    value_loss,
    whiten,
)
from prb.downstream.ppo_prompts import Prompt, Prompts, Shown, draw
from prb.errors import PrbError
from prb.llm import Request, Sampling
from prb.types import Failure, Scorer

BLANK = Answer([0], [0], "", truncated=False)
"""Holds the place of an answer without a reward; its tokens are masked out of everything."""
COUNTS = ("samples", "failed", "truncated", "cut", "tokens", "reward", "squares")


@dataclass(frozen=True)
class Batch:
    """The answers of a step: a row each, a column a token."""

    texts: Texts
    scores: Tensor
    """The reward model's numbers; 0 where there is none."""
    there: Tensor
    """1 where there is one."""
    counts: dict[str, float]
    """Added up over all processes."""
    why: str
    """The first failure."""


@dataclass(frozen=True)
class Judged:
    """What policy, critic and reference said of a batch's tokens before anything was learnt from them."""

    logp: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    kl: float
    """Nats away from the reference, an answer."""
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
        lm = [p for name, p in trainable(learner.net).items() if name.startswith("lm.")]
        critic = [p for name, p in trainable(learner.net).items() if not name.startswith("lm.")]
        groups: list[dict[str, Any]] = [{"params": lm, "lr": config.lr}, {"params": critic, "lr": config.critic_lr}]
        optimizer = torch.optim.AdamW(groups, eps=1e-6, weight_decay=0.0, foreach=False)
        net, self.optimizer = accelerator.prepare(learner.net, optimizer)
        self.net = net.eval()  # dropout would make a token's probability depend on the pass that computed it
        learner.reference.to(accelerator.device)

    def step(self, batch: Batch) -> dict[str, float]:
        """Learn from a batch; what was seen of it is a row of the curves."""
        judged = self.judge(batch)
        losses = self.learn(batch, judged)
        self.done += 1
        row = self.row(batch, judged, losses)
        if self.config.kl_target is not None:
            far, horizon = self.config.kl_target, self.config.kl_horizon
            self.kl = next_kl(self.kl, judged.kl, target=far, samples=self.config.batch, horizon=horizon)
        return row

    # answers and rewards

    def collect(self) -> Batch:
        prompts = self.prompts.batch(self.done)[self.accelerator.process_index :: self.world]
        shown = self.prompts.show(prompts)
        answers, cut = self.answer(prompts, shown)
        rewards = self.rewards(shown, answers)
        kept = [
            BLANK if isinstance(r, Failure) or isinstance(a, Failure) else a
            for a, r in zip(answers, rewards, strict=True)
        ]
        device = self.accelerator.device
        texts = Texts(*(t.to(device) for t in rectangle([a.prompt for a in kept], [a.tokens for a in kept])))
        there = torch.tensor([float(a is not BLANK) for a in kept], device=device)
        scores = torch.tensor([0.0 if isinstance(r, Failure) else float(r) for r in rewards], dtype=torch.float64)
        texts = texts._replace(mask=texts.mask * there[:, None])
        failed, truncated = sum(a is BLANK for a in kept), sum(a.truncated for a in kept)
        own: list[Any] = [len(kept), failed, truncated, cut, texts.mask.sum(), scores.sum(), scores.square().sum()]
        counts = self.total(torch.tensor([float(n) for n in own], dtype=torch.float64)).tolist()
        why = next((str(r) for r in rewards if isinstance(r, Failure)), "")
        return Batch(texts, scores.float().to(device), there, dict(zip(COUNTS, counts, strict=True)), why)

    def answer(self, prompts: Sequence[Prompt], shown: Sequence[Shown | Failure]) -> tuple[list[Answer | Failure], int]:
        """One answer a prompt, each with noise of its own; how many prompts had to be cut."""
        fitted = [s if isinstance(s, Failure) else self.fitted(s) for s in shown]
        requests = {
            n: self.request(self.done, prompts[n], query[0])
            for n, query in enumerate(fitted)
            if not isinstance(query, Failure)
        }
        with self.accelerator.autocast():
            written = dict(zip(requests, self.learner.policy.write(list(requests.values())), strict=True))
        found = [f if isinstance(f, Failure) else written[n] for n, f in enumerate(fitted)]
        return found, sum(not isinstance(f, Failure) and f[1] > 0 for f in fitted)

    def fitted(self, shown: Shown) -> Any:
        return self.learner.policy.fitted(
            shown.policy, prompt=self.config.max_prompt, answer=self.config.max_new_tokens
        )

    def request(self, step: int, prompt: Prompt, query: Any) -> Request:
        seed = draw(self.config.seed, "answer", step, prompt.item.id)
        limits = {"temperature": self.config.temperature, "max_tokens": self.config.max_new_tokens}
        return Request(chat(query), Sampling(**limits, seed=seed))  # type: ignore[arg-type]

    def rewards(self, shown: Sequence[Shown | Failure], answers: Sequence[Answer | Failure]) -> list[float | Failure]:
        """The reward model's number for each answer, asked as in evaluation."""
        found: list[float | Failure] = [a if isinstance(a, Failure) else Failure("not asked") for a in answers]
        asked = [
            Candidates(str(n), query.reward, [answer.text])
            for n, (query, answer) in enumerate(zip(shown, answers, strict=True))
            if isinstance(answer, Answer) and isinstance(query, Shown)
        ]
        for line in score_candidates(self.config.model, self.model, asked) if asked else ():
            found[int(line.pair)] = Failure(line.failure or "") if line.score is None else line.score
        return found

    # what the answers are worth

    @torch.no_grad()
    def judge(self, batch: Batch) -> Judged:
        pieces = [self.seen(batch.texts, rows) for rows in self.pieces(torch.arange(len(batch.scores)))]
        logp, entropy, value, reference = (torch.cat(columns) for columns in zip(*pieces, strict=True))
        self.refuse_nan("the log-probabilities or values of the answers", logp, value, reference)
        mask, scores, settings = batch.texts.mask, batch.scores, self.config
        if settings.whiten in ("both", "rewards"):
            scores = whiten(scores, batch.there, self.total(moments(scores, batch.there)))
        rewards = token_rewards(scores, logp, reference, mask, kl=self.kl)
        advantage = advantages(rewards, value, mask, gamma=settings.gamma, lam=settings.lam)
        returns = advantage + value
        if settings.whiten in ("both", "advantages"):
            advantage = whiten(advantage, mask, self.total(moments(advantage, mask)))
        far, unsure = self.total(torch.stack([((logp - reference) * mask).sum(), (entropy * mask).sum()]).double())
        answers = max(batch.counts["samples"] - batch.counts["failed"], 1)
        entropy_mean = float(unsure) / max(batch.counts["tokens"], 1)
        return Judged(logp, value, advantage, returns, kl=float(far) / answers, entropy=entropy_mean)

    def seen(self, texts: Texts, rows: Tensor) -> list[Tensor]:
        """Log-probability, entropy, value and the reference's log-probability of some rows' tokens."""
        part = texts.rows(rows)
        own = self.net(part)
        with self.learner.as_reference() as lm, self.accelerator.autocast():
            reference, _ = self.learner.net.spoken(run(lm, part)[0], part)
        missing = texts.mask.shape[1] - part.mask.shape[1]
        columns = (own.logp, own.entropy, own.value, reference)
        return [torch.nn.functional.pad(column * part.mask, (0, missing)) for column in columns]

    # learning

    def learn(self, batch: Batch, judged: Judged) -> dict[str, float]:
        """Clipped steps over the batch; the means of what was seen on the way."""
        size, seen = self.config.minibatch // self.world, []
        for epoch in range(self.config.epochs):
            noise = torch.Generator().manual_seed(draw(self.config.seed, "order", self.done, epoch))
            order = torch.randperm(len(batch.scores), generator=noise)
            seen += [self.update(batch, judged, rows) for rows in torch.split(order, size)]
        return {name: sum(row[name] for row in seen) / len(seen) for name in seen[0]}

    def update(self, batch: Batch, judged: Judged, rows: Tensor) -> dict[str, float]:
        """One step of the optimizer. A piece's loss is its share of the mean over the whole minibatch's tokens."""
        tokens = max(float(self.total(batch.texts.mask[rows].sum())), 1.0)
        sums, pieces = [], list(self.pieces(rows))
        for n, piece in enumerate(pieces):
            with nullcontext() if n == len(pieces) - 1 else self.accelerator.no_sync(self.net):
                losses = self.losses(batch.texts.rows(piece), judged, piece)
                loss = losses["policy_loss"] + self.config.value_weight * losses["value_loss"]
                self.accelerator.backward(loss * self.world / tokens)  # the processes' gradients are averaged
            sums.append(torch.stack([value.detach() for value in losses.values()]))
        found = (self.total(torch.stack(sums).sum(0)) / tokens).tolist()
        norm = torch.as_tensor(self.accelerator.clip_grad_norm_(self.net.parameters(), self.config.max_grad_norm))
        self.refuse_nan(f"the gradient (policy loss {found[0]:g}, value loss {found[1]:g})", norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {**dict(zip(losses, found, strict=True)), "grad_norm": float(norm)}

    def losses(self, texts: Texts, judged: Judged, rows: Tensor) -> dict[str, Tensor]:
        """Sums over the tokens of these rows."""
        settings, width, now = self.config, texts.mask.shape[1], self.net(texts)
        logp, value, advantage, returns = (
            column[rows, :width] for column in (judged.logp, judged.value, judged.advantage, judged.returns)
        )
        tokens = {
            "policy_loss": policy_loss(now.logp, logp, advantage, clip=settings.clip),
            "value_loss": value_loss(now.value, value, returns, clip=settings.value_clip),
            "clip_fraction": clipped(now.logp, logp, clip=settings.clip),
            "update_kl": update_kl(now.logp, logp),
        }
        return {name: (each * texts.mask).sum() for name, each in tokens.items()}

    def row(self, batch: Batch, judged: Judged, losses: dict[str, float]) -> dict[str, float]:
        counts = batch.counts
        answers = max(counts["samples"] - counts["failed"], 1)
        mean = counts["reward"] / answers
        return {
            "step": self.done,
            "reward": mean,
            "reward_std": max(counts["squares"] / answers - mean * mean, 0.0) ** 0.5,
            "kl": judged.kl,
            "kl_price": self.kl,
            "length": counts["tokens"] / answers,
            "entropy": judged.entropy,
            **losses,
            **{name: int(counts[name]) for name in ("samples", "failed", "truncated", "cut")},
        }

    # everybody together

    def pieces(self, rows: Tensor) -> Iterator[Tensor]:
        """As many rows as one forward pass takes."""
        return iter(torch.split(rows, self.micro))

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        summed: Tensor = self.accelerator.reduce(values.to(self.accelerator.device), reduction="sum")
        return summed

    def refuse_nan(self, what: str, *tensors: Tensor) -> None:
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise PrbError(
                f"step {self.done + 1}: there is a NaN or an infinity in {what}; what was learnt up to the last "
                "checkpoint is kept, but the same command would end here again: try a lower --lr, with another --out"
            )
