"""What does not fit in memory is computed in parts, after the failed attempt has let go of its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from prb.api import evaluate
from prb.failures import OUT_OF_MEMORY, compute_in_halves, halve_if_out_of_memory, is_out_of_memory
from prb.runs import OUTCOMES, read_lines
from prb.serving.server import score_isolated
from prb.types import Ask, Failure, Query
from tests.conftest import make_row


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
def test_halves_are_tried_when_nothing_of_the_failed_attempt_is_held(error: type[BaseException]) -> None:
    device = Device(3, error)
    assert halve_if_out_of_memory(device.compute, range(10)) == [item * 2 for item in range(10)]
    assert max(device.calls[1:]) == 5


def test_what_does_not_fit_alone_is_a_failure_and_the_rest_is_not() -> None:
    def compute(items: Sequence[int]) -> list[int]:
        if 7 in items:
            raise MemoryError
        return list(items)

    found = halve_if_out_of_memory(compute, range(10))
    assert found == [*range(7), Failure(OUT_OF_MEMORY, "it does not fit alone"), 8, 9]


def test_other_errors_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        halve_if_out_of_memory(lambda items: [1 // 0 for _ in items], [1, 2])
    assert compute_in_halves(lambda _: [], [], retries=lambda _: True, failure=lambda _: Failure("x")) == []


def test_words_for_running_out_of_memory_are_known() -> None:
    for message in (
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ):
        assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))


class Scorer:
    fingerprint = "small-device"

    def __init__(self, room: int) -> None:
        self._device = Device(room)

    def score(self, asks: Sequence[Ask]) -> list[float]:
        self._device.compute([1] * sum(len(ask.answer) for ask in asks))
        return [float(len(ask.answer)) for ask in asks]


def test_evaluate_and_serve_halve_what_does_not_fit(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    rows = [make_row(n, chosen="good" * (3 * n + 1), rejected="bad") for n in range(3)]
    run = tmp_path / "run"
    evaluate(
        model=["small"],
        models={"small": Scorer(18)},
        dataset=str(write_jsonl(rows)),
        condition=["none"],
        max_failed=1.0,
        out=run,
    )
    lines = list(read_lines(run / OUTCOMES))
    assert [line["credit"] for line in lines] == [1.0, 1.0, None]
    assert lines[-1]["failure"].startswith(OUT_OF_MEMORY)
    asks = [Ask(Query(question="q"), "x" * n) for n in (9, 21)]
    assert score_isolated(Scorer(18).score, asks) == [9.0, Failure(OUT_OF_MEMORY, "OutOfMemoryError")]
