"""Hooks: objects that follow a run, such as an experiment tracker or a class of your own.

    class Printer:                                   # any of these three methods
        def on_run_start(self, run: RunStart) -> None: ...
        def on_batch(self, batch: Batch) -> None: ...
        def on_result(self, result: RunResult) -> None: ...

`--hook wandb`, `--hook mine.py:Printer` or `prb.evaluate(hooks=[Printer()])`. Other packages declare theirs under the
entry-point group `prb.hooks`. A hook that raises is reported in one line and not called again: no tracker may cost a
result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from prb.config import Name, Repeated, Settings, config
from prb.registry import Registry
from prb.types import Outcome, visible


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins or is resumed."""

    verb: str
    folder: Path
    settings: Mapping[str, Any]
    """As `config.json` has them."""
    dataset: Mapping[str, Any]
    """Name, fingerprint and number of rows."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows that one model has just finished, under all conditions. Their lines are on disk already."""

    model: str
    done: int
    """Rows of this model so far, earlier processes included."""
    total: int
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run."""

    folder: Path
    summary: Mapping[str, Any]
    """The content of `summary.json`."""


Event = Literal["on_run_start", "on_batch", "on_result"]
HOOKS: Registry[object] = Registry("hook", package="prb.hooks", group="prb.hooks")


@config
class HookConfig(Settings):
    """Who follows the run."""

    presentation: ClassVar[frozenset[str]] = frozenset({"hook"})

    hook: Repeated[Name] = ()
    """Tell a tracker how the run goes: `wandb`, `mlflow`, `trackio`, or `mine.py:Class`."""


class Hooks:
    """The hooks of one run."""

    def __init__(self, specs: Sequence[str], given: Sequence[object] = ()) -> None:
        """Specs are built at once, so a wrong name or a missing package is an error before anything happens."""
        self._hooks = [(spec, HOOKS.make(spec)) for spec in specs]
        self._hooks += [(type(hook).__name__, hook) for hook in given]

    def tell(self, event: Event, about: object) -> None:
        """Call a method of every hook that has it; what it prints goes to standard error."""
        for name, hook in tuple(self._hooks):
            try:
                with redirect_stdout(sys.stderr):
                    getattr(hook, event, lambda _: None)(about)
            except Exception as error:  # third-party code: anything can be wrong with it
                self._hooks.remove((name, hook))
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                warning = f"prb: hook {name!r} failed in {event} and is left out from here on ({reason})"
                print(visible(warning), file=sys.stderr)  # noqa: T201 - also where no progress is shown
