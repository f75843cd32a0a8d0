"""Where models are computed: in this process, or by replicas on the machines of a Ray cluster.

An executor loads a model and returns it, or a stand-in that is used like it. A verb hands in batches ahead of time and
takes the results in the order of submission, so its files are the same wherever they were computed:

    with open_executor(config.engine) as executor:
        model = executor.load(partial(make_model, spec), spec)
        for batch, later in ahead(batches, lambda batch: begin(model, "score", batch), window(model)):
            journal.append(later.result())
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from prb.failures import ask_model
from prb.registry import Registry

B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")


class Executor(Protocol):
    def load(self, make: Callable[[], T], name: str) -> T:
        """What `make` makes, or a stand-in for its replicas; `make` can be pickled if it may be called elsewhere."""
        ...

    def close(self) -> None: ...


class Later:
    """The results of a batch, one per item; computed on request, unless someone else is computing them already."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.seconds = 0.0
        """How long the model took, once the result is there."""
        self._compute = compute

    def result(self) -> Any:
        start = time.perf_counter()
        value = self._compute()
        self.seconds = time.perf_counter() - start
        return value


class Spread(ABC):
    """A model that takes batches ahead of time: someone else computes them."""

    @property
    @abstractmethod
    def window(self) -> int:
        """How many batches it makes sense to hand in before the first result is taken."""

    @abstractmethod
    def begin(self, method: str, batch: Sequence[Any]) -> Later: ...


EXECUTORS: Registry[Executor] = Registry("engine", package="prb.engine.executors", group="prb.executors")


@contextmanager
def open_executor(spec: str) -> Iterator[Executor]:
    executor = EXECUTORS.make(spec)
    try:
        yield executor
    finally:
        executor.close()


def given(value: T) -> T:
    """The factory of an object that exists already: `executor.load(partial(given, model), name)`."""
    return value


def begin(model: object, method: str, batch: Sequence[Any]) -> Later:
    """Hand in a batch for `model.method(batch)`; a model of this process computes it when the result is wanted."""
    return model.begin(method, batch) if isinstance(model, Spread) else Later(lambda: compute(model, method, batch))


def compute(model: object, method: str, batch: Sequence[Any]) -> Any:
    """`model.method(batch)`, in parts where it does not fit in memory; vectors of texts come as one matrix."""
    return getattr(model, method)(batch) if method == "texts" else ask_model(model, method, batch)


def window(model: object) -> int:
    return model.window if isinstance(model, Spread) else 1


def ahead(batches: Iterable[B], start: Callable[[B], R], window: int) -> Iterator[tuple[B, R]]:
    """Every batch with what `start` returned for it, in order, while up to `window` batches are started."""
    started: deque[tuple[B, R]] = deque()
    for batch in batches:
        started.append((batch, start(batch)))
        if len(started) >= window:
            yield started.popleft()
    yield from started


@EXECUTORS.register("local")
class Local:
    """This process."""

    def load(self, make: Callable[[], T], name: str) -> T:  # noqa: ARG002
        return make()

    def close(self) -> None:
        """Nothing to give back."""
