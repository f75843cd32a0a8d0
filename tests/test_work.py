"""The one loop that asks models, and what follows: torn and changed lines, failures, caches."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.cache import Cache
from prb.errors import BudgetUsedUp, RunConflict, Unreachable
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.progress import SILENT
from prb.types import Ask, Choice, Duel, Failure, Post, Query, Reward, Turn
from prb.work import (
    OUT_OF_MEMORY,
    Breaker,
    Call,
    CalledModel,
    Replies,
    Reply,
    ask_missing,
    calls_of,
    halve_if_out_of_memory,
    in_order,
    open_replies,
)
from tests.conftest import make_row, make_twins
from tests.runs import Notes, settings

Answer = Callable[[int], Any]
Write = Callable[..., Path]
ROWS = [row for n in range(1, 6) for row in (*make_twins(n), make_row(10 + n))]


class Numbers:
    """Doubles a number; keeps what it is asked."""

    fingerprint = "numbers"

    def __init__(self, answer: Answer = lambda n: float(2 * n), workers: int = 1, *, remote: bool = False) -> None:
        self.asked: list[int] = []
        self.batches: list[list[int]] = []
        self.workers, self.remote = workers, remote
        self._answer = answer

    def score(self, asks: Sequence[int]) -> list[Any]:
        self.batches.append(list(asks))
        self.asked += asks
        return [self._answer(ask) for ask in asks]


def plan(numbers: Sequence[int], batch: int = 3) -> list[tuple[list[int], list[Call]]]:
    groups = [list(numbers[n : n + batch]) for n in range(0, len(numbers), batch)]
    return [(group, [Call(b"key %d" % number, number) for number in group]) for group in groups]


def run(
    model: Numbers, path: Path, numbers: Sequence[int] = range(10), *, cache: Cache | None = None, **options: Any
) -> dict[int, float | str | None]:
    """What each number's reply is, in a run that may have been begun before."""
    with Replies(path, cache, **options) as replies:
        asked = CalledModel.of("numbers", model, "score")
        batches = list(ask_missing(plan(numbers), replies, asked, Breaker()))
        assert [number for batch in batches for number in batch] == list(numbers)
        found = {number: replies[b"key %d" % number] for number in numbers}
    return {number: reply.failure or reply.value for number, reply in found.items()}


EXPECTED = {n: 2.0 * n for n in range(10)}


def test_every_call_gets_its_reply_and_equal_calls_are_made_once(tmp_path):
    model = Numbers()
    assert run(model, tmp_path / "r", [3, 1, 3, 3, 2, 1]) == {3: 6.0, 1: 2.0, 2: 4.0}
    assert model.batches == [[3, 1], [2]]
    again = Numbers()
    assert run(again, tmp_path / "r", [1, 2, 3, 4])[4] == 8.0
    assert again.asked == [4]


@pytest.mark.parametrize("workers", [2, 5])
def test_several_workers_change_nothing_but_time(workers, tmp_path):
    together = threading.Barrier(2, timeout=30)
    first = [True] * 2

    def slow(n: int) -> float:
        if n in (0, 3) and first[n // 3]:
            first[n // 3] = False
            together.wait()  # two batches are under way at once
        return 2.0 * n

    assert run(Numbers(slow, workers), tmp_path / "r") == EXPECTED


def test_results_come_in_order_and_an_error_reaches_the_caller():
    assert list(in_order(range(20), lambda n: n * n, 4)) == [(n, n * n) for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(in_order([2, 1, 0], lambda n: 1 / n, 2))


@pytest.mark.parametrize("seed", range(30))
def test_a_file_cut_or_changed_anywhere_costs_calls_and_nothing_else(seed, tmp_path):
    path, rng = tmp_path / "r", random.Random(seed)
    run(Numbers(), path)
    content = bytearray(path.read_bytes())
    if seed % 2:
        content = content[: rng.randrange(len(content))]
        affected = 10 - content.count(b"\n")
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(7)
        affected = 2  # a changed line feed spoils two lines
    path.write_bytes(content)
    model = Numbers()
    replies = run(model, path)
    assert len(model.asked) <= affected
    if seed % 2:
        assert replies == EXPECTED


@pytest.mark.parametrize(
    ("damage", "asked"),
    [
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines, lines[4], lines[4]], 0),
        (lambda lines: list(reversed(lines)), 0),
        (lambda lines: [*lines[:5], b"{]\n", *lines[6:]], 1),
        (lambda lines: [*lines[:5], b"\n", b"[1]\n", *lines[6:]], 1),
        (lambda lines: [b"\xff\xfe\n", *lines], 0),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 1),
    ],
    ids=["deleted", "doubled", "reversed", "garbled", "of another shape", "not text", "torn"],
)
def test_a_deleted_doubled_or_garbled_line_costs_one_call_not_the_folder(damage, asked, tmp_path):
    run(Numbers(), tmp_path / "r")
    lines = (tmp_path / "r").read_bytes().splitlines(keepends=True)
    (tmp_path / "r").write_bytes(b"".join(damage(lines)))
    model = Numbers()
    assert run(model, tmp_path / "r") == EXPECTED
    assert len(model.asked) == asked


def test_lines_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "replies.jsonl").write_bytes(b'{"key": "00", "value": 1e999}\n{"key": "00"}\n{"value": 1}\n')
    notes = Notes()
    with open_replies(tmp_path, notes, cache=False) as replies:
        assert (replies.unreadable, len(replies)) == (3, 0)
    assert notes.notes == ["3 lines of replies.jsonl cannot be read; what they replied to is asked again"]


@pytest.mark.parametrize(("kind", "asked"), [("transient", [4]), ("row", []), ("unmeasured", [])])
def test_a_failure_that_may_pass_is_owed_again(kind, asked, tmp_path):
    failure = Failure("busy", prompt_tokens=3, cost=0.5, kind=kind)
    first = run(Numbers(lambda n: failure if n == 4 else Reward(n, tokens=2, cost=1.0)), tmp_path / "r")
    assert first[4] == "busy"
    model = Numbers(lambda n: Reward(n, tokens=2, cost=1.0))
    second = run(model, tmp_path / "r")
    assert model.asked == asked
    assert second[4] == (4.0 if asked else "busy")
    if asked:  # what the failure cost is not forgotten
        with Replies(tmp_path / "r") as replies:
            assert (replies[b"key 4"].cost, replies[b"key 4"].tokens) == (1.5, 5)


@pytest.mark.parametrize(
    ("kind", "answers", "error", "left"),
    [("fatal", range(4), Unreachable, [4, 5, 6, 7, 8, 9]), ("budget", [0, 1, 2, 3, 5], BudgetUsedUp, [4, 6, 7, 8, 9])],
)
def test_no_connection_or_no_budget_stops_the_run_and_keeps_what_was_answered(kind, answers, error, left, tmp_path):
    with pytest.raises(error, match="it is gone"):
        run(Numbers(lambda n: 2.0 * n if n in answers else Failure("it is gone", kind=kind)), tmp_path / "r")
    model = Numbers()
    assert run(model, tmp_path / "r") == EXPECTED
    assert sorted(model.asked) == left


def test_a_slow_model_computes_a_batch_in_parts(tmp_path):
    model = Numbers()
    model.at_once = 1
    assert run(model, tmp_path / "r") == EXPECTED
    assert max(map(len, model.batches)) == 1


@pytest.mark.parametrize("remote", [True, False])
def test_another_run_asks_nothing_that_was_paid_for(remote, tmp_path):
    cache = Cache(tmp_path / "cache.sqlite")
    paid = Numbers(lambda n: Reward(n, tokens=0 if remote else 7, cost=0.1), remote=remote)
    first = run(paid, tmp_path / "a", cache=cache)
    again = Numbers(remote=remote)
    assert run(again, tmp_path / "b", cache=cache) == first
    assert again.asked == []
    with Replies(tmp_path / "b") as replies:
        assert replies[b"key 3"].cost == 0  # it was paid for elsewhere
    assert run(again, tmp_path / "c") == EXPECTED  # without the cache


def test_failures_and_what_is_free_are_not_cached(tmp_path):
    cache = Cache(tmp_path / "cache.sqlite")
    run(Numbers(lambda n: Failure("odd", prompt_tokens=5) if n % 2 else 2.0 * n), tmp_path / "a", cache=cache)
    model = Numbers()
    assert run(model, tmp_path / "b", cache=cache) == EXPECTED
    assert len(model.asked) == 10


def test_objects_of_the_caller_with_one_fingerprint_do_not_answer_for_each_other():
    asks = [Ask(Query(question="q"), "a")]
    starts = [CalledModel.of(name, Numbers(), "score", from_caller=True).key_start() for name in ("mine", "yours")]
    assert calls_of(starts[0], asks)[0].key != calls_of(starts[1], asks)[0].key


def test_what_a_reply_took_is_counted_once(tmp_path):
    with Replies(tmp_path / "r") as replies:
        replies.add({b"k": Reply(value=1.0, tokens=5, cost=0.5, text=["because"])})
        assert replies.take(b"k").cost == 0.5
        assert replies.take(b"k") == Reply(value=1.0, text=["because"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e101, -1e300])
def test_a_number_that_cannot_be_computed_with_is_a_failure(value):
    assert "number" in str(Reply.of(value).failure)
    assert Reply.of(Reward(value, cost=0.0)).value is None


def test_a_failure_comes_back_from_its_reply_with_kind_and_cost():
    failure = Failure("refused", "says: no", prompt_tokens=7, completion_tokens=3, cost=0.5, kind="transient")
    again = Reply.of(failure).as_failure
    assert again is not None
    assert asdict(again) == asdict(failure)  # what it took and its kind do not count in ==
    assert Reply.of(1.0).as_failure is None


# --- keys ---

CALLED = CalledModel("model", list, "model", method="score")
START = CALLED.key_start()
texts = st.text(max_size=4)
queries = st.builds(
    Query,
    question=texts,
    user=st.none() | texts,
    context=st.lists(st.builds(Turn, role=st.sampled_from(["user", "assistant"]), text=texts), max_size=2).map(tuple),
    posts=st.lists(st.builds(Post, id=texts, category=texts, text=texts), max_size=2).map(tuple),
    choices=st.lists(st.builds(Choice, question=texts, chosen=texts, rejected=texts), max_size=2).map(tuple),
    plan=st.lists(texts, max_size=2).map(tuple),
)


@given(st.lists(st.tuples(queries, texts), min_size=2, max_size=2))
def test_two_asks_have_one_key_exactly_if_they_are_equal(pair):
    (a,), (b,) = (calls_of(START, [Ask(*ask)]) for ask in pair)
    assert (a.key == b.key) == (pair[0] == pair[1])


def test_the_model_and_the_order_of_answers_belong_to_the_key():
    query = Query(question="q")
    keys = {call.key for call in calls_of(START, [Duel(query, "a", "b"), Duel(query, "b", "a"), Duel(query, "ab", "")])}
    others = (CALLED._replace(identity="another").key_start(), CALLED._replace(method="prefer").key_start())
    assert len(keys | {calls_of(other, [Duel(query, "a", "b")])[0].key for other in others}) == 5


# --- a run and its models ---


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl(ROWS)


def test_a_model_that_changed_is_never_reported_with_old_numbers(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def accuracy(score: Callable[[Ask], float], fingerprint: str, out: Path | None = None) -> tuple[float, Path]:
        config = settings(data, out, condition=("none",), dataset=str(data))
        finished = evaluate(config, models={"mine": ScriptedScorer(score, fingerprint)}, progress=SILENT)
        return finished.summary["results"][0]["accuracy"]["value"], finished.folder

    longer, shorter = (lambda ask: float(len(ask.answer))), (lambda ask: -float(len(ask.answer)))
    first, folder = accuracy(longer, "one")
    second, other = accuracy(shorter, "two")
    assert first + second == pytest.approx(1.0)
    assert other != folder
    assert accuracy(shorter, "two") == (second, other)  # the same again: the same folder
    assert accuracy(longer, "one") == (first, folder)
    with pytest.raises(RunConflict, match=r"model 'mine' was 'one' when the run began and is 'two' now"):
        accuracy(shorter, "two", folder)


# --- what does not fit in memory is computed in parts, after the failed attempt has let go of its memory ---
class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class Activations(list[int]):
    """Memory that an attempt holds while it runs."""


class Device:
    """Holds `room` items at once, and counts what earlier attempts still hold."""

    def __init__(self, room: int, error: type[BaseException] = OutOfMemoryError) -> None:
        self._room, self._error = room, error
        self._held: list[weakref.ref[Activations]] = []
        self.calls: list[int] = []

    def compute(self, items: Sequence[int]) -> list[int | Failure]:
        activations = Activations(items)
        self._held.append(weakref.ref(activations))
        self.calls.append(len(items))
        if sum(len(held) for ref in self._held if (held := ref()) is not None) > self._room:
            raise self._error
        return [item * 2 for item in activations]


@pytest.mark.parametrize("error", [OutOfMemoryError, MemoryError])
def test_halves_are_tried_when_nothing_of_the_failed_attempt_is_held(error):
    device = Device(3, error)
    assert halve_if_out_of_memory(device.compute, range(10)) == [item * 2 for item in range(10)]
    assert max(device.calls[1:]) == 5


def test_what_does_not_fit_alone_is_a_failure_and_the_rest_is_not():
    def compute(items: Sequence[int]) -> list[int]:
        if 7 in items:
            raise MemoryError
        return list(items)

    found = halve_if_out_of_memory(compute, range(10))
    assert found == [*range(7), Failure(OUT_OF_MEMORY, "it does not fit alone"), 8, 9]
