"""A persistent cache and an in-run memo for everything that is expensive to compute.

`Memo` computes what is missing and remembers it; `Cache` is the SQLite file behind it that survives the run and is
safe for several processes. A key is a hash of everything a value depends on: the model's fingerprint and the exact
tokens or messages. Failures are never kept.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from prb.batches import chunks
from prb.errors import PrbError
from prb.types import Failure

T = TypeVar("T")
V = TypeVar("V")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS outputs "
    "(key BLOB PRIMARY KEY, model TEXT NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
)
PATIENCE = 60.0
"""Seconds to wait while another process writes."""
_KEYS_PER_QUERY = 500
"""SQLite allows 999 placeholders in older builds."""
_UNKNOWN = Failure("not computed")
REMEMBERED = 1 << 18
"""Default capacity of a memo: a few dozen MB of rewards."""


def cache_folder() -> Path:
    """`PRB_CACHE`, else the user's cache folder."""
    if "PRB_CACHE" in os.environ:
        return Path(os.environ["PRB_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "prb"


def cache_path() -> Path:
    return cache_folder() / "said.sqlite"


class Cache:
    """Key → JSON value on disk, labeled with the model that computed it.

    A value whose checksum is wrong counts as missing. A file that cannot be used raises one line that names it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_path()
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            self._turn_on_wal()
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(_SCHEMA)

    def _turn_on_wal(self) -> None:
        """Two processes may create the cache at once, and SQLite does not wait for a lock to change the mode."""
        last_try = time.monotonic() + PATIENCE
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > last_try:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        elsewhere = "set PRB_CACHE to another folder"
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:  # no permission, read-only, disk full, locked for too long
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise PrbError(f"the cache {self.path} cannot be used: {why}; {elsewhere}") from None
        except sqlite3.DatabaseError as error:
            raise PrbError(f"the cache {self.path} is damaged ({error}); delete the file, or {elsewhere}") from None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """The values that are stored; missing keys are left out."""
        values: dict[bytes, Any] = {}
        damaged = []
        with self._explained():
            for part in chunks(keys, _KEYS_PER_QUERY):
                marks = ",".join("?" * len(part))
                query = f"SELECT key, value, crc FROM outputs WHERE key IN ({marks})"  # noqa: S608 - only ?
                for key, value, crc in self._db.execute(query, part):
                    if isinstance(value, bytes) and zlib.crc32(key + value) == crc:
                        values[key] = orjson.loads(value)
                    else:
                        damaged.append((key,))
            if damaged:
                self._db.executemany("DELETE FROM outputs WHERE key = ?", damaged)
        return values

    def put(self, model: str, values: Mapping[bytes, Any]) -> None:
        """Store all or none; the first value of a key stays."""
        packed = ((key, orjson.dumps(value)) for key, value in values.items())
        rows = ((key, model, value, zlib.crc32(key + value)) for key, value in packed)
        with self._explained(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR IGNORE INTO outputs VALUES (?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")

    def stats(self) -> dict[str, int]:
        """Number of entries per model."""
        with self._explained():
            rows = self._db.execute("SELECT model, count(*) FROM outputs GROUP BY model ORDER BY model").fetchall()
        return {str(model): int(count) for model, count in rows}

    def clear(self, model: str | None = None) -> int:
        """Delete all entries, or those of one model; returns how many there were."""
        where, values = (" WHERE model = ?", (model,)) if model else ("", ())
        with self._explained():
            deleted = self._db.execute(f"DELETE FROM outputs{where}", values).rowcount  # noqa: S608 - constant text
            self._db.execute("VACUUM")
        return int(deleted)

    def close(self) -> None:
        self._db.close()


class Memo(Generic[V]):
    """Computes each distinct key once; failures are handed out but never kept.

    Up to `capacity` values stay in memory, the oldest leave first; 0 keeps none. With a `cache`, values are also stored
    on disk under the label `model` and found again by later runs; keys must then be bytes, and `pack` and `unpack`
    convert values that are not JSON. `strip` removes what should be handed out only by the call that computed the
    value, such as its cost.
    """

    def __init__(
        self,
        *,
        capacity: int = REMEMBERED,
        cache: Cache | None = None,
        model: str = "",
        pack: Callable[[V], Any] = lambda value: value,
        unpack: Callable[[Any], V] = lambda stored: stored,
        strip: Callable[[V], V] = lambda value: value,
    ) -> None:
        self._capacity, self._cache, self._model = capacity, cache, model
        self._pack, self._unpack, self._strip = pack, unpack, strip
        self._known: OrderedDict[Hashable, V] = OrderedDict()
        self._awaited: dict[Hashable, dict[Any, V | Failure]] = {}
        """Keys that an earlier call is computing, and where it will put their values."""

    def map(
        self,
        compute: Callable[[list[T]], Iterable[V | Failure]],
        items: Sequence[T],
        keys: Sequence[Any] | None = None,
    ) -> list[V | Failure]:
        """One value per item, in order; `compute` gets, in one call, the first item of each key that is not known.

        Without `keys` the items themselves are the keys.
        """
        return self.start(lambda missing: lambda: compute(missing), items, keys)()

    def start(
        self,
        begin: Callable[[list[T]], Callable[[], Iterable[V | Failure]]],
        items: Sequence[T],
        keys: Sequence[Any] | None = None,
    ) -> Callable[[], list[V | Failure]]:
        """`map` in two steps: `begin` submits what is missing, and calling the result waits for the values.

        Calls must be finished in the order in which they were started. A key that an earlier call is computing is not
        submitted again, unless it fails there.
        """
        keys = items if keys is None else keys
        values: dict[Any, V | Failure] = {key: self._known[key] for key in keys if key in self._known}
        if self._cache:
            stored = self._cache.get([key for key in dict.fromkeys(keys) if key not in values])
            for key, value in stored.items():
                values[key] = self._unpack(value)
                self.put(key, self._unpack(value))
        missing: dict[Any, T] = {}
        awaited: dict[Any, tuple[T, dict[Any, V | Failure]]] = {}
        for key, item in zip(keys, items, strict=True):
            if key in self._awaited:
                awaited[key] = item, self._awaited[key]
            elif key not in values:
                missing.setdefault(key, item)
        results = begin(list(missing.values())) if missing else lambda: ()
        fresh: dict[Any, V | Failure] = {}
        self._awaited.update(dict.fromkeys(missing, fresh))

        def finish() -> list[V | Failure]:
            try:
                fresh.update(self._keep(missing, results()))
            finally:
                for key in missing:
                    self._awaited.pop(key, None)
            values.update(fresh)
            again: dict[Any, T] = {}
            for key, (item, computed) in awaited.items():
                if not isinstance(value := computed.get(key, _UNKNOWN), Failure):
                    values[key] = self._strip(value)
                elif key in self._known:
                    values[key] = self._known[key]
                else:
                    again[key] = item
            if again:
                values.update(self._keep(again, begin(list(again.values()))()))
            return [values[key] for key in keys]

        return finish

    def _keep(self, keys: Iterable[Any], computed: Iterable[V | Failure]) -> dict[Any, V | Failure]:
        """The computed values by key, after storing those that are no failures."""
        keys, results = list(keys), list(computed)
        if len(results) != len(keys):
            raise RuntimeError(f"the model gave {len(results)} answers to {len(keys)} questions")
        fresh = dict(zip(keys, results, strict=True))
        sound = {key: self._strip(value) for key, value in fresh.items() if not isinstance(value, Failure)}
        if self._cache and sound:
            self._cache.put(self._model, {key: self._pack(value) for key, value in sound.items()})
        for key, value in sound.items():
            self.put(key, value)
        return fresh

    def __contains__(self, key: Hashable) -> bool:
        """Whether this process knows the value; the cache on disk is not asked."""
        return key in self._known

    def put(self, key: Hashable, value: V) -> None:
        """Remember a value that is known from elsewhere, such as an earlier run."""
        self._known[key] = value
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
