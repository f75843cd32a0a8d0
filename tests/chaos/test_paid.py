"""What was answered and stored is never asked again: after kills, and in another folder."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx2", reason="needs the api extra")

from tests.chaos.jobs import contents, times
from tests.chaos.paid import ANSWERS, URL, VERBS, any_role, job, number, reply, stored
from tests.chaos.processes import start
from tests.llm.server import Server, serve

pytestmark = [pytest.mark.chaos, pytest.mark.parametrize("verb", VERBS)]


@pytest.fixture
def server(verb: str, tmp_path: Path) -> Iterator[Server]:
    with serve(lambda seen: reply(seen, ANSWERS.get(verb, any_role))) as running:
        (tmp_path / URL).write_text(running.url)
        yield running


def asked(server: Server, since: int = 0) -> list[int]:
    return [number(seen) for seen in server.seen[since:]]


def test_killed_at_random_moments_no_stored_reply_is_asked_for_again(verb, server, tmp_path):
    out, draws, kills = tmp_path / "out", random.Random(verb), 0
    begun = time.monotonic()
    job(verb, tmp_path, tmp_path / "whole")
    seconds, calls = time.monotonic() - begun, asked(server)
    expected, everything = contents(tmp_path / "whole"), set(calls)
    assert len(calls) == len(everything) == len(stored(tmp_path / "whole"))
    begun, repeated = time.monotonic(), 0
    while kills < times(2, 20):
        known, since = stored(out), len(server.seen)
        running = start(f"{verb}, paid", tmp_path, out)
        running.until_at_work()
        if draws.random() < 0.8:  # most kills while it waits for replies, some while it reads what is there
            while running.process.is_alive() and len(server.seen) == since:
                time.sleep(0.001)
        time.sleep(draws.uniform(0, seconds / 4))
        running.signal(signal.SIGKILL)
        code, said = running.wait()
        now = asked(server, since)
        assert code in (-signal.SIGKILL, 0), said
        assert not known & set(now)
        assert len(now) == len(set(now))
        assert known <= stored(out) <= everything
        kills += code != 0
        repeated += len(set(now) - stored(out))
        if code == 0:
            assert contents(out) == expected
            shutil.rmtree(out)
    known, since = stored(out), len(server.seen)
    job(verb, tmp_path, out)
    assert sorted(asked(server, since)) == sorted(everything - known)
    assert contents(out) == expected
    asked_again = f"{repeated} that were under way were asked again, none that was stored"
    print(f"\n{verb}: {kills} kills, {len(everything)} calls; {asked_again}; {time.monotonic() - begun:.0f} s")


def test_a_run_repeated_in_a_second_folder_makes_no_call(verb, server, tmp_path):
    job(verb, tmp_path, tmp_path / "first", cache=True)
    calls = len(server.seen)
    job(verb, tmp_path, tmp_path / "second", cache=True)
    assert calls > 0
    assert len(server.seen) == calls
