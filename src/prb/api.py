"""The verbs. Each takes a config, its fields as keywords, or both; does the whole job; and returns an object.

    prb.evaluate(model="embedding", dataset="mirror")
    prb.evaluate(EvaluateConfig(model="embedding"), k=5)

The command line parses, calls one of these, and prints: a setting means the same in both.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from prb.building.config import BuildConfig
from prb.config import Settings, rehearsed_in
from prb.downstream.bon import BonConfig
from prb.downstream.correlate import CorrelateConfig
from prb.downstream.ppo import PpoConfig
from prb.errors import BadInput, ResultFailed
from prb.evaluation.audit import AuditConfig
from prb.evaluation.compare import CompareConfig
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import MergeConfig
from prb.given import as_dataset
from prb.grading import GradeConfig
from prb.grading.license import LicenseConfig, make_license
from prb.progress import Progress, watch
from prb.registry import split_alias
from prb.reporting.evaluation_results import Comparison, Evaluation
from prb.reporting.format import markdown
from prb.reporting.formats import ExportConfig
from prb.reporting.formats import export as write_export
from prb.reporting.gather import read_any
from prb.reporting.results import (
    Audit,
    BestOfN,
    BuiltBenchmark,
    Correlation,
    DryRun,
    Grading,
    Licensed,
    Ppo,
    Run,
    TrainedModel,
    correlation_sentences,
)
from prb.reporting.site import ReportConfig
from prb.reporting.site import report as write_report
from prb.reporting.submissions import LeaderboardConfig
from prb.reporting.submissions import leaderboard as check_submissions
from prb.runs import CONFIG, REPLIES, Finished, write_bytes, write_json
from prb.serving.server import ServeConfig
from prb.training.config import FullConfig, TrainConfig, config_of
from prb.work import Planned, planned_calls

if TYPE_CHECKING:
    from prb.grading import Grader
    from prb.llm import LLM
    from prb.types import RewardModel, Scorer

C = TypeVar("C", EvaluateConfig, AuditConfig, GradeConfig, BonConfig, BuildConfig)
R = TypeVar("R")
Result = TypeVar("Result", bound=Run)
Models = Mapping[str, "RewardModel"]


def verb(
    *configs: type[Settings],
    by_position: Sequence[str] = (),
    kind: Callable[[Mapping[str, Any]], type[Settings]] | None = None,
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A function of a config and a progress becomes one that takes a config, its fields as keywords, or both.

    Fields in `by_position` need no keyword: `report(["runs/a"])`. `kind` chooses between several configs by what is
    given. `inspect.signature` and interactive completion show the fields of all of them.
    """

    def make(function: Callable[..., R]) -> Callable[..., R]:
        own = {n: p for n, p in inspect.signature(function).parameters.items() if n != "config"}
        own["progress"] = own["progress"].replace(default=None)
        fields = {n: p for cls in reversed(configs) for n, p in inspect.signature(cls).parameters.items()}

        @wraps(function)
        def call(*given: Any, progress: Progress | None = None, **keywords: Any) -> R:
            if isinstance(keywords.get("config"), configs):
                given = (keywords.pop("config"), *given)
            base = given[0] if given and isinstance(given[0], configs) else None
            positions = given[1:] if base is not None else given
            if len(positions) > len(by_position):
                what = f"{configs[0].__name__} or keyword arguments"
                raise BadInput(f"{what} expected, not {type(positions[len(by_position)]).__name__}")
            # a text is a spec, which is a setting; an object takes the place of what a spec would name
            is_spec = {n for n in own if n in fields and isinstance(keywords.get(n), str)}
            objects = {n: keywords.pop(n) for n in own if n in keywords and n not in is_spec}
            settings = {**dict(zip(by_position, positions, strict=False)), **keywords}
            if "dataset" in settings:
                settings["dataset"] = as_dataset(settings["dataset"])
            chosen = type(base) if base is not None else kind(settings) if kind else configs[0]
            config = chosen.of(base, settings)
            with watch(config.quiet) if progress is None else nullcontext(progress) as shown:
                return function(config, progress=shown, **objects)

        first = inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        positional = [fields[name].replace(kind=first.kind) for name in by_position] or [first]
        others = {**{n: p for n, p in fields.items() if n not in by_position}, **own}
        named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others.values()]
        call.__signature__ = inspect.Signature([*positional, *named])  # type: ignore[attr-defined]
        return call

    return make


def _run(
    config: C, job: Callable[[C], Finished], kind: Callable[[Path, Any], Result], check: Callable[[Result], None]
) -> Result:
    """Do a job, or with `dry_run` only count its calls. If the finished result does not pass, the error has it."""
    if config.dry_run and not isinstance(config, BuildConfig):  # a build estimates its own cost
        return _dry_run(config, job)  # type: ignore[return-value]
    finished = job(config)
    result = kind(finished.folder, finished.summary)
    try:
        check(result)
    except ResultFailed as failed:
        failed.result = result
        raise
    return result


def _dry_run(config: C, job: Callable[[C], object]) -> DryRun:
    """What a verb would ask: it runs in a folder that is thrown away, with what its own has so far."""
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run"

        def copied(folder: Path) -> Path:
            if copy in folder.parents:  # a run that is part of another, as in an audit
                return folder
            for name in () if config.fresh else (CONFIG, REPLIES):
                for file in folder.rglob(name):
                    target = copy / file.relative_to(folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)
            return copy

        planned: dict[str, Planned] = {}
        tokens = rehearsed_in.set(copied), planned_calls.set(planned)
        try:
            job(config)
        finally:
            rehearsed_in.reset(tokens[0])
            planned_calls.reset(tokens[1])
    specs = config.models if isinstance(config, EvaluateConfig) else ()
    return DryRun.of(config.out or Path(), planned, dict(map(split_alias, specs)))


@verb(EvaluateConfig, by_position=["dataset"])
def evaluate(
    config: EvaluateConfig,
    *,
    models: Models | Sequence[object] | None = None,
    hooks: Sequence[object] = (),
    progress: Progress,
) -> Evaluation:
    """Score reward models on a personalized benchmark; run or resume.

    `models` lists specs, reward models of your own and plain functions `fn(prompt, response)`; or it maps names to
    them: all that are evaluated, or those in `model` that are no specs. `dataset` may be a data frame or a list of
    rows. `hooks` are objects that follow the run (see `prb.hooks`). Raises, with the result attached, `GateFailed` if a
    `require` condition does not hold, and `TooManyFailures` if more than `max_failed` of the rows failed.
    """
    from prb.evaluation.config import check_failures, require
    from prb.evaluation.run import evaluate as run
    from prb.given import as_models

    specs, objects = as_models(models)
    if isinstance(models, Mapping) and config.model:
        if unused := objects.keys() - set(config.names):
            raise BadInput(f"models has {', '.join(sorted(unused))}, which model does not name")
    elif specs and config.model:
        raise BadInput("model and models both list what to evaluate; give one of them (specs may stand in models, too)")
    elif specs:
        config = replace(config, model=specs)
    if config.dry_run:
        config, hooks = replace(config, hook=()), ()

    def check(result: Evaluation) -> None:
        check_failures(result.typed, config.max_failed)
        if config.require is not None:
            require(config.require, result.typed)

    job = partial(run, models=objects, hooks=hooks, progress=progress)
    return _run(config, job, partial(Evaluation, full=config.full), check)


@verb(MergeConfig, by_position=["runs"])
def merge(config: MergeConfig, *, progress: Progress) -> Evaluation:
    """Make one run of the folders of all shards of `evaluate(shard="i/n")`."""
    from prb.evaluation.run import merge as run

    finished = run(config, progress=progress)
    return Evaluation(finished.folder, finished.summary)


@verb(CompareConfig, by_position=["run_a", "run_b"])
def compare(config: CompareConfig, *, progress: Progress) -> Comparison:  # noqa: ARG001
    """Compare two runs pair by pair: `compare("runs/a", "runs/b")`."""
    from prb.evaluation.compare import compare as run

    return Comparison(config.run_a, run(config))


@verb(AuditConfig, by_position=["dataset"])
def audit(config: AuditConfig, *, models: Models | None = None, progress: Progress) -> Audit:
    """Measure how much of a benchmark needs the user at all; run or resume: `audit("pairs.jsonl")`."""
    from prb.evaluation.audit import audit as run
    from prb.evaluation.audit import check_failures

    job = partial(run, models=models, progress=progress)
    return _run(config, job, Audit, lambda result: check_failures(result.summary, config.max_failed))


@verb(
    GradeConfig,
    LicenseConfig,
    kind=lambda settings: LicenseConfig if "license" in settings else GradeConfig,
)
def grade(
    config: GradeConfig | LicenseConfig, *, grader: Grader | None = None, progress: Progress
) -> Grading | Licensed:
    """Grade answers against each user's rubric, or measure how valid a grader is; run or resume. With `license`, the
    judge, and `human`: whether that judge may stand in for people."""
    from prb.grading.run import check_failures
    from prb.grading.run import grade as run

    if isinstance(config, LicenseConfig):
        made = make_license(config)
        return Licensed(made.folder, made.summary)

    job = partial(run, grader=grader, progress=progress)
    return _run(config, job, Grading, lambda result: check_failures(result.typed, config.max_failed))


@verb(BuildConfig)
def build(config: BuildConfig, *, llms: Mapping[Any, LLM] | None = None, progress: Progress) -> BuiltBenchmark:
    """Build a personalized benchmark from users' records; run or resume. `dry_run` only estimates the cost."""
    from prb.building.run import build as run
    from prb.building.run import check_failures

    def check(result: BuiltBenchmark) -> None:
        if not result.is_estimate:
            check_failures(result.summary, config.max_failed)

    return _run(config, partial(run, llms=llms, progress=progress), BuiltBenchmark, check)


@verb(TrainConfig, FullConfig, kind=lambda settings: config_of(settings.get("method", "light")))
def train(config: TrainConfig | FullConfig, *, progress: Progress) -> TrainedModel:
    """Train a reward model that knows whose preference it judges: a head on frozen features, or a whole model."""
    from prb.training.run import train as run

    trained = run(config, progress=progress)
    return TrainedModel(trained.folder, trained.summary, config.dataset)


@verb(BonConfig)
def best_of_n(
    config: BonConfig,
    *,
    models: Models | None = None,
    policy: LLM | None = None,
    grader: Grader | None = None,
    progress: Progress,
) -> BestOfN:
    """What each reward model picks from N answers of a policy, graded against the rubric; run, resume or extend."""
    from prb.downstream.bon import best_of_n as run
    from prb.downstream.bon import check_failures
    from prb.reporting.figures import write_figure_of

    def check(result: BestOfN) -> None:
        write_figure_of(result, progress)
        check_failures(result.summary, config.max_failed)

    job = partial(run, models=models, policy=policy, grader=grader, progress=progress)
    return _run(config, job, BestOfN, check)


@verb(PpoConfig)
def ppo(config: PpoConfig, *, reward: Scorer | None = None, grader: Grader | None = None, progress: Progress) -> Ppo:
    """Train a policy against a reward model and grade its answers before and after; run or resume."""
    from prb.downstream.ppo import ppo as run

    finished = run(config, reward=reward, grader=grader, progress=progress)
    return Ppo(finished.folder, finished.summary, finished.message)


@verb(CorrelateConfig)
def correlate(config: CorrelateConfig, *, progress: Progress) -> Correlation:
    """Measure how well a benchmark's ranking of reward models predicts what happens downstream."""
    from prb.downstream.correlate import correlate as run
    from prb.reporting.figures import write_figure_of

    found = run(config, progress=progress)
    sentences = correlation_sentences(found)
    result = Correlation(config.out or Path(), {**msgspec.to_builtins(found), "sentences": sentences})
    if config.out is not None:
        listed = "\n".join(f"- {sentence}" for sentence in sentences)
        write_bytes(config.out / "table.md", "\n".join([*map(markdown, result.tables()), listed, ""]).encode())
        write_json(config.out / Correlation.file, result.summary)
        write_figure_of(result, progress)
    return result


report = verb(ReportConfig, by_position=["runs"])(write_report)
leaderboard = verb(LeaderboardConfig, by_position=["submissions"])(check_submissions)
export = verb(ExportConfig, by_position=["run"])(write_export)


@verb(ServeConfig)
def serve(config: ServeConfig, *, model: RewardModel | None = None, progress: Progress) -> None:
    """Serve a reward model over HTTP until interrupted."""
    from prb.serving.server import serve as run

    run(config, model=model, ready=lambda server: progress.note(f"{server.model} at {server.url}"))


def open_run(path: str | Path) -> Run:
    """The run in a folder, or of a result file by itself, whichever verb made it."""
    return read_any(Path(path))
