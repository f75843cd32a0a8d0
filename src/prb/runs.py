"""A run is a folder: `config.json`, `outcomes.jsonl` (appended as work finishes), `summary.json`, `users.json`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from filelock import FileLock, Timeout

from prb.errors import BadInput, RunConflict
from prb.types import Outcome

CONFIG, OUTCOMES, SUMMARY, USERS = "config.json", "outcomes.jsonl", "summary.json", "users.json"
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """All of it or nothing: readers never see half a file."""
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(orjson.dumps(value, option=_PRETTY))
    draft.replace(path)


def read_outcomes(folder: Path) -> Iterator[dict[str, Any]]:
    """The finished lines of a run, whoever wrote it."""
    path = folder / OUTCOMES
    if not path.exists():
        raise BadInput(f"{folder} is not a run: it has no {OUTCOMES}")
    yield from read_lines(path)


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = orjson.loads(line)
        return row
    except orjson.JSONDecodeError:
        raise BadInput(f"{path} is damaged at line {number}; remove the folder and run again") from None


class Journal:
    """An append-only JSONL file of whole lines: one torn by a crash is dropped when the file is opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")
        self.dropped_tail = self._drop_torn_tail()
        """Whether the last line was torn."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def empty(self) -> bool:
        return self._file.tell() == 0

    def lines(self) -> Iterator[dict[str, Any]]:
        return read_lines(self.path)

    def count(self) -> int:
        with self.path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))

    def keep(self, lines: int) -> None:
        """Cut the file after so many lines."""
        with self.path.open("rb") as file:
            size = sum(len(file.readline()) for _ in range(lines))
        self._file.truncate(size)

    def append(self, rows: Iterable[Any]) -> None:
        """One write for all of them, handed to the operating system before anybody is told it is done."""
        self._file.write(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _drop_torn_tail(self) -> bool:
        size = end = self.path.stat().st_size
        with self.path.open("rb") as file:
            while end > 0:
                start = max(0, end - (1 << 16))
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
        if end < size:
            self._file.truncate(end)
        return end < size


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file of ours."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield _parse(path, number, line)


class Folder:
    """The one writer of a run folder: opening locks it, and refuses one made with another configuration."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self._lock = FileLock(folder / ".lock")

    def open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be a run folder: {error.strerror}") from None
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunConflict(f"{self.folder} is being written by another process") from None
        try:
            self._adopt_config()
        except BaseException:
            self.close()
            if not (self.folder / CONFIG).exists():  # not ours: nothing of us stays in it
                (self.folder / ".lock").unlink(missing_ok=True)
            raise

    def close(self) -> None:
        self._lock.release()

    def confirm_model(self, spec: str, fingerprint: str) -> None:
        """Note which weights a spec stood for; a resumed run must find the same ones."""
        path = self.folder / CONFIG
        config = read_json(path)
        known = config.setdefault("models", {}).setdefault(spec, fingerprint)
        if known != fingerprint:
            raise RunConflict(
                f"{self.folder}: model {spec!r} was {known!r} when the run began and is {fingerprint!r} now"
            )
        write_json(path, config)

    def leave_no_trace(self, *names: str) -> None:
        """What ended before its first result was bad input: nothing of it stays behind."""
        for name in (CONFIG, ".lock", *names):
            (self.folder / name).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _adopt_config(self) -> None:
        path = self.folder / CONFIG
        if not path.exists():
            if any(entry.name not in (".lock", CONFIG + ".part") for entry in self.folder.iterdir()):
                raise RunConflict(f"{self.folder} exists and is not a run; choose another --out")
            write_json(path, self.config)
            return
        stored = {key: value for key, value in read_json(path).items() if key != "models"}
        differing = _differences(stored, orjson.loads(orjson.dumps(self.config)))
        if differing:
            raise RunConflict(
                f"{self.folder} was made with another configuration; choose another --out or repair:\n  "
                + "\n  ".join(differing)
            )


class Run(Folder):
    """The folder of an evaluation."""

    _journal: Journal

    def __enter__(self) -> Self:
        self.open()
        self._journal = Journal(self.folder / OUTCOMES)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        empty = self._journal.empty
        self._journal.close()
        self.close()
        if error is not None and empty:
            self.leave_no_trace(OUTCOMES)

    @property
    def dropped_tail(self) -> bool:
        return self._journal.dropped_tail

    def lines(self) -> Iterator[dict[str, Any]]:
        return self._journal.lines()

    def count(self) -> int:
        return self._journal.count()

    def keep(self, lines: int) -> None:
        """Cut the file after `lines` lines: the rest belongs to a batch that did not finish."""
        self._journal.keep(lines)

    def append(self, outcomes: Sequence[Outcome]) -> None:
        self._journal.append(outcomes)

    def finish(self, summary: Mapping[str, Any], users: Mapping[str, Any]) -> None:
        self._journal.sync()
        write_json(self.folder / USERS, users)
        write_json(self.folder / SUMMARY, summary)


def _differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Leaves that differ, as `a.b: old → new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{at}.{key}".lstrip("."))]
    if old == new:
        return []
    return [f"{at}: {orjson.dumps(old).decode()} → {orjson.dumps(new).decode()}"]
