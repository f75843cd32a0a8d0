"""The main job: models × conditions over a dataset; and shards of it, merged.

Rows are planned in batches, all conditions of a batch together; a model is asked what has no reply yet; outcomes, one
line per row and condition, are derived from the replies in dataset order, and the summary from the outcomes. One model
is loaded at a time.

An outcome earns credit (1 if the model ranks a right answer first, 0.5 for a tie, else 0) and has a margin, such as the
reward of the chosen answer minus that of the rejected one; `stats/credit.py` defines both. A failure has neither. What
is asked twice has one key and one reply. So the twins of a mirror pair get exactly the same scores wherever the model
is not told who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any

from prb import __version__
from prb.config import ConditionName, OutputConfig, Place, PositionalWords, config
from prb.data.load import Dataset, Shard, load
from prb.engine.executors import Executor, given, open_executor
from prb.errors import BadInput, ModelChanged, RunConflict, differences
from prb.evaluation.conditions import Built, PlannedRow, QueryBuilder
from prb.evaluation.config import DEFAULT_CONDITIONS, EvaluateConfig, check_requirements
from prb.evaluation.metrics import summarize
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.paper import PaperJudging, PaperScoring, paper_config, paper_orders
from prb.evaluation.planners import PLANNERS, Plan, Planner
from prb.hashing import draw, short_digest
from prb.hooks import Batch, Hooks, RunResult, RunStart
from prb.models import MODELS, PREFIXES_SHARED, execution_of, make_model, trained_on
from prb.progress import SILENT, Progress, Tally
from prb.registry import Spec, split_alias
from prb.runs import (
    OUTCOMES,
    REPLIES,
    SUMMARY,
    USERS,
    Finished,
    RunFolder,
    draft,
    json_line,
    part_of,
    read_identity,
    read_lines,
    read_result,
    writing,
)
from prb.stats.credit import credit_of_scores, credit_of_verdicts, duel_shares
from prb.summary import CONDITIONS, METRICS, TRAINED, needs_donors
from prb.types import (
    NO_EVIDENCE,
    UNMEASURED,
    Ask,
    Comparer,
    Duel,
    Failure,
    Item,
    Outcome,
    Pair,
    Query,
    Record,
    Recorded,
    RewardModel,
    Scorer,
)
from prb.work import (
    Breaker,
    Call,
    CalledModel,
    Replies,
    Reply,
    ask_missing,
    calls_of,
    checked_reward,
    chunks,
    gravest,
    open_replies,
)

EXTENDABLE: Mapping[str, Callable[[Any, Any], bool]] = {
    "evaluate.model": lambda new, old: set(new) >= set(old),
    "evaluate.condition": lambda new, old: set(new) >= set(old),
    "evaluate.limit": lambda new, old: new is None or (old is not None and new >= old),
    "dataset.rows": lambda *_: True,  # follows from the settings, of the same data
}
"""What a command may add to a run in `--out`: none of it changes a reply."""


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
        applicable = tuple(name for name in config.condition if CONDITIONS[name].applies(dataset))
        config = replace(config, condition=applicable)
    for note in (*METRICS.problems, *dataset.notes):
        progress.note(note)
    subsets = list(dataset.subsets()) if config.paper else []
    job = Job(config, dataset, subsets, planner, models, listeners, progress)
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
    same = {name: getattr(config, name) for name in ("task", "split", "limit", "skip_bad")}
    shard = Shard.parse(config.shard) if config.shard else None
    return load(config.dataset, **same, donors=needs_donors(config.condition), shard=shard)


def complete(config: EvaluateConfig) -> EvaluateConfig:
    """Defaults filled in, and what fields require of each other checked, before anything expensive happens."""
    if config.require is not None:
        check_requirements(config.require, config.condition or DEFAULT_CONDITIONS, config.names)
    if config.paper:
        config = paper_config(config, config.paper)
    if len(set(config.names)) < len(set(config.model)):
        raise BadInput("two models have the same short name")
    return replace(config, model=config.models, condition=tuple(dict.fromkeys(config.condition)) or DEFAULT_CONDITIONS)


def identity(config: EvaluateConfig, dataset: Dataset, planner: str) -> dict[str, Any]:
    """What must be the same for a run to be resumed; `planner` is its fingerprint."""
    about = {"name": dataset.name, "fingerprint": dataset.fingerprint, "rows": len(dataset)}
    return {"prb": __version__, "evaluate": config.saved(), "dataset": about, "planner": planner}


@dataclass
class Job:
    config: EvaluateConfig
    dataset: Dataset
    subsets: Sequence[tuple[str, int]]
    """For each row, its subset and its number there, as the paper's scripts need them; empty under our protocol."""
    planner: Planner
    models: Mapping[str, RewardModel]
    hooks: Hooks
    progress: Progress

    def run(self, folder: Path) -> Finished:
        config, dataset = self.config, self.dataset
        about = identity(config, dataset, self.planner.fingerprint)
        outcomes = Outcomes(dataset.index.ids, list(product(config.names, config.condition)))
        with (
            open_executor(config.engine) as executor,
            RunFolder(folder, about, scratch=(OUTCOMES,), fresh=config.fresh, extendable=EXTENDABLE) as run,
            open_replies(folder, self.progress, cache=config.cache) as replies,
        ):
            if run.extended:
                self.progress.note(f"{folder} is extended: {run.extended}")
            start = RunStart(verb=config.verb, folder=folder, settings=about["evaluate"], dataset=about["dataset"])
            self.hooks.tell("on_run_start", start)
            breaker = Breaker()
            with writing_outcomes(folder) as write:
                for name, spec in map(split_alias, config.model):
                    self.progress.begin(f"loading {name}")
                    for derived in self.ask(self.load_evaluator(run, executor, name, spec), replies, breaker):
                        write(b"".join(map(json_line, derived)))
                        outcomes.add(derived)
            summary, users = (part.as_json() for part in summarize(config, dataset, outcomes))
            run.finish({USERS: users, SUMMARY: summary})
        self.hooks.tell("on_result", RunResult(folder=folder, summary=summary))
        return Finished(folder, summary)

    def load_evaluator(self, run: RunFolder, executor: Executor, name: str, spec: str) -> Evaluator:
        """A model of this run, once its weights are known to be those that the folder has replies of."""
        config, models = self.config, self.models
        if config.paper:
            parsed, ids = Spec.parse(spec), self.dataset.index.ids
            paper: PaperScoring | PaperJudging
            if parsed.name == "classifier":
                paper = PaperScoring(name, parsed)
            else:
                paper = PaperJudging(name, parsed, config, dict(zip(ids, paper_orders(self.subsets), strict=True)))
            run.confirm_model(name, paper.called.identity)
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
        trained = {"trained_on": trained_on(model, spec), "count_trained": config.trained == "count"}
        builder = QueryBuilder.of(config, self.dataset, self.planner, reader=model, seed=config.seed, **trained)
        if config.task == "ratings" and not isinstance(model, Scorer):
            raise BadInput(f"{name!r} only compares answers; ratings need a model that scores them")
        both = config.orders == "both"
        return AskedOutcomes(name, model, builder, both_orders=both, seed=config.seed, from_caller=name in models)

    def ask(self, evaluator: Evaluator, replies: Replies, breaker: Breaker) -> Iterator[list[Outcome]]:
        """The outcomes of a model, batch by batch, all conditions of a batch together."""
        conditions, names, total, done = self.config.condition, self.config.names, len(self.dataset), 0
        which = f" (model {names.index(evaluator.name) + 1} of {len(names)})" if len(names) > 1 else ""
        self.progress.begin(f"{evaluator.name}{which}", total=total)

        def plan() -> Iterator[tuple[list[PlannedRow], list[Call]]]:
            of_dataset = zip(self.dataset, self.dataset.index.clusters, strict=True)
            of_subsets = [len(list(rows)) for _, rows in groupby(self.subsets, key=lambda row: row[0])]
            for size in of_subsets or [total]:  # no batch has rows of two subsets of the paper
                for items in chunks(islice(of_dataset, size), self.config.batch):
                    plans: Mapping[str, Plan | Failure] = {}
                    if any(CONDITIONS[c].planned for c in conditions) and isinstance(evaluator, AskedOutcomes):
                        plans = evaluator.builder.plans([item for item, _ in items], replies, breaker)
                    cells = product(conditions, items)
                    rows = [evaluator.plan_row(item, cluster, condition, plans) for condition, (item, cluster) in cells]
                    yield rows, [call for row in rows for call in row.calls]

        called, tally = evaluator.called, Tally(self.progress)
        for rows in ask_missing(plan(), replies, called, breaker) if called else (rows for rows, _ in plan()):
            outcomes = [evaluator.outcome(row, replies) for row in rows]
            yield outcomes
            failures = [outcome.failure for outcome in outcomes if outcome.failure_kind != UNMEASURED]
            tally.add(failures, [outcome.cost for outcome in outcomes])
            size = len(rows) // len(conditions)
            done += size
            self.progress.advance(size)
            self.hooks.tell("on_batch", Batch(model=evaluator.name, done=done, total=total, outcomes=outcomes))


@contextmanager
def writing_outcomes(folder: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that appends to the file of outcomes, which a report can show while the run is under way. That of a
    finished run is replaced once the new one is whole."""
    path = folder / OUTCOMES
    written = part_of(path) if (folder / SUMMARY).exists() else path
    with writing(path):
        file = written.open("wb")

    def write(lines: bytes) -> None:
        with writing(path):
            file.write(lines)
            file.flush()

    try:
        yield write
    finally:
        with suppress(OSError):  # what a full disk refused is refused again
            file.close()
    if written != path:
        with writing(path):
            written.replace(path)


# --- rows through one model: which calls a row makes, and the outcome that follows from the replies ---
class AskedOutcomes:
    """A scorer is asked about every answer, a comparer about every right one against every wrong one: in both orders,
    or in one that is drawn by a hash of the pair, so that subsets and reruns agree."""

    def __init__(
        self,
        name: str,
        model: Scorer | Comparer,
        builder: QueryBuilder,
        *,
        both_orders: bool = True,
        seed: int = 0,
        from_caller: bool = False,
    ) -> None:
        self.name, self.builder, self._both, self._seed = name, builder, both_orders, seed
        self._scores = isinstance(model, Scorer)
        self.called = CalledModel.of(name, model, "score" if self._scores else "prefer", from_caller=from_caller)
        self._start = self.called.key_start()

    def plan_row(
        self, item: Item, cluster: str, condition: ConditionName, plans: Mapping[str, Plan | Failure]
    ) -> PlannedRow:
        """`plans` holds what was inferred about the user of each row, for conditions that are `planned`."""
        built = self.builder.build(item, condition, plans.get(item.id))
        asks: Sequence[Ask | Duel] = ()
        if isinstance(built, Built) and self._scores:
            asks = [Ask(built.query, answer) for answer in item.answers]
        elif isinstance(built, Built):
            asks = [Duel(built.query, *duel) for duel in self._duels(item) if duel]
        return PlannedRow(item, cluster, condition, built, tuple(calls_of(self._start, asks)))

    def _duels(self, item: Item) -> list[tuple[str, str] | None]:
        """With the right answer first, then with the wrong one first; `None` is an order that is not asked."""
        assert isinstance(item, Pair)
        duels: list[tuple[str, str] | None] = []
        for n, (right, wrong) in enumerate(product(item.answers[: item.n_best], item.answers[item.n_best :])):
            right_first = draw(self._seed, f"{item.id}#{n}" if n else item.id, bits=8) % 2 == 0
            duels.append((right, wrong) if self._both or right_first else None)
            duels.append((wrong, right) if self._both or not right_first else None)
        return duels

    def outcome(self, row: PlannedRow, replies: Replies) -> Outcome:
        built = row.built if isinstance(row.built, Built) else Built(Query(question=""))
        replied = [replies.take(call.key) for call in row.calls]
        failed = [failure for reply in replied if (failure := reply.as_failure)]
        failure = row.built if isinstance(row.built, Failure) else gravest(failed) if failed else None
        answers: dict[str, Any] = {}
        if self._scores:
            answers["scores"] = tuple([r.value if isinstance(r.value, float) else None for r in replied]) or None
        else:
            left = iter(replied)
            in_both = [next(left) if duel else Reply() for duel in (self._duels(row.item) if replied else ())]
            answers["verdicts"] = tuple(reply.value if isinstance(reply.value, str) else None for reply in in_both)
            log_odds = tuple(reply.log_odds for reply in in_both)
            answers["log_odds"] = log_odds if any(odds is not None for odds in log_odds) else None
        return derive_outcome(
            self.name,
            row,
            failure,
            **answers,
            post_ids=tuple([post.id for post in built.query.posts]),
            choices=built.choices,
            leaks=built.leaks,
            plan=built.query.plan if CONDITIONS[row.condition].planned else (),
            cut=built.cut + max([reply.cut for reply in replied], default=0),
            tokens=sum([reply.tokens for reply in replied]),
            seconds=round(sum([reply.seconds for reply in replied]), 6),
            cost=sum([reply.cost for reply in replied]),
            text=tuple([text for reply in replied for text in reply.text]),
            seen="row" if failure and failure.reason == TRAINED else built.seen,
        )


class RecordedOutcomes:
    """Outcomes of recorded scores. No query is built, so a row without a rubric can have a score under `oracle`."""

    called: None = None

    def __init__(self, name: str, model: Recorded) -> None:
        self.name, self._model = name, model

    def plan_row(self, item: Item, cluster: str, condition: ConditionName, plans: Mapping[str, object]) -> PlannedRow:  # noqa: ARG002
        return PlannedRow(item, cluster, condition, Built(Query(question="")))

    def outcome(self, row: PlannedRow, replies: Replies) -> Outcome:  # noqa: ARG002
        recalled, item = self._model.recall(row.item.id, row.condition), row.item
        record = Record() if isinstance(recalled, Failure) else recalled
        present = [score for score in record.scores if score is not None]
        duels = item.n_best * (len(item.answers) - item.n_best) if isinstance(item, Pair) else 0
        failure: Failure | None = None
        if isinstance(recalled, Failure):
            failure = recalled
        elif record.scores and not len(present) == len(record.scores) == len(item.answers):
            failure = Failure("the recorded scores do not fit the answers", f"{len(present)} for {len(item.answers)}")
        elif record.scores:
            failure = next((score for score in map(checked_reward, present) if isinstance(score, Failure)), None)
        elif not duels or len(record.verdicts) != 2 * duels or None in duel_shares(record.verdicts):
            failure = Failure("the recorded verdicts do not fit the answers", f"{len(item.answers)} answers")
        usable = Record() if failure else record
        return derive_outcome(
            self.name,
            row,
            failure,
            scores=tuple(float(score) for score in usable.scores if score is not None) or None,
            verdicts=usable.verdicts or None,
            log_odds=usable.log_odds or None,
            tokens=record.tokens,
            cost=record.cost,
            text=record.text,
        )


Evaluator = AskedOutcomes | RecordedOutcomes | PaperScoring | PaperJudging


def derive_outcome(
    model: str,
    row: PlannedRow,
    failure: Failure | None,
    *,
    scores: tuple[float | None, ...] | None = None,
    verdicts: tuple[str | None, ...] | None = None,
    log_odds: tuple[float | None, ...] | None = None,
    **about: Any,
) -> Outcome:
    """What a row earned. A failure earns nothing, and a row without a right answer has a margin and no credit."""
    item, earned = row.item, None
    if isinstance(item, Pair) and failure is None:
        if scores and None not in scores:
            earned = credit_of_scores(scores, item.n_best)  # type: ignore[arg-type]
        elif verdicts:
            earned = credit_of_verdicts(verdicts, log_odds, item.n_best)
    without_evidence = isinstance(item, Pair) and item.tier == NO_EVIDENCE
    return Outcome(
        model=model,
        scores=scores,
        verdicts=verdicts,
        log_odds=log_odds,
        credit=earned.credit if earned and not without_evidence else None,
        margin=earned.margin if earned else None,
        failure=str(failure) if failure else None,
        failure_kind=failure.kind if failure else None,
        **row.about,
        **about,
    )


# --- shards, made by `prb evaluate --shard i/n`, as the run that one process would have made ---
@config
class MergeConfig(OutputConfig):
    """Make one run of all shards that `prb evaluate --shard` made."""

    runs: PositionalWords[Place]
    """The run folders of all shards, in any order."""


def merge(config: MergeConfig, progress: Progress = SILENT) -> Finished:
    folders, stored, executions = read_shards(config.runs)
    settings = EvaluateConfig(**EvaluateConfig.restore(stored))
    progress.begin(f"checking {settings.dataset}")
    dataset = load_rows(settings)
    if dataset.fingerprint != stored["dataset"]["fingerprint"]:
        raise RunConflict(f"{settings.dataset} has changed since {folders[0]} was made")
    if stored["prb"] != __version__:
        raise RunConflict(f"{folders[0]} was made by prb {stored['prb']}, and this is prb {__version__}")
    folder = config.out or settings.folder(Path(settings.dataset).name, dataset.fingerprint)
    lines = {
        (line["model"], line["condition"], line["pair"]): line for f in folders for line in read_lines(f / OUTCOMES)
    }
    with RunFolder(folder, identity(settings, dataset, stored["planner"])) as run:
        for name, fingerprint in stored["models"].items():
            run.confirm_model(name, fingerprint, "; ".join(executions.get(name, ())))
        with draft(folder / REPLIES) as joined, joined.open("wb") as file:
            for part in folders:  # whoever extends the run finds all replies
                file.write((part / REPLIES).read_bytes())
        outcomes = Outcomes(dataset.index.ids, list(product(settings.names, settings.condition)))
        progress.begin("merging", total=len(dataset) * len(settings.model))
        with writing_outcomes(folder) as write:
            for model, batch in product(settings.names, list(chunks(dataset.index.ids, settings.batch))):
                for condition, pair in product(settings.condition, batch):
                    line = lines[model, condition, pair]
                    outcomes.read(line, "an outcome of a shard")
                    write(json_line(line))
                progress.advance(len(batch))
        summary, users = (part.as_json() for part in summarize(settings, dataset, outcomes))
        run.finish({USERS: users, SUMMARY: summary})
    return Finished(folder, summary)


def read_shards(folders: Sequence[Path]) -> tuple[list[Path], dict[str, Any], dict[str, dict[str, None]]]:
    """The folders of all finished shards of one run, in order; what is stored of the run; how each model was run, which
    may differ between machines."""
    if not folders:
        raise BadInput("prb merge needs the folders of all shards")
    by_number: dict[int, Path] = {}
    shared: dict[str, Any] = {}
    executions: dict[str, dict[str, None]] = {}
    for folder in folders:
        stored = read_identity(folder)
        settings = stored.get("evaluate")
        if not isinstance(settings, dict) or not isinstance(settings.get("shard"), str):
            raise BadInput(f"{folder} is not a shard of an evaluation: it was made without --shard")
        read_result(folder, SUMMARY)
        shard = Shard.parse(settings.pop("shard"))
        stored["dataset"].pop("rows")
        for name, execution in stored.pop("execution", {}).items():
            executions.setdefault(name, {})[execution] = None
        stored["shards"] = shard.total
        if differing := differences(shared or stored, stored):
            raise RunConflict(f"{folders[0]} and {folder} differ:\n  " + "\n  ".join(differing))
        shared = stored
        if by_number.setdefault(shard.number, folder) is not folder:
            raise BadInput(f"{by_number[shard.number]} and {folder} are both shard {shard.number}/{shard.total}")
    total = shared["shards"]
    if missing := [f"{n}/{total}" for n in range(1, total + 1) if n not in by_number]:
        raise BadInput(f"missing shards: {', '.join(missing)}")
    return [by_number[n] for n in range(1, total + 1)], shared, executions
