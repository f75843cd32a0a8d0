"""Progress of long work: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from prb.errors import redact_options
from prb.types import visible

if TYPE_CHECKING:
    from rich.progress import TaskID


class Progress(Protocol):
    def begin(self, label: str, total: int | None = None, done: int = 0) -> None: ...
    def advance(self, n: int = 1) -> None: ...
    def status(self, text: str) -> None:
        """Text beside the label, such as the cost so far."""

    def note(self, text: str) -> None: ...


class Silent:
    def begin(self, label: str, total: int | None = None, done: int = 0) -> None: ...
    def advance(self, n: int = 1) -> None: ...
    def status(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


SILENT = Silent()


class Tally:
    """Failures and cost of a task so far, as its status; nothing while there are none.

    The first failure that says more than its reason, such as a reply without a verdict, is shown in full.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._failed, self._usd = progress, 0, 0.0
        self._shown = False

    def add(self, failures: Iterable[object], costs: Iterable[float]) -> None:
        """`failures`: one per line, None where there was none."""
        failed_lines = [str(failure) for failure in failures if failure is not None]
        self._failed += len(failed_lines)
        if not self._shown and (detailed := next((line for line in failed_lines if ": " in line), None)):
            self._shown = True
            self._progress.note(f"the first failure: {detailed}")
        self._usd += sum(costs)
        failed = [f"{self._failed:,} failed"] if self._failed else []
        cost = [f"${self._usd:,.4f}"] if self._usd else []
        if failed or cost:
            self._progress.status(", ".join(failed + cost))


class Lines:
    """One line at the start and one every `every` seconds, for log files, notebooks and CI."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._label, self._status, self._started, self._printed = "", "", 0.0, 0.0
        self._total: int | None = None
        self._done = self._fresh = 0

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        self._label, self._total, self._done, self._fresh, self._status = label, total, done, 0, ""
        self._started = self._printed = time.monotonic()
        self.note(label if total is None else f"{label}: {done} of {total}")

    def advance(self, n: int = 1) -> None:
        self._done += n
        self._fresh += n
        now = time.monotonic()
        if now - self._printed >= self._every:
            self._printed = now
            self.note(f"{self._label}: {self._done} of {self._total or '?'}{self._status}")

    def status(self, text: str) -> None:
        rate = self._fresh / max(time.monotonic() - self._started, 1e-9)
        self._status = f", {rate:.2g}/s, {text}"

    def note(self, text: str) -> None:
        print(visible(redact_options(text)), file=sys.stderr, flush=True)  # noqa: T201


class Bar:
    """A rich bar on stderr, so that stdout stays clean for results."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        status = TextColumn("{task.fields[status]}", markup=False)
        label = TextColumn("{task.description}", markup=False)
        columns = (label, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), status)
        self._rich = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._task: TaskID | None = None

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        if self._task is not None:
            self._rich.remove_task(self._task)
        self._rich.start()
        self._task = self._rich.add_task(redact_options(label), total=total, completed=done, status="")

    def advance(self, n: int = 1) -> None:
        if self._task is not None:
            self._rich.advance(self._task, n)

    def status(self, text: str) -> None:
        if self._task is not None:
            speed = self._rich.tasks[0].speed
            self._rich.update(self._task, status=f"{speed:.2g}/s  {text}" if speed else text)

    def note(self, text: str) -> None:
        self._rich.console.print(visible(redact_options(text)), highlight=False, markup=False)

    def stop(self) -> None:
        self._rich.stop()


@contextmanager
def watch(quiet: bool = False) -> Iterator[Progress]:
    """The progress display that fits where this process runs."""
    if quiet:
        yield SILENT
    elif sys.stderr.isatty():
        bar = Bar()
        try:
            yield bar
        finally:
            bar.stop()
    else:
        yield Lines()
