"""`--engine ray`: one replica of a model per actor of a Ray cluster.

The pool of actors is our own: batches keep their composition, on which last digits depend (Ray Data re-batches rows),
results are taken in the order of submission, and a replica that died gets no work until it has its model again.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from prb.config import Count, NonNegative, Positive, Size
from prb.engine.executors import EXECUTORS, Later, Spread
from prb.engine.executors.pool import DEPTH, About, Needs, Pool
from prb.errors import BadInput, PrbError, explain_import, first_line

T = TypeVar("T")
OBJECT_STORE = 256 << 20
"""Bytes for batches and results on their way, in a Ray that we start ourselves; beyond that Ray uses the disk."""
FOLDER = "prb-ray-"


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
        """`retries`: how often a batch is tried again whose worker died or whose model raised."""
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
            import ray
        except ImportError as error:
            raise explain_import("engine 'ray'", error) from None
        self._ray: Any = ray
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._wanted, self._needs, self._retries = actors, Needs(cpus, gpus), retries
        self._actors = 0
        self._connected = self._ours = False
        self._folder: Path | None = None
        self._pool: Pool | None = None
        self._model: StandIn | None = None
        """The model the pool is running; one at a time."""

    def load(self, make: Callable[[], T], name: str) -> T:
        """A stand-in; or the object itself, if none of its methods works batch by batch."""
        self._connect()
        model = StandIn(self, make, name)
        self.pool(model)
        assert model.about is not None
        return model.described(model.about) if model.about.methods else make()  # type: ignore[return-value]

    def pool(self, model: StandIn) -> Pool:
        """The workers, with the model that this stands for."""
        origin = model.origin
        if self._pool is None:
            self._pool = Pool(self._ray, self._actors, self._needs, self._retries)
        if self._model is not origin:
            self._model = None  # if loading fails, the pool has lost the model it had
            origin.about = self._pool.load(origin.make, origin.name, origin.about)
            self._model = origin
        return self._pool

    @property
    def window(self) -> int:
        return DEPTH * self._actors

    def close(self) -> None:
        if self._pool:
            with suppress(Exception):  # of a cluster that is gone
                self._pool.close()
        if self._ours:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> None:
        if self._connected:
            return
        if not self._ray.is_initialized():
            self._ours = True
            logging.getLogger("ray").setLevel(logging.ERROR)
            quiet = {"log_to_driver": False, "configure_logging": False}
            before = signal.getsignal(signal.SIGTERM)
            try:
                self._ray.init(**({"address": self._address} if self._address else self._here()), **quiet)
            except SystemExit:  # Ray's answer to SIGTERM
                signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
                signal.raise_signal(signal.SIGTERM)
                raise
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                where = f"at {self._address}" if self._address else "on this machine"
                raise PrbError(f"engine ray: no Ray {where}: {first_line(error)}") from None
            if before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray's own handler prints its stack and hides why we stopped
        self._connected = True
        resources = self._ray.cluster_resources()
        fitting = self._needs.replicas(resources)
        if not fitting and (self._wanted is None or not self._address):
            have = f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
            hint = "; say actors=N if it will grow" if self._address else ""
            raise BadInput(f"engine ray: {self._needs} does not fit the cluster, which has {have}{hint}")
        self._actors = self._wanted or fitting

    def _here(self) -> dict[str, Any]:
        """A Ray of our own, with room for all replicas even if they have to share cores."""
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("RAY_worker_niceness", "0")  # else workers give way to whatever else the machine does
        if "RAY_AUTH_MODE" not in os.environ:  # else Ray would make a token for us in the home folder
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        self._folder = short_folder()
        return {
            "address": "local",
            "num_cpus": max(cores, math.ceil((self._wanted or 1) * self._needs.cpus)),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
            "_temp_dir": str(self._folder),
            "_node_ip_address": "127.0.0.1",  # nobody else can reach it
        }


class StandIn(Spread):
    """Used like the model that the replicas have."""

    def __init__(
        self, executor: RayExecutor, make: Callable[[], Any], name: str, origin: StandIn | None = None
    ) -> None:
        self.executor, self.make, self.name = executor, make, name
        self.origin = origin or self
        """Itself, or what it was reseeded from: they share replicas."""
        self.about: About | None = None
        self.seed: int | None = None

    @property
    def window(self) -> int:
        return self.executor.window

    def begin(self, method: str, batch: Sequence[Any]) -> Later:
        pool = self.executor.pool(self)
        return Computing(pool, pool.submit(method, batch, self.seed))

    def described(self, about: About, seed: int | None = None) -> StandIn:
        """The same with the attributes and methods of the model, so that it fits the model's protocol."""
        members: dict[str, Any] = {name: _method(name) for name in about.methods}
        members |= dict(about.attributes)
        if about.reseedable:
            members["reseeded"] = lambda self, seed: self.described(about, seed)
        made: StandIn = type("StandIn", (StandIn,), members)(self.executor, self.make, self.name, self.origin)
        made.seed = seed
        return made


class Computing(Later):
    """A batch that a replica computes."""

    def __init__(self, pool: Pool, task: Any) -> None:
        super().__init__(lambda: pool.wait(task))
        self._task = task

    def result(self) -> Any:
        value = self._compute()
        self.seconds = self._task.seconds
        return value


def _method(name: str) -> Callable[[StandIn, Sequence[Any]], Any]:
    def method(self: StandIn, batch: Sequence[Any]) -> Any:
        return self.begin(name, batch).result()

    return method


def short_folder() -> Path:
    """A temporary folder for Ray whose sockets have short names (107 bytes at most), whatever TMPDIR is.

    Folders of processes that were killed are removed.
    """
    base = Path("/tmp")  # noqa: S108 - the point is a short name; the folder itself is private
    if not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    for old in base.glob(f"{FOLDER}*-*"):
        with suppress(ValueError, OSError):
            try:
                os.kill(int(old.name.removeprefix(FOLDER).partition("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=base))
