"""The stages of a best-of-N run: sample (or take) answers, score them, grade them.

Each stage has a file of lines and does only what is missing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter, ValidationError

from prb.batches import chunks
from prb.config import Share, Size
from prb.data.load import Dataset
from prb.downstream.candidates import (
    Candidates,
    Pool,
    Sample,
    Score,
    check_reward_model,
    failure_of,
    start_samples,
    start_scores,
)
from prb.engine.executors import Executor, ahead, begin, given, window
from prb.errors import BadInput
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import Planner
from prb.failures import ENDPOINT, Breaker
from prb.grading import Grader, Grades, answered, as_line, checked_grades
from prb.llm import LLM, Sampling, make_llm
from prb.models import execution_of, make_model
from prb.progress import Progress, Tally
from prb.runs import RunFolder, read_lines
from prb.types import Failure, FailureKind, Pair, Query, RewardModel, Scorer

if TYPE_CHECKING:
    from prb.downstream.bon import BonConfig

POLICY, GRADER = "policy: ", "grader: "
"""Prefixes that tell policy and grader from the reward models in the folder's list of weights."""
CANDIDATES = f"{POLICY}candidates"
"""Stands for the policy in that list if answers were given in a file."""
DEFAULT_MODELS = ("random", "length", "lexical", "embedding")
SAMPLES, SCORES, GRADES = "samples.jsonl", "scores.jsonl", "grades.jsonl"
Line = Mapping[str, Any]
Row = Sequence[Line] | None
"""One line per sample of a query; `None` where a sample failed, so that there was nothing to score or grade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGrade:
    """What is read of a line of `grades.jsonl`."""

    pair: str
    n: Size
    score: Share | None
    failure: str | None
    failure_kind: FailureKind | None = None


@dataclass(frozen=True)
class LineShape:
    """What a line of a stage must look like."""

    of: type
    """A dataclass with its fields; all of them but `failure_kind`, which earlier versions lack, must be there."""
    identity: tuple[str, ...]
    value: str | None = None
    """The field that is null exactly if the line is a failure."""

    def problem(self, line: Mapping[str, Any]) -> str | None:
        missing = [field.name for field in fields(self.of) if field.name not in (*line, "failure_kind")]
        if missing:
            return f"has no field {missing[0]!r}"
        try:
            self._adapter.validate_json(orjson.dumps(line), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            return f"has a wrong {first['loc'][0]!r}: {first['msg']}"
        if self.value and (line[self.value] is None) == (line["failure"] is None):
            return f"must have either {self.value!r} or 'failure'"
        return None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.of)


def read_stage(path: Path, shape: LineShape) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The lines of a stage by identity. A repeated line counts once; only a failure may be followed by another result
    for the same identity."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path), 1):
        problem = shape.problem(line)
        if problem:
            raise BadInput(f"{path} line {number} {problem}")
        key = tuple([line[name] for name in shape.identity])
        known = lines.get(key, line)
        if known != line and known["failure"] is None:
            named = ", ".join(f"{name} {value!r}" for name, value in zip(shape.identity, key, strict=True))
            raise BadInput(f"{path} line {number} contradicts an earlier line for {named}; remove one of them")
        lines[key] = line
    return lines


STAGES = {
    SAMPLES: LineShape(Sample, ("pair", "n"), "text"),
    SCORES: LineShape(Score, ("model", "pair", "n"), "score"),
    GRADES: LineShape(SampleGrade, ("pair", "n"), "score"),
}
"""File of a stage → what its lines look like."""


def reward_models(models: Mapping[str, str]) -> list[str]:
    """The names in a folder's `models` that are reward models."""
    return [name for name in models if not name.startswith((POLICY, GRADER))]


@dataclass(frozen=True)
class Results:
    """The lines of a run, one row per query, in dataset order."""

    clusters: list[str]
    samples: list[list[Line]]
    grades: list[Row]
    scores: dict[str, list[Row]]


class Stages:
    """What the files of a run hold, and doing what is missing."""

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
        self._lines = {name: self._read(name) for name in STAGES}
        self.samples, self.scores, self.grades = (self._lines[name] for name in (SAMPLES, SCORES, GRADES))

    def _read(self, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The lines of a stage by identity; failures that are to be retried are removed first."""
        journal = self.run[name]
        if journal.dropped_tail:
            self.progress.note(f"dropped the last line of {name}, cut short by a crash; it is repeated")
        retries = self.config.retries
        failed = [n for n, x in enumerate(journal.lines()) if retries(x.get("failure"), x.get("failure_kind"))]
        journal.replace(dict.fromkeys(failed))
        return read_stage(journal.path, STAGES[name])

    def _append(self, stage: str, lines: Sequence[dict[str, Any]], answers: Sequence[object], name: str) -> None:
        """Store the lines of a batch; if the run has to stop, only those of `answers` that were given."""
        error = self.breaker.error(answers, name)
        if error:
            lines = [line for line in lines if line["failure_kind"] not in ENDPOINT]
        self.run[stage].append(lines)
        if error:
            raise error
        for line in lines:
            self._lines[stage][tuple([line[field] for field in STAGES[stage].identity])] = line
        self.tally.add([line["failure"] for line in lines], [line["cost"] for line in lines])

    def _begin(self, label: str, total: int, missing: int) -> None:
        self.progress.begin(label, total=total, done=total - missing)
        self.tally = Tally(self.progress)

    def models(self) -> list[str]:
        """The reward models of the folder, then those of this call."""
        known = reward_models(self.run.models)
        return list(dict.fromkeys([*known, *(self.config.model or (() if known else DEFAULT_MODELS))]))

    def take(self, pool: Pool) -> None:
        """Candidates as samples. Their file may move between runs; its content may not change."""
        self.run.confirm_model(CANDIDATES, pool.fingerprint, str(self.config.candidates))
        lines = [
            asdict(Sample(pair=pair.id, n=n, text=text, tokens=0, seed=0))
            for pair in self.pairs
            for n, text in enumerate(pool.of(pair)[: self.config.n])
            if (pair.id, n) not in self.samples
        ]
        self._append(SAMPLES, lines, (), self.config.source)

    def sample(self, policy: LLM | None) -> None:
        config = self.config
        assert config.policy
        places = [(pair, n) for pair in self.pairs for n in range(config.n)]
        missing = [(pair, n) for pair, n in places if (pair.id, n) not in self.samples]
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
            lines = [asdict(sample) for sample in samples]
            self._append(SAMPLES, lines, [failure_of(sample) or sample for sample in samples], config.policy)
            self.progress.advance(len(samples))

    def score(self, spec: str, given_models: Mapping[str, RewardModel]) -> None:
        """A batch with anything missing is computed whole, since a score may depend on what else is in its batch; only
        the missing lines are added."""
        scores, n = self.scores, self.config.n
        pairs_per_batch = max(1, self.config.at_once // n)
        batches = list(chunks([pair for pair in self.pairs if self._texts(pair)], pairs_per_batch))
        todo = [batch for batch in batches if any((spec, p.id, i) not in scores for p in batch for i in range(n))]
        if not todo:
            return
        self.progress.begin(f"loading {spec}")
        make = partial(given, given_models[spec]) if spec in given_models else partial(make_model, spec)
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
            lines = [asdict(result) for result in results if (spec, result.pair, result.n) not in scores]
            self._append(SCORES, lines, [failure_of(result) or result for result in distinct], spec)
            self.progress.advance(len(batch))

    def grade(self, grader: Grader) -> None:
        """Each distinct answer of a pair once; the first sample with a text stands for all."""
        distinct = [(pair, n, text) for pair in self.pairs for text, n in self._first_numbers(pair).items()]
        missing = [(pair, n, text) for pair, n, text in distinct if (pair.id, n) not in self.grades]
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
            self.progress.advance(len(lines))

    def results(self) -> Results:
        """All lines as tables: one row per pair, one column per sample."""
        numbers, complete = range(self.config.n), [bool(self._texts(pair)) for pair in self.pairs]
        grades: list[Row] = []
        for pair in self.pairs:
            first = self._first_numbers(pair)
            grades.append([self.grades[pair.id, first[text]] for text in self._texts(pair)] or None)
        return Results(
            clusters=list(self.clusters.values()),
            samples=[[self.samples[pair.id, n] for n in numbers] for pair in self.pairs],
            grades=grades,
            scores={
                spec: [
                    [self.scores[spec, pair.id, n] for n in numbers] if scored else None
                    for pair, scored in zip(self.pairs, complete, strict=True)
                ]
                for spec in self.models()
            },
        )

    def _texts(self, pair: Pair) -> list[str]:
        """All N answers, or none: a query with a failed sample is left out."""
        texts = [self.samples[pair.id, n]["text"] for n in range(self.config.n)]
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
