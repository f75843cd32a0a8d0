"""Best-of-N: answers are sampled from a policy or given in a file, scored by every reward model and graded once.

`samples.jsonl`, `scores.jsonl`, `grades.jsonl` and the summary are derived from the replies of policy, reward models
and grader. So a killed run resumes, and a later command with further models on the same folder samples and grades
nothing again. A scorer gives each answer a reward; a comparer ranks the answers to a query by their win rates in a
round robin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from msgspec import Struct
from pydantic import model_validator

from prb import __version__
from prb.config import (
    ConditionName,
    Count,
    DataConfig,
    EngineConfig,
    Name,
    NonNegative,
    OutputConfig,
    PresetConfig,
    Rare,
    Repeated,
    Seed,
    Single,
    Size,
    UserConfig,
    config,
)
from prb.data.load import Dataset, load
from prb.downstream.answers import (
    GRADES,
    SAMPLES,
    SCORES,
    Asking,
    ModelAbout,
    Place,
    Pool,
    Queries,
    Sample,
    Score,
    read_pool,
)
from prb.engine.executors import Executor, given, open_executor
from prb.errors import BadInput
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.planners import PLANNERS, Planner
from prb.grading import GRADERS, Grader, GraderAbout, Grades, answered, as_line, grade_answers, make_grader
from prb.llm import LLM, Sampling, check_llm, make_llm
from prb.models import MODELS, RECORDED, execution_of, make_model, refuse_recorded
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, RunFolder, write_lines
from prb.stats.credit import Bend, curves, headroom, kl_bound, overoptimization, powers
from prb.stats.estimate import Floats, average, codes
from prb.stats.paired import corrected, difference
from prb.summary import DatasetAbout, Paired, needs_donors
from prb.types import Comparer, Estimate, Failure, Pair, RewardModel, Scorer
from prb.work import Breaker, CalledModel, FailureConfig, open_replies, refuse_failures

POLICY, GRADER = "policy: ", "grader: "
"""Prefixes that tell policy and grader from the reward models in the folder's list of weights."""
CANDIDATES = f"{POLICY}candidates"
"""Stands for the policy in that list if answers were given in a file."""
CHANCE = "(random pick)"
"""In contrasts: the mean of all answers, which a random pick has on average."""
DEFAULT_MODELS = ("random", "length", "lexical", "embedding")
DEFAULT_N = 16
TOP_P = 0.9
"""Nucleus sampling threshold of the policy, as in the paper."""
MAX_COMPARED = 16
"""A round robin of 16 takes 240 verdicts per query; a comparer is refused for more."""


@config
class BonConfig(PresetConfig, OutputConfig, EngineConfig, FailureConfig, UserConfig, DataConfig):
    """What a reward model picks from N answers of a policy, graded against the user's rubric."""

    verb: ClassVar[str] = "bon"
    presentation: ClassVar[frozenset[str]] = frozenset({"model", "candidates"})
    paper: ClassVar[Mapping[str, Any]] = {
        "n": 16,
        "k": 10,
        "condition": "profile",
        "temperature": 1.0,
        "max_tokens": 512,
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
    """LLM that answers: `llamacpp/smollm2`, `transformers/FOLDER`, `openai/NAME?base_url=…`."""
    candidates: Name | None = None
    """Instead of a policy: answers made elsewhere, JSONL with `pair` or `question`, and `answers`; or `mirror`."""
    model: Repeated[Name] = ()
    """Reward model spec; repeat for several, or add some to a folder later. Default: the embedded ones."""
    grader: Name = "embedded"
    """Grader spec: `embedded`, `llm?llm=SPEC`, or `recorded` for grades that were given elsewhere."""
    n: Size = 0
    """Answers for each query. Default: 16; with --candidates as many as every row has, up to 16."""
    condition: Single[ConditionName] = "profile"
    """What policy and reward models are shown of the user."""
    temperature: Rare[NonNegative] = 1.0
    """Sampling temperature of the policy."""
    max_tokens: Count = 512
    """Longest answer of the policy in tokens; longer ones are truncated and counted."""
    seed: Seed = 0
    """Fixes samples, donors and resampling."""

    @model_validator(mode="after")
    def check_answers(self) -> Self:
        if (self.policy is None) == (self.candidates is None):
            raise BadInput("prb bon needs one of --policy, which is sampled from, and --candidates, answers in a file")
        if self.policy is not None and not self.n:
            object.__setattr__(self, "n", DEFAULT_N)
        return self


# --- the job ---


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
        config = replace(config, n=min(DEFAULT_N, *(len(pool.of(pair)) for pair in pairs.values())))
    identity = {
        "prb": __version__,
        "bon": config.saved(),
        "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
        "planner": planner.fingerprint,
    }
    pool_fingerprint = pool.fingerprint if pool else ""
    folder = config.folder(f"bon-{Path(config.dataset).name}", dataset.fingerprint, pool_fingerprint)
    with (
        open_executor(config.engine) as executor,
        RunFolder(folder, identity, fresh=config.fresh) as run,
        open_replies(folder, progress, cache=config.cache) as replies,
    ):
        progress.begin(f"loading {config.grader}")
        load_grader = partial(given, grader) if grader else partial(make_grader, config.grader)
        loaded = executor.load(load_grader, config.grader)
        run.confirm_model(GRADER + config.grader, loaded.fingerprint)
        job = BestOfN(config, dataset, pairs, planner, run, executor, Asking(replies, Breaker(), progress))
        samples = job.take(pool) if pool else job.sample(policy)
        # all N answers, or none: a query with a failed sample is neither scored nor graded
        drawn = {pair: [samples[pair, n].text for n in range(config.n)] for pair in pairs}
        texts = {pair: [text for text in found if text] for pair, found in drawn.items() if all(found)}
        scores = {spec: job.score(spec, models or {}, texts) for spec in job.models(models or {})}
        # Ray holds one model at a time
        grades = job.grade(executor.load(load_grader, config.grader), texts, given=grader is not None)
        write_lines(folder / SAMPLES, map(msgspec.to_builtins, samples.values()))
        write_lines(folder / SCORES, (msgspec.to_builtins(s) for lines in scores.values() for s in lines.values()))
        write_lines(folder / GRADES, ({"pair": p, "n": n, **as_line(graded)} for (p, n), graded in grades.items()))
        cluster = dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))
        source = config.policy or f"candidates {Path(str(config.candidates)).name}"
        fingerprint = next((known for name, known in run.models.items() if name.startswith(POLICY)), None)
        summary: dict[str, Any] = msgspec.to_builtins(
            summarize(
                {pair: cluster[pair] for pair in pairs},
                samples,
                {(p, n): grades[p, found.index(text)] for p, found in texts.items() for n, text in enumerate(found)},
                scores,
                dataset=DatasetAbout(dataset.name, dataset.split, dataset.fingerprint, dataset.left_out),
                condition=config.condition,
                policy=ModelAbout(source, fingerprint),
                grader=GraderAbout.of(config.grader, loaded),
                n=config.n,
                seed=config.seed,
            )
        )
        run.finish({SUMMARY: summary})
    return Finished(folder, summary)


@dataclass(frozen=True)
class BestOfN:
    """Samples, scores and grades of a run, each derived from the replies after asking for what is missing."""

    config: BonConfig
    dataset: Dataset
    pairs: Mapping[str, Pair]
    planner: Planner
    run: RunFolder
    executor: Executor
    asking: Asking

    def queries_of(self, reader: object) -> Queries:
        config, asking = self.config, self.asking
        builder = QueryBuilder.of(config, self.dataset, self.planner, reader=reader, seed=config.seed)
        return lambda ids: builder.queries(
            [self.pairs[id_] for id_ in ids], config.condition, asking.replies, asking.breaker
        )

    def models(self, given_models: Mapping[str, RewardModel]) -> list[str]:
        """The reward models of the folder, then those of this call; without objects that an earlier call was given."""
        stored = reward_models(self.run.models)
        known = [spec for spec in stored if spec in given_models or Spec.parse(spec).name in MODELS]
        for spec in set(stored) - set(known):
            self.asking.progress.note(f"{spec} is not given in this call and left out")
        return list(dict.fromkeys([*known, *(self.config.model or (() if known else DEFAULT_MODELS))]))

    def take(self, pool: Pool) -> dict[Place, Sample]:
        """Candidates as samples. Their file may move between runs; its content may not change."""
        self.run.confirm_model(CANDIDATES, pool.fingerprint, str(self.config.candidates))
        return {
            (pair.id, n): Sample(pair=pair.id, n=n, text=text, tokens=0, seed=0)
            for pair in self.pairs.values()
            for n, text in enumerate(pool.of(pair)[: self.config.n])
        }

    def sample(self, policy: LLM | None) -> dict[Place, Sample]:
        config = self.config
        assert config.policy
        self.asking.progress.begin(f"loading {config.policy}")
        make = partial(given, policy) if policy else partial(make_llm, config.policy)
        llm = self.executor.load(make, config.policy)
        self.run.confirm_model(POLICY + config.policy, llm.fingerprint)
        asked = CalledModel.of(config.policy, llm, "complete", from_caller=policy is not None)
        places = [(pair, n) for pair in self.pairs for n in range(config.n)]
        limits = {"top_p": TOP_P, "max_tokens": config.max_tokens}
        sampling = Sampling(temperature=config.temperature, **limits, seed=config.seed)  # type: ignore[arg-type]
        return self.asking.sample(asked, places, sampling, config.policy_prompt, self.queries_of(llm))

    def score(
        self, spec: str, given_models: Mapping[str, RewardModel], texts: Mapping[str, list[str]]
    ) -> dict[Place, Score]:
        self.asking.progress.begin(f"loading {spec}")
        make = partial(given, given_models[spec]) if spec in given_models else partial(make_model, spec)
        model = check_reward_model(spec, self.executor.load(make, spec), self.config.n)
        self.run.confirm_model(spec, model.fingerprint, execution_of(model))
        method = "score" if isinstance(model, Scorer) else "prefer"
        asked = CalledModel.of(spec, model, method, from_caller=spec in given_models)
        return self.asking.score(asked, texts, self.queries_of(model))

    def grade(self, grader: Grader, texts: Mapping[str, list[str]], *, given: bool) -> dict[Place, Grades | Failure]:
        """Each distinct answer of a pair once; the first sample with a text stands for all."""
        masked = self.config.masks(grader)
        answers = {
            (pair, found.index(text)): answered(self.pairs[pair], text, masked=masked)
            for pair, found in texts.items()
            for text in dict.fromkeys(found)
        }
        asked, asking = CalledModel.of(self.config.grader, grader, "grade", from_caller=given), self.asking
        return grade_answers(asked, answers, asking.replies, asking.breaker, asking.progress)


def reward_models(models: Mapping[str, str]) -> list[str]:
    return [name for name in models if not name.startswith((POLICY, GRADER))]


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


def check_reward_model(name: str, model: RewardModel, n: int) -> Scorer | Comparer:
    """Refuse what cannot score new answers, and a comparer if n of them take too many verdicts."""
    if isinstance(model, Scorer):
        return model
    refuse_recorded(name, model, "best-of-N needs")
    if not isinstance(model, Comparer):
        raise BadInput(f"{name!r} is not a reward model: it has neither score() nor prefer()")
    if n > MAX_COMPARED:
        raise BadInput(
            f"{name!r} only compares answers: --n {n} would take {n * (n - 1)} verdicts per query; "
            f"use --n {MAX_COMPARED} or less"
        )
    return model


def gradable_pairs(dataset: Dataset, config: BonConfig, pool: Pool | None, progress: Progress) -> dict[str, Pair]:
    """The rows in use by id: those with a rubric to grade by, and candidates if some are given; of these what `limit`
    takes."""
    gradable: list[int] = []
    without_candidates = 0
    for n, item in enumerate(dataset):
        if isinstance(item, Pair) and item.rubric:
            if pool and not pool.of(item):
                without_candidates += 1
            else:
                gradable.append(n)
    if not gradable:
        what = "a rubric and a candidate" if pool else "a rubric"
        raise BadInput(f"{dataset.name} has no row with {what}, so there is no answer that can be graded")
    if without_candidates:
        progress.note(f"left out {without_candidates} rows without candidates")
    sample = frozenset(dataset.index.sample(config.limit, gradable))
    pairs = {item.id: item for n, item in enumerate(dataset) if n in sample and isinstance(item, Pair)}
    if pool:
        fewest = min(pairs.values(), key=lambda pair: len(pool.of(pair)))
        if (count := len(pool.of(fewest))) < config.n:
            raise BadInput(f"row {fewest.id!r} has {count} candidates, fewer than --n {config.n}; use --n {count}")
    return pairs


# --- the summary ---


class CurvePoint(Struct, frozen=True, kw_only=True):
    """Of best-of-k: an expected grade, or a share of the headroom."""

    k: int
    value: float | None
    low: float | None
    high: float | None
    n: int
    failed: int = 0


class ModelResult(Struct, frozen=True, kw_only=True):
    model: str
    curve: list[CurvePoint]
    headroom: list[CurvePoint]
    bend: Bend | None
    failures: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BonContrast(Paired):
    """Two models at the largest k, paired by query; or a model and `CHANCE`."""

    model_a: str
    model_b: str
    k: int


class QueryCounts(Struct, frozen=True, kw_only=True):
    rows: int
    clusters: int
    sampling_failed: int
    grading_failed: int
    used: int
    failures: dict[str, int]


class SampleCounts(Struct, frozen=True, kw_only=True):
    drawn: int
    failed: int
    truncated: int
    distinct_of_n: float | None
    tokens: int = 0
    cost: float = 0.0


class BonSummary(Struct, frozen=True, kw_only=True):
    """The content of `summary.json`. Nothing in it depends on the clock."""

    prb: str = __version__
    dataset: DatasetAbout
    condition: str
    policy: ModelAbout
    grader: GraderAbout
    n: int
    seed: int = 0
    queries: QueryCounts
    samples: SampleCounts
    ks: list[int]
    kl_bound: list[float]
    random: list[CurvePoint]
    oracle: list[CurvePoint]
    results: list[ModelResult]
    over_chance: list[BonContrast]
    """Of each model with a random pick; Holm's correction is over these."""
    contrasts: list[BonContrast]
    """Of each model with each other one; Holm's correction is over these."""
    clusters: dict[str, str]
    """Of each pair, so that the folder can be read without the dataset."""


Cell = Sample | Score | Grades | Failure


def summarize(
    clusters_of: dict[str, str],
    samples: Mapping[Place, Sample],
    graded: Mapping[Place, Grades | Failure],
    scored: Mapping[str, Mapping[Place, Score]],
    *,
    n: int,
    seed: int,
    **about: Any,
) -> BonSummary:
    """`clusters_of` has the queries in dataset order. Of a query with a failed sample nothing is graded or scored."""
    ks, queries = powers(n), list(clusters_of)

    def failures(cells: Mapping[Place, Cell]) -> Counter[str]:
        """Queries by their first failure; the detail stays in the lines."""
        counts: Counter[str] = Counter()
        for query in queries:
            row = [cells[query, i] for i in range(n) if (query, i) in cells]
            reasons = [cell.reason if isinstance(cell, Failure) else getattr(cell, "failure", None) for cell in row]
            if first := next(filter(None, reasons), None):
                counts[first.partition(": ")[0]] += 1
        return counts

    def table(cells: Mapping[Place, Score | Grades | Failure]) -> Floats:
        scores = [[getattr(cells.get((query, i)), "score", None) for i in range(n)] for query in queries]
        return np.array(scores, dtype=np.float64)

    clusters, grades = codes(list(clusters_of.values())), table(graded)
    usable = np.asarray(~np.isnan(grades).any(axis=1))
    texts = [[samples[query, i].text for i in range(n)] for query in queries]
    sampled = [None not in row for row in texts]
    distinct = [len(set(texts[row])) for row in np.flatnonzero(usable)]
    random, oracle = curves(np.zeros_like(grades), grades, ks), curves(grades, grades, ks)
    picked = {model: curves(table(cells), grades, ks) for model, cells in scored.items()}

    def points(estimates: Iterable[Estimate]) -> list[CurvePoint]:
        of_k = zip(ks, estimates, strict=True)
        return [CurvePoint(k=k, value=e.value, low=e.low, high=e.high, n=e.n, failed=e.failed) for k, e in of_k]

    def averages(curve: Floats) -> list[CurvePoint]:
        return points(average(column, clusters[usable]) for column in curve[usable].T)

    ends = {model: curve[:, -1] for model, curve in picked.items()}
    grade_of = {**ends, CHANCE: random[:, -1]}

    def compared(pairs: Iterable[tuple[str, str]]) -> list[BonContrast]:
        rows: list[dict[str, Any]] = []
        for a, b in pairs:
            tested = difference(grade_of[a], grade_of[b], clusters, seed=seed)
            rows.append({"model_a": a, "model_b": b, "k": ks[-1], **asdict(tested)})
        return [BonContrast(**row) for row in corrected(rows)]

    return BonSummary(
        n=n,
        seed=seed,
        **about,
        queries=QueryCounts(
            rows=len(sampled),
            clusters=len(np.unique(clusters)),
            sampling_failed=sampled.count(False),
            grading_failed=sum(sampled) - int(usable.sum()),
            used=int(usable.sum()),
            failures=dict(sorted((failures(samples) + failures(graded)).items())),
        ),
        samples=SampleCounts(
            drawn=len(samples),
            failed=sum(sample.text is None for sample in samples.values()),
            truncated=sum(sample.truncated for sample in samples.values()),
            distinct_of_n=float(np.mean(distinct)) if distinct else None,
            tokens=sum(sample.tokens for sample in samples.values()),
            cost=sum(sample.cost for sample in samples.values()),
        ),
        ks=list(ks),
        kl_bound=[kl_bound(k) for k in ks],
        random=averages(random),
        oracle=averages(oracle),
        results=[
            ModelResult(
                model=model,
                curve=averages(curve),
                headroom=points(
                    headroom(*at_k, clusters, seed=seed) for at_k in zip(curve.T, random.T, oracle.T, strict=True)
                ),
                bend=overoptimization(curve, ks, clusters, seed=seed),
                failures=dict(failures(scored[model])),
            )
            for model, curve in picked.items()
        ],
        over_chance=compared((model, CHANCE) for model in ends),
        contrasts=compared(combinations(ends, 2)),
        clusters=clusters_of,
    )


def check_failures(summary: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of the queries failed: in sampling, in grading or of a model."""
    bon = msgspec.convert(summary, BonSummary)
    sampled = bon.queries.rows - bon.queries.sampling_failed
    stages = [
        (f"sampling from {bon.policy.spec}", bon.queries.sampling_failed, bon.queries.rows, bon.queries.failures),
        (f"grading by {bon.grader.spec}", bon.queries.grading_failed, sampled, bon.queries.failures),
        *((r.model, sum(r.failures.values()), sampled, r.failures) for r in bon.results),
    ]
    refuse_failures(stages, max_failed)
