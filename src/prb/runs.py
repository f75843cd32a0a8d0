"""The run folder: one writer, an identity that a resumed run must match, and files that are complete or absent.

A run is a folder with a `config.json` (settings, data and model fingerprints: its identity), journals that grow line by
line as work finishes, and results written when all is done. One process writes it at a time. Work that fails before its
first result leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import orjson
from filelock import FileLock, Timeout

from prb.errors import BadInput, ModelChanged, PrbError, RunConflict, differences

CONFIG, OUTCOMES, SUMMARY, USERS = "config.json", "outcomes.jsonl", "summary.json", "users.json"
LOCK = ".lock"
FORMAT = 3
"""Of run folders; a folder without the field is of format 1."""
REPLIES = "replies.jsonl"


def read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None


def part_of(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A path beside `path` for a file or folder: it replaces `path` if the block succeeds, and is deleted if not. The
    folder it lies in is made."""
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent} cannot be a folder: {error.strerror or error}") from None
    with writing(path):
        _delete(part)
        try:
            yield part
            if path.is_dir():  # a folder cannot be replaced in one step
                old = path.with_name(f".{path.name}.old")
                _delete(old)
                try:
                    path.rename(old)
                    part.rename(path)
                finally:  # Ctrl-C between the two must not leave nothing
                    if not path.exists():
                        old.rename(path)
                _delete(old)
            else:
                part.replace(path)
        finally:
            with suppress(OSError):
                _delete(part)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a full disk, a read-only folder or a name that is too long in one line that names the file."""
    try:
        yield
    except OSError as error:
        raise PrbError(f"{path} cannot be written: {error.strerror or error}") from error
    except Exception as error:
        from safetensors import SafetensorError  # not an OSError, even if the file system failed

        if isinstance(error, SafetensorError):
            raise PrbError(f"{path} cannot be written: {error}") from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Atomic: readers never see half a file."""
    with draft(path) as part:
        part.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_object(path: Path) -> dict[str, Any]:
    if not isinstance(content := read_json(path), dict):
        raise BadInput(f"{path} does not hold a JSON object; run its command again to rewrite it")
    return content


def read_identity(folder: Path) -> dict[str, Any]:
    """The content of a run's `config.json`; a folder of another format is refused."""
    stored = read_object(folder / CONFIG)
    if (version := stored.get("format", 1)) != FORMAT:
        raise RunConflict(
            f"{folder} has run format {version!r}; this version of prb reads format {FORMAT}: run its command again "
            "with another --out"
        )
    return stored


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write JSONL that is on disk when this returns."""
    with draft(path) as part, part.open("wb") as file:
        file.writelines(map(json_line, rows))
        file.flush()
        os.fsync(file.fileno())


def json_line(row: Any) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a JSONL file of ours, without a last one that is still being written."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            if not isinstance(row, dict):
                raise BadInput(f"{path}, line {number} is not a JSON object; run its command again to rewrite it")
            yield row


class RunFolder:
    """The one writer of a run.

        with RunFolder(out, identity) as run:
            run.confirm_model(spec, fingerprint)
            run.finish({SUMMARY: summary})

    `identity` is everything that must be the same for a run to be resumed. `scratch` are files that are worthless
    without replies. `fresh` forgets an earlier run in the folder; `None` in verbs that cannot. `extendable` says of
    parts of the identity, such as `evaluate.limit`, which new value includes an old one: replies stay what they are,
    and results are derived again.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        *,
        scratch: Sequence[str] = (),
        fresh: bool | None = None,
        extendable: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.extended = ""
        """What this process adds to the run that it found, for people."""
        self._scratch, self._fresh, self._extendable = scratch, fresh, extendable
        self._lock = FileLock(folder / LOCK)

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunConflict(f"{self.folder} is being written by another process") from None
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be a run folder: {error.strerror}") from None
        try:
            with writing(self.folder):
                self._adopt()
        except BaseException:
            self._lock.release()
            if not (self.folder / CONFIG).exists():  # not our folder: leave nothing in it
                with suppress(OSError):
                    (self.folder / LOCK).unlink(missing_ok=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.release()
        replies = self.folder / REPLIES
        if error is None or (replies.exists() and replies.stat().st_size):
            return
        worthless = (*self._scratch, REPLIES, LOCK, CONFIG)
        if all(entry.name in worthless for entry in self.folder.iterdir()):
            with suppress(OSError):  # a read-only folder
                for name in worthless:
                    (self.folder / name).unlink(missing_ok=True)
                self.folder.rmdir()

    @property
    def models(self) -> dict[str, str]:
        """Fingerprints of all models that took part so far, by name."""
        return dict(read_identity(self.folder).get("models", {}))

    def confirm_model(self, name: str, fingerprint: str, execution: str = "") -> None:
        """Store which weights a name stands for; a resumed run must use the same ones. `execution` says how they are
        run, which may change."""
        content = read_identity(self.folder)
        known = content.setdefault("models", {}).setdefault(name, fingerprint)
        if known != fingerprint:
            raise ModelChanged(
                f"{self.folder}: model {name!r} was {known!r} when the run began and is {fingerprint!r} now; choose "
                f"another --out{'' if self._fresh is None else ' or start over with --fresh'}",
                name,
                fingerprint,
            )
        if execution:
            content.setdefault("execution", {})[name] = execution
        write_json(self.folder / CONFIG, content)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the results in order: if the last one exists, the run is complete."""
        for name, value in results.items():
            write_json(self.folder / name, value)

    def _adopt(self) -> None:
        """Write the identity into a new folder, or compare it with the one that is there and extend that."""
        for entry in [*self.folder.glob(".*.part"), *self.folder.glob(".*.old")]:  # left by a process that was killed
            _delete(entry)
        path = self.folder / CONFIG
        if self._fresh and path.exists():
            for name in (SUMMARY, USERS, OUTCOMES, *self._scratch, REPLIES, CONFIG):  # last what says it is a run
                (self.folder / name).unlink(missing_ok=True)
        elif not path.exists() and any(entry.name != LOCK for entry in self.folder.iterdir()):
            raise RunConflict(f"{self.folder} exists and is not a run; choose another --out")
        if not path.exists():
            write_json(path, {"format": FORMAT, **self.identity})
            return
        content = read_identity(self.folder)
        stored = {key: value for key, value in content.items() if key not in ("format", "models", "execution")}
        identity = orjson.loads(orjson.dumps(self.identity))
        extended = []
        for place, includes in self._extendable.items():
            section, _, key = place.partition(".")
            if key not in stored.get(section, {}):  # a run of another verb
                continue
            old, new = stored[section][key], identity[section][key]
            if old != new and includes(new, old):
                stored = {**stored, section: {**stored[section], key: new}}
                extended += differences(old, new, place)
        if differing := differences(stored, identity):
            over = "" if self._fresh is None else ", start over with --fresh,"
            rows = "dataset: its rows have changed"
            lines = [rows if line.startswith("dataset.fingerprint: ") else line for line in differing]
            what = f"{self.folder} was made with other settings; choose another --out{over} or change these back:"
            raise RunConflict("\n  ".join([what, *lines]))
        if extended:
            for name in (SUMMARY, USERS):
                (self.folder / name).unlink(missing_ok=True)
            write_json(path, {**content, **self.identity})
            self.extended = "; ".join(extended)


@dataclass(frozen=True)
class Finished:
    """What a job left: its folder and the content of its result file."""

    folder: Path
    summary: dict[str, Any]


def read_result(folder: Path, name: str) -> Any:
    """The content of a result file of a finished run."""
    if not (folder / name).exists():
        raise BadInput(f"{folder} is not finished: it has no {name}; run its command again to resume")
    return read_object(folder / name)


def content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    with writing(path):
        path.unlink(missing_ok=True)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
