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
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

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
"""What works batch by batch in the protocols of this package; `reseeded` makes another object of a seed."""
ATTRIBUTES = ("fingerprint", "execution", "remote", "validity", "at_once")
"""What verbs read of a model without asking it anything."""
OBJECT_STORE = 256 << 20
"""Bytes for batches and results on their way, in a Ray that we start ourselves; beyond that Ray uses the disk."""
FOLDER = "prb-ray-"
MAX_LOST = 5
"""Batches lost in a row, with all their retries, after which the run stops."""


@dataclass(frozen=True)
class ModelInfo:
    """What a stand-in must know of the model it stands for."""

    attributes: Mapping[str, Any]
    methods: tuple[str, ...]
    reseedable: bool
    host: str
    version: str = __version__

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for all replicas."""
        return self.version, self.attributes.get("fingerprint"), self.methods

    def __str__(self) -> str:
        return f"{self.attributes.get('fingerprint')!r} on {self.host} (prb {self.version})"


def portable(error: BaseException, where: str) -> PrbError:
    """The error as one that survives the way back, which those of other packages may not."""
    if isinstance(error, PrbError):
        return (BadInput if error.exit_code == BadInput.exit_code else PrbError)(str(error))
    return PrbError(f"{where}: {type(error).__name__}: {error}".splitlines()[0][:500])


class Replica:
    """What a Ray actor holds. A restarted actor makes the model again. Errors are returned, not raised."""

    def __init__(self, packed: bytes, name: str, folder: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._reseeded: dict[int | None, Any] = {}
        self._info: ModelInfo | PrbError
        try:
            os.environ.update(environment)
            with suppress(OSError):  # another machine may not have it
                os.chdir(folder)
            model = pickle.loads(packed)()  # noqa: S301 - from the process that started this one
        except (Exception, SystemExit) as error:  # a model of others: anything can be wrong with it
            self._info = portable(error, f"{name!r} cannot be loaded by a Ray worker")
            return
        self._reseeded[None] = model
        attributes = {name: getattr(model, name) for name in ATTRIBUTES if hasattr(model, name)}
        methods = tuple(name for name in METHODS if callable(getattr(model, name, None)))
        self._info = ModelInfo(attributes, methods, callable(getattr(model, "reseeded", None)), socket.gethostname())

    def info(self) -> ModelInfo | PrbError:
        return self._info

    def call(self, method: str, batch: Sequence[Any], seed: int | None) -> tuple[ModelInfo | PrbError, Any]:
        """The results of a batch, and whose they are."""
        if isinstance(self._info, PrbError):
            return self._info, None
        try:
            if seed not in self._reseeded:
                self._reseeded[seed] = self._reseeded[None].reseeded(seed)
            model = self._reseeded[seed]
            texts = method == "texts"  # one matrix, not a list
            return self._info, model.texts(batch) if texts else ask_model(model, method, batch)
        except Exception as error:
            return self._info, portable(error, self._name)


class Replicas:
    """The actors of one model; a thread that asks takes one that is idle."""

    def __init__(self, ray: Any, actors: Sequence[Any], name: str) -> None:
        self._ray, self._name, self._lost = ray, name, 0
        self.workers = len(actors)
        self._starting = {actor.info.remote(): actor for actor in actors}
        self._idle: queue.Queue[Any] = queue.Queue()
        self._lock = threading.Lock()
        self._take_in(timeout=None)
        actor = self._idle.get()
        self._idle.put(actor)
        info = ray.get(actor.info.remote())
        if isinstance(info, PrbError):
            raise info
        self.info: ModelInfo = info

    def _take_in(self, timeout: float | None) -> None:
        """Actors that have started since; a cluster may grow while a run is under way."""
        with self._lock:
            if self._starting:
                ready, _ = self._ray.wait(list(self._starting), num_returns=1, timeout=timeout)
                for ref in ready:
                    self._idle.put(self._starting.pop(ref))

    def call(self, method: str, batch: Sequence[Any], seed: int | None) -> Any:
        """The rows of a batch whose workers were lost again and again fail, so that the rest of the run continues."""
        while True:
            self._take_in(timeout=0)
            with suppress(queue.Empty):
                actor = self._idle.get(timeout=0.2)
                break
        try:
            info, results = self._ray.get(actor.call.remote(method, batch, seed))
        except self._ray.exceptions.RayError as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            self._lost += 1
            if self._lost >= MAX_LOST:
                raise Unreachable(f"{self._name}: {self._lost} batches in a row were lost: {why}; {RESUME}") from None
            return [Failure("the batch could not be computed", why, kind="transient")] * len(batch)
        finally:
            self._idle.put(actor)
        self._lost = 0
        for problem in (info, results):
            if isinstance(problem, PrbError):
                raise problem
        if info.identity != self.info.identity:
            both = f"{self.info} and {info}"
            raise PrbError(f"replicas of {self._name!r} differ: {both}; give all machines the same files and versions")
        return results


class StandIn:
    """Used like the model that the replicas have: with its attributes and methods, so that it fits its protocol."""

    def __init__(self, replicas: Replicas, seed: int | None = None) -> None:
        info, self.workers = replicas.info, replicas.workers
        methods = {name: partial(replicas.call, name, seed=seed) for name in info.methods}
        vars(self).update({**info.attributes, **methods})
        if info.reseedable:
            self.reseeded = partial(StandIn, replicas)


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
        self._ours = False
        self._folder: Path | None = None
        self._actors: list[Any] = []

    def load(self, make: Callable[[], T], name: str) -> T:
        """A stand-in; or the object itself, if none of its methods works batch by batch."""
        if not self._ray.is_initialized():
            self._connect()
        resources = self._ray.cluster_resources()
        needs = [(resources.get("CPU", 0), self._cpus), (resources.get("GPU", 0), self._gpus)]
        fitting = min(math.floor(available / needed + 1e-9) for available, needed in needs if needed)
        if not fitting and (self._requested is None or not self._address):
            have = f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
            hint = "; say actors=N if it will grow" if self._address else ""
            asked = f"cpus={self._cpus:g}&gpus={self._gpus:g}"
            raise BadInput(f"engine ray: {asked} does not fit the cluster, which has {have}{hint}")
        try:
            packed = self._ray.cloudpickle.dumps(make)
        except Exception as error:  # whatever an object of others does when it is pickled
            raise PrbError(f"{name!r} cannot be sent to other processes: {error}") from None
        kept = ("PRB_", "HF_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_")
        environment = {key: value for key, value in os.environ.items() if key.startswith(kept)}
        self._stop_actors()  # one model at a time: GPUs are not shared
        remote = self._ray.remote(Replica).options(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            max_restarts=-1,
            max_task_retries=self._retries,
            scheduling_strategy="SPREAD",
        )
        count, folder = self._requested or fitting, str(Path.cwd())
        self._actors = [remote.remote(packed, name, folder, environment) for _ in range(count)]
        replicas = Replicas(self._ray, self._actors, name)
        return StandIn(replicas) if replicas.info.methods else make()  # type: ignore[return-value]

    def _stop_actors(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    def close(self) -> None:
        with suppress(Exception):  # of a cluster that is gone
            self._stop_actors()
        if self._ours:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> None:
        """Join a cluster, or start one on this machine with room for all replicas even if they have to share cores."""
        self._ours = True
        options: dict[str, Any] = {"address": self._address}
        if not self._address:
            os.environ.setdefault("RAY_worker_niceness", "0")  # else workers give way to whatever else the machine does
            if "RAY_AUTH_MODE" not in os.environ:  # else Ray would make a token for us in the home folder
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            # Ray's sockets need short names (107 bytes at most), whatever TMPDIR is
            short = Path("/tmp")  # noqa: S108 - the folder itself is private
            self._folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=short if os.access(short, os.W_OK) else None))
            options = {
                "address": "local",
                "num_cpus": max(len(os.sched_getaffinity(0)), math.ceil((self._requested or 1) * self._cpus)),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE,
                "_temp_dir": str(self._folder),
                "_node_ip_address": "127.0.0.1",  # nobody else can reach it
            }
        logging.getLogger("ray").setLevel(logging.ERROR)
        before = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**options, log_to_driver=False, configure_logging=False)
        except SystemExit:  # Ray's answer to SIGTERM
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
            raise
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"at {self._address}" if self._address else "on this machine"
            raise PrbError(f"engine ray: no Ray {where}: {first_line(error)}") from None
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own handler prints its stack and hides why we stopped
