"""Best-of-N: answers are sampled from a policy or given in a file, scored by every reward model and graded once.

A killed run resumes where it was, and a later command with further models on the same folder samples and grades
nothing again: see `stages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from prb import __version__
from prb.config import (
    Condition,
    Count,
    DataConfig,
    EngineConfig,
    Name,
    NonNegative,
    OutputConfig,
    PresetConfig,
    Repeated,
    Seed,
    Single,
    Size,
    UserConfig,
    config,
)
from prb.data.load import Dataset, load
from prb.downstream.candidates import MAX_COMPARED, Pool, check_reward_model, read_pool
from prb.downstream.stages import CANDIDATES, GRADER, POLICY, STAGES, Line, Results, Row, Stages, reward_models
from prb.engine.executors import given, open_executor
from prb.errors import BadInput
from prb.evaluation.planners import PLANNERS
from prb.failures import FailureConfig, breaking, refuse_failures, share_problem
from prb.grading import GRADERS, Grader, about_grader, make_grader
from prb.llm import LLM, check_llm
from prb.models import MODELS, RECORDED
from prb.progress import SILENT, Progress
from prb.prompts import PolicyPrompt
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, RunFolder
from prb.stats.best_of import curves, headroom, kl_bound, overoptimization, powers
from prb.stats.estimate import Floats, Ints, average, codes
from prb.stats.paired import correct, difference
from prb.summary import needs_donors
from prb.types import Pair, RewardModel

DEFAULT_N = 16


@config
class BonConfig(PresetConfig, OutputConfig, EngineConfig, FailureConfig, UserConfig, DataConfig):
    """What a reward model picks from N answers of a policy, graded against the user's rubric."""

    verb: ClassVar[str] = "bon"
    presentation: ClassVar[frozenset[str]] = frozenset({"model", "candidates", "best_of", "at_once"})
    paper: ClassVar[Mapping[str, Any]] = {
        "n": 16,
        "k": 10,
        "condition": "profile",
        "temperature": 1.0,
        "top_p": 0.9,
        "max_tokens": 512,
        "policy_prompt": "paper",
    }
    paper_choices: ClassVar[Mapping[str, Any]] = {"policy": "transformers/Qwen/Qwen2.5-0.5B-Instruct"}

    @classmethod
    def restore(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """A repeated run keeps the models and the candidates of its folder."""
        candidates = content.get("execution", {}).get(CANDIDATES)
        return {
            **super().restore(content),
            **({"candidates": candidates} if candidates else {}),
            "model": reward_models(content.get("models", {})),
        }

    policy: Name | None = None
    """LLM that answers: `llamacpp/smollm2`, `transformers/FOLDER`, `openai/NAME;base_url=…`."""
    candidates: Name | None = None
    """Instead of a policy: answers made elsewhere, JSONL with `pair` or `question`, and `answers`; or `mirror`."""
    model: Repeated[Name] = ()
    """Reward model spec; repeat for several, or add some to a folder later. Default: the embedded ones."""
    grader: Name = "embedded"
    """Grader spec: `embedded`, `llm?llm=SPEC`, or `recorded` for grades that were given elsewhere."""
    n: Size = 0
    """Answers for each query. Default: 16; with --candidates as many as every row has, up to 16."""
    best_of: Repeated[Count] = ()
    """Report best-of-k for this k; repeat for several. Default: 1, 2, 4, … N."""
    per_user: Count | None = None
    """At most this many rows per user; more users are more informative than more questions of the same users."""
    condition: Single[Condition] = "profile"
    """What policy and reward models are shown of the user."""
    policy_prompt: PolicyPrompt = "prb"
    """What the policy reads: the query as reward models read it, or instructions with the query, as in the paper."""
    temperature: NonNegative = 1.0
    """Sampling temperature of the policy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Nucleus sampling threshold of the policy."""
    max_tokens: Count = 512
    """Longest answer of the policy in tokens; longer ones are truncated and counted."""
    at_once: Count = 8
    """Answers requested in one call; a crash costs at most these. Use more for endpoints that batch requests."""
    seed: Seed = 0
    """Fixes samples, donors and resampling."""

    @property
    def source(self) -> str:
        """Where answers come from, as tables name it."""
        return self.policy or f"candidates {Path(str(self.candidates)).name}"

    @model_validator(mode="after")
    def check_answers(self) -> Self:
        if (self.policy is None) == (self.candidates is None):
            raise BadInput("prb bon needs either --policy, which is sampled from, or --candidates, answers in a file")
        if self.policy is not None and not self.n:
            object.__setattr__(self, "n", DEFAULT_N)
        if self.n and (largest := max((k for k in self.best_of if k > self.n), default=None)):
            raise BadInput(f"best_of must be at most n = {self.n}, not {largest}")
        return self


def best_of_n(
    config: BonConfig,
    *,
    models: Mapping[str, RewardModel] | None = None,
    policy: LLM | None = None,
    grader: Grader | None = None,
    progress: Progress = SILENT,
) -> Finished:
    """Run, resume or extend. Objects given here take the place of what the specs of `config` name."""
    check_specs(config, models or {}, policy, grader)
    pool = read_pool(config.candidates) if config.candidates else None
    planner = PLANNERS.make(config.planner)
    progress.begin(f"checking {config.dataset}")
    donors = needs_donors([config.condition])
    dataset = load(config.dataset, split=config.split, skip_bad=config.skip_bad, donors=donors)
    for note in dataset.notes:
        progress.note(note)
    pairs = gradable_pairs(dataset, config, pool, progress)
    if pool and not config.n:
        config = replace(config, n=min(DEFAULT_N, *(len(pool.of(pair)) for pair in pairs)))
    identity = {
        "prb": __version__,
        "bon": config.saved(),
        "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
        "planner": planner.fingerprint,
    }
    folder = config.folder(f"bon-{pool.fingerprint[:8] + '-' if pool else ''}{Path(config.dataset).name}")
    with (
        open_executor(config.engine) as executor,
        RunFolder(folder, identity, journals=tuple(STAGES)) as run,
        breaking(config.max_fatal) as breaker,
    ):
        progress.begin(f"loading {config.grader}")
        make = partial(given, grader) if grader else partial(make_grader, config.grader)
        grader = executor.load(make, config.grader)
        run.confirm_model(GRADER + config.grader, grader.fingerprint)
        stages = Stages(config, dataset, pairs, planner, run, executor, breaker, progress)
        stages.take(pool) if pool else stages.sample(policy)
        for spec in stages.models():
            stages.score(spec, models or {})
        stages.grade(grader)
        fingerprint = next((known for name, known in run.models.items() if name.startswith(POLICY)), None)
        about = {
            "prb": __version__,
            "dataset": {
                "name": dataset.name,
                "split": dataset.split,
                "fingerprint": dataset.fingerprint,
                "left_out": dataset.left_out,
            },
            "condition": config.condition,
            "policy": {"spec": config.source, "fingerprint": fingerprint},
            "grader": about_grader(config.grader, grader),
            "n": config.n,
            "seed": config.seed,
        }
        ks = tuple(sorted(set(config.best_of))) or powers(config.n)
        summary = {**summarize(stages.results(), about, ks=ks), "clusters": stages.clusters}
        run.finish({SUMMARY: summary})
    return Finished(folder, summary)


def check_specs(
    config: BonConfig, models: Mapping[str, RewardModel], policy: LLM | None, grader: Grader | None
) -> None:
    """A wrong name must not show after hours of sampling."""
    if policy is None and config.policy:
        check_llm(config.policy)
    for spec in config.model:
        if spec not in models:
            MODELS.check(Spec.parse(spec))
        if config.n > MAX_COMPARED or Spec.parse(spec).name in RECORDED:  # what it can do is known once it is loaded
            check_reward_model(spec, models[spec] if spec in models else MODELS.make(spec), config.n)
    if grader is None:
        GRADERS.check(Spec.parse(config.grader))


def gradable_pairs(dataset: Dataset, config: BonConfig, pool: Pool | None, progress: Progress) -> list[Pair]:
    """The rows in use: those with a rubric to grade by and candidates if some are given, up to `per_user`, and of these
    what `limit` takes."""
    rows_of: Counter[str] = Counter()
    gradable: list[int] = []
    without_candidates = 0
    for n, item in enumerate(dataset):
        if not isinstance(item, Pair) or not item.rubric:
            continue
        if pool and not pool.of(item):
            without_candidates += 1
            continue
        rows_of[item.user] += 1
        if config.per_user is None or rows_of[item.user] <= config.per_user:
            gradable.append(n)
    if not gradable:
        what = "a rubric and a candidate" if pool else "a rubric"
        raise BadInput(f"{dataset.name} has no row with {what}, so there is no answer that can be graded")
    if without_candidates:
        progress.note(f"left out {without_candidates} rows without candidates")
    sample = frozenset(dataset.index.sample(config.limit, gradable))
    pairs = [item for n, item in enumerate(dataset) if n in sample and isinstance(item, Pair)]
    if pool:
        fewest = min(pairs, key=lambda pair: len(pool.of(pair)))
        if (count := len(pool.of(fewest))) < config.n:
            raise BadInput(f"row {fewest.id!r} has {count} candidates, fewer than --n {config.n}; use --n {count}")
    return pairs


def check_failures(summary: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of the queries failed: in sampling, in grading or of a model."""
    queries = summary["queries"]
    rows, unsampled = queries["rows"], queries["sampling_failed"]
    sampled, reasons = rows - unsampled, queries["failures"]
    problems = [
        share_problem(f"sampling from {summary['policy']['spec']}", unsampled, rows, reasons, max_failed),
        share_problem(
            f"grading by {summary['grader']['spec']}", queries["grading_failed"], sampled, reasons, max_failed
        ),
    ]
    for result in summary["results"]:
        failures = result["failures"]
        problems.append(share_problem(result["model"], sum(failures.values()), sampled, failures, max_failed))
    refuse_failures(problems, max_failed)


def summarize(results: Results, about: Mapping[str, Any], *, ks: Sequence[int]) -> dict[str, Any]:
    """The content of `summary.json`. Nothing in it depends on the clock."""
    n, seed = about["n"], about["seed"]
    clusters, grades = codes(results.clusters), _table(results.grades, n)
    usable = ~np.isnan(grades).any(axis=1)
    sampled = [all(line["text"] is not None for line in row) for row in results.samples]
    random, oracle = curves(np.zeros_like(grades), grades, ks), curves(grades, grades, ks)
    picked = {model: curves(_table(rows, n), grades, ks) for model, rows in results.scores.items()}

    def points(curve: Floats) -> list[dict[str, Any]]:
        estimates = [average(column, clusters[usable]) for column in curve[usable].T]
        return [
            {"k": k, "value": e.value, "low": e.low, "high": e.high, "n": e.n, "failed": e.failed}
            for k, e in zip(ks, estimates, strict=True)
        ]

    return {
        **about,
        "queries": {
            "rows": len(sampled),
            "clusters": len(np.unique(clusters)),
            "sampling_failed": sampled.count(False),
            "grading_failed": sum(sampled) - int(usable.sum()),
            "used": int(usable.sum()),
            "failures": dict(sorted((_failures(results.samples) + _failures(results.grades)).items())),
        },
        "samples": _count_samples(results.samples, usable),
        "ks": list(ks),
        "kl_bound": [kl_bound(k) for k in ks],
        "random": points(random),
        "oracle": points(oracle),
        "results": [
            {
                "model": model,
                "curve": points(curve),
                "headroom": [
                    {"k": k, **headroom(got, low, high, clusters, seed=seed)}
                    for k, got, low, high in zip(ks, curve.T, random.T, oracle.T, strict=True)
                ],
                "bend": overoptimization(curve, ks, clusters, seed=seed),
                "failures": dict(_failures(results.scores[model])),
                "cut_posts": sum(max(line["cut"] for line in row) for row in results.scores[model] if row),
            }
            for model, curve in picked.items()
        ],
        "contrasts": _contrasts({model: curve[:, -1] for model, curve in picked.items()}, ks[-1], clusters, seed),
    }


def _table(rows: Sequence[Row], n: int) -> Floats:
    table = np.full((len(rows), n), np.nan)
    for at, row in enumerate(rows):
        if row is not None:
            table[at] = [np.nan if line["score"] is None else line["score"] for line in row]
    return table


def _count_samples(rows: Sequence[Sequence[Line]], usable: Any) -> dict[str, Any]:
    lines = [line for row in rows for line in row]
    distinct = [len({line["text"] for line in row}) for row, use in zip(rows, usable, strict=True) if use]
    return {
        "drawn": len(lines),
        "failed": sum(line["text"] is None for line in lines),
        "truncated": sum(line["truncated"] for line in lines),
        "distinct_of_n": float(np.mean(distinct)) if distinct else None,
        "tokens": sum(line["tokens"] for line in lines),
        "cost": sum(line["cost"] for line in lines),
    }


def _failures(rows: Sequence[Row]) -> Counter[str]:
    """Queries by their first failure; the detail stays in the lines."""
    firsts = (next((line["failure"] for line in row or () if line["failure"]), None) for row in rows)
    return Counter(first.partition(": ")[0] for first in firsts if first)


def _contrasts(ends: Mapping[str, Floats], k: int, clusters: Ints, seed: int) -> list[dict[str, Any]]:
    """All model pairs at the largest k, paired by query, with Holm's correction over all of them."""
    contrasts: list[dict[str, Any]] = [
        {"model_a": a, "model_b": b, "k": k, **difference(ends[a], ends[b], clusters, seed=seed).as_dict()}
        for a, b in combinations(ends, 2)
    ]
    correct(contrasts)
    return [{"p_holm": None, **row} for row in contrasts]


def trust(summary: Mapping[str, Any]) -> str:
    """Whose grades these are and how far they can be trusted; printed wherever they are shown."""
    grader = summary["grader"]
    return f"Graded by {grader['spec']}. {grader['validity'] or 'Its validity has not been measured.'}"
