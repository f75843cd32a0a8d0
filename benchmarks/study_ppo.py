"""Does what a reward model knows on `mirror` show in a policy that PPO trains against it? A small study on one core.

SmolLM2-135M writes short answers and is trained against reward models of graded knowledge that the study of best-of-N
scored on `mirror`, with the same seeds for each. What decides was written down in docs/tables/correlation.md before the
run, and the result goes there; reward models that were added later join the table and decide nothing. Everything is in
runs/study-ppo and resumes: python benchmarks/study_ppo.py      (after `make study`; needs qwen2.5-1.5b, too)
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import torch
import tyro
from record import ROOT, write_between

from prb.data.load import load
from prb.downstream.ppo import PpoConfig, PpoSummary, ppo
from prb.models.baselines import plan_affinity
from prb.models.personal.features import make_features
from prb.models.personal.head import Personal, fingerprint, read
from prb.models.scripted import Noisy, ScriptedScorer
from prb.progress import Progress, watch
from prb.reporting.format import Table, markdown, number, p_equals
from prb.stats.ranking import permutation_p, spearman
from prb.types import Query, Scorer
from study import FEATURES, LATER, OtherQueries, Remembered, later_models, matches, queries, scorer

NOISE = {0.0: 0, 0.05: 2, 0.1: 3, 0.5: 5}
"""Standard deviation → seed, as in the study of best-of-N."""
HEAD = "axes on SmolLM2, 60 axes"


@dataclass(frozen=True)
class Args:
    steps: int = 8
    seeds: int = 1
    batch: int = 8
    holdout: int = 24
    out: Path = ROOT / "runs" / "study-ppo"
    head: Path = ROOT / "runs" / "study" / "heads" / "axes-SmolLM2-60"
    record: bool = True
    """Write the result into docs/."""


def main(args: Args) -> None:
    torch.set_num_threads(1)
    models, known = reward_models(args), knowledge()
    rows: dict[str, list[float]] = {}
    validity = ""
    with watch() as progress:
        for name, model in models.items():
            runs = [trained(args, name, model, seed, progress) for seed in range(args.seeds)]
            assert runs[0].grader is not None
            validity = runs[0].grader.trust
            rows[name] = [known[name], *changes(runs)]
    rho, p = association([row for name, row in rows.items() if not matches(name, LATER)])
    verdict = "cannot tell" if p >= 0.05 else "yes" if rho > 0 else "no"
    headings = ("reward model", "accuracy on mirror", "reward before", "after", "grade before", "after", "KL (nats)")
    digits = (3, 3, 3, 3, 3, 1)
    cells = [(name, *(number(v, d) for v, d in zip(row, digits, strict=True))) for name, row in rows.items()]
    about = f"{args.seeds} seed(s); {args.steps} steps of {args.batch} answers; {args.holdout} held-out prompts."
    registered = sum(not matches(name, LATER) for name in rows)
    said = f"Grade after training against accuracy on `mirror`, {registered} RMs: ρ {number(rho, 2)}, {p_equals(p)}"
    lines = [f"**{verdict.capitalize()}.** {said} (exact)."]
    if added := [f"`{name}`" for name in rows if matches(name, LATER)]:
        rho, p = association(list(rows.values()))
        lines.append(f"With {', '.join(added)}, added later: ρ {number(rho, 2)}, {p_equals(p)}.")
    lines.append(validity)
    text = "\n\n".join([*lines, markdown(Table("PPO", headings, tuple(cells), (about,)))])
    print(text)
    if args.record:
        write_between("study-ppo", text, ROOT / "docs" / "tables" / "correlation.md")


def association(rows: list[list[float]]) -> tuple[float, float]:
    """Spearman's ρ of accuracy on `mirror` and the grade after training, and its p."""
    x, y = (np.array([row[column] for row in rows]) for column in (0, 4))
    return float(spearman(x, y)[0]), permutation_p("spearman", x, y).p


def changes(runs: list[PpoSummary]) -> list[float]:
    """Means over seeds: reward before and after, grade before and after, KL of the last step."""
    values = []
    for run in runs:
        assert run.held_out.reward is not None
        assert run.held_out.grade is not None
        both = (run.held_out.reward, run.held_out.grade)
        values.append([*(float(e.value or 0) for c in both for e in (c.before, c.after)), run.train.last.kl])
    return [fmean(column) for column in zip(*values, strict=True)]


def trained(args: Args, name: str, model: Scorer, seed: int, progress: Progress) -> PpoSummary:
    config = PpoConfig(
        policy="transformers/smollm2?batch=8",
        model=name,
        split="dev",
        steps=args.steps,
        batch=args.batch,
        minibatch=args.batch,
        epochs=1,
        lr=1e-3,
        lora=8,
        k=1,
        max_prompt=96,
        max_tokens=24,
        holdout=args.holdout,
        seed=seed,
        out=args.out / f"{''.join(c if c.isalnum() else '-' for c in name)}-{seed}",
    )
    finished: dict[str, Any] = ppo(config, reward=model, progress=progress).summary
    return msgspec.convert(finished, PpoSummary)


def knowledge() -> dict[str, float]:
    """Accuracy on `mirror` by reward model, from the study of best-of-N."""
    scores: dict[str, list[float]] = {}
    with (ROOT / "docs" / "correlation.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            scores.setdefault(row["model"], []).append(float(row["mirror"]))
    return {model: fmean(values) for model, values in scores.items()}


def reward_models(args: Args) -> dict[str, Scorer]:
    """Each is shown what it is in the study of best-of-N: the true rubric, or all posts."""
    rubrics: dict[tuple[str | None, str], Query] = {}
    posts: dict[tuple[str | None, str], Query] = {}
    for split in ("dev", "test"):
        dataset = load("mirror", split=split, donors=True)
        rubrics |= queries(dataset, "oracle")
        posts |= queries(dataset, "profile")
    features = Remembered(make_features(FEATURES["SmolLM2"]))
    reads = ScriptedScorer(partial(plan_affinity, Remembered(make_features("minilm"))), "aspect-match-minilm")
    models: dict[str, Scorer] = {"random": scorer("random")}
    models[HEAD] = OtherQueries(Personal(read(args.head)[0], features, fingerprint(args.head)), "all posts", posts)
    for sd, seed in sorted(NOISE.items(), reverse=True):
        models[f"noisy oracle sd={sd:g}"] = OtherQueries(Noisy(reads, sd, seed), "oracle", rubrics)
    for _, later in later_models():
        models |= {name: OtherQueries(model, "all posts", posts) for name, model in later.items()}
    return models


if __name__ == "__main__":
    main(tyro.cli(Args))
