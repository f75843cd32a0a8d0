"""Best-of-N: answers are sampled from a policy or given in a file, scored by every reward model and graded once.

Each stage has a file of lines and does only what is missing there. So a killed run resumes where it was, and a later
command with further models on the same folder samples and grades nothing again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

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
    UserConfig,
    config,
)
from prb.data.load import Dataset, load
from prb.downstream.candidates import (
    MAX_COMPARED,
    Candidates,
    LineShape,
    Pool,
    Sample,
    SampleGrade,
    Score,
    check_reward_model,
    read_pool,
    read_stage,
    start_samples,
    start_scores,
)
from prb.downstream.curves import Results, Row, summarize
from prb.engine.executors import Executor, ahead, begin, given, open_executor, window
from prb.errors import BadInput
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import PLANNERS, Planner
from prb.evaluation.run import chunks
from prb.failures import ENDPOINT, Breaker, FailureConfig, breaking, refuse_failures, share_problem
from prb.grading import GRADERS, Grader, Grades, about_grader, answered, as_line, checked_grades, make_grader
from prb.llm import LLM, Sampling, check_llm, make_llm
from prb.models import MODELS, RECORDED, execution_of, make_model
from prb.progress import SILENT, Progress, Tally
from prb.prompts import PolicyPrompt
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, RunFolder
from prb.stats.best_of import powers
from prb.types import Failure, Pair, Query, RewardModel, Scorer

POLICY, GRADER = "policy: ", "grader: "
"""Prefixes that tell policy and grader from the reward models in the folder's list of weights."""


def reward_models(models: Mapping[str, str]) -> list[str]:
    """The names in a folder's `models` that are reward models."""
    return [name for name in models if not name.startswith((POLICY, GRADER))]


@config
class BonConfig(PresetConfig, OutputConfig, EngineConfig, FailureConfig, UserConfig, DataConfig):
    """What a reward model picks from N answers of a policy, graded against the user's rubric."""

    verb: ClassVar[str] = "bon"
    presentation: ClassVar[frozenset[str]] = (
        PresetConfig.presentation
        | OutputConfig.presentation
        | EngineConfig.presentation
        | FailureConfig.presentation
        | {"model", "best_of", "at_once"}
    )
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
        """A repeated run keeps the models of its folder."""
        return {**super().restore(content), "model": reward_models(content.get("models", {}))}

    policy: Name | None = None
    """LLM that answers: `llamacpp/smollm2`, `transformers/FOLDER`, `openai/NAME;base_url=…`."""
    candidates: Name | None = None
    """Instead of a policy: answers made elsewhere, JSONL with `pair` or `question`, and `answers`; or `mirror`."""
    model: Repeated[Name] = ()
    """Reward model spec; repeat for several, or add some to a folder later. Default: the embedded ones."""
    grader: Name = "embedded"
    """Grader spec: `embedded`, `llm?llm=SPEC`, or `recorded` for grades that were given elsewhere."""
    n: Count = 16
    """Answers for each query."""
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
    def check_best_of(self) -> Self:
        if (self.policy is None) == (self.candidates is None):
            raise BadInput("prb bon needs either --policy, which is sampled from, or --candidates, answers in a file")
        if largest := max((k for k in self.best_of if k > self.n), default=None):
            raise BadInput(f"best_of must be at most n = {self.n}, not {largest}")
        return self


DEFAULT_MODELS = ("random", "length", "lexical", "embedding")
SAMPLES, SCORES, GRADES = "samples.jsonl", "scores.jsonl", "grades.jsonl"
STAGES = {
    SAMPLES: LineShape(Sample, ("pair", "n"), "text"),
    SCORES: LineShape(Score, ("model", "pair", "n"), "score"),
    GRADES: LineShape(SampleGrade, ("pair", "n"), "score"),
}
"""File of a stage → what its lines look like."""


def best_of_n(
    config: BonConfig,
    *,
    models: Mapping[str, RewardModel] | None = None,
    policy: LLM | None = None,
    grader: Grader | None = None,
    progress: Progress = SILENT,
) -> Finished:
    """Run, resume or extend. Objects given here take the place of what the specs of `config` name."""
    own = models or {}
    pool = read_pool(config.candidates) if config.candidates else None
    if policy is None and config.policy:
        check_llm(config.policy)
    for spec in config.model:  # a wrong name must not show after hours of sampling
        if spec not in own:
            MODELS.check(Spec.parse(spec))
        if config.n > MAX_COMPARED or Spec.parse(spec).name in RECORDED:  # what it can do is known once it is loaded
            check_reward_model(spec, own[spec] if spec in own else MODELS.make(spec), config.n)
    if grader is None:
        GRADERS.check(Spec.parse(config.grader))
    planner = PLANNERS.make(config.planner)
    progress.begin(f"checking {config.dataset}")
    dataset = load(config.dataset, split=config.split, skip_bad=config.skip_bad, donors=config.condition == "shuffled")
    pairs = gradable_pairs(dataset, config, pool)
    if dataset.left_out:
        progress.note(f"left out {dataset.left_out} rows with errors")
    folder = config.folder(f"bon-{Path(config.dataset).name}")
    identity = {
        "prb": __version__,
        "bon": config.saved(),
        "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
        "planner": planner.fingerprint,
        **({"candidates": pool.fingerprint} if pool else {}),
    }
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
            stages.score(spec, own)
        stages.grade(grader)
        about = {
            "prb": __version__,
            "dataset": {
                "name": dataset.name,
                "split": dataset.split,
                "fingerprint": dataset.fingerprint,
                "left_out": dataset.left_out,
            },
            "condition": config.condition,
            "policy": {"spec": config.source, "fingerprint": run.models.get(POLICY + config.source)},
            "grader": about_grader(config.grader, grader),
            "n": config.n,
            "seed": config.seed,
        }
        ks = tuple(sorted(set(config.best_of))) or powers(config.n)
        summary = {**summarize(stages.results(), about, ks=ks), "clusters": stages.clusters}
        run.finish({SUMMARY: summary})
    return Finished(folder, summary)


def gradable_pairs(dataset: Dataset, config: BonConfig, pool: Pool | None) -> list[Pair]:
    """The rows in use: those with a rubric to grade by and candidates if some are given, up to `per_user`, and of these
    what `limit` takes."""
    rows_of: Counter[str] = Counter()
    gradable: list[int] = []
    for n, item in enumerate(dataset):
        if isinstance(item, Pair) and item.rubric and (pool is None or pool.of(item)):
            rows_of[item.user] += 1
            if config.per_user is None or rows_of[item.user] <= config.per_user:
                gradable.append(n)
    if not gradable:
        what = "a rubric and a candidate" if pool else "a rubric"
        raise BadInput(f"{dataset.name} has no row with {what}, so there is no answer that can be graded")
    sample = frozenset(dataset.index.sample(config.limit, gradable))
    return [item for n, item in enumerate(dataset) if n in sample and isinstance(item, Pair)]


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


Line = dict[str, Any]
Lines = dict[int, Line]
"""The lines of one pair by number of the sample."""


class Stages:
    """The stages of a run: what their files hold, and doing what is missing."""

    def __init__(
        self,
        config: BonConfig,
        dataset: Dataset,
        pairs: list[Pair],
        planner: Planner,
        run: RunFolder,
        executor: Executor,
        breaker: Breaker,
        progress: Progress,
    ) -> None:
        self.config, self.dataset, self.pairs, self.planner = config, dataset, pairs, planner
        self.run, self.executor, self.breaker, self.progress = run, executor, breaker, progress
        self.tally = Tally(progress)
        cluster = dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))
        self.clusters = {pair.id: cluster[pair.id] for pair in pairs}
        """Cluster of each pair; kept in the summary so that the folder can be read without the dataset."""
        self.samples: dict[str, Lines] = {}
        self.grades: dict[str, Lines] = {}
        self.scores: dict[str, dict[str, Lines]] = {}
        for line in self._read(SAMPLES):
            self.samples.setdefault(line["pair"], {})[line["n"]] = line
        for line in self._read(GRADES):
            self.grades.setdefault(line["pair"], {})[line["n"]] = line
        for line in self._read(SCORES):
            self.scores.setdefault(line["model"], {}).setdefault(line["pair"], {})[line["n"]] = line

    def _read(self, name: str) -> list[dict[str, Any]]:
        """The lines of a stage; failures that are asked about again are removed first."""
        journal = self.run[name]
        if journal.dropped_tail:
            self.progress.note(f"dropped the last line of {name}, torn by a crash; it is done again")
        retries = self.config.retries
        failed = [n for n, x in enumerate(journal.lines()) if retries(x.get("failure"), x.get("failure_kind"))]
        journal.replace(dict.fromkeys(failed))
        return list(read_stage(journal.path, STAGES[name]).values())

    def _append(self, stage: str, lines: Sequence[Line], answers: Sequence[object], name: str) -> None:
        """Store the lines of a batch; if the run has to stop, only those of `answers` that were given."""
        error = self.breaker.error(answers, name)
        if error:
            lines = [line for line in lines if line["failure_kind"] not in ENDPOINT]
        self.run[stage].append(lines)
        if error:
            raise error
        self.tally.add([line["failure"] for line in lines], [line["cost"] for line in lines])

    def _begin(self, label: str, total: int, missing: int) -> None:
        self.progress.begin(label, total=total, done=total - missing)
        self.tally = Tally(self.progress)

    def models(self) -> list[str]:
        """The reward models of the folder, then those of this call."""
        known = reward_models(self.run.models)
        return list(dict.fromkeys([*known, *(self.config.model or (() if known else DEFAULT_MODELS))]))

    def take(self, pool: Pool) -> None:
        self.run.confirm_model(POLICY + self.config.source, pool.fingerprint)
        missing = [
            sample
            for pair in self.pairs
            for sample in pool.samples(pair, self.config.n)
            if sample.n not in self.samples.get(pair.id, {})
        ]
        self._keep_samples(missing)

    def _keep_samples(self, samples: Sequence[Sample]) -> None:
        lines = [asdict(sample) for sample in samples]
        self._append(SAMPLES, lines, [sample.failed or sample for sample in samples], self.config.source)
        for line in lines:
            self.samples.setdefault(line["pair"], {})[line["n"]] = line

    def sample(self, policy: LLM | None) -> None:
        config = self.config
        assert config.policy
        places = [(pair, n) for pair in self.pairs for n in range(config.n)]
        missing = [(pair, n) for pair, n in places if n not in self.samples.get(pair.id, {})]
        if not missing:
            return
        self.progress.begin(f"loading {config.policy}")
        llm = self.executor.load(partial(given, policy) if policy else partial(make_llm, config.policy), config.policy)
        self._begin(f"sampling {config.policy}", len(places), len(missing))
        self.run.confirm_model(POLICY + config.policy, llm.fingerprint)
        builder = self._builder(llm)
        sampling = Sampling(
            temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens, seed=config.seed
        )

        def start(batch: Sequence[tuple[Pair, int]]) -> Callable[[], list[Sample]]:
            queries = self._queries(builder, [pair for pair, _ in batch])
            return start_samples(llm, [(pair.id, n) for pair, n in batch], queries, sampling, config.policy_prompt)

        for _, finish in ahead(chunks(missing, config.at_once), start, window(llm)):
            samples = finish()
            self._keep_samples(samples)
            self.progress.advance(len(samples))

    def score(self, spec: str, own: Mapping[str, RewardModel]) -> None:
        """A batch with anything missing is computed whole, since a score may depend on what else is in its batch; only
        the missing lines are added."""
        scores, n = self.scores.setdefault(spec, {}), self.config.n
        pairs_per_batch = max(1, self.config.at_once // n)
        batches = list(chunks([pair for pair in self.pairs if self._texts(pair)], pairs_per_batch))
        todo = [batch for batch in batches if any(len(scores.get(pair.id, {})) < n for pair in batch)]
        if not todo:
            return
        self.progress.begin(f"loading {spec}")
        make = partial(given, own[spec]) if spec in own else partial(make_model, spec)
        model = check_reward_model(spec, self.executor.load(make, spec), n)
        self._begin(f"scoring by {spec}", sum(map(len, batches)), sum(map(len, todo)))
        self.run.confirm_model(spec, model.fingerprint, execution_of(model))
        builder = self._builder(model)

        def start(batch: Sequence[Pair]) -> Callable[[], list[Score]]:
            queries = self._queries(builder, batch)
            candidates = [Candidates(pair.id, queries[pair.id], self._texts(pair)) for pair in batch]
            return start_scores(spec, model, candidates)

        for batch, finish in ahead(todo, start, window(model)):
            results = finish()
            # all answers of a round robin fail together, so a comparer's count once
            distinct = results if isinstance(model, Scorer) else {result.pair: result for result in results}.values()
            lines = [asdict(result) for result in results if result.n not in scores.get(result.pair, {})]
            self._append(SCORES, lines, [result.failed or result for result in distinct], spec)
            for line in lines:
                scores.setdefault(line["pair"], {})[line["n"]] = line
            self.progress.advance(len(batch))

    def grade(self, grader: Grader) -> None:
        """Each distinct answer of a pair once; the first sample with a text stands for all."""
        distinct = [(pair, n, text) for pair in self.pairs for text, n in self._first_numbers(pair).items()]
        missing = [(pair, n, text) for pair, n, text in distinct if n not in self.grades.get(pair.id, {})]
        self._begin(f"grading by {self.config.grader}", len(distinct), len(missing))
        masked = self.config.masks(grader)

        def start(batch: Sequence[tuple[Pair, int, str]]) -> Callable[[], list[Grades | Failure]]:
            asks = [answered(pair, text, masked=masked) for pair, _, text in batch]
            later = begin(grader, "grade", asks)
            return lambda: checked_grades(later.result(), asks)

        for batch, finish in ahead(chunks(missing, self.config.at_once), start, window(grader)):
            graded = finish()
            lines = [{"pair": p.id, "n": n, **as_line(grades)} for (p, n, _), grades in zip(batch, graded, strict=True)]
            self._append(GRADES, lines, graded, self.config.grader)
            for line in lines:
                self.grades.setdefault(line["pair"], {})[line["n"]] = line
            self.progress.advance(len(lines))

    def results(self) -> Results:
        """All lines as tables: one row per pair, one column per sample."""
        numbers = range(self.config.n)
        grades: list[Row] = []
        for pair in self.pairs:
            first = self._first_numbers(pair)
            grades.append([self.grades[pair.id][first[text]] for text in self._texts(pair)] or None)
        scores: dict[str, list[Row]] = {}
        for spec in self.models():
            rows = [self.scores[spec].get(pair.id) for pair in self.pairs]
            scores[spec] = [None if lines is None else [lines[n] for n in numbers] for lines in rows]
        return Results(
            clusters=list(self.clusters.values()),
            samples=[[self.samples[pair.id][n] for n in numbers] for pair in self.pairs],
            grades=grades,
            scores=scores,
        )

    def _texts(self, pair: Pair) -> list[str]:
        """All N answers, or none: a query with a failed sample is left out."""
        lines = self.samples[pair.id]
        texts = [lines[n]["text"] for n in range(self.config.n)]
        return [] if None in texts else texts

    def _first_numbers(self, pair: Pair) -> dict[str, int]:
        """The distinct answers and the number of the first sample of each."""
        texts = self._texts(pair)
        return {text: texts.index(text) for text in dict.fromkeys(texts)}

    def _builder(self, reader: object) -> QueryBuilder:
        return QueryBuilder.of(self.config, self.dataset, self.planner, reader=reader, seed=self.config.seed)

    def _queries(self, builder: QueryBuilder, pairs: Sequence[Pair]) -> dict[str, Query | Failure]:
        condition = self.config.condition
        distinct = {pair.id: pair for pair in pairs}
        plans = builder.plans(list(distinct.values())) if condition == "plan" else {}
        if error := self.breaker.error(plans.values(), "planner"):
            raise error
        built = {id_: builder.build(pair, condition, plans.get(id_)) for id_, pair in distinct.items()}
        return {id_: made.query if isinstance(made, Built) else made for id_, made in built.items()}
