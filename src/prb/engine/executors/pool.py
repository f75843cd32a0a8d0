"""Workers on a Ray cluster, each with a replica of the same model, and the batches they are given.

Every worker has at most two batches: one that it computes and one that waits. When a worker is lost, both go to others,
and only the first, which may be the reason, counts as tried. Ray starts the actor again, anywhere; it gets work once it
has loaded the same model.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prb import __version__
from prb.engine.executors import compute
from prb.errors import BadInput, PrbError, Unreachable
from prb.failures import RESUME, Breaker, breaking, free_memory
from prb.types import Failure

METHODS = ("score", "prefer", "complete", "grade", "texts", "answers")
"""What works batch by batch in the protocols of this package; `reseeded` makes another object of a seed."""
ATTRIBUTES = ("fingerprint", "execution", "remote", "validity")
"""What verbs read of a model without asking it anything."""


@dataclass(frozen=True)
class About:
    """What a stand-in must know of the model it stands for."""

    host: str
    version: str
    attributes: Mapping[str, Any]
    methods: tuple[str, ...]
    reseedable: bool

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for all replicas."""
        return self.version, self.attributes.get("fingerprint"), self.methods

    def __str__(self) -> str:
        return f"{self.attributes.get('fingerprint')!r} on {self.host} (prb {self.version})"


@dataclass(frozen=True)
class Trouble:
    """An error as a value: exceptions of other packages may not survive the way back."""

    text: str
    exit_code: int | None = None
    """Of an error that is for the user; `None` for anything else."""

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        if isinstance(error, PrbError):
            return cls(str(error), error.exit_code)
        return cls(f"{type(error).__name__}: {error}".splitlines()[0][:500])

    def error(self, where: str) -> PrbError:
        if self.exit_code is None:
            return PrbError(f"{where}: {self.text}")
        return BadInput(self.text) if self.exit_code == BadInput.exit_code else PrbError(self.text)


class Surroundings(NamedTuple):
    """What workers take over from the process of the command."""

    folder: str
    environment: Mapping[str, str]
    max_fatal: int

    @classmethod
    def here(cls, max_fatal: int) -> Surroundings:
        kept = ("PRB_", "HF_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_")
        environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
        return cls(os.getcwd(), environment, max_fatal)  # noqa: PTH109

    def enter(self) -> None:
        os.environ.update(self.environment)
        with suppress(OSError):  # another machine may not have it
            os.chdir(self.folder)


class Replica:
    """What a Ray actor holds: one model at a time."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._model: Any = None
        self._reseeded: dict[int, Any] = {}

    def load(self, packed: bytes) -> About | Trouble:
        """Make what a pickled function makes, in place of what was here."""
        self._model, self._reseeded = None, {}
        free_memory()  # a model that is gone holds its share of a GPU until torch gives it back
        try:
            self._surroundings.enter()
            self._model = pickle.loads(packed)()  # noqa: S301 - from the process that started this one
        except (Exception, SystemExit) as error:  # a model of others: anything can be wrong with it
            return Trouble.of(error)
        attributes = {name: getattr(self._model, name) for name in ATTRIBUTES if hasattr(self._model, name)}
        methods = tuple(name for name in METHODS if callable(getattr(self._model, name, None)))
        reseedable = callable(getattr(self._model, "reseeded", None))
        return About(socket.gethostname(), __version__, attributes, methods, reseedable)

    def call(self, method: str, batch: Sequence[Any], seed: int | None) -> tuple[Any, float]:
        """The results of a batch or `Trouble`, and how long they took."""
        start = time.perf_counter()
        try:
            with breaking(self._surroundings.max_fatal):
                if seed is not None and seed not in self._reseeded:
                    self._reseeded[seed] = self._model.reseeded(seed)
                model = self._model if seed is None else self._reseeded[seed]
                results: Any = compute(model, method, batch)
        except Exception as error:
            results = Trouble.of(error)
        return results, time.perf_counter() - start


DEPTH = 2
"""Batches per replica."""
PATIENCE = 0.5
"""Seconds between looks at a replica that is being restarted."""


class Needs(NamedTuple):
    """What one replica takes of a machine."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"cpus={self.cpus:g}&gpus={self.gpus:g}"

    def replicas(self, resources: dict[str, float]) -> int:
        """How many replicas fit."""
        shares = [(resources.get("CPU", 0), self.cpus), (resources.get("GPU", 0), self.gpus)]
        return min(math.floor(available / needed + 1e-9) for available, needed in shares if needed)


@dataclass(eq=False)
class Task:
    """One batch, from submission to result."""

    method: str
    batch: Sequence[Any]
    seed: int | None
    attempts: int = 0
    done: bool = False
    results: Any = None
    seconds: float = 0.0


@dataclass(eq=False)
class Worker:
    actor: Any
    loading: Any = None
    """Reference to the description of the model that is being loaded; `None` between two attempts."""
    load_at: float = 0.0
    joined: bool = False
    """Whether it ever had the model."""
    ready: bool = False
    given: deque[tuple[Any, Task]] = field(default_factory=deque)
    """References to results, and their tasks, in the order in which it computes them."""


class Pool:
    def __init__(self, ray: Any, actors: int, needs: Needs, retries: int) -> None:
        self._ray, self._retries = ray, retries
        self._lost = Breaker()
        surroundings = Surroundings.here(self._lost.limit)
        remote = ray.remote(Replica).options(
            num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=-1, scheduling_strategy="SPREAD"
        )
        self._actors = [remote.remote(surroundings) for _ in range(actors)]
        self._workers: list[Worker] = []
        self._waiting: deque[Task] = deque()
        self._name, self._model = "", b""
        self._about: About | None = None

    def load(self, make: Callable[[], Any], name: str, known: About | None = None) -> About:
        """Replace the model of all workers. All must describe it alike, and as before if it was `known`."""
        try:
            self._model = self._ray.cloudpickle.dumps(make)
        except Exception as error:  # whatever an object of others does when it is pickled
            raise PrbError(f"{name!r} cannot be sent to other processes: {error}") from None
        self._name, self._about = name, known
        self._workers = [Worker(actor) for actor in self._actors]
        self._waiting.clear()
        while not any(worker.ready for worker in self._workers):
            self._step()
        assert self._about is not None
        return self._about

    def submit(self, method: str, batch: Sequence[Any], seed: int | None = None) -> Task:
        task = Task(method, batch, seed)
        self._waiting.append(task)
        self._give()
        return task

    def wait(self, task: Task) -> Any:
        while not task.done:
            self._step()
        if isinstance(task.results, Trouble):
            raise task.results.error(self._name)
        return task.results

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _step(self) -> None:
        """Have models loaded, give out batches, and take in whatever has arrived."""
        now = time.monotonic()
        for worker in self._workers:
            if not worker.ready and worker.loading is None and now >= worker.load_at:
                worker.loading = worker.actor.load.remote(self._model)
        self._give()
        loading = {worker.loading: worker for worker in self._workers if worker.loading is not None}
        given = {ref: worker for worker in self._workers for ref, _ in worker.given}
        refs = [*loading, *given]
        if not refs:
            time.sleep(PATIENCE / 5)
            return
        self._ray.wait(refs, num_returns=1, timeout=PATIENCE)
        arrived = set(self._ray.wait(refs, num_returns=len(refs), timeout=0)[0])
        for ref, worker in loading.items():
            if ref in arrived:
                self._hear(worker)
        for ref, worker in given.items():  # of each worker in the order of its work
            if ref in arrived:
                self._take(worker, ref)

    def _give(self) -> None:
        """Waiting batches, oldest first, to the replicas with the least to do."""
        while self._waiting:
            free = [worker for worker in self._workers if worker.ready and len(worker.given) < DEPTH]
            if not free:
                return
            worker = min(free, key=lambda worker: len(worker.given))
            task = self._waiting.popleft()
            worker.given.append((worker.actor.call.remote(task.method, task.batch, task.seed), task))

    def _hear(self, worker: Worker) -> None:
        ref, worker.loading = worker.loading, None
        about = self._get(ref)
        if isinstance(about, BaseException):
            worker.load_at = time.monotonic() + PATIENCE
            if isinstance(about, self._ray.exceptions.ActorDiedError):
                self._dismiss(worker, Trouble(_first_line(about)))
        elif isinstance(about, Trouble):
            if not worker.joined:  # this is how the cluster is set up, not an accident
                raise about.error(f"{self._name!r} cannot be loaded by a Ray worker")
            self._dismiss(worker, about)
        else:
            self._about = self._about or about
            if about.identity != self._about.identity:
                raise PrbError(
                    f"replicas of {self._name!r} differ: {self._about} and {about}; "
                    "give all machines the same files and versions"
                )
            worker.joined = worker.ready = True

    def _take(self, worker: Worker, ref: Any) -> None:
        """The result of a batch; or, if the replica was lost, its batches back."""
        if not any(ref == given for given, _ in worker.given):  # given back a moment ago
            return
        arrived = self._get(ref)
        if isinstance(arrived, BaseException):
            lost = [task for _, task in worker.given]
            worker.given.clear()
            worker.ready = False
            self._waiting.extendleft(reversed(lost[1:]))
            self._try_again(lost[0], f"its worker was lost: {_first_line(arrived)}")
            return
        task = next(task for given, task in worker.given if given == ref)
        worker.given = deque(entry for entry in worker.given if entry[0] != ref)
        results, task.seconds = arrived
        if isinstance(results, Trouble) and results.exit_code is None:
            self._try_again(task, results.text)
        else:
            task.results, task.done = results, True
            self._lost.add(None)

    def _try_again(self, task: Task, why: str) -> None:
        """Or, after enough attempts, fail the rows of the batch, so that the rest of the run can continue."""
        task.attempts += 1
        if task.attempts <= self._retries:
            self._waiting.appendleft(task)
            return
        detail = f"{why}, {task.attempts} times"
        task.results = [Failure("the batch could not be computed", detail, kind="transient")] * len(task.batch)
        task.done = True
        self._lost.add(Failure(why, kind="fatal"))
        if self._lost.tripped:
            raise Unreachable(f"{self._name}: {self._lost.limit} batches in a row were lost: {detail}; {RESUME}")

    def _dismiss(self, worker: Worker, trouble: Trouble) -> None:
        self._workers.remove(worker)
        if not self._workers:
            raise trouble.error(f"{self._name!r} has no Ray worker left")

    def _get(self, ref: Any) -> Any:
        """What a reference stands for, or why there is nothing."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0][:300]
