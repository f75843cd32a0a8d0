"""What the first pass over a dataset finds out about every row, and whether anything is wrong with it.

A large JSONL file is checked by several processes, each a part of it at a time. They find out what one process would,
so the result is the same.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import orjson

from prb.data.schema import Task, listed, normalize, row_problems
from prb.data.source import FileSource, RawRow, Source, read_jsonl

LARGE = 256 << 20
"""Bytes of a JSONL file from which on several processes check it; a smaller one is done before they have started."""
PART = 16 << 20
"""Bytes of a part, to the next end of a line."""
MOST_CHECKERS = 8
"""More would wait: the process that collects the facts keeps up with about this many."""
NO_GROUPS: dict[str, str] = {}
"""Shared by all rows without groups."""


def prepared(row: RawRow, task: Task) -> Any:
    """The normalized data of a row; ratings without an id are named after their place."""
    data = _normalized(row)
    if task == "ratings" and type(data) is dict and "id" not in data:
        return {**data, "id": place_id(row.place, row.line)}
    return data


def _normalized(row: RawRow) -> Any:
    return normalize(row.data) if type(row.data) is dict else row.data


def place_id(place: str, line: int) -> str:
    return f"{place}:{line}"


class Facts(NamedTuple):
    """What the first pass finds out about one row, all of it plain values."""

    place: str
    line: int
    reasons: list[str]
    """What is wrong with it; if anything is, the rest is not known."""
    id: str = ""
    """Empty if it is to be named after its place."""
    user: str = ""
    split: str | None = None
    category: str = ""
    tier: str | None = None
    topic: str | None = None
    groups: dict[str, str] = NO_GROUPS
    history: bytes = b""
    """The user's posts and past choices, if they are kept and were not met before."""
    rating: float = 0.0
    lengths: tuple[float, float] = (0, 0)
    """Characters of the chosen and of the rejected answer; means where there are several."""
    answers: tuple[int, int] = (1, 2)
    """How many answers are right, and how many there are."""
    hashes: tuple[int, int, int] = (0, 0, 0)
    """Of question (white space normalized), chosen and rejected, to see what users share."""
    mirror: tuple[str, tuple[int, int, int]] | None = None
    """The twin's id and the `mirror_key`."""


class Checker:
    """Finds out the facts of rows, one after the other."""

    def __init__(self, task: Task, donors: bool) -> None:
        """`donors`: whether histories are kept."""
        self._task, self._donors = task, donors
        self._met: set[tuple[str, str | None]] = set()

    def facts(self, row: RawRow) -> Facts:
        data = _normalized(row)
        reasons = [row.problem] if row.problem else row_problems(data, self._task)
        if reasons:
            return Facts(row.place, row.line, reasons)
        row_id, split = str(data.get("id", "")), data.get("split")
        user = str(data["user"]) if "user" in data else row_id
        facts = Facts(
            place=row.place,
            line=row.line,
            reasons=reasons,
            id=row_id,
            user=user,
            split=split,
            category=data.get("category", ""),
            tier=data.get("tier"),
            topic=data.get("topic"),
            groups=data.get("groups") or NO_GROUPS,
            history=self._history(user, split, data),
        )
        if self._task == "ratings":
            return facts._replace(rating=data["rating"])
        chosen, rejected = data["chosen"], data["rejected"]
        lengths: tuple[float, float] = (len(chosen), len(rejected))
        answers = 1, 2
        if type(chosen) is not str or type(rejected) is not str:
            several = listed(chosen), listed(rejected)
            lengths = (_mean_length(several[0]), _mean_length(several[1]))
            answers = len(several[0]), sum(map(len, several))
            chosen, rejected = ("\0".join(sorted(texts)) for texts in several)
        return facts._replace(
            lengths=lengths,
            answers=answers,
            hashes=(_hash(" ".join(data["question"].split())), _hash(chosen), _hash(rejected)),
            mirror=(str(data["mirror"]), mirror_key(data)) if "mirror" in data else None,
        )

    def _history(self, user: str, split: str | None, data: Mapping[str, Any]) -> bytes:
        if not self._donors or (user, split) in self._met:
            return b""
        profile, choices = data["profile"], data.get("choices", [])
        if not (profile or choices):
            return b""
        self._met.add((user, split))
        return orjson.dumps({"profile": profile, "choices": choices})


def _mean_length(texts: list[str]) -> float:
    return sum(map(len, texts)) / len(texts)


def _hash(text: str) -> int:
    """The same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def mirror_key(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Hashes of conversation, answers and right answers: of twins the first two are equal and the third is not."""
    chosen = listed(row["chosen"])
    turns = [turn["text"] for turn in row.get("context", ())]
    return (
        _hash("\0".join((*turns, row["question"]))),
        _hash("\0".join(sorted({*chosen, *listed(row["rejected"])}))),
        _hash("\0".join(sorted(set(chosen)))),
    )


class Part(NamedTuple):
    """Whole lines of a JSONL file."""

    start: int
    end: int


class CheckedPart(NamedTuple):
    facts: list[Facts]
    """Lines are counted from the beginning of the part."""
    lines: int
    whole: bool
    """Whether the fingerprint covers all its bytes: no line is blank or too long, and there is no byte order mark."""


def check_part(path: Path, part: Part, checker: Checker) -> CheckedPart:
    rows = list(read_jsonl(path, part.start, part.end))
    whole = sum(len(row.raw) for row in rows) == part.end - part.start
    lines = len(rows) if whole else _count_lines(path, part)
    return CheckedPart([checker.facts(row) for row in rows], lines, whole)


def _count_lines(path: Path, part: Part) -> int:
    with path.open("rb") as file:
        file.seek(part.start)
        return file.read(part.end - part.start).count(b"\n")


def parts_of(path: Path) -> list[Part]:
    size = path.stat().st_size
    bounds = [0]
    with path.open("rb") as file:
        while bounds[-1] < size:
            file.seek(min(size, bounds[-1] + PART))
            file.readline()
            bounds.append(min(size, file.tell()))
    return [Part(*bound) for bound in pairwise(bounds)]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(source: Source) -> Path | None:
    """The file of a source that several processes should check, if it is one."""
    if not isinstance(source, FileSource) or source.path.suffix not in (".jsonl", ".ndjson") or cores() < 2:
        return None
    return source.path if source.path.stat().st_size >= LARGE else None


def check_in_parts(path: Path, task: Task, donors: bool) -> Iterator[tuple[Part, CheckedPart]]:
    """All parts in order, a few of them under way at a time."""
    checkers = [CheckerProcess(path, task, donors) for _ in range(min(cores(), MOST_CHECKERS))]
    free: SimpleQueue[CheckerProcess] = SimpleQueue()
    for checker in checkers:
        free.put(checker)

    def check(part: Part) -> CheckedPart:
        checker = free.get()
        try:
            return checker.check(part)
        finally:
            free.put(checker)

    pool = ThreadPoolExecutor(len(checkers))
    waiting: deque[tuple[Part, Future[CheckedPart]]] = deque()
    try:
        for part in parts_of(path):
            waiting.append((part, pool.submit(check, part)))
            if len(waiting) > 2 * len(checkers):
                done, later = waiting.popleft()
                yield done, later.result()
        while waiting:
            done, later = waiting.popleft()
            yield done, later.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # first, or what waits would be checked here after all
        for checker in checkers:
            checker.stop()
        pool.shutdown()


class CheckerProcess:
    """A process that checks parts of a file. If it is lost, its parts are checked here."""

    def __init__(self, path: Path, task: Task, donors: bool) -> None:
        self._path, self._task, self._donors = path, task, donors
        # not multiprocessing, which would run a user's script once more in every process
        command = [sys.executable, "-c", "from prb.data.facts import serve; serve()", str(path), task, str(int(donors))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folder or "." for folder in sys.path)}
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the process that started it
            )
        except OSError:
            self._process = None

    def check(self, part: Part) -> CheckedPart:
        try:
            facts, lines, whole = self._ask(part)
        except (OSError, EOFError, ValueError, TypeError):
            return check_part(self._path, part, Checker(self._task, self._donors))
        return CheckedPart(list(map(Facts._make, facts)), lines, whole)

    def _ask(self, part: Part) -> Any:
        if self._process is None or not self._process.stdin or not self._process.stdout:
            raise OSError("there is no such process")
        self._process.stdin.write(b"%d %d\n" % part)
        self._process.stdin.flush()
        size = int.from_bytes(self._process.stdout.read(8))
        return marshal.loads(self._process.stdout.read(size))  # noqa: S302 - written by our own process

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """What a checker process does: a part per line of standard input, until there is no more."""
    path, task, donors = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
    for line in sys.stdin.buffer:
        start, end = map(int, line.split())
        checked = check_part(path, Part(start, end), Checker(task, donors))  # type: ignore[arg-type]
        reply = marshal.dumps((list(map(tuple, checked.facts)), checked.lines, checked.whole))
        sys.stdout.buffer.write(len(reply).to_bytes(8) + reply)
        sys.stdout.buffer.flush()
