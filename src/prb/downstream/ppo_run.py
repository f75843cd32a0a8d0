"""A PPO run: a folder that the same command goes on with. `config.json`, `answers.jsonl` (held-out prompts before and
after), `curves.csv` and `curves.svg`, `checkpoints/` while it runs, `policy/` and `summary.json` when it is done."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from prb import __version__
from prb.downstream.policy import load_learner
from prb.downstream.ppo import Batch, Trainer
from prb.downstream.ppo_config import PpoConfig, complete, settings_of
from prb.downstream.ppo_files import (
    ANSWERS,
    CHECKPOINTS,
    CURVES,
    POLICY,
    Saved,
    latest_checkpoint,
    optimizer_tensors,
    read_curves,
    restore,
    save_checkpoint,
    trainable,
    write_curves,
)
from prb.downstream.ppo_prompts import Prompts, load_prompts
from prb.downstream.ppo_proof import Proof
from prb.errors import BadInput, MissingExtra, PrbError
from prb.grading import GRADERS, Grader, about_grader
from prb.models import MODELS
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import SUMMARY, Folder, read_json, write_json
from prb.types import Scorer

MOST_FAILED = 0.05
"""A larger share of answers without a reward stops the run …"""
ENOUGH = 20
"""… once there are so many …"""
RECENT = 200
"""… among the latest steps that hold so many together."""

Row = dict[str, float]


@dataclass(frozen=True)
class Ppo:
    """A finished run: its folder and what stands in its `summary.json`."""

    folder: Path
    summary: dict[str, Any]


def ppo(
    config: PpoConfig, *, reward: Scorer | None = None, grader: Grader | None = None, progress: Progress = SILENT
) -> Ppo:
    """Run or resume; `reward` and `grader` of your own stand in for what the config names."""
    config = complete(config)
    assert config.out is not None
    tracker = _tracker(config)
    model, marker = _reward_model(config, reward), _grader(config, grader)
    accelerator = make_accelerator(config)
    first = accelerator.is_main_process  # the one process that writes and tells
    progress = progress if first else SILENT
    progress.begin(f"checking {config.dataset}")
    prompts = load_prompts(config, model)
    folder = Folder(config.out, identity(config, prompts))
    with _owned(folder, first):
        accelerator.wait_for_everyone()
        if (config.out / SUMMARY).exists():
            return Ppo(config.out, read_json(config.out / SUMMARY))
        progress.begin(f"loading {config.policy}")
        work = Work(config, prompts, model, marker, accelerator, progress)
        if first:
            for name, fingerprint in work.fingerprints().items():
                folder.confirm_model(name, fingerprint)
        return work.run(tracker)


def _reward_model(config: PpoConfig, own: Scorer | None) -> Scorer:
    if own is None:
        MODELS.check(Spec.parse(config.model))
    model = MODELS.make(config.model) if own is None else own
    if not isinstance(model, Scorer):
        raise BadInput(f"{config.model!r} only compares answers; PPO needs a model that scores them")
    return model


def _grader(config: PpoConfig, own: Grader | None) -> Grader | None:
    return GRADERS.make(config.grader) if own is None and config.grader and config.holdout else own


def _tracker(config: PpoConfig) -> Any:
    if config.tracker == "none":
        return None
    try:
        return import_module(config.tracker)
    except ImportError:
        raise BadInput(f"--tracker {config.tracker} needs its package: pip install {config.tracker}") from None


def make_accelerator(config: PpoConfig) -> Any:
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError:
        raise MissingExtra("PPO", "torch") from None
    cpu = "device=cpu" in config.policy.split(";") or not torch.cuda.is_available()
    precision = "no" if cpu else "bf16"
    patient = InitProcessGroupKwargs(timeout=timedelta(days=1))  # one process answers and grades while others wait
    accelerator = Accelerator(cpu=cpu, mixed_precision=precision, kwargs_handlers=[patient])
    if config.minibatch % (accelerator.num_processes * config.accumulate):
        pieces = f"{accelerator.num_processes} processes × --accumulate {config.accumulate}"
        raise BadInput(f"--minibatch {config.minibatch} cannot be cut into {pieces}")
    return accelerator


def identity(config: PpoConfig, prompts: Prompts) -> dict[str, Any]:
    """What must be the same for a run to be continued."""
    data = prompts.dataset
    about = {"name": data.name, "split": data.split, "fingerprint": data.fingerprint}
    planner = prompts.policy.planner.fingerprint
    return {"prb": __version__, "ppo": settings_of(config), "dataset": about, "planner": planner}


@contextmanager
def _owned(folder: Folder, first: bool) -> Iterator[None]:
    """The folder locked by the first process; nothing of it stays if the run ends before its first result."""
    if not first:
        yield
        return
    folder.open()
    try:
        yield
    except BaseException:
        answers = folder.folder / ANSWERS
        if not (folder.folder / CURVES).exists() and not (answers.exists() and answers.stat().st_size):
            folder.leave_no_trace(ANSWERS)
        raise
    finally:
        folder.close()


class Work:
    def __init__(
        self,
        config: PpoConfig,
        prompts: Prompts,
        model: Scorer,
        grader: Grader | None,
        accelerator: Any,
        progress: Progress,
    ) -> None:
        assert config.out is not None
        self.config, self.prompts, self.model, self.grader = config, prompts, model, grader
        self.accelerator, self.progress, self.out = accelerator, progress, config.out
        self.learner = load_learner(
            config.policy,
            lora=config.lora,
            separate=config.critic == "separate",
            temperature=config.temperature,
            seed=config.seed,
        )
        steps = config.steps or math.ceil(len(prompts.train) / config.batch)
        self.trainer = Trainer(config, prompts, model, self.learner, accelerator, steps)
        self.proof = Proof(config, prompts, model, grader, self.learner.policy, self.out / ANSWERS)
        self.curves: list[Row] = []

    def fingerprints(self) -> dict[str, str]:
        """Which weights the specs stand for; a resumed run must find the same ones."""
        known = {f"policy: {self.config.policy}": self.learner.checkpoint.fingerprint}
        known[self.config.model] = self.model.fingerprint
        return known if self.grader is None else {**known, f"grader: {self.config.grader}": self.grader.fingerprint}

    def run(self, tracker: Any) -> Ppo:
        self.resume()
        if self.trainer.done == 0:
            self.answer_held_out("before")
        with self.tracked(tracker) as log:
            stopped = self.train(log)
        self.answer_held_out("after")
        summary = self.summary(stopped)
        if self.accelerator.is_main_process:
            self.finish(summary)
        self.accelerator.wait_for_everyone()
        return Ppo(self.out, summary)

    def resume(self) -> None:
        saved = latest_checkpoint(self.out / CHECKPOINTS)
        if saved is None:
            return
        restore(self.learner.net, self.trainer.optimizer, saved)
        self.trainer.done, self.trainer.kl = saved.step, saved.kl
        self.curves = read_curves(self.out / CURVES, up_to=saved.step)
        self.progress.note(f"going on after step {saved.step}")

    def answer_held_out(self, stage: str) -> None:
        if self.accelerator.is_main_process:
            self.proof.answer(stage, self.progress)
        self.accelerator.wait_for_everyone()

    def train(self, log: Callable[[Row], None]) -> str | None:
        """All steps; why it stopped before the last one, if it did."""
        trainer = self.trainer
        self.progress.begin("PPO", total=trainer.steps, done=trainer.done)
        stopped = blown_up(self.curves, self.config.stop_kl)
        while stopped is None and trainer.done < trainer.steps:
            batch = trainer.collect()
            refuse_failures(self.curves, batch)
            self.curves.append(trainer.step(batch))
            stopped = blown_up(self.curves, self.config.stop_kl)
            if self.accelerator.is_main_process:
                log(self.curves[-1])
                self.keep(last=stopped is not None or trainer.done == trainer.steps)
            self.progress.advance()
        if stopped:
            self.progress.note(f"stopped early: {stopped}")
        return stopped

    def keep(self, *, last: bool) -> None:
        write_curves(self.out / CURVES, self.curves)
        if last or self.trainer.done % self.config.checkpoint_every == 0:
            weights, moments = trainable(self.learner.net), optimizer_tensors(self.trainer.optimizer)
            save_checkpoint(self.out / CHECKPOINTS, Saved(self.trainer.done, self.trainer.kl, weights, moments))
            now = self.curves[-1]
            told = f"reward {now['reward']:.3f}, KL {now['kl']:.2f}, {now['length']:.0f} tokens"
            self.progress.note(f"step {self.trainer.done} of {self.trainer.steps}: {told}")

    @contextmanager
    def tracked(self, tracker: Any) -> Iterator[Callable[[Row], None]]:
        if tracker is None or not self.accelerator.is_main_process:
            yield lambda _: None
            return
        tracker.init(project="prb-ppo", name=self.out.name, config=settings_of(self.config), resume="allow")
        try:
            yield lambda row: tracker.log(dict(row), step=int(row["step"]))
        finally:
            tracker.finish()

    def summary(self, stopped: str | None) -> dict[str, Any]:
        data, counted = self.prompts.dataset, ("samples", "failed", "truncated", "cut")
        return {
            "prb": __version__,
            "dataset": {"name": data.name, "split": data.split, "fingerprint": data.fingerprint},
            "condition": self.config.condition,
            "policy": {"spec": self.config.policy, "fingerprint": self.learner.checkpoint.fingerprint},
            "model": {"spec": self.config.model, "fingerprint": self.model.fingerprint},
            "grader": None if self.grader is None else about_grader(self.config.grader, self.grader),
            "train": {
                "prompts": len(self.prompts.train),
                "steps": self.trainer.done,
                "stopped": stopped,
                **{name: int(sum(row[name] for row in self.curves)) for name in counted},
                "first": self.curves[0],
                "last": self.curves[-1],
            },
            "held_out": self.proof.summary(),
        }

    def finish(self, summary: dict[str, Any]) -> None:
        """The summary last: where it is, the rest is complete."""
        self.learner.save(self.out / POLICY)
        write_json(self.out / SUMMARY, summary)
        shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)


def blown_up(curves: list[Row], limit: float | None) -> str | None:
    if not curves or limit is None or curves[-1]["kl"] <= limit:
        return None
    return f"KL {curves[-1]['kl']:.1f} nats an answer at step {curves[-1]['step']}, more than --stop-kl {limit:g}"


def refuse_failures(curves: list[Row], batch: Batch) -> None:
    """Answers without a reward are dropped; too many of them mean that something is wrong with the model."""
    samples, failed = batch.counts["samples"], batch.counts["failed"]
    if samples > failed:
        for row in reversed(curves):
            if samples >= RECENT:
                break
            samples, failed = samples + row["samples"], failed + row["failed"]
        if samples < ENOUGH or failed <= MOST_FAILED * samples:
            return
    told = f"{failed:.0f} of the last {samples:.0f} answers got no reward, more than {MOST_FAILED:.0%}"
    raise PrbError(f"{told}; the first reason now: {batch.why}")
