"""The main job: models × conditions over a dataset, appended to a run folder as it finishes, then summarized.

The order is fixed: model by model (only one is loaded at a time), batch by batch in dataset order, all conditions of a
batch together. So a run that was killed is cut back to its last whole batch, resumes there, and ends with the same
bytes in `summary.json` as one that was never disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import orjson

from prb import __version__
from prb.batches import rarely_collecting
from prb.data.load import Dataset, Shard, load
from prb.engine.executors import Executor, ahead, given, open_executor
from prb.errors import BadInput, BudgetUsedUp, Unreachable
from prb.evaluation.conditions import QueryBuilder, applicable
from prb.evaluation.config import DEFAULT_CONDITIONS, EvaluateConfig
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.paper import PaperJudging, PaperScoring, paper_config, paper_scoring, rows_of_subsets
from prb.evaluation.planners import PLANNERS, Planner
from prb.evaluation.scoring import ComparerOutcomes, RecordedOutcomes, ScorerOutcomes, Scoring
from prb.evaluation.summary import check_requirements, summarize
from prb.failures import Breaker, breaking
from prb.hooks import Batch, Hooks, RunResult, RunStart
from prb.models import MODELS, PREFIXES_SHARED, execution_of, make_model, trained_on
from prb.progress import SILENT, Progress, Tally
from prb.registry import Spec, split_alias
from prb.runs import OUTCOMES, SUMMARY, USERS, Finished, RunFolder, read_lines, remove, sealed, write_bytes
from prb.summary import needs_donors
from prb.types import Item, Outcome, Recorded, RewardModel, Scorer

Evaluator = ScorerOutcomes | ComparerOutcomes | RecordedOutcomes | PaperScoring | PaperJudging
PENDING = "pending.jsonl"
"""Answers of a batch that had to stop: paid for, but not yet in the outcomes."""


@rarely_collecting()
def evaluate(
    config: EvaluateConfig,
    *,
    models: Mapping[str, RewardModel] | None = None,
    hooks: Sequence[object] = (),
    progress: Progress = SILENT,
) -> Finished:
    """Run or resume; `models` holds reward models of your own by the name they have in `config.model`."""
    by_default = not config.condition
    config = complete(config)
    models = models or {}
    listeners = Hooks(config.hook, hooks)
    for name, spec in map(split_alias, config.model):
        if name not in models:
            MODELS.check(Spec.parse(spec))
    planner = PLANNERS.make(config.planner)
    progress.begin(f"checking {config.dataset}")
    dataset = load_rows(config)
    if by_default:
        config = replace(config, condition=applicable(config.condition, dataset))
    for note in dataset.notes:
        progress.note(note)
    folder = config.folder(Path(config.dataset).name)
    about = identity(config, dataset, planner.fingerprint)
    with (
        open_executor(config.engine) as executor,
        RunFolder(folder, about, journals=(OUTCOMES,)) as run,
        breaking(config.max_fatal) as breaker,
    ):
        start = RunStart(verb=config.verb, folder=folder, settings=about["evaluate"], dataset=about["dataset"])
        listeners.tell("on_run_start", start)
        runner = Runner(config, dataset, planner, models, run, executor, breaker, progress, listeners)
        runner.retry_failures()
        for position, (name, spec) in enumerate(map(split_alias, config.model)):
            runner.evaluate_model(position, name, spec)
        summary, users = summarize(config, dataset, runner.outcomes)
        run.finish({USERS: users, SUMMARY: summary})
    listeners.tell("on_result", RunResult(folder=folder, summary=summary))
    return Finished(folder, summary)


def load_rows(config: EvaluateConfig) -> Dataset:
    """The dataset that the settings of a run name, as the run reads it."""
    return load(
        config.dataset,
        task=config.task,
        split=config.split,
        limit=config.limit,
        skip_bad=config.skip_bad,
        donors=needs_donors(config.condition),
        shard=Shard.parse(config.shard) if config.shard else None,
    )


def complete(config: EvaluateConfig) -> EvaluateConfig:
    """Defaults filled in, and what fields require of each other checked, before anything expensive happens."""
    check_requirements(config.require or "", config.condition or DEFAULT_CONDITIONS, config.names)
    if config.protocol == "paper":
        config = paper_config(config)
    elif config.judge_prompt:
        raise BadInput("--judge-prompt can only be used with --protocol paper")
    if len(set(config.names)) < len(set(config.model)):
        raise BadInput("two models have the same short name")
    return replace(config, model=config.models, condition=tuple(dict.fromkeys(config.condition)) or DEFAULT_CONDITIONS)


def identity(config: EvaluateConfig, dataset: Dataset, planner: str) -> dict[str, Any]:
    """What must be the same for a run to be resumed; `planner` is its fingerprint."""
    about = {"name": dataset.name, "fingerprint": dataset.fingerprint, "rows": len(dataset)}
    return {"prb": __version__, "evaluate": config.saved(), "dataset": about, "planner": planner}


class Runner:
    """Produces the lines of one run that are not there yet."""

    def __init__(
        self,
        config: EvaluateConfig,
        dataset: Dataset,
        planner: Planner,
        models: Mapping[str, RewardModel],
        run: RunFolder,
        executor: Executor,
        breaker: Breaker,
        progress: Progress,
        hooks: Hooks,
    ) -> None:
        self.config, self.dataset, self.planner, self.models = config, dataset, planner, models
        self.run, self.executor, self.breaker, self.progress, self.hooks = run, executor, breaker, progress, hooks
        self.outcomes = Outcomes(dataset.index.ids, [(m, c) for m in config.names for c in config.condition])
        self._journal = run[OUTCOMES]
        self._per_row = len(config.condition)
        self._per_model = len(dataset) * self._per_row
        self._subsets = list(dataset.subsets()) if config.protocol == "paper" else []
        parts = rows_of_subsets(self._subsets) or [len(dataset)]
        self._sizes = [min(config.batch, rows - start) for rows in parts for start in range(0, rows, config.batch)]
        models_done, rest = divmod(min(self._journal.count(), self._per_model * len(config.model)), self._per_model)
        ends = (rows * self._per_row for rows in accumulate(self._sizes))
        self._kept = models_done * self._per_model + max((end for end in ends if end <= rest), default=0)
        if self._journal.dropped_tail:
            progress.note("dropped the last line, cut short by a crash; its batch is repeated")
        if self._kept:
            progress.note(f"resuming: {self._kept} of {self._per_model * len(config.model)} outcomes are done")
        self._journal.keep(self._kept)  # an unfinished batch is repeated as a whole
        self._pending = run.folder / PENDING
        self._stored = enumerate(islice(self._journal.lines(), self._kept), 1)  # opened when the first line is read

    def evaluate_model(self, position: int, name: str, spec: str) -> None:
        rows = len(self.dataset)
        rows_done = min(rows, max(0, self._kept - position * self._per_model) // self._per_row)
        if rows_done == rows:
            self._read(name, rows)
            return
        self.progress.begin(f"loading {name}")
        evaluator = self._evaluator(name, spec)
        self.progress.begin(name, total=rows, done=rows_done)
        tally = Tally(self.progress)
        batches = self._batches()
        row = 0
        while row < rows_done:
            batch = next(batches)
            evaluator.remember(batch, self.config.condition, self._read(name, len(batch)))
            row += len(batch)
        with self._keeping_paid(evaluator):
            for batch, finish in self._ahead(evaluator, batches, row):
                outcomes = finish()
                self._journal.append(outcomes)
                remove(self._pending)
                self.outcomes.add(outcomes)
                tally.add([outcome.failure for outcome in outcomes], [outcome.cost for outcome in outcomes])
                self.progress.advance(len(batch))
                row += len(batch)
                self.hooks.tell("on_batch", Batch(model=name, done=row, total=rows, outcomes=outcomes))

    def _evaluator(self, name: str, spec: str) -> Evaluator:
        config, models = self.config, self.models
        if config.protocol == "paper":
            paper, fingerprint = paper_scoring(config, name, spec, self.dataset.index.ids, self._subsets)
            self.run.confirm_model(name, fingerprint)
            return paper
        make = partial(given, models[name]) if name in models else partial(make_model, spec)
        model = self.executor.load(make, name)
        if not isinstance(model, RewardModel):
            raise BadInput(f"{name!r} is not a reward model: it needs `fingerprint`, and score(), prefer() or recall()")
        execution = execution_of(model)
        self.run.confirm_model(name, model.fingerprint, execution)
        if execution not in ("", PREFIXES_SHARED):
            self.progress.note(f"{name}: {execution}")
        if isinstance(model, Recorded):
            return RecordedOutcomes(name, model)
        builder = QueryBuilder.of(
            config,
            self.dataset,
            self.planner,
            reader=model,
            seed=config.seed,
            trained_on=trained_on(model, spec),
            count_trained=config.trained == "count",
        )
        refuse = config.on_overflow == "error"
        scoring: ScorerOutcomes | ComparerOutcomes
        if isinstance(model, Scorer):
            scoring = ScorerOutcomes(name, model, builder, self.breaker, refuse_cuts=refuse)
        elif config.task == "ratings":
            raise BadInput(f"{name!r} only compares answers; ratings need a model that scores them")
        else:
            both = config.orders == "both"
            scoring = ComparerOutcomes(
                name, model, builder, self.breaker, both_orders=both, seed=config.seed, refuse_cuts=refuse
            )
        if self._pending.exists():
            try:
                scoring.restore(read_lines(self._pending))
            except (KeyError, TypeError, ValueError):
                raise BadInput(f"{self._pending} is damaged; delete it and run again to ask for its answers") from None
        return scoring

    def _batches(self) -> Iterator[list[Item]]:
        rows = iter(self.dataset)
        return (list(islice(rows, size)) for size in self._sizes)

    def _ahead(
        self, evaluator: Evaluator, batches: Iterable[list[Item]], row: int
    ) -> Iterator[tuple[list[Item], Callable[[], list[Outcome]]]]:
        """The batches from a row on, each with the function that finishes it; several are started at a time."""
        conditions, clusters = self.config.condition, islice(self.dataset.index.clusters, row, None)

        def start(batch: list[Item]) -> Callable[[], list[Outcome]]:
            batch_clusters = list(islice(clusters, len(batch)))
            if isinstance(evaluator, Scoring):
                return evaluator.start(batch, batch_clusters, conditions)
            return lambda: list(evaluator.batch(batch, batch_clusters, conditions))

        return ahead(batches, start, getattr(evaluator, "window", 1))

    def _read(self, model: str, rows: int) -> list[dict[str, Any]]:
        """The stored lines of the next rows."""
        lines = []
        for number, line in islice(self._stored, rows * self._per_row):
            where = f"{self._journal.path}, line {number}"
            self.outcomes.read(line, where)
            if line["model"] != model:
                raise BadInput(f"{where}: an outcome of {line['model']!r} is among those of {model!r}")
            lines.append(line)
        return lines

    @contextmanager
    def _keeping_paid(self, evaluator: Evaluator) -> Iterator[None]:
        """If a batch has to stop, keep its answers for the resumed run."""
        try:
            yield
        except (Unreachable, BudgetUsedUp):
            if isinstance(evaluator, Scoring) and evaluator.paid:
                write_bytes(self._pending, b"".join(map(sealed, evaluator.paid_lines())))
            raise

    def retry_failures(self) -> None:
        """Ask again about stored failures that may be temporary, and replace their lines.

        The answers of the other rows are recalled, so nothing is paid twice and equal questions have equal answers.
        """
        failed = self._failed_lines()
        changed: dict[int, Outcome] = {}
        if failed:
            self.progress.note(f"retrying {len(failed)} rows that failed")
        try:
            for position, (name, spec) in enumerate(map(split_alias, self.config.model)):
                first = position * self._per_model
                numbers = {number for number in failed if first <= number < first + self._per_model}
                if numbers:
                    self._retry_model(first, name, spec, numbers, changed)
        finally:
            self._journal.replace(changed)

    def _failed_lines(self) -> set[int]:
        """Numbers of the lines whose failure is worth asking about again."""
        failed = set()
        with self._journal.path.open("rb") as file:
            for number, line in enumerate(islice(file, self._kept)):
                if b'"failure":null' not in line:  # nearly all have it, and parsing millions takes a while
                    with suppress(orjson.JSONDecodeError, AttributeError):  # a damaged line is reported when it is read
                        content = orjson.loads(line)
                        if self.config.retries(content.get("failure"), content.get("failure_kind")):
                            failed.add(number)
        return failed

    def _retry_model(self, first: int, name: str, spec: str, numbers: set[int], changed: dict[int, Outcome]) -> None:
        evaluator = self._evaluator(name, spec)
        if not isinstance(evaluator, Scoring):
            return
        conditions, clusters = self.config.condition, self.dataset.index.clusters
        checked = Outcomes(self.dataset.index.ids, [(name, condition) for condition in conditions])
        stored = enumerate(islice(self._journal.lines(), first, min(self._kept, first + self._per_model)), first)
        again: list[tuple[int, list[Item], dict[int, dict[str, Any]]]] = []
        row = 0
        for batch in self._batches():
            numbered = dict(islice(stored, len(batch) * self._per_row))
            if not numbered:
                break
            for number, line in numbered.items():
                checked.read(line, f"{self._journal.path}, line {number + 1}")
            evaluator.remember(batch, conditions, list(numbered.values()))
            failed = {n: line for n, line in numbered.items() if n in numbers}
            if failed:
                again.append((row, batch, failed))
            row += len(batch)
        self.progress.begin(f"{name}, again", total=len(numbers))
        for row, batch, failed in again:
            only = [number - first - row * self._per_row for number in failed]
            with self._keeping_paid(evaluator):
                outcomes = evaluator.batch(batch, clusters[row : row + len(batch)], conditions, only)
            for (number, line), outcome in zip(failed.items(), outcomes, strict=True):
                changed[number] = _with_earlier_cost(outcome, line)
            self.progress.advance(len(failed))
        remove(self._pending)


def _with_earlier_cost(outcome: Outcome, line: Mapping[str, Any]) -> Outcome:
    """The outcome of a second attempt, with the cost and the replies of the first one added."""
    earlier = tuple(line["text"])
    first_failed = (line["scores"] or line["verdicts"] or [None])[0] is None
    return replace(
        outcome,
        tokens=outcome.tokens + line["tokens"],
        cost=outcome.cost + line["cost"],
        seconds=round(outcome.seconds + line["seconds"], 6),
        text=outcome.text + earlier if first_failed else earlier + outcome.text,
    )
