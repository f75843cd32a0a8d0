"""`prb VERB …`: a command parses, calls and prints. Only the verb that was asked for is imported."""

# ruff: noqa: T201

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

INTERRUPTED = 130
RESUME = "interrupted; run the same command again to resume"
VERBS = {
    "evaluate": "score reward models on a personalized benchmark (the main job)",
    "merge": "merge the shards of `prb evaluate --shard` into one run",
    "compare": "compare two runs, paired",
    "report": "write a static site from runs: leaderboard, models, pairs, downstream",
    "leaderboard": "check many submissions and write one site from them",
    "export": "write a run for the hub, every_eval_ever, inspect, CSV or Parquet",
    "build": "build a benchmark from users' records",
    "data": "check | show | stats | convert | push a dataset",
    "train": "train a personalization-aware reward model",
    "models": "list | pull reward models and weights",
    "bon": "best-of-N: what a reward model picks, graded against the rubric",
    "ppo": "train a policy against a reward model and grade its answers",
    "correlate": "does a benchmark predict downstream results?",
    "serve": "serve a reward model over HTTP",
    "study": "human evaluation: new | serve | export | agree | demo",
    "audit": "measure how much of a benchmark needs the user",
    "grade": "grade answers against the rubric, validate a grader",
    "cache": "stats | clear cached model outputs",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 failed, 2 bad input or usage, 130 interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the parent process set another one
        signal.signal(signal.SIGINT, _interrupt)
    code = run(list(sys.argv[1:] if argv is None else argv))
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _interrupt(*_: object) -> None:
    """The first Ctrl-C lets a verb clean up; a second one exits at once, since files are whole at any moment."""

    def leave(*_: object) -> None:
        os.write(2, f"prb: {RESUME}\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    raise KeyboardInterrupt


def run(args: list[str]) -> int:
    from prb.errors import PrbError
    from prb.redact import redact_options
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
    return 0


def _dispatch(args: list[str]) -> None:
    if "--quiet" in args:  # also before the verb
        args = [*(word for word in args if word != "--quiet"), "--quiet"]
    if not args or args[0] in ("-h", "--help", "--quiet"):
        print(usage())
    elif args[0] == "--version":
        from prb import __version__

        print(f"prb {__version__}")
    elif args[0] not in VERBS:
        from prb.errors import unknown

        raise unknown("verb", args[0], VERBS, hint="`prb --help` lists them")
    else:
        import_module(f"prb.cli.{args[0]}").command(args[1:])


def usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, what in VERBS.items())
    return (
        "prb: does a reward model know whose preference it judges?\n\n"
        f"usage: prb VERB [options]\n\n{verbs}\n\n"
        "`prb VERB --help` explains one; `prb evaluate` without options runs the embedded benchmark."
    )
