"""Best-of-N: answers are sampled from a policy or given in a file, scored by every reward model and graded once.

`samples.jsonl`, `scores.jsonl`, `grades.jsonl` and the summary are derived from the replies of policy, reward models
and grader. So a killed run resumes, and a later command with further models on the same folder samples and grades
nothing again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from prb import __version__
from prb.batches import chunks
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
from prb.downstream.candidates import (
    GRADES,
    MAX_COMPARED,
    SAMPLES,
    SCORES,
    Candidates,
    Place,
    Pool,
    Sample,
    Score,
    asks_about,
    check_reward_model,
    read_pool,
    sample_of,
    sample_requests,
    scores_of,
)
from prb.engine.executors import Executor, given, open_executor
from prb.errors import BadInput
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import PLANNERS, Planner
from prb.failures import Breaker, FailureConfig, refuse_failures, share_problem
from prb.grading import (
    GRADERS,
    Grader,
    Grades,
    about_grader,
    answered,
    as_line,
    checked_grades,
    grades_of,
    grading_calls,
    make_grader,
)
from prb.llm import LLM, Completion, Sampling, check_llm, make_llm, request_key
from prb.models import MODELS, RECORDED, execution_of, make_model
from prb.progress import SILENT, Progress, Tally
from prb.prompts import PolicyPrompt
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, RunFolder, write_lines
from prb.stats.best_of import curves, headroom, kl_bound, overoptimization, powers
from prb.stats.estimate import Floats, Ints, average, codes
from prb.stats.paired import correct, difference
from prb.summary import needs_donors
from prb.types import Failure, Pair, Query, Reward, RewardModel, Scorer, Verdict
from prb.work import Asked, Call, Replies, Reply, ask_missing, calls_of, open_replies

POLICY, GRADER = "policy: ", "grader: "
"""Prefixes that tell policy and grader from the reward models in the folder's list of weights."""
CANDIDATES = f"{POLICY}candidates"
"""Stands for the policy in that list if answers were given in a file."""
DEFAULT_MODELS = ("random", "length", "lexical", "embedding")
DEFAULT_N = 16
Samples = dict[Place, Sample]
Scores = dict[Place, Score]


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
    is_given = grader is not None
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
        RunFolder(folder, identity, fresh=config.fresh) as run,
        open_replies(folder, progress, cache=config.cache) as replies,
    ):
        progress.begin(f"loading {config.grader}")
        make = partial(given, grader) if grader else partial(make_grader, config.grader)
        grader = executor.load(make, config.grader)
        run.confirm_model(GRADER + config.grader, grader.fingerprint)
        job = BestOfN(config, dataset, pairs, planner, run, executor, replies, Breaker(), progress)
        samples = job.take(pool) if pool else job.sample(policy)
        scores = {spec: job.score(spec, models or {}, samples) for spec in job.models(models or {})}
        # Ray holds one model at a time
        grades = job.grade(executor.load(make, config.grader), samples, given=is_given)
        write_lines(folder / SAMPLES, map(asdict, samples.values()))
        write_lines(folder / SCORES, (asdict(score) for of_model in scores.values() for score in of_model.values()))
        write_lines(folder / GRADES, ({"pair": p, "n": n, **as_line(graded)} for (p, n), graded in grades.items()))
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
        summary = {**summarize(job.results(samples, scores, grades), about, ks=ks), "clusters": job.clusters}
        run.finish({SUMMARY: summary})
    return Finished(folder, summary)


@dataclass(frozen=True)
class Results:
    """A run as tables: one row per query, in dataset order, one entry per sample; `None` where a sample failed, so
    that there was nothing to score or grade."""

    clusters: list[str]
    samples: list[list[Sample]]
    grades: list[Sequence[Grades | Failure] | None]
    scores: dict[str, list[Sequence[Score] | None]]


class BestOfN:
    """Samples, scores and grades of a run, each derived from the replies after asking for what is missing."""

    def __init__(
        self,
        config: BonConfig,
        dataset: Dataset,
        pairs: list[Pair],
        planner: Planner,
        run: RunFolder,
        executor: Executor,
        replies: Replies,
        breaker: Breaker,
        progress: Progress,
    ) -> None:
        self.config, self.dataset, self.pairs, self.planner = config, dataset, pairs, planner
        self.run, self.executor, self.replies, self.breaker, self.progress = run, executor, replies, breaker, progress
        cluster = dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))
        self.clusters = {pair.id: cluster[pair.id] for pair in pairs}
        """Cluster of each pair; kept in the summary so that the folder can be read without the dataset."""

    def models(self, given_models: Mapping[str, RewardModel]) -> list[str]:
        """The reward models of the folder, then those of this call; without objects that an earlier call was given."""
        stored = reward_models(self.run.models)
        known = [spec for spec in stored if spec in given_models or Spec.parse(spec).name in MODELS]
        for spec in set(stored) - set(known):
            self.progress.note(f"{spec} is not given in this call and left out")
        return list(dict.fromkeys([*known, *(self.config.model or (() if known else DEFAULT_MODELS))]))

    def take(self, pool: Pool) -> Samples:
        """Candidates as samples. Their file may move between runs; its content may not change."""
        self.run.confirm_model(CANDIDATES, pool.fingerprint, str(self.config.candidates))
        return {
            (pair.id, n): Sample(pair=pair.id, n=n, text=text, tokens=0, seed=0)
            for pair in self.pairs
            for n, text in enumerate(pool.of(pair)[: self.config.n])
        }

    def sample(self, policy: LLM | None) -> Samples:
        config = self.config
        assert config.policy
        self.progress.begin(f"loading {config.policy}")
        llm = self.executor.load(partial(given, policy) if policy else partial(make_llm, config.policy), config.policy)
        self.run.confirm_model(POLICY + config.policy, llm.fingerprint)
        asked = Asked.of(config.policy, llm, "complete", given=policy is not None)
        builder, start = self._builder(llm), asked.key_start()
        sampling = Sampling(
            temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens, seed=config.seed
        )
        places = [(pair, n) for pair in self.pairs for n in range(config.n)]

        def plan() -> Iterator[tuple[dict[Place, Call | Failure], list[Call]]]:
            for batch in chunks(places, config.at_once):
                queries = self._queries(builder, [pair for pair, _ in batch])
                at = [(pair.id, n) for pair, n in batch]
                requests = sample_requests(at, queries, sampling, config.policy_prompt)
                calls = {place: Call(request_key(start, request), request) for place, request in requests.items()}
                failed = {place: q for place in at if isinstance(q := queries[place[0]], Failure)}
                yield {**failed, **calls}, list(calls.values())

        samples: Samples = {}
        self.progress.begin(f"sampling {config.policy}", total=len(places))
        tally = Tally(self.progress)
        for batch in ask_missing(plan(), self.replies, asked, self.breaker):
            for place, call in batch.items():
                reply = call if isinstance(call, Failure) else Completion.of(self.replies[call.key])
                samples[place] = sample_of(place, config.seed, reply)
                tally.add([samples[place].failure], [samples[place].cost])
            self.progress.advance(len(batch))
        return {(pair.id, n): samples[pair.id, n] for pair, n in places}

    def score(self, spec: str, given_models: Mapping[str, RewardModel], samples: Samples) -> Scores:
        config = self.config
        self.progress.begin(f"loading {spec}")
        make = partial(given, given_models[spec]) if spec in given_models else partial(make_model, spec)
        model = check_reward_model(spec, self.executor.load(make, spec), config.n)
        self.run.confirm_model(spec, model.fingerprint, execution_of(model))
        method = "score" if isinstance(model, Scorer) else "prefer"
        asked = Asked.of(spec, model, method, given=spec in given_models)
        builder, start = self._builder(model), asked.key_start()
        sampled = [pair for pair in self.pairs if self._texts(pair, samples)]

        def plan() -> Iterator[tuple[list[tuple[Candidates, list[Call]]], list[Call]]]:
            for batch in chunks(sampled, max(1, config.at_once // config.n)):
                queries = self._queries(builder, batch)
                candidates = [Candidates(p.id, queries[p.id], self._texts(p, samples)) for p in batch]
                planned = [(one, calls_of(start, asks_about(model, one))) for one in candidates]
                yield planned, [call for _, calls in planned for call in calls]

        scores: Scores = {}
        self.progress.begin(f"scoring by {spec}", total=len(sampled))
        tally = Tally(self.progress)
        for batch in ask_missing(plan(), self.replies, asked, self.breaker):
            for candidates, calls in batch:
                answers = [_answer(self.replies[call.key]) for call in calls]
                for line in scores_of(spec, candidates, answers):
                    scores[line.pair, line.n] = line
                    tally.add([line.failure], [line.cost])
            self.progress.advance(len(batch))
        return scores

    def grade(self, grader: Grader, samples: Samples, *, given: bool) -> dict[Place, Grades | Failure]:
        """Each distinct answer of a pair once; the first sample with a text stands for all."""
        masked = self.config.masks(grader)
        asked = Asked.of(self.config.grader, grader, "grade", given=given)
        distinct = [(pair, n, text) for pair in self.pairs for text, n in self._first_numbers(pair, samples).items()]

        def plan() -> Iterator[tuple[dict[Place, Call], list[Call]]]:
            for batch in chunks(distinct, self.config.at_once):
                calls = grading_calls(asked, grader, [answered(pair, text, masked=masked) for pair, _, text in batch])
                yield {(pair.id, n): call for (pair, n, _), call in zip(batch, calls, strict=True)}, calls

        grades: dict[Place, Grades | Failure] = {}
        self.progress.begin(f"grading by {self.config.grader}", total=len(distinct))
        tally = Tally(self.progress)
        for batch in ask_missing(plan(), self.replies, asked, self.breaker):
            for place, call in batch.items():
                (grades[place],) = checked_grades([grades_of(self.replies[call.key])], [call.ask])
                failed = isinstance(grades[place], Failure)
                tally.add(["failed" if failed else None], [grades[place].cost])
            self.progress.advance(len(batch))
        return grades

    def results(
        self, samples: Samples, scores: Mapping[str, Scores], grades: Mapping[Place, Grades | Failure]
    ) -> Results:
        numbers = range(self.config.n)
        texts = {pair.id: self._texts(pair, samples) for pair in self.pairs}
        first = {pair.id: self._first_numbers(pair, samples) for pair in self.pairs}
        return Results(
            clusters=list(self.clusters.values()),
            samples=[[samples[pair.id, n] for n in numbers] for pair in self.pairs],
            grades=[[grades[p.id, first[p.id][text]] for text in texts[p.id]] or None for p in self.pairs],
            scores={
                spec: [[of_model[p.id, n] for n in numbers] if texts[p.id] else None for p in self.pairs]
                for spec, of_model in scores.items()
            },
        )

    def _texts(self, pair: Pair, samples: Samples) -> list[str]:
        """All N answers, or none: a query with a failed sample is left out."""
        texts = [samples[pair.id, n].text for n in range(self.config.n)]
        return [] if None in texts else texts  # type: ignore[return-value]

    def _first_numbers(self, pair: Pair, samples: Samples) -> dict[str, int]:
        """The distinct answers and the number of the first sample of each."""
        texts = self._texts(pair, samples)
        return {text: texts.index(text) for text in dict.fromkeys(texts)}

    def _builder(self, reader: object) -> QueryBuilder:
        return QueryBuilder.of(self.config, self.dataset, self.planner, reader=reader, seed=self.config.seed)

    def _queries(self, builder: QueryBuilder, pairs: Sequence[Pair]) -> dict[str, Query | Failure]:
        condition = self.config.condition
        distinct = {pair.id: pair for pair in pairs}
        plans = builder.plans(list(distinct.values()), self.replies, self.breaker) if condition == "plan" else {}
        built = {id_: builder.build(pair, condition, plans.get(id_)) for id_, pair in distinct.items()}
        return {id_: made.query if isinstance(made, Built) else made for id_, made in built.items()}


def _answer(reply: Reply) -> float | Verdict | Failure:
    """A reply as the reward or the verdict that a model returned."""
    if failure := reply.answer_failed:
        return failure
    used: dict[str, Any] = {"tokens": reply.tokens, "cut": reply.cut, "cost": reply.cost}
    if isinstance(reply.value, str):
        return Verdict(choice=reply.value, **used)  # type: ignore[arg-type]
    return Reward(reply.value, **used)  # type: ignore[arg-type]


def reward_models(models: Mapping[str, str]) -> list[str]:
    """The names in a folder's `models` that are reward models."""
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
    sampled = [all(line.text is not None for line in row) for row in results.samples]
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
                "cut_posts": sum(max(line.cut for line in row) for row in results.scores[model] if row),
            }
            for model, curve in picked.items()
        ],
        "contrasts": _contrasts({model: curve[:, -1] for model, curve in picked.items()}, ks[-1], clusters, seed),
    }


def _table(rows: Sequence[Sequence[Score | Grades | Failure] | None], n: int) -> Floats:
    table = np.full((len(rows), n), np.nan)
    for at, row in enumerate(rows):
        if row is not None:
            values = [None if isinstance(cell, Failure) else cell.score for cell in row]
            table[at] = [np.nan if value is None else value for value in values]
    return table


def _count_samples(rows: Sequence[Sequence[Sample]], usable: Any) -> dict[str, Any]:
    samples = [sample for row in rows for sample in row]
    distinct = [len({sample.text for sample in row}) for row, use in zip(rows, usable, strict=True) if use]
    return {
        "drawn": len(samples),
        "failed": sum(sample.text is None for sample in samples),
        "truncated": sum(sample.truncated for sample in samples),
        "distinct_of_n": float(np.mean(distinct)) if distinct else None,
        "tokens": sum(sample.tokens for sample in samples),
        "cost": sum(sample.cost for sample in samples),
    }


def _failures(rows: Sequence[Sequence[Sample | Score | Grades | Failure] | None]) -> Counter[str]:
    """Queries by their first failure; the detail stays in the lines."""

    def reason(cell: Sample | Score | Grades | Failure) -> str | None:
        text = cell.reason if isinstance(cell, Failure) else getattr(cell, "failure", None)
        return text.partition(": ")[0] if text else None

    firsts = (next(filter(None, map(reason, row or ())), None) for row in rows)
    return Counter(filter(None, firsts))


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
