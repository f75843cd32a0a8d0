"""The main job: models × conditions over a dataset.

Rows are planned in batches, all conditions of a batch together; a model is asked what has no reply yet; outcomes, one
line per row and condition, are derived from the replies in dataset order, and the summary from the outcomes. One model
is loaded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from prb import __version__
from prb.batches import rarely_collecting
from prb.data.load import Dataset, Shard, load
from prb.engine.executors import Executor, given, open_executor
from prb.errors import BadInput, ModelChanged
from prb.evaluation.conditions import QueryBuilder, applicable
from prb.evaluation.config import DEFAULT_CONDITIONS, EvaluateConfig
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.paper import PaperJudging, PaperScoring, paper_config, paper_scoring, rows_of_subsets
from prb.evaluation.planners import PLANNERS, Plan, Planner
from prb.evaluation.scoring import ComparerOutcomes, RecordedOutcomes, RowUnder, ScorerOutcomes, Scoring
from prb.evaluation.summary import check_requirements, summarize
from prb.failures import Breaker
from prb.hashing import short_digest
from prb.hooks import Batch, Hooks, RunResult, RunStart
from prb.models import MODELS, PREFIXES_SHARED, execution_of, make_model, trained_on
from prb.progress import SILENT, Progress, Tally
from prb.registry import Spec, split_alias
from prb.runs import OUTCOMES, SUMMARY, USERS, Finished, RunFolder, json_line, part_of, writing
from prb.summary import needs_donors
from prb.types import Failure, Item, Recorded, RewardModel, Scorer
from prb.work import Call, Replies, ask_missing, open_replies

Evaluator = ScorerOutcomes | ComparerOutcomes | RecordedOutcomes | PaperScoring | PaperJudging

LONG_RUN = 5
"""Minutes from which a run says beforehand how long it will take."""


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
    job = Job(config, dataset, planner, models, listeners, progress)
    folder = config.folder(Path(config.dataset).name, dataset.fingerprint)
    while True:
        try:
            return job.run(folder)
        except ModelChanged as changed:  # a default folder belongs to one version of its models
            if config.out is not None:
                raise
            folder = folder.with_name(f"{folder.name}-{short_digest(changed.fingerprint)}")
            progress.note(f"{changed.name} has changed since the run of these settings; the new run is {folder}")


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
    if config.paper:
        config = paper_config(config, config.paper)
    if len(set(config.names)) < len(set(config.model)):
        raise BadInput("two models have the same short name")
    return replace(config, model=config.models, condition=tuple(dict.fromkeys(config.condition)) or DEFAULT_CONDITIONS)


def identity(config: EvaluateConfig, dataset: Dataset, planner: str) -> dict[str, Any]:
    """What must be the same for a run to be resumed; `planner` is its fingerprint."""
    about = {"name": dataset.name, "fingerprint": dataset.fingerprint, "rows": len(dataset)}
    return {"prb": __version__, "evaluate": config.saved(), "dataset": about, "planner": planner}


def _all(new: Sequence[str], old: Sequence[str]) -> bool:
    return set(new) >= set(old)


def _longer(new: int | None, old: int | None) -> bool:
    return new is None or (old is not None and new >= old)


EXTENDABLE: Mapping[str, Callable[[Any, Any], bool]] = {
    "evaluate.model": _all,
    "evaluate.condition": _all,
    "evaluate.limit": _longer,
    "dataset.rows": lambda *_: True,  # follows from the settings, of the same data
}
"""What a command may add to a run in `--out`: none of it changes a reply."""


class Job:
    """One evaluation, in whichever folder."""

    def __init__(
        self,
        config: EvaluateConfig,
        dataset: Dataset,
        planner: Planner,
        models: Mapping[str, RewardModel],
        hooks: Hooks,
        progress: Progress,
    ) -> None:
        self.config, self.dataset, self.planner = config, dataset, planner
        self.models, self.hooks, self.progress = models, hooks, progress
        self._subsets = list(dataset.subsets()) if config.paper else []
        self._calls_per_row = 0.0

    def run(self, folder: Path) -> Finished:
        config, dataset = self.config, self.dataset
        about = identity(config, dataset, self.planner.fingerprint)
        outcomes = Outcomes(dataset.index.ids, [(m, c) for m in config.names for c in config.condition])
        with (
            open_executor(config.engine) as executor,
            RunFolder(folder, about, fresh=config.fresh, extendable=EXTENDABLE) as run,
            open_replies(folder, self.progress, cache=config.cache) as replies,
        ):
            if run.extended:
                self.progress.note(f"{folder} goes on with {run.extended}")
            breaker = Breaker()
            start = RunStart(verb=config.verb, folder=folder, settings=about["evaluate"], dataset=about["dataset"])
            self.hooks.tell("on_run_start", start)
            with writing_outcomes(folder) as write:
                for name, spec in map(split_alias, config.model):
                    self._evaluate_model(self._evaluator(run, executor, name, spec), replies, breaker, outcomes, write)
            summary, users = summarize(config, dataset, outcomes)
            run.finish({USERS: users, SUMMARY: summary})
        self.hooks.tell("on_result", RunResult(folder=folder, summary=summary))
        return Finished(folder, summary)

    def _evaluator(self, run: RunFolder, executor: Executor, name: str, spec: str) -> Evaluator:
        config, models = self.config, self.models
        self.progress.begin(f"loading {name}")
        if config.paper:
            paper = paper_scoring(config, name, spec, self.dataset.index.ids, self._subsets)
            run.confirm_model(name, paper.asked.identity)
            return paper
        make = partial(given, models[name]) if name in models else partial(make_model, spec)
        model = executor.load(make, name)
        if not isinstance(model, RewardModel):
            raise BadInput(f"{name!r} is not a reward model: it needs `fingerprint`, and score(), prefer() or recall()")
        execution = execution_of(model)
        run.confirm_model(name, model.fingerprint, execution)
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
        if isinstance(model, Scorer):
            return ScorerOutcomes(name, model, builder, given=name in models)
        if config.task == "ratings":
            raise BadInput(f"{name!r} only compares answers; ratings need a model that scores them")
        both = config.orders == "both"
        return ComparerOutcomes(name, model, builder, both_orders=both, seed=config.seed, given=name in models)

    def _evaluate_model(
        self,
        evaluator: Evaluator,
        replies: Replies,
        breaker: Breaker,
        outcomes: Outcomes,
        write: Callable[[bytes], None],
    ) -> None:
        total, done, tally, told = len(self.dataset), 0, Tally(self.progress), False
        names = self.config.names
        which = f" (model {names.index(evaluator.name) + 1} of {len(names)})" if len(names) > 1 else ""
        self.progress.begin(f"{evaluator.name}{which}", total=total)
        plan = self._plan(evaluator, replies, breaker)

        def pace(seconds: float) -> None:
            nonlocal told
            minutes = seconds * self._calls_per_row * (total - done) / 60
            if minutes > LONG_RUN and not told:
                about = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
                self.progress.note(
                    f"{evaluator.name}: about {about} for {total - done:,} rows, {seconds:.1f} s per call"
                )
            told = True

        asked = evaluator.asked
        batches = ask_missing(plan, replies, asked, breaker, pace=pace) if asked else (b for b, _ in plan)
        for rows in batches:
            derived = [evaluator.outcome(row, replies) for row in rows]
            write(b"".join(map(json_line, derived)))
            outcomes.add(derived)
            tally.add([outcome.failure for outcome in derived], [outcome.cost for outcome in derived])
            size = len(rows) // len(self.config.condition)
            done += size
            self.progress.advance(size)
            self.hooks.tell("on_batch", Batch(model=evaluator.name, done=done, total=total, outcomes=derived))

    def _plan(
        self, evaluator: Evaluator, replies: Replies, breaker: Breaker
    ) -> Iterator[tuple[list[RowUnder], list[Call]]]:
        """Batches of rows under all conditions, with their calls."""
        conditions, clusters = self.config.condition, iter(self.dataset.index.clusters)
        for items in self._batches():
            of_items = list(islice(clusters, len(items)))
            plans: Mapping[str, Plan | Failure] = {}
            if "plan" in conditions and isinstance(evaluator, Scoring):
                plans = evaluator.plans(items, replies, breaker)
            rows = [
                evaluator.under(item, cluster, condition, plans)
                for condition in conditions
                for item, cluster in zip(items, of_items, strict=True)
            ]
            calls = [call for row in rows for call in row.calls]
            self._calls_per_row = len(calls) / len(items)
            yield rows, calls

    def _batches(self) -> Iterator[list[Item]]:
        """A batch never crosses the border of two of the paper's subsets."""
        rows = iter(self.dataset)
        for of_subset in rows_of_subsets(self._subsets) or [len(self.dataset)]:
            for start in range(0, of_subset, self.config.batch):
                yield list(islice(rows, min(self.config.batch, of_subset - start)))


@contextmanager
def writing_outcomes(folder: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that appends to the file of outcomes, which takes its place once it is whole. If the run stops before
    that and there is none yet, what is there takes it: a report can show it."""
    path, part = folder / OUTCOMES, part_of(folder / OUTCOMES)
    with writing(path):
        file = part.open("wb")

    def write(lines: bytes) -> None:
        with writing(path):
            file.write(lines)
            file.flush()  # a report may look at it

    try:
        yield write
        with writing(path):
            file.close()
    except BaseException:
        with suppress(OSError):  # what a full disk refused is refused again
            file.close()
        with suppress(OSError):
            if not (folder / SUMMARY).exists() and part.stat().st_size:
                part.replace(path)
            else:
                part.unlink(missing_ok=True)
        raise
    with writing(path):
        part.replace(path)
