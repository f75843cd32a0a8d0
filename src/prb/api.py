"""The verbs. Each takes a config, its fields as keywords, or both; does the whole job; and returns an object.

    prb.evaluate(model="embedding", dataset="mirror")
    prb.evaluate(EvaluateConfig(model="embedding"), k=5)

The command line parses, calls one of these, and prints: a setting means the same in both.
"""

from __future__ import annotations

import inspect
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from prb.building.config import BuildConfig
from prb.config import Settings
from prb.downstream.bon import BonConfig
from prb.downstream.correlate import CorrelateConfig
from prb.downstream.ppo import PpoConfig
from prb.errors import BadInput, ResultFailed
from prb.evaluation.audit import AuditConfig
from prb.evaluation.compare import CompareConfig
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.merge import MergeConfig
from prb.grading import GradeConfig
from prb.grading.license import LicenseConfig, make_license
from prb.progress import Progress, watch
from prb.registry import split_alias
from prb.reporting.downstream import BestOfN, Correlation, Ppo
from prb.reporting.evaluation_results import Audit, Comparison, Evaluation
from prb.reporting.formats import ExportConfig
from prb.reporting.gather import kind_of, read_any
from prb.reporting.results import BuiltBenchmark, DryRun, Grading, Licensed, Run, TrainedModel, estimated
from prb.reporting.site import ReportConfig
from prb.reporting.submissions import Leaderboard, LeaderboardConfig
from prb.runs import CONFIG, REPLIES, Finished, read_lines
from prb.serving.server import ServeConfig
from prb.training.config import FullConfig, TrainConfig, config_of
from prb.work import asking_nothing

if TYPE_CHECKING:
    from prb.grading import Grader
    from prb.llm import LLM
    from prb.types import RewardModel, Scorer

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", EvaluateConfig, AuditConfig, GradeConfig, BonConfig)
Models = Mapping[str, "RewardModel"]


def verb(*configs: type[Settings]) -> Callable[[F], F]:
    """Make `inspect.signature` and interactive completion show the fields of the config."""

    def with_fields(function: F) -> F:
        signature = inspect.signature(function)
        named = {n: p for n, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        for config in configs:
            for name, parameter in inspect.signature(config).parameters.items():
                named.setdefault(name, parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        function.__signature__ = signature.replace(parameters=list(named.values()))  # type: ignore[attr-defined]
        return function

    return with_fields


def _shown(progress: Progress | None, quiet: bool) -> AbstractContextManager[Progress]:
    return watch(quiet) if progress is None else nullcontext(progress)


def _dry_run(config: C, run: Callable[[C], Finished], specs: Sequence[str] = ()) -> DryRun:
    """What a verb would ask: it runs in a folder that is thrown away, with what the one in `out` has so far."""
    pace: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory() as scratch, asking_nothing() as planned:
        folder = Path(scratch) / "run"
        if config.out and config.out.is_dir() and not config.fresh:

            def others(at: str, names: list[str]) -> list[str]:
                return [name for name in names if name not in (CONFIG, REPLIES) and not (Path(at) / name).is_dir()]

            shutil.copytree(config.out, folder, ignore=others)
            for path in folder.rglob(REPLIES):
                for line in read_lines(path):
                    if line.get("seconds"):
                        pace[line.get("model", "")].append(line["seconds"])
        run(replace(config, out=folder))
    known = {name: fmean(seconds) for name, seconds in pace.items()}
    rows = estimated(planned, dict(map(split_alias, specs)), known)
    return DryRun(config.out or Path(), {"dry_run": rows})


@contextmanager
def _carrying(result: Run) -> Iterator[None]:
    """An error about a finished result brings the result along."""
    try:
        yield
    except ResultFailed as failed:
        failed.result = result
        raise


@verb(EvaluateConfig)
def evaluate(
    config: EvaluateConfig | None = None,
    *,
    models: Models | Sequence[object] | None = None,
    hooks: Sequence[object] = (),
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """Score reward models on a personalized benchmark; run or resume.

    `models` lists specs, reward models of your own and plain functions, `fn(prompt, response)` or `fn(asks)`; or it
    maps the names in `model` to such objects. `dataset` may be a data frame or a list of rows. `hooks` are objects that
    follow the run (see `prb.hooks`). Raises, with the result attached, `GateFailed` if a `require` condition does not
    hold, and `TooManyFailures` if more than `max_failed` of the rows failed.
    """
    from prb.evaluation.run import evaluate as run
    from prb.evaluation.summary import check_failures, require
    from prb.given import as_dataset, as_models

    if "dataset" in settings:
        settings["dataset"] = as_dataset(settings["dataset"])
    specs, models = as_models(models)
    checked = EvaluateConfig.of(config, {"model": specs, **settings} if specs else settings)
    with _shown(progress, checked.quiet) as shown:
        if checked.dry_run:
            unheard = replace(checked, hook=())
            return _dry_run(unheard, lambda c: run(c, models=models, progress=shown), checked.model)  # type: ignore[return-value]
        finished = run(checked, models=models, hooks=hooks, progress=shown)
    result = Evaluation(finished.folder, finished.summary, full=checked.full)
    with _carrying(result):
        check_failures(result.typed, checked.max_failed)
        require(checked.require or "", result.typed)
    return result


@verb(MergeConfig)
def merge(runs: Sequence[str | Path] | MergeConfig, *, progress: Progress | None = None, **settings: Any) -> Evaluation:
    """Make one run of the folders of all shards of `evaluate(shard="i/n")`."""
    from prb.evaluation.merge import merge as run

    checked = MergeConfig.of(runs, settings, first="runs")
    with _shown(progress, checked.quiet) as shown:
        finished = run(checked, progress=shown)
    return Evaluation(finished.folder, finished.summary)


@verb(CompareConfig)
def compare(
    run_a: CompareConfig | str | Path | None = None, run_b: str | Path | None = None, **settings: Any
) -> Comparison:
    """Compare two runs pair by pair: `compare("runs/a", "runs/b")`."""
    from prb.evaluation.compare import compare as run

    if run_b is not None:
        settings["run_b"] = run_b
    first = None if run_a is None else "run_a"
    checked = CompareConfig.of(run_a, settings, first=first)
    return Comparison(checked.run_a, run(checked))


@verb(AuditConfig)
def audit(
    dataset: AuditConfig | str | Path | None = None,
    *,
    models: Models | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Audit:
    """Measure how much of a benchmark needs the user at all; run or resume: `audit("pairs.jsonl")`."""
    from prb.evaluation.audit import audit as run
    from prb.evaluation.audit import check_failures
    from prb.reporting.figures import write_audit

    checked = AuditConfig.of(dataset, settings, first=None if dataset is None else "dataset")
    with _shown(progress, checked.quiet) as shown:
        if checked.dry_run:
            return _dry_run(checked, lambda c: run(c, models=models, progress=shown))  # type: ignore[return-value]
        finished = run(checked, models=models, progress=shown)
        write_audit(finished.summary, finished.folder, shown)
    result = Audit(finished.folder, finished.summary)
    with _carrying(result):
        check_failures(result.summary, checked.max_failed)
    return result


@verb(GradeConfig, LicenseConfig)
def grade(
    config: GradeConfig | LicenseConfig | None = None,
    *,
    grader: Grader | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Grading | Licensed:
    """Grade answers against each user's rubric, or measure how valid a grader is; run or resume. With `license`, the
    judge, and `human`: whether that judge may stand in for people."""
    from prb.grading.run import check_failures
    from prb.grading.run import grade as run

    makes_license = "license" in settings and not settings.keys() & {"answers", "validate"}
    if isinstance(config, LicenseConfig) or makes_license:
        made = make_license(LicenseConfig.of(config, settings))
        return Licensed(made.folder, made.summary)
    checked = GradeConfig.of(config, settings)
    with _shown(progress, checked.quiet) as shown:
        if checked.dry_run:
            return _dry_run(checked, lambda c: run(c, grader=grader, progress=shown))  # type: ignore[return-value]
        finished = run(checked, grader=grader, progress=shown)
    result = Grading(finished.folder, finished.summary)
    with _carrying(result):
        check_failures(result.summary, checked.max_failed)
    return result


@verb(BuildConfig)
def build(
    config: BuildConfig | None = None,
    *,
    llms: Mapping[Any, LLM] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> BuiltBenchmark:
    """Build a personalized benchmark from users' records; run or resume. `dry_run` only estimates the cost."""
    from prb.building.run import build as run
    from prb.building.run import check_failures

    checked = BuildConfig.of(config, settings)
    with _shown(progress, checked.quiet) as shown:
        finished = run(checked, llms=llms, progress=shown)
    result = BuiltBenchmark(finished.folder, finished.summary)
    if checked.dry_run:
        return result
    with _carrying(result):
        check_failures(result.summary, checked.max_failed)
    return result


@verb(TrainConfig, FullConfig)
def train(
    config: TrainConfig | FullConfig | None = None, *, progress: Progress | None = None, **settings: Any
) -> TrainedModel:
    """Train a reward model that knows whose preference it judges: a head on frozen features, or a whole model."""
    from prb.training.run import train as run

    checked = config_of(getattr(config, "method", None) or settings.get("method", "light")).of(config, settings)
    with _shown(progress, checked.quiet) as shown:
        trained = run(checked, progress=shown)
    return TrainedModel(trained.folder, trained.summary)


@verb(BonConfig)
def best_of_n(
    config: BonConfig | None = None,
    *,
    models: Models | None = None,
    policy: LLM | None = None,
    grader: Grader | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> BestOfN:
    """What each reward model picks from N answers of a policy, graded against the rubric; run, resume or extend."""
    from prb.downstream.bon import best_of_n as run
    from prb.downstream.bon import check_failures
    from prb.reporting.downstream import write_bon

    checked = BonConfig.of(config, settings)
    with _shown(progress, checked.quiet) as shown:

        def job(config: BonConfig) -> Finished:
            return run(config, models=models, policy=policy, grader=grader, progress=shown)

        if checked.dry_run:
            return _dry_run(checked, job)  # type: ignore[return-value]
        finished = job(checked)
        write_bon(finished.summary, finished.folder, shown)
    result = BestOfN(finished.folder, finished.summary)
    with _carrying(result):
        check_failures(result.summary, checked.max_failed)
    return result


@verb(PpoConfig)
def ppo(
    config: PpoConfig | None = None,
    *,
    reward: Scorer | None = None,
    grader: Grader | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Ppo:
    """Train a policy against a reward model and grade its answers before and after; run or resume."""
    from prb.downstream.ppo import ppo as run
    from prb.reporting.downstream import write_ppo

    checked = PpoConfig.of(config, settings)
    with _shown(progress, checked.quiet) as shown:
        finished = run(checked, reward=reward, grader=grader, progress=shown)
        if finished.main_process and not checked.verl:
            write_ppo(finished.summary, finished.folder, shown)
    return Ppo(finished.folder, finished.summary, finished.message, finished.main_process)


@verb(CorrelateConfig)
def correlate(
    config: CorrelateConfig | None = None, *, progress: Progress | None = None, **settings: Any
) -> Correlation:
    """Measure how well a benchmark's ranking of reward models predicts what happens downstream."""
    from prb.downstream.correlate import correlate as run
    from prb.reporting.downstream import correlation_sentences, write_correlation

    checked = CorrelateConfig.of(config, settings)
    with _shown(progress, checked.quiet) as shown:
        result: dict[str, Any] = msgspec.to_builtins(run(checked, progress=shown))
        summary = {**result, "sentences": correlation_sentences(result)}
        if checked.out is not None:
            write_correlation(summary, checked.out, shown)
    return Correlation(checked.out or Path(), summary)


@verb(ReportConfig)
def report(runs: Sequence[str | Path] | ReportConfig, *, progress: Progress | None = None, **settings: Any) -> Path:
    """Write a static site from finished runs and return the path of its first page."""
    from prb.reporting.site import report as write

    checked = ReportConfig.of(runs, settings, first="runs")
    with _shown(progress, checked.quiet) as shown:
        return write(checked, progress=shown)


@verb(LeaderboardConfig)
def leaderboard(
    submissions: str | Path | LeaderboardConfig, *, progress: Progress | None = None, **settings: Any
) -> Leaderboard:
    """Check many run folders and write one site from those that pass.

    Raises `NotAccepted`, with the result attached, if all are refused, or any with `strict`.
    """
    from prb.reporting.submissions import leaderboard as write

    checked = LeaderboardConfig.of(submissions, settings, first="submissions")
    with _shown(progress, checked.quiet) as shown:
        return write(checked, progress=shown)


@verb(ExportConfig)
def export(run: str | Path | ExportConfig, *, progress: Progress | None = None, **settings: Any) -> list[Path]:
    """Write a finished evaluation in a format that other tools read; returns the paths of the files."""
    from prb.reporting.formats import export as write

    checked = ExportConfig.of(run, settings, first="run")
    with _shown(progress, checked.quiet) as shown:
        return write(checked, progress=shown)


@verb(ServeConfig)
def serve(config: ServeConfig | None = None, *, model: RewardModel | None = None, **settings: Any) -> None:
    """Serve a reward model over HTTP until interrupted."""
    from prb.serving.server import serve as run

    checked = ServeConfig.of(config, settings)
    with _shown(None, checked.quiet) as shown:
        run(checked, model=model, ready=lambda server: shown.note(f"{server.model} at {server.url}"))


RESULTS: dict[str, type[Run]] = {
    "evaluate": Evaluation,
    "grade": Grading,
    "bon": BestOfN,
    "ppo": Ppo,
    "train": TrainedModel,
    "build": BuiltBenchmark,
    "audit": Audit,
    "correlation": Correlation,
}
"""By the kind of a finished result."""


def open_run(path: str | Path) -> Run:
    """The run in a folder, whichever verb made it."""
    folder = Path(path)
    if folder.is_file():
        raise BadInput(f"{folder} is a file, not the folder of a run")
    if kind_of(folder) == "train":
        from prb.models.personal.head import read as read_head

        return TrainedModel(folder, read_head(folder)[1])
    kind, content = read_any(folder)
    return RESULTS[kind](folder, content)
