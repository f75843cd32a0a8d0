"""A content-addressed store of what models have said: SQLite, safe for several processes, never a failure.

A key is a hash of everything a value depends on: the model's fingerprint and the exact tokens or messages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from prb.weights import cache_folder

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS said (key BLOB PRIMARY KEY, model TEXT NOT NULL, value BLOB NOT NULL) WITHOUT ROWID"
)
_MANY = 500


def cache_path() -> Path:
    return cache_folder() / "said.sqlite"


class Cache:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_path()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(_SCHEMA)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """The values that are there."""
        found: dict[bytes, Any] = {}
        for start in range(0, len(keys), _MANY):
            part = keys[start : start + _MANY]
            marks = ",".join("?" * len(part))
            rows = self._db.execute(f"SELECT key, value FROM said WHERE key IN ({marks})", part)  # noqa: S608 - only ?
            found.update({key: orjson.loads(value) for key, value in rows})
        return found

    def put(self, model: str, values: Mapping[bytes, Any]) -> None:
        """All of them or none; the first value of a key stays."""
        rows: Iterable[tuple[bytes, str, bytes]] = ((key, model, orjson.dumps(value)) for key, value in values.items())
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR IGNORE INTO said VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")

    def stats(self) -> dict[str, int]:
        """Entries by model."""
        rows = self._db.execute("SELECT model, count(*) FROM said GROUP BY model ORDER BY model")
        return {str(model): int(count) for model, count in rows}

    def clear(self, model: str | None = None) -> int:
        """Forget everything, or one model; how many entries went."""
        where, values = (" WHERE model = ?", (model,)) if model else ("", ())
        gone = self._db.execute(f"DELETE FROM said{where}", values).rowcount  # noqa: S608 - no text of a user's
        self._db.execute("VACUUM")
        return int(gone)

    def close(self) -> None:
        self._db.close()
