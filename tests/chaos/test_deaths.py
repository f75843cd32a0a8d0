"""A job that was killed, whenever and however often, ends with the same bytes as one that was left alone."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prb.errors import PrbError
from tests.chaos.jobs import ADDRESS, JOBS, LIGHT, ON_RAY, SHARE, contents, times
from tests.chaos.operations import DEAD, Operations
from tests.chaos.processes import run, start
from tests.engine.clusters import two_nodes

pytestmark = pytest.mark.chaos


class Undisturbed:
    """What a job leaves when nothing happens, and how long that takes."""

    def __init__(self, verb: str, data: Path) -> None:
        self.verb, self.data, self.out = verb, data, data / "run"
        JOBS[verb](data, self.out)  # files of the data, caches
        shutil.rmtree(self.out)
        before = time.monotonic()
        assert run(verb, data, self.out)[0] == 0
        self.seconds = time.monotonic() - before
        self.expected: dict[str, Any] = contents(self.out)
        shutil.rmtree(self.out)

    def is_resumed(self) -> None:
        JOBS[self.verb](self.data, self.out)
        assert contents(self.out) == self.expected
        shutil.rmtree(self.out)


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    data = tmp_path_factory.mktemp("job")
    if request.param in ON_RAY:
        (data / ADDRESS).write_text(request.getfixturevalue("cluster"))
    return Undisturbed(request.param, data)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    pytest.importorskip("ray", reason="needs the ray extra")
    with two_nodes() as nodes:
        yield nodes.address


every_verb = pytest.mark.parametrize("job", tuple(JOBS) if SHARE else LIGHT, indirect=True)
some_verbs = pytest.mark.parametrize("job", tuple(JOBS) if SHARE else ("evaluate", "bon"), indirect=True)


@every_verb
def test_killed_at_random_moments_a_job_ends_the_same(job):
    draws, kills, longest = random.Random(job.verb), 0, job.seconds
    while kills < times(2, 20):
        running = start(job.verb, job.data, job.out)
        time.sleep(draws.uniform(0, longest))
        running.signal(signal.SIGKILL)
        code, said = running.wait()
        assert code in (-signal.SIGKILL, 0), said
        assert "Traceback" not in said
        kills += code != 0
        if code == 0:  # too late
            longest *= 0.8
        if code == 0 or draws.random() < 0.2:
            job.is_resumed()
    job.is_resumed()


@some_verbs
@pytest.mark.parametrize("fate", ["dies", "tears"])
def test_dead_at_any_file_operation_a_job_ends_the_same(job, fate):
    for at in some(operations(job), times(2, 10**6)):
        code, said = start(job.verb, job.data, job.out, at=at, fate=fate).wait()
        assert code == DEAD, (at, code, said)
        job.is_resumed()


@every_verb
@pytest.mark.parametrize("fate", ["fails", "full"])
def test_a_file_operation_that_fails_is_one_line_and_the_job_is_resumed(job, fate):
    for at in some(operations(job), times(4, 10**6)):
        with pytest.MonkeyPatch.context() as patch:
            Operations(job.out, at, fate).install(patch)
            said = ""
            try:
                JOBS[job.verb](job.data, job.out)
            except PrbError as error:
                said = str(error)
        assert "\n" not in said, at
        assert said or contents(job.out) == job.expected, at  # what may fail, such as removing a lock
        job.is_resumed()


@some_verbs
def test_a_signal_and_a_second_one_leave_no_traceback(job):
    draws = random.Random(job.verb)
    for n in range(times(2, 20)):
        running = start(job.verb, job.data, job.out)
        running.until_at_work()
        time.sleep(draws.uniform(0, 1) * job.seconds)
        if n % 2:
            running.signal(signal.SIGTERM)
        else:
            running.signal(signal.SIGINT)
            time.sleep(draws.uniform(0, 0.02))
            running.signal(signal.SIGINT)
        code, said = running.wait()
        assert code in (0, 130, -signal.SIGTERM), (code, said)
        assert "Traceback" not in said
        job.is_resumed()


@some_verbs
def test_of_several_writers_at_once_one_writes_and_the_others_are_told(job):
    for _ in range(times(1, 20)):
        ends = [running.wait() for running in [start(job.verb, job.data, job.out) for _ in range(3)]]
        assert {code for code, _ in ends} <= {0, 2}, ends
        assert 0 in [code for code, _ in ends], ends
        assert all("is being written by another process" in said for code, said in ends if code), ends
        assert contents(job.out) == job.expected
        shutil.rmtree(job.out)


def operations(job: Undisturbed) -> int:
    """How many a whole run has."""
    with pytest.MonkeyPatch.context() as patch:
        counting = Operations(job.out)
        counting.install(patch)
        JOBS[job.verb](job.data, job.out)
    shutil.rmtree(job.out)
    return counting.count


def some(total: int, most: int) -> list[int]:
    """Numbers from 1 to `total`: all of them, or so many at even distances."""
    return sorted({1 + n * (total - 1) // max(1, min(most, total) - 1) for n in range(min(most, total))})
