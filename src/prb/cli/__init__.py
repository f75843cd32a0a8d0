"""`prb VERB …`: a command parses, calls and prints. Only the verb that was asked for is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

VERBS = {
    "evaluate": "score reward models on a personalized benchmark (the main job)",
    "compare": "two runs, paired",
    "build": "a benchmark of your own from people's records",
    "train": "a personalization-aware reward model",
    "report": "a static site from runs: leaderboard, models, pairs, downstream",
    "bon": "best-of-N: what a reward model picks, graded against the rubric",
    "correlate": "benchmark ↔ downstream, with honest significance",
    "grade": "grade answers against the rubric, validate a grader",
    "audit": "how much of a benchmark needs the person",
    "data": "check | show | stats | convert a dataset",
    "models": "list | pull reward models and weights",
    "serve": "a reward server",
    "ppo": "train a policy against a reward model, grade what comes out",
    "study": "human evaluation: new | serve | export | agree | demo",
    "cache": "stats | clear what models have said before",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 failed, 2 bad input or usage, 130 interrupted."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(args: list[str]) -> int:
    from prb.errors import PrbError

    try:
        _dispatch(args)
        sys.stdout.flush()
    except PrbError as error:
        print(f"prb: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("prb: interrupted; what was finished is kept, the same command goes on from there", file=sys.stderr)  # noqa: T201
        return 130
    except (BrokenPipeError, SystemExit) as stop:
        # the reader of our output has gone (`prb … | head`); that is its business, not an error (rich exits over it)
        if not isinstance(stop, BrokenPipeError) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(usage())  # noqa: T201
    elif args[0] == "--version":
        from prb import __version__

        print(f"prb {__version__}")  # noqa: T201
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
