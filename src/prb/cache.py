"""Model outputs shared between runs: an SQLite file, and an in-run memo for everything that is expensive to compute.

`Memo` computes what is missing and remembers it; `Cache` is the file behind it, safe for several processes. A key is a
hash of everything a value depends on: the model's fingerprint and the exact tokens or messages. Failures are never
kept. The cache is a convenience: where it cannot be used, everything works without it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from prb.errors import PrbError
from prb.types import Failure

T = TypeVar("T")
V = TypeVar("V")

VERSION = 2
"""Of the schema; a file of another version is emptied."""
PATIENCE = 60.0
"""Seconds to wait while another process writes."""
_KEYS_PER_QUERY = 500
"""SQLite allows 999 placeholders in older builds."""


def cache_folder() -> Path:
    """`PRB_CACHE`; else the folder `cache` of this Python environment, where `make` puts weights; else the user's cache
    folder."""
    if "PRB_CACHE" in os.environ:
        return Path(os.environ["PRB_CACHE"])
    if sys.prefix != sys.base_prefix and (made := Path(sys.prefix) / "cache").is_dir():
        return made
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "prb"


def cache_path() -> Path:
    return cache_folder() / "cache.sqlite"


class Cache:
    """Key → value on disk, labeled with the model that computed it.

    A file of another version is emptied. One that cannot be used, such as a damaged one, is left alone, and then this
    finds and stores nothing. `problem` says why.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_path()
        self.problem: str | None = None
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        with self._tolerant():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            db.execute("BEGIN IMMEDIATE")
            if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                db.execute("DROP TABLE IF EXISTS outputs")
                db.execute(f"PRAGMA user_version={VERSION}")
            columns = "key BLOB PRIMARY KEY, model TEXT NOT NULL, value BLOB NOT NULL"
            db.execute(f"CREATE TABLE IF NOT EXISTS outputs ({columns}) WITHOUT ROWID")
            db.execute("COMMIT")
            self._db = db

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """No permission, a read-only or full disk, a lock held for too long: continue without the cache."""
        with self._lock:
            try:
                yield
            except (OSError, sqlite3.Error) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or error
                self.problem = f"the cache {self.path} cannot be used: {why}; set PRB_CACHE to another folder"
                self._db = None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values that are stored; missing keys are left out."""
        values: dict[bytes, bytes] = {}
        with self._tolerant():
            for start in range(0, len(keys), _KEYS_PER_QUERY) if self._db else ():
                part = keys[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, value FROM outputs WHERE key IN ({marks})"  # noqa: S608 - only ?
                values.update(self._db.execute(query, part))  # type: ignore[union-attr]
        return values

    def put(self, model: str, values: Mapping[bytes, bytes]) -> None:
        """Store all or none; the first value of a key stays."""
        with self._tolerant():
            if self._db:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    rows = ((key, model, value) for key, value in values.items())
                    self._db.executemany("INSERT OR IGNORE INTO outputs VALUES (?, ?, ?)", rows)

    def stats(self) -> dict[str, int]:
        """Number of entries per model."""
        rows = self._usable().execute("SELECT model, count(*) FROM outputs GROUP BY model ORDER BY model").fetchall()
        return {str(model): int(count) for model, count in rows}

    def clear(self, model: str | None = None) -> int:
        """Delete all entries, or those of one model; returns how many there were."""
        where, values = (" WHERE model = ?", (model,)) if model else ("", ())
        db = self._usable()
        deleted = db.execute(f"DELETE FROM outputs{where}", values).rowcount  # noqa: S608 - constant text
        db.execute("VACUUM")
        return int(deleted)

    def _usable(self) -> sqlite3.Connection:
        if self._db is None:
            raise PrbError(str(self.problem))
        return self._db


class Memo(Generic[V]):
    """Computes each distinct key once; failures are handed out but never kept.

    Up to `capacity` values stay in memory, the oldest leave first; 0 keeps none. With a `cache`, values are also stored
    on disk under the label `model` and found again by later runs; keys must then be bytes, and `pack` and `unpack`
    convert values that are not JSON.
    """

    def __init__(
        self,
        *,
        capacity: int = 1 << 18,  # a few dozen MB of rewards
        cache: Cache | None = None,
        model: str = "",
        pack: Callable[[V], Any] = lambda value: value,
        unpack: Callable[[Any], V] = lambda stored: stored,
    ) -> None:
        self._capacity, self._cache, self._model = capacity, cache, model
        self._pack, self._unpack = pack, unpack
        self._known: OrderedDict[Hashable, V] = OrderedDict()

    def map(
        self,
        compute: Callable[[list[T]], Iterable[V | Failure]],
        items: Sequence[T],
        keys: Sequence[Any] | None = None,
    ) -> list[V | Failure]:
        """One value per item, in order; `compute` gets, in one call, the first item of each key that is not known.

        Without `keys` the items themselves are the keys.
        """
        keys = items if keys is None else keys
        values: dict[Any, V | Failure] = {key: self._known[key] for key in keys if key in self._known}
        if self._cache:
            missing_keys = [key for key in dict.fromkeys(keys) if key not in values]
            stored = self._cache.get(missing_keys)
            values |= {key: self._unpack(orjson.loads(value)) for key, value in stored.items()}
        missing: dict[Any, T] = {}
        for key, item in zip(keys, items, strict=True):
            if key not in values:
                missing.setdefault(key, item)
        if missing:
            results = list(compute(list(missing.values())))
            if len(results) != len(missing):
                raise RuntimeError(f"the model gave {len(results)} answers to {len(missing)} questions")
            fresh = dict(zip(missing, results, strict=True))
            values |= fresh
            sound = {key: value for key, value in fresh.items() if not isinstance(value, Failure)}
            if self._cache and sound:
                self._cache.put(self._model, {key: orjson.dumps(self._pack(value)) for key, value in sound.items()})
        if self._capacity:
            self._known.update((key, value) for key, value in values.items() if not isinstance(value, Failure))
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return [values[key] for key in keys]
