"""One copy of a model in a worker process. Everything here runs there, and must be importable without Ray."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from prb import __version__
from prb.engine.executors import compute
from prb.errors import BadInput, PrbError
from prb.failures import breaking

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
        _free_memory()
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
                results: Any = compute(self._of_seed(seed), method, batch)
        except Exception as error:
            results = Trouble.of(error)
        return results, time.perf_counter() - start

    def _of_seed(self, seed: int | None) -> Any:
        if seed is None:
            return self._model
        if seed not in self._reseeded:
            self._reseeded[seed] = self._model.reseeded(seed)
        return self._reseeded[seed]


def _free_memory() -> None:
    """A model that is gone still holds its share of a GPU until torch gives it back."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
