"""A local PPO run: a folder that the same command resumes.

`config.json`, `answers.jsonl` (held-out prompts before and after training) and `curves.csv` grow with the run,
`checkpoints/` exists while it trains, `policy/` and `summary.json` when it is done.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from prb import __version__
from prb.batches import chunks
from prb.downstream.candidates import Candidates, Sample, sample_answers, score_candidates
from prb.downstream.ppo import (
    ANSWERS,
    CHECKPOINTS,
    CURVES,
    POLICY,
    Change,
    CurveRow,
    FinishedPpo,
    HeldOutSummary,
    PpoConfig,
    PpoSummary,
    Stage,
    TrainingSummary,
    read_answers,
    write_curves,
)
from prb.downstream.ppo.loop import Rollout, Trainer, restore_checkpoint, save_checkpoint
from prb.downstream.ppo.policy import Policy, Prompt, Prompts, Views, load_learner, load_prompts
from prb.errors import BadInput, MissingExtra, PrbError
from prb.grading import GRADERS, Grader, about_grader, answered, as_line, grade_all
from prb.llm import Sampling
from prb.models import MODELS, check_scorer, execution_of
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import SUMMARY, RunFolder, append_lines, read_result, writing
from prb.stats.estimate import Floats, Ints, codes, totals
from prb.stats.paired import bootstrap_interval, difference
from prb.types import Estimate, Failure, Pair, Scorer

MAX_FAILED = 0.05
"""A larger share of answers without a reward stops the run …"""
MIN_COUNTED = 20
"""… once there are this many answers …"""
RECENT = 200
"""… in the latest steps that together have this many."""
HELD_OUT_BATCH = 8
"""Held-out prompts whose lines are written together; a crash costs at most these."""


def train(config: PpoConfig, *, reward: Scorer | None, grader: Grader | None, progress: Progress) -> FinishedPpo:
    if reward is None:
        MODELS.check(Spec.parse(config.model))
    accelerator = make_accelerator(config)  # first: it gives each process its GPU, where its models then go
    model = check_scorer(config.model, MODELS.make(config.model) if reward is None else reward, "PPO needs")
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
    with RunFolder(out, identity, growing=ANSWERS) if main else nullcontext() as folder:
        accelerator.wait_for_everyone()
        if (out / SUMMARY).exists():
            if main:
                shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
            return FinishedPpo(out, read_result(out, SUMMARY), main_process=main)
        progress.begin(f"loading {config.policy}")
        run = LocalRun(config, prompts, model, grader, accelerator, out, folder, progress)
        return FinishedPpo(out, run.run(), main_process=main)


def make_accelerator(config: PpoConfig) -> Any:
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError:
        raise MissingExtra("PPO", "torch") from None
    cpu = "device=cpu" in config.policy.split(";") or not torch.cuda.is_available()
    timeout = InitProcessGroupKwargs(timeout=timedelta(days=1))  # others wait while one process answers and grades
    accelerator = Accelerator(cpu=cpu, mixed_precision="no" if cpu else "bf16", kwargs_handlers=[timeout])
    if config.minibatch % (accelerator.num_processes * config.accumulate):
        pieces = f"{accelerator.num_processes} processes × accumulate {config.accumulate}"
        raise BadInput(f"minibatch {config.minibatch} cannot be split into {pieces}")
    return accelerator


class LocalRun:
    """Held-out answers, training, held-out answers again, summary."""

    def __init__(
        self,
        config: PpoConfig,
        prompts: Prompts,
        model: Scorer,
        grader: Grader | None,
        accelerator: Any,
        out: Path,
        folder: RunFolder | None,
        progress: Progress,
    ) -> None:
        self.config, self.prompts, self.model, self.grader = config, prompts, model, grader
        self.accelerator, self.out, self.folder, self.progress = accelerator, out, folder, progress
        self.learner = load_learner(
            config.policy,
            lora=config.lora,
            separate=config.critic == "separate",
            temperature=config.temperature,
            seed=config.seed,
        )
        if folder is not None:
            folder.confirm_model(f"policy: {config.policy}", self.learner.policy.fingerprint)
            folder.confirm_model(config.model, model.fingerprint, execution_of(model))
            if grader is not None:
                folder.confirm_model(f"grader: {config.grader}", grader.fingerprint)
        steps = config.steps or math.ceil(len(prompts.train) / config.batch)
        self.trainer = Trainer(config, prompts, model, self.learner, accelerator, steps)
        self.held_out = HeldOut(config, prompts, model, grader, self.learner.policy)
        self.curves: list[CurveRow] = []

    def run(self) -> dict[str, Any]:
        done = restore_checkpoint(self.out / CHECKPOINTS, self.trainer)
        if done is not None:
            self.held_out.check_answers_before(self.out / ANSWERS)
            self.curves = done
            self.progress.note(f"resuming after step {self.trainer.done}")
        else:
            self.answer_held_out("before")
        stopped = self.train()
        self.answer_held_out("after")
        summary: dict[str, Any] = msgspec.to_builtins(self.summary(stopped))
        if self.folder is not None:
            with writing(self.out / POLICY):
                self.learner.save(self.out / POLICY)
            write_curves(self.out / CURVES, self.curves)  # a resumed run has them from its checkpoint
            self.folder.finish({SUMMARY: summary})
            shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        return summary

    def answer_held_out(self, stage: Stage) -> None:
        if self.folder is not None:
            self.held_out.answer(stage, self.out / ANSWERS, self.progress)
        self.accelerator.wait_for_everyone()

    def train(self) -> str | None:
        """All steps; the reason, if it stops before the last one."""
        trainer = self.trainer
        self.progress.begin("PPO", total=trainer.steps, done=trainer.done)
        stopped = diverged(self.curves, self.config.stop_kl)
        while stopped is None and trainer.done < trainer.steps:
            rollout = trainer.collect()
            refuse_failures(self.curves, rollout)
            self.curves.append(trainer.step(rollout))
            stopped = diverged(self.curves, self.config.stop_kl)
            if self.folder is not None:
                self.save(last=stopped is not None or trainer.done == trainer.steps)
            self.progress.advance()
        if stopped:
            self.progress.note(f"stopped early: {stopped}")
        return stopped

    def save(self, *, last: bool) -> None:
        write_curves(self.out / CURVES, self.curves)
        if last or self.trainer.done % self.config.checkpoint_every == 0:
            save_checkpoint(self.out / CHECKPOINTS, self.trainer, self.curves)
            row = self.curves[-1]
            measured = f"reward {row.reward:.3f}, KL {row.kl:.2f}, {row.length:.0f} tokens"
            self.progress.note(f"step {self.trainer.done} of {self.trainer.steps}: {measured}")

    def summary(self, stopped: str | None) -> PpoSummary:
        data = self.prompts.dataset
        return PpoSummary(
            prb=__version__,
            dataset={"name": data.name, "split": data.split, "fingerprint": data.fingerprint},
            condition=self.config.condition,
            policy={"spec": self.config.policy, "fingerprint": self.learner.policy.fingerprint},
            model={"spec": self.config.model, "fingerprint": self.model.fingerprint},
            grader=None if self.grader is None else about_grader(self.config.grader, self.grader),
            train=TrainingSummary(
                prompts=len(self.prompts.train),
                steps=self.trainer.done,
                stopped=stopped,
                samples=sum(row.samples for row in self.curves),
                failed=sum(row.failed for row in self.curves),
                truncated=sum(row.truncated for row in self.curves),
                cut=sum(row.cut for row in self.curves),
                first=self.curves[0],
                last=self.curves[-1],
            ),
            held_out=self.held_out.summary(self.out / ANSWERS),
        )


def diverged(curves: Sequence[CurveRow], limit: float | None) -> str | None:
    if not curves or limit is None or curves[-1].kl <= limit:
        return None
    return f"KL {curves[-1].kl:.1f} nats per answer at step {curves[-1].step}, more than --stop-kl {limit:g}"


def refuse_failures(curves: Sequence[CurveRow], rollout: Rollout) -> None:
    """Answers without a reward are dropped; too many of them mean that something is wrong with the reward model."""
    samples, failed = rollout.counts["samples"], rollout.counts["failed"]
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


class HeldOut:
    """What training did to answers on held-out prompts: one line of `answers.jsonl` per prompt and stage (before,
    after), and their comparison."""

    def __init__(
        self, config: PpoConfig, prompts: Prompts, model: Scorer, grader: Grader | None, policy: Policy
    ) -> None:
        self.config, self.prompts, self.model = config, prompts, model
        self.grader, self.policy = grader, policy

    def answer(self, stage: Stage, path: Path, progress: Progress) -> None:
        """Add the lines of a stage that are missing."""
        done = {pair for answered, pair in read_answers(path) if answered == stage}
        missing = [prompt for prompt in self.prompts.held_out if prompt.item.id not in done]
        progress.begin(f"held-out answers {stage} training", total=len(done) + len(missing), done=len(done))
        for batch in chunks(missing, HELD_OUT_BATCH):
            append_lines(path, [{"stage": stage, **line} for line in self._lines(batch)])
            progress.advance(len(batch))

    def check_answers_before(self, path: Path) -> None:
        """Once training has begun, answers from before it cannot be sampled any more."""
        lines = read_answers(path)
        lost = sum(("before", prompt.item.id) not in lines for prompt in self.prompts.held_out)
        if lost:
            raise BadInput(f"{path} has lost {lost} answers from before training; remove the folder and run again")

    def _lines(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        config = self.config
        views = dict(zip([p.item.id for p in prompts], self.prompts.views(prompts), strict=True))
        fitted = zip(views, self.policy.fit_views(list(views.values()), config), strict=True)
        queries = {pair: fit if isinstance(fit, Failure) else fit[0] for pair, fit in fitted}
        sampling = Sampling(temperature=config.temperature, max_tokens=config.max_new_tokens, seed=config.seed)
        places = [(pair, 0) for pair in views]
        samples = {
            sample.pair: sample
            for sample in sample_answers(self.policy, places, queries, sampling, config.policy_prompt)
        }
        candidates = [
            Candidates(pair, view.reward, [text])
            for pair, view in views.items()
            if isinstance(view, Views) and (text := samples[pair].text) is not None
        ]
        scored = score_candidates(config.model, self.model, candidates) if candidates else []
        rewards = {line.pair: {"score": line.score, "failure": line.failure} for line in scored}
        grades = self._grades(prompts, samples)
        return [
            {
                **asdict(samples[p.item.id]),
                "cluster": p.cluster,
                "reward": rewards.get(p.item.id),
                "grade": grades.get(p.item.id),
            }
            for p in prompts
        ]

    def _grades(self, prompts: Sequence[Prompt], samples: dict[str, Sample]) -> dict[str, Any]:
        if self.grader is None:
            return {}
        masked = self.config.masks(self.grader)
        texts = {p.item.id: text for p in prompts if (text := samples[p.item.id].text) is not None}
        items = {p.item.id: p.item for p in prompts if p.item.id in texts}
        pairs = {id_: item for id_, item in items.items() if isinstance(item, Pair) and item.rubric}
        asked = [answered(pair, texts[id_], masked=masked) for id_, pair in pairs.items()]
        grades = dict(zip(pairs, grade_all(self.grader, asked) if asked else [], strict=True))
        return {id_: as_line(grades.get(id_, Failure("no rubric to grade by"))) for id_ in texts}

    def summary(self, path: Path) -> HeldOutSummary:
        held_out, seed = self.prompts.held_out, self.config.seed
        if not held_out:
            return HeldOutSummary(prompts=0)
        answers = read_answers(path)
        clusters = codes([prompt.cluster for prompt in held_out])

        def column(stage: Stage, name: Literal["reward", "grade"]) -> Floats:
            scored = [getattr(answers[stage, prompt.item.id], name) for prompt in held_out]
            return np.array([np.nan if s is None or s.score is None else s.score for s in scored], dtype=np.float64)

        def change(name: Literal["reward", "grade"]) -> Change:
            before, after = column("before", name), column("after", name)
            compared = difference(after, before, clusters, seed=seed)
            return Change(_mean(before, clusters, seed), _mean(after, clusters, seed), compared)

        graded = None if self.grader is None else change("grade")
        return HeldOutSummary(prompts=len(held_out), reward=change("reward"), grade=graded)


def _mean(values: Floats, clusters: Ints, seed: int) -> Estimate:
    known = ~np.isnan(values)
    n, failed = int(known.sum()), int((~known).sum())
    if not n:
        return Estimate(value=None, low=None, high=None, n=n, failed=failed)
    low, high = bootstrap_interval(totals(values[known], clusters[known]), seed=seed)
    return Estimate(value=float(values[known].mean()), low=low, high=high, n=n, failed=failed)
