"""What each verb prints of its result. A command with a second word is in the file of its verb."""

# ruff: noqa: T201

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import prb
from prb.cli.parse import print_json
from prb.errors import ResultFailed
from prb.types import visible

if TYPE_CHECKING:
    from prb.building.config import BuildConfig
    from prb.downstream.bon import BonConfig
    from prb.downstream.correlate import CorrelateConfig
    from prb.downstream.ppo import PpoConfig
    from prb.evaluation.audit import AuditConfig
    from prb.evaluation.compare import CompareConfig
    from prb.evaluation.config import EvaluateConfig
    from prb.evaluation.run import MergeConfig
    from prb.grading import GradeConfig
    from prb.grading.license import LicenseConfig
    from prb.reporting.formats import ExportConfig
    from prb.reporting.results import Run
    from prb.reporting.site import ReportConfig
    from prb.reporting.submissions import LeaderboardConfig
    from prb.serving.server import Ready, ServeConfig
    from prb.training.config import FullConfig, TrainConfig

R = TypeVar("R")


def evaluate(config: EvaluateConfig) -> None:
    print_run(lambda: prb.evaluate(config), _run_and_site, json=config.json)


def merge(config: MergeConfig) -> None:
    print_run(lambda: prb.merge(config), _run_and_site, json=config.json)


def _run_and_site(run: Run) -> str:
    return f"run: {run.folder}   site: prb report {run.folder}"


def compare(config: CompareConfig) -> None:
    from prb.reporting.format import show

    result = prb.compare(config)
    print_json(result.summary) if config.json else show(*result.tables())


def audit(config: AuditConfig) -> None:
    print_run(lambda: prb.audit(config), lambda r: f"written: {r.folder}", json=config.json)


def grade(config: GradeConfig | LicenseConfig) -> None:
    print_run(lambda: prb.grade(config), lambda result: f"run: {result.folder}", json=config.json)


def bon(config: BonConfig) -> None:
    print_run(lambda: prb.best_of_n(config), lambda result: f"run: {result.folder}", json=config.json)


def build(config: BuildConfig) -> None:
    from prb.reporting.format import say, show
    from prb.reporting.results import build_lines

    result, failed = finished(lambda: prb.build(config))
    if config.json:
        print_json(result.summary)
    elif config.dry_run:
        show(*result.tables())
    else:
        say(*build_lines(result.summary))
        usable = result.summary["counts"]["rows"] and not result.summary["stopped_after"]
        hint = f"   try: prb evaluate --dataset {result.pairs}" if usable else ""
        print(f"build: {result.folder}{hint}")
    if failed:
        raise failed


def correlate(config: CorrelateConfig) -> None:
    from prb.reporting.format import say, show

    result = prb.correlate(config)
    if config.json:
        print_json(result.summary)
        return
    show(*result.tables())
    say(*result.summary["sentences"])
    if config.out is not None:
        print(f"written: {config.out}")


def train(config: TrainConfig | FullConfig) -> None:
    from prb.reporting.format import say
    from prb.reporting.results import train_lines
    from prb.training.config import FullConfig

    result, _ = finished(lambda: prb.train(config))
    if config.json:
        print_json(result.summary)
        return
    if not isinstance(config, FullConfig):
        say(*train_lines(result.summary))
    print(f"evaluate: prb evaluate --dataset {quote(config.dataset)} --model random --model {quote(result.spec)}")


def train_usage() -> str:
    from prb.models.personal.methods import METHODS

    rows = {name: METHODS.summary(name) for name in METHODS}
    rows |= {
        "reward-model": "Fine-tune a whole model with a reward head, through trl (extra `train`).",
        "dpo": "Fine-tune a whole model by DPO, an implicit reward, through trl (extra `train`).",
    }
    width = max(map(len, rows))
    listed = "\n".join(f"  {name:<{width}}  {what}" for name, what in rows.items())
    return (
        "usage: prb train METHOD [options]      then: prb evaluate --model 'personal?path=DIR'\n\n"
        f"methods:\n{listed}\n\n"
        "Settings of a method follow its name: 'bilinear?rank=16'. `prb train METHOD --help` shows the options."
    )


def ppo(config: PpoConfig) -> None:
    from prb.reporting.downstream import ppo_lines
    from prb.reporting.format import say, show

    result, _ = finished(lambda: prb.ppo(config))
    if not result.main_process:  # one of several that accelerate started
        return
    if config.verl:
        print(result.message)
    elif config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        say(*ppo_lines(result.summary))
        paths = f"curves: {result.folder / 'curves.csv'}   policy: transformers/{result.folder / 'policy'}"
        print(f"run: {result.folder}   {paths}")


def report(config: ReportConfig) -> None:
    from prb.reporting.site import report_summaries, report_tables

    if config.json:
        print_json(report_summaries(config))
    elif config.format == "site":
        print(f"report: {prb.report(config)}")
    else:
        print(report_tables(config), end="")


def leaderboard(config: LeaderboardConfig) -> None:
    result, failed = finished(lambda: prb.leaderboard(config))
    if config.json:
        site = str(result.index) if result.index else None
        print_json({"site": site, "accepted": list(result.accepted), "refused": dict(result.refused)})
    else:
        for name in result.accepted:
            print(visible(f"accepted: {name}"))
        for name, reason in result.refused.items():
            print(visible(f"refused:  {name}: {reason}"))
        if result.index:
            print(f"report: {result.index}")
    if failed:
        raise failed


def export(config: ExportConfig) -> None:
    paths = [str(path) for path in prb.export(config)]
    print_json(paths) if config.json else print("\n".join(paths))


def serve(config: ServeConfig) -> None:
    import orjson

    from prb.serving.server import serve as run

    def note(text: str) -> None:
        if not config.quiet:
            print(text, file=sys.stderr, flush=True)

    def ready(server: Ready) -> None:
        if config.json:
            print(orjson.dumps(server).decode(), flush=True)
        note(f"{server.model} at {server.url}; Ctrl-C answers accepted requests and stops")

    done = run(config, ready=ready)
    note(f"stopped; {done.scored:,} answers scored, {done.failed:,} failed")


def finished(verb: Callable[[], R]) -> tuple[R, ResultFailed | None]:
    """The result of a verb, and why it does not pass: a finished result is shown before the command fails.

    What models and other plug-ins print goes to stderr: stdout is for the result.
    """
    try:
        with redirect_stdout(sys.stderr):
            return verb(), None
    except ResultFailed as failed:
        return failed.result, failed


def print_run(verb: Callable[[], Run], footer: Callable[[Run], str], *, json: bool) -> None:
    """Run a verb and print the summary as JSON, or tables and a footer."""
    from prb.reporting.format import show

    result, failed = finished(verb)
    if json:
        print_json(result.summary)
    else:
        show(*result.tables())
        if "dry_run" not in result.summary:
            print(footer(result))
    if failed:
        raise failed
