"""`prb VERB …`: a command parses, calls and prints. Only the verb that was asked for is imported."""

# ruff: noqa: T201

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from prb.config import Settings
    from prb.errors import ResultFailed
    from prb.reporting.results import Run

R = TypeVar("R")
INTERRUPTED = 130
RESUME = "interrupted; run the same command again to resume"
GROUPS = {
    "measure": {
        "evaluate": "score reward models on a personalized benchmark (the main job); --require is a gate for CI",
        "compare": "is one model better than another for these users? two runs, pair by pair",
        "audit": "can a benchmark be solved without knowing the user?",
        "grade": "grade answers against users' rubrics; how good is a grader? may a judge stand in for people?",
        "merge": "one run from the shards of `prb evaluate --shard`",
    },
    "understand": {
        "report": "a static site from runs: leaderboard, models, users served badly, pairs, downstream",
        "bon": "does best-of-N gain? what a reward model picks, graded against the rubric",
        "correlate": "does a benchmark predict what happens downstream?",
    },
    "build": {
        "build": "build a benchmark from users' records",
        "data": "list, pull, check, show, convert and publish datasets",
        "study": "let people confirm pairs, or give preferences of their own, in the browser",
    },
    "train": {
        "train": "train a reward model that knows whose preference it judges",
        "ppo": "train a policy against a reward model and grade its answers",
    },
    "use": {
        "serve": "serve a reward model over HTTP",
        "models": "list reward models and their options; pull weights",
        "cache": "what models replied before: how much, and how to forget it",
    },
    "share": {
        "leaderboard": "check many submissions and write one site from them",
        "export": "write a run for others: for the hub, for other evaluation tools, as tables",
    },
}
"""Verbs by what one wants."""
VERBS = {verb: what for verbs in GROUPS.values() for verb, what in verbs.items()}
SETTINGS = {
    "evaluate": "prb.evaluation.config.EvaluateConfig",
    "compare": "prb.evaluation.compare.CompareConfig",
    "audit": "prb.evaluation.audit.AuditConfig",
    "grade": "prb.grading.GradeConfig",
    "merge": "prb.evaluation.run.MergeConfig",
    "report": "prb.reporting.site.ReportConfig",
    "bon": "prb.downstream.bon.BonConfig",
    "correlate": "prb.downstream.correlate.CorrelateConfig",
    "build": "prb.building.config.BuildConfig",
    "data list": "prb.cli.data.ListConfig",
    "data pull": "prb.cli.data.PullConfig",
    "data check": "prb.cli.data.CheckConfig",
    "data show": "prb.cli.data.ShowConfig",
    "data stats": "prb.cli.data.StatsConfig",
    "data convert": "prb.cli.data.ConvertConfig",
    "data push": "prb.cli.data.PushConfig",
    "study new": "prb.study.config.NewConfig",
    "study serve": "prb.study.config.ServeConfig",
    "study export": "prb.study.config.ExportConfig",
    "study agree": "prb.study.config.AgreeConfig",
    "study demo": "prb.study.config.DemoConfig",
    "train": "prb.training.config.TrainConfig",
    "ppo": "prb.downstream.ppo.PpoConfig",
    "serve": "prb.serving.server.ServeConfig",
    "models list": "prb.cli.data.ListModelsConfig",
    "models pull": "prb.cli.data.PullWeightsConfig",
    "cache stats": "prb.cli.data.CacheStatsConfig",
    "cache clear": "prb.cli.data.ClearCacheConfig",
    "leaderboard": "prb.reporting.submissions.LeaderboardConfig",
    "export": "prb.reporting.formats.ExportConfig",
}
"""The settings of every command. What it does with them is the function of its name, such as `data_check`, in
`data.py` or `verbs.py`; a verb without one prints its result as a run (`run_verb`)."""


def main(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 failed, 2 bad input or usage, 130 interrupted."""

    def interrupt(*_: object) -> None:
        """The first Ctrl-C lets a verb clean up; a second one exits at once, since files are whole at any moment."""
        if _interrupted:
            os.write(2, f"prb: {RESUME}\n".encode())
            os._exit(INTERRUPTED)
        _interrupted.append(True)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the parent process set another one
        signal.signal(signal.SIGINT, interrupt)
    gc.set_threshold(200_000)  # rows have no reference cycles; looking for some takes a fifth of the time of a run
    code = run(list(sys.argv[1:] if argv is None else argv))
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


_interrupted: list[bool] = []
"""Not empty after Ctrl-C, which some libraries turn into an error of their own."""


def run(args: list[str]) -> int:
    from prb.errors import PrbError, redact_options
    from prb.types import visible

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an ASCII terminal must not turn a table into a traceback
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            _dispatch(args)
        finally:
            sys.stdout.flush()
    except PrbError as error:
        print(visible(redact_options(f"prb: {error}")), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"prb: {RESUME}", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as stop:
        # the reader of our output has closed the pipe (`prb … | head`), which is not an error; rich exits because of it
        if not isinstance(stop, BrokenPipeError) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"prb: {what}", file=sys.stderr)
        return 2 if error.errno == errno.ENAMETOOLONG else 1
    except Exception:
        if not _interrupted:
            raise
        print(f"prb: {RESUME}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "--help-all"):
        print(usage())
        return
    if args[0] == "--version":
        from prb import __version__

        print(f"prb {__version__}")
        return
    from prb.errors import BadInput, MissingExtra, unknown

    verb, *args = args
    name, asks_help = verb, args[:1] in (["-h"], ["--help"], ["--help-all"])
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS, hint="`prb --help` lists them")
    if commands := commands_of(verb):
        if not args:
            raise BadInput(f"prb {verb} needs one of: {', '.join(commands)}")
        if asks_help:
            print(usage_of(verb))
            return
        if args[0] not in commands:
            raise unknown(f"command of prb {verb}", args[0], commands)
        name, args = f"{verb} {args[0]}", args[1:]
    elif verb == "train" and not {"-h", "--help", "--help-all"}.isdisjoint(args):
        from prb.cli.verbs import train_usage

        whole = args[0].startswith("-")  # else of a method: the settings in its spec, before its options
        print(train_usage("" if whole else args[0]))
        if whole:
            return
    from prb.cli.parse import parse

    config = parse(settings_of(name, args), args, name)
    module = import_module("prb.cli.data" if verb in ("data", "models", "cache") else "prb.cli.verbs")
    try:
        command = getattr(module, name.replace(" ", "_"), None)
        command(config) if command else run_verb(name, config)
    except ModuleNotFoundError:
        if verb != "study":
            raise
        raise MissingExtra("prb study", "study") from None


def run_verb(name: str, config: Settings) -> None:
    """A verb whose result is a run: its tables, lines and footer, or its summary as JSON."""
    from prb import api

    result, failed = finished(lambda: getattr(api, "best_of_n" if name == "bon" else name)(config))
    print_run(result, json=config.json)
    if failed:
        raise failed


def finished(verb: Callable[[], R]) -> tuple[R, ResultFailed | None]:
    """The result of a verb, and why it does not pass: a finished result is shown before the command fails.

    What models and other plug-ins print goes to stderr: stdout is for the result.
    """
    from prb.errors import ResultFailed

    try:
        with redirect_stdout(sys.stderr):
            return verb(), None
    except ResultFailed as failed:
        return failed.result, failed


def print_run(result: Run, *, json: bool) -> None:
    from prb.cli.parse import print_json
    from prb.reporting.format import say, show

    if json:
        print_json(result.summary)
        return
    show(*result.tables())
    say(*result.lines())
    if footer := result.footer():
        print(footer)


def commands_of(verb: str) -> list[str]:
    """The second words of a verb that has some."""
    return [name.partition(" ")[2] for name in SETTINGS if name.startswith(f"{verb} ")]


def settings_of(name: str, args: Sequence[str] = ()) -> type[Settings]:
    """The settings of a command; two verbs have more than one kind."""
    module, _, cls = SETTINGS[name].rpartition(".")
    words = {word.partition("=")[0] for word in args}
    if name == "train" and args:
        from prb.training.config import config_of

        return config_of(args[0])
    if name == "grade" and "--license" in words:
        from prb.grading.license import LicenseConfig

        return LicenseConfig
    found: type[Settings] = getattr(import_module(module), cls)
    return found


def usage() -> str:
    groups = "\n\n".join(f"{group}\n{listed(verbs, max(map(len, VERBS)))}" for group, verbs in GROUPS.items())
    return (
        "prb: does a reward model know whose preference it judges?\n\n"
        f"usage: prb VERB [options]\n\n{groups}\n\n"
        "`prb VERB --help` explains one, --help-all with all its settings.\n"
        "Every command takes --json and --quiet.\n"
        "`prb evaluate` without options runs the embedded benchmark."
    )


def usage_of(verb: str) -> str:
    """Every command of a verb with one sentence."""
    commands = commands_of(verb)
    about = {name: (settings_of(f"{verb} {name}").__doc__ or "").split(". ")[0].rstrip(".") for name in commands}
    return (
        f"usage: prb {verb} {{{','.join(commands)}}} …\n\n{VERBS[verb]}\n\n"
        f"{listed(about)}\n\n`prb {verb} COMMAND --help` explains one."
    )


def listed(rows: dict[str, str], width: int = 0) -> str:
    width = width or max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {what}" for name, what in rows.items())
