"""Jobs as processes of their own, with the exit codes and signals of the command line; forked, so they start fast."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.chaos.jobs import JOBS
from tests.chaos.operations import Fate, Operations
from tests.chaos.paid import PAID

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300


@dataclass
class Running:
    process: BaseProcess
    stderr: Path

    def until_at_work(self) -> None:
        """Past its start, from when on the command line answers for signals."""
        while self.process.is_alive() and not _at_work(self.stderr).exists():
            time.sleep(0.001)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid
        # the server that forked it collects it, so it may be gone before `is_alive` says so
        with contextlib.suppress(ProcessLookupError):
            if self.process.is_alive():
                os.kill(self.process.pid, number)

    def wait(self) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        self.process.join(PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            pytest.fail(f"no end after {PATIENCE} s; it said: {self.stderr.read_text()}")
        return self.process.exitcode, self.stderr.read_text()


def start(verb: str, data: Path, folder: Path, *, at: int = 0, fate: Fate = "counts") -> Running:
    """`prb VERB`; its n-th file operation may be its last."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.chaos.warm", "tests.chaos.processes"])
    stderr = data / f"stderr-{time.monotonic_ns()}"
    stderr.touch()
    with pytest.MonkeyPatch.context() as patch:  # for the server that forks, if this is the first one
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "src"))))
        process = context.Process(target=_work, args=(verb, data, folder, stderr, at, fate))
        process.start()
    return Running(process, stderr)


def run(verb: str, data: Path, folder: Path) -> tuple[int, str]:
    return start(verb, data, folder).wait()


def _at_work(stderr: Path) -> Path:
    return stderr.with_suffix(".at-work")


def _work(verb: str, data: Path, folder: Path, stderr: Path, at: int, fate: Fate) -> None:
    from prb import cli

    descriptor = os.open(stderr, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def dispatch(_: list[str]) -> None:
        _at_work(stderr).touch()
        {**JOBS, **PAID}[verb](data, folder)

    cli._dispatch = dispatch
    if at:
        Operations(folder, at, fate).install(pytest.MonkeyPatch())
    cli.main([verb])
