"""Where models are computed: in this process, or by replicas on the machines of a Ray cluster.

    with open_executor(config.engine) as executor:
        model = executor.load(partial(make_model, spec), spec)

An executor returns the model, or a stand-in that is used like it and says in `workers` how many batches its replicas
compute at a time; `prb.work` hands them in. Ray restarts what is lost and repeats its batch.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import queue
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from prb import __version__
from prb.config import Count, NonNegative, Positive, Size
from prb.errors import BadInput, PrbError, Unreachable, explain_import, first_line
from prb.registry import Registry
from prb.types import Failure
from prb.work import RESUME, ask_model

T = TypeVar("T")


class Executor(Protocol):
    def load(self, make: Callable[[], T], name: str) -> T:
        """What `make` makes, or a stand-in for its replicas; `make` can be pickled if it may be called elsewhere."""
        ...

    def close(self) -> None: ...


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


@EXECUTORS.register("local")
class Local:
    """This process."""

    def load(self, make: Callable[[], T], name: str) -> T:  # noqa: ARG002
        return make()

    def close(self) -> None:
        """Nothing to give back."""


# --- Ray ---

METHODS = ("score", "prefer", "complete", "grade", "texts", "answers")
"""What works batch by batch in the protocols of this package."""
ATTRIBUTES = ("fingerprint", "execution", "remote", "validity", "at_once")
"""What verbs read of a model without asking it anything."""
OBJECT_STORE = 256 << 20
"""Bytes for batches and results on their way, in a Ray that we start ourselves; beyond that Ray uses the disk."""
MOMENT = 0.5
"""Seconds that a thread waits for an actor before it looks whether the run has ended."""
MAX_LOST = 5
"""Batches lost in a row, with all their retries, after which the run stops."""


class ModelInfo(NamedTuple):
    """What a stand-in must know of the model it stands for."""

    attributes: dict[str, Any]
    methods: tuple[str, ...]
    version: str

    @property
    def identity(self) -> str:
        """Equal for all replicas."""
        return f"{self.attributes.get('fingerprint')!r} (prb {self.version})"


class Replica:
    """What a Ray actor holds. The model is made by the first call, and again by the first one after a restart."""

    def __init__(self, packed: bytes, name: str) -> None:
        self._packed, self._name = packed, name
        self._model: Any = None

    def info(self) -> ModelInfo:
        with portable_errors(f"{self._name!r} cannot be loaded by a Ray worker"):
            if self._model is None:
                self._model = pickle.loads(self._packed)()  # noqa: S301 - from the process that started this one
        attributes = {name: getattr(self._model, name) for name in ATTRIBUTES if hasattr(self._model, name)}
        methods = tuple(name for name in METHODS if callable(getattr(self._model, name, None)))
        return ModelInfo(attributes, methods, __version__)

    def call(self, method: str, batch: Sequence[Any]) -> tuple[ModelInfo, Any]:
        """Whose results these are, and the results of a batch."""
        info = self.info()
        with portable_errors(self._name):
            # texts become one matrix, not a list
            return info, self._model.texts(batch) if method == "texts" else ask_model(self._model, method, batch)


@contextmanager
def portable_errors(where: str) -> Iterator[None]:
    """Errors become ones that survive the way back, which those of other packages may not."""
    try:
        yield
    except PrbError as error:
        raise (BadInput if error.exit_code == BadInput.exit_code else PrbError)(str(error)) from None
    except Exception as error:  # a model of others: anything can be wrong with it
        raise PrbError(f"{where}: {type(error).__name__}: {error}".splitlines()[0][:500]) from None


class Replicas:
    """The actors of one model; a thread that asks takes one that is idle. It stands in for the model: it has its
    attributes and methods, and so fits its protocol."""

    def __init__(self, ray: Any, actors: Sequence[Any], name: str) -> None:
        self._ray, self._name, self._lost = ray, name, 0
        self.workers = len(actors)
        self._waiting, self._stopped, self._changed = 0, False, threading.Condition()
        self._idle: queue.Queue[Any] = queue.Queue()
        """Actors, or why one of them could not start. A cluster may grow while a run is under way, so each joins when
        it has started."""
        for actor in actors:
            threading.Thread(target=self._start, args=(actor,), daemon=True).start()

    def connect(self) -> Self:
        """Once one of the actors has started."""
        actor = self._take()
        self.info: ModelInfo = self._result(actor.info)
        self._idle.put(actor)
        methods = {name: partial(self._call, name) for name in self.info.methods}
        vars(self).update({**self.info.attributes, **methods})
        return self

    def _start(self, actor: Any) -> None:
        try:
            self._result(actor.info)
            self._idle.put(actor)
        except Exception as error:
            self._idle.put(getattr(error, "cause", None) or PrbError(f"{self._name}: {first_line(error)}"))

    def _take(self) -> Any:
        actor = self._idle.get()
        if isinstance(actor, Exception):
            raise actor
        return actor

    def _call(self, method: str, batch: Sequence[Any]) -> Any:
        """The rows of a batch whose workers were lost again and again fail, so that the rest of the run continues."""
        actor = self._take()
        try:
            info, results = self._result(actor.call, method, batch)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            self._lost += 1
            if self._lost >= MAX_LOST:
                raise Unreachable(f"{self._name}: {self._lost} batches in a row were lost: {why}; {RESUME}") from None
            return [Failure("the batch could not be computed", why, kind="transient")] * len(batch)
        finally:
            self._idle.put(actor)
        self._lost = 0
        if info.identity != self.info.identity:
            both = f"{self.info.identity} and {info.identity}"
            raise PrbError(f"replicas of {self._name!r} differ: {both}; give all machines the same files and versions")
        return results

    def _result(self, remote: Any, *arguments: Any) -> Any:
        """Waits a moment at a time: a thread that waits while Ray shuts down ends the process with a segmentation
        fault, such as that of an actor which a short run did not need."""
        with self._changed:
            if self._stopped:
                raise Unreachable(f"{self._name}: the run has ended")
            self._waiting += 1
        try:
            reference = remote.remote(*arguments)
            while not self._stopped:
                with suppress(self._ray.exceptions.GetTimeoutError):
                    return self._ray.get(reference, timeout=MOMENT)
            raise Unreachable(f"{self._name}: the run has ended")
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """No thread waits for an actor any more."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._waiting)


@EXECUTORS.register("ray")
class RayExecutor:
    """Replicas on a Ray cluster: at `address` or RAY_ADDRESS, else on this machine."""

    def __init__(
        self,
        address: str | None = None,
        actors: Count | None = None,
        cpus: Positive = 1.0,
        gpus: NonNegative = 0.0,
        retries: Size = 3,
    ) -> None:
        """`retries`: how often a batch is tried again whose worker died."""
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
            import ray
        except ImportError as error:
            raise explain_import("engine 'ray'", error) from None
        self._ray: Any = ray
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._requested, self._cpus, self._gpus, self._retries = actors, cpus, gpus, retries
        self._connected = False
        self._folder: str | None = None
        """Where a Ray of our own keeps its sockets and logs."""
        self._actors: list[Any] = []
        self._replicas: Replicas | None = None

    def load(self, make: Callable[[], T], name: str) -> T:
        """Replicas; or the object itself, if none of its methods works batch by batch."""
        if not self._ray.is_initialized():
            self._connect()
        have = self._ray.cluster_resources()
        needs = [(have.get("CPU", 0), self._cpus), (have.get("GPU", 0), self._gpus)]
        count = self._requested or min(math.floor(there / needed + 1e-9) for there, needed in needs if needed)
        if not count:
            asked = f"cpus={self._cpus:g}&gpus={self._gpus:g}"
            raise BadInput(f"engine ray: {asked} does not fit the cluster; say actors=N if it will grow")
        try:
            packed = self._ray.cloudpickle.dumps(make)
        except Exception as error:  # whatever an object of others does when it is pickled
            raise PrbError(f"{name!r} cannot be sent to other processes: {error}") from None
        self._stop_actors()  # one model at a time: GPUs are not shared
        remote = self._ray.remote(Replica).options(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            max_restarts=-1,
            max_task_retries=self._retries,
            scheduling_strategy="SPREAD",
        )
        self._actors = [remote.remote(packed, name) for _ in range(count)]
        self._replicas = Replicas(self._ray, self._actors, name)
        replicas = self._replicas.connect()
        return replicas if replicas.info.methods else make()  # type: ignore[return-value]

    def _stop_actors(self) -> None:
        if self._replicas:
            self._replicas.stop()
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    def close(self) -> None:
        with suppress(Exception):  # of a cluster that is gone
            self._stop_actors()
        if self._connected:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> None:
        """Join a cluster, or start one on this machine with room for all replicas even if they have to share cores."""
        self._connected = True
        options: dict[str, Any] = {"address": self._address}
        if not self._address:
            if "RAY_AUTH_MODE" not in os.environ:  # else Ray would make a token for us in the home folder
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            # Ray's sockets need short names, whatever TMPDIR is; the folder itself is private
            self._folder = tempfile.mkdtemp(prefix="prb-ray-", dir="/tmp")
            options = {
                "address": "local",
                "num_cpus": max(len(os.sched_getaffinity(0)), math.ceil((self._requested or 1) * self._cpus)),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE,
                "_temp_dir": self._folder,
                "_node_ip_address": "127.0.0.1",  # nobody else can reach it
            }
        logging.getLogger("ray").setLevel(logging.ERROR)
        before = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**options, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"at {self._address}" if self._address else "on this machine"
            raise PrbError(f"engine ray: no Ray {where}: {first_line(error)}") from None
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own handler prints its stack and hides why we stopped
