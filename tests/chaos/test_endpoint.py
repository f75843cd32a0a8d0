"""A judge whose endpoint misbehaves in 27 ways: once, and its verdicts are the same; for ever, and it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="needs the api extra")

from prb.errors import PrbError
from prb.evaluation.run import evaluate
from prb.models.judge import STYLES, PairwiseJudge
from prb.types import RewardModel
from tests.chaos.jobs import SHARE, some_rows
from tests.llm.clients import endpoint
from tests.llm.server import DRIPPING, DROPPED, GARBAGE, HANG, NO_CHOICES, Reply, Script, Seen, error, says, serve
from tests.runs import outcomes, settings

pytestmark = pytest.mark.chaos
PASSING: dict[str, Reply] = {
    "too many requests": error(429, "slow down", headers={"retry-after": "0"}),
    "timeout at the server": error(408, "too slow"),
    "internal error": error(500, "oops"),
    "bad gateway, as HTML": Reply(b"<html>Bad gateway</html>", 502),
    "unavailable": error(503, "later"),
    "overloaded": error(529, "later"),
    "HTML with status 200": GARBAGE,
    "an empty body": Reply(b""),
    "bytes that are not text": Reply(b"\xff\xfe\x00"),
    "brackets without end": Reply(b"[" * 100_000),
    "no choices": NO_CHOICES,
    "choices that are null": Reply(b'{"choices": null}'),
    "a message that is null": Reply(b'{"choices": [{"message": null}]}'),
    "a content that is a number": Reply(b'{"choices": [{"message": {"content": 7}}]}'),
    "an error with status 200": Reply(b'{"error": {"message": "the model fell over"}}'),
    "a connection that ends in the middle": DROPPED,
    "an error that ends in the middle": replace(error(500, "half of it"), drop=True),
    "silence": HANG,
    "a byte now and then": DRIPPING,
}
"""Worth another try."""
LASTING: dict[str, Reply] = {
    "a request it does not take": error(400, "too long"),
    "a wrong key": error(401, "wrong key"),
    "no such model": error(404, "no such model"),
    "a redirect elsewhere": Reply(b"", 307, (("location", "http://192.0.2.1/v1"),)),
    "no words": says(""),
    "a refusal": says(None, message={"refusal": "I will not."}),
    "stopped by a filter": says("Result: A", finish_reason="content_filter"),
    "cut before the verdict": says("Result: A", finish_reason="length"),
}
"""No other reply is to be expected."""
SLOW = ("silence", "a byte now and then")
assert len(PASSING) + len(LASTING) == 27
KINDS: Sequence[str] = tuple(PASSING) if SHARE else [kind for kind in PASSING if kind not in SLOW]


def verdict(seen: Seen) -> Reply:
    return says("Result: A" if len(seen.text) % 2 else "Result: B")


def at_first(trouble: Reply) -> Script:
    return lambda seen: trouble if seen.times == 0 else verdict(seen)


def judged(script: Script, data: Path, name: str) -> list[dict[str, Any]]:
    with serve(script) as server:
        llm = endpoint(server, retries=2, timeout=1.0 if SHARE else 20.0)
        models: dict[str, RewardModel] = {"mine": PairwiseJudge(llm, STYLES["pairwise"])}
        evaluate(settings(some_rows(data), data / name, condition=("profile",)), models=models)
    return [{key: line[key] for key in ("pair", "verdicts", "credit", "failure")} for line in outcomes(data / name)]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prb.llm.endpoint.retry_pause", lambda *_: 0.002)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return judged(verdict, tmp_path_factory.mktemp("judge"), "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_trouble_that_passes_changes_no_verdict(kind, undisturbed, tmp_path):
    assert judged(at_first(PASSING[kind]), tmp_path, "run") == undisturbed


@pytest.mark.parametrize("kind", [*KINDS, *LASTING])
def test_trouble_that_stays_is_a_failure_and_never_a_verdict(kind, tmp_path):
    trouble = {**PASSING, **LASTING}[kind]
    try:
        lines = judged(lambda _: trouble, tmp_path, "run")
    except PrbError as refused:
        lines = outcomes(tmp_path / "run") if (tmp_path / "run").exists() else []
        said = str(refused)
        assert said
    assert all(line["credit"] is None and line["failure"] for line in lines)
