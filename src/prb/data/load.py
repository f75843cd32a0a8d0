"""A dataset in two passes: one that checks every row and keeps an index of it, one that streams the items.

The first pass means that a file with errors is refused before anything is written. What it keeps is small (`Index`:
columns of ids, users, clusters, twins, lengths), so a million rows fit easily; texts are only ever held one batch at a
time. A limit selects rows of the index, so all rows are checked, may lend their posts, and belong to the same clusters
with a limit as without.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from prb.data.facts import NO_GROUPS, Checker, Facts, check_in_parts, in_parts, place_id, prepared
from prb.data.index import Index, Shard, Users
from prb.data.schema import BUILD, Problem, Task, parse_checked
from prb.data.source import FileSource, RawRow, Source, open_source, read_jsonl, subset_of
from prb.errors import BadData, BadInput
from prb.stats.estimate import components, links_by_text
from prb.types import Item, Pair

SMALL = 4096
"""A sample of at most this many rows is read once and kept, so that it costs one pass over a large file."""


@dataclass(frozen=True)
class Dataset:
    """Checked rows of one split, ready to be streamed any number of times."""

    source: Source
    task: Task
    split: str | None
    index: Index
    users: Users
    """All users of the split before any limit: the donors of condition `shuffled`."""
    fingerprint: str
    problems: tuple[Problem, ...]
    """Of the rows left out by `skip_bad`."""
    _bad: frozenset[int]
    _sampled: frozenset[int] | None
    """With a limit: ordinals of the rows it takes."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def left_out(self) -> int:
        """How many rows `skip_bad` left out."""
        return len({(problem.place, problem.line) for problem in self.problems})

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._sample) if self._sampled is not None and len(self) <= SMALL else self._stream()

    @cached_property
    def _sample(self) -> list[Item]:
        return list(self._stream())

    def _stream(self) -> Iterator[Item]:
        build = BUILD[self.task]
        source = self.source
        if isinstance(source, FileSource) and source.lines:
            rows: Iterable[RawRow] = read_jsonl(source.path, parse=parse_checked)
        else:
            rows = source.rows()
        return (build(data) for _, _, data in self._rows(self._sampled, rows))

    def other(self, field: str) -> Iterator[Any]:
        """For each row, a field that is not part of our format, `None` where it is missing. Reads the source again."""
        return (data.get(field) for _, _, data in self._rows(self._sampled))

    def _rows(
        self, only: frozenset[int] | None = None, rows: Iterable[RawRow] | None = None
    ) -> Iterator[tuple[int, RawRow, dict[str, Any]]]:
        for ordinal, row in enumerate(self.source.rows() if rows is None else rows):
            if ordinal in self._bad or (only is not None and ordinal not in only):
                continue
            if row.problem:
                raise BadInput(f"{self.name} has changed since it was checked: {row.place}:{row.line}: {row.problem}")
            data = prepared(row, self.task)
            if self.split is None or data.get("split") == self.split:
                yield ordinal, row, data

    def first(self, n: int) -> Dataset:
        """The first `n` rows: those that an unfinished run has done."""
        ordinals = frozenset(ordinal for ordinal, _, _ in islice(self._rows(self._sampled), n))
        return replace(self, index=self.index.take(range(min(n, len(self)))), _sampled=ordinals)

    def subsets(self) -> Iterator[tuple[str, int]]:
        """For each row, its subset (a hub configuration, a folder, a file) and its number there before any limit.

        Reads the source again: only `--protocol paper` needs it.
        """
        seen: Counter[str] = Counter()
        for ordinal, row, _ in self._rows():
            subset = subset_of(row.place)
            if self._sampled is None or ordinal in self._sampled:
                yield subset, seen[subset]
            seen[subset] += 1


def load_pairs(spec: str, *, split: str | None = None, limit: int | None = None) -> list[Pair]:
    """A small dataset as a list, for notebooks; all other code streams `load`."""
    return [item for item in load(spec, split=split, limit=limit) if isinstance(item, Pair)]


def load(
    spec: str | Source,
    *,
    task: Task = "pairs",
    split: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    donors: bool = False,
    shard: Shard | None = None,
) -> Dataset:
    """Check all rows and index those of a split, or a sample of `limit`, or one shard of these.

    `donors` keeps the posts of all users of the split.
    """
    source = open_source(spec) if isinstance(spec, str) else spec
    scan = Scan(source, task, donors)
    if scan.problems and not skip_bad:
        raise BadData(source.name, scan.problems)
    if not scan.ids:
        raise BadInput(f"{source.name} holds no rows" + (" without errors" if scan.problems else ""))
    split = _choose_split(source.name, split, Counter(scan.splits))
    index, users, sampled = scan.select(split, limit, shard)
    return Dataset(
        source=source,
        task=task,
        split=split,
        index=index,
        users=users,
        fingerprint=scan.fingerprint,
        problems=tuple(scan.problems),
        _bad=frozenset(scan.bad),
        _sampled=sampled,
    )


def _choose_split(name: str, split: str | None, sizes: Counter[str | None]) -> str | None:
    """Without a `split` field every row is used; with one, the default is `test`, or the only split there is."""
    del sizes[None]
    if split == "all":
        return None
    if not sizes:
        if split is not None:
            raise BadInput(f"{name} has no `split` field, so there is no split {split!r}")
        return None
    split = split or (next(iter(sizes)) if len(sizes) == 1 else "test")
    if split not in sizes:
        listed = ", ".join(f"{s} ({n} rows)" for s, n in sizes.items())
        raise BadInput(f"{name} has no rows in split {split!r}; its splits are {listed}")
    return split


def training_split(source: Source) -> str | None:
    """What to train on by default: `train`, else `dev`; `None` where rows have no split. Never the test rows."""
    splits: set[str] = set()
    for row in source.rows():
        if isinstance(row.data, dict) and "split" in row.data:
            splits.add(str(row.data["split"]))
            if "train" in splits:
                return "train"
        elif not splits:
            return None
    if not splits:
        return None
    if "dev" in splits:
        return "dev"
    raise BadInput(f"{source.name} has no rows to train on; its splits are {', '.join(sorted(splits))}")


class Digest:
    """SHA-256 of all rows, computed in its own thread: hashing releases the interpreter lock, and files are large."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._size = 0
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def update(self, raw: bytes) -> None:
        self._waiting.append(raw)
        self._size += len(raw)
        if self._size > 4 << 20:
            self._send()

    def hexdigest(self) -> str:
        self._send()
        self._worker.shutdown()
        return self._hash.hexdigest()

    def _send(self) -> None:
        if self._last is not None:
            self._last.result()  # one chunk at a time, so that memory stays small
        self._last = self._worker.submit(self._hash.update, b"".join(self._waiting))
        self._waiting, self._size = [], 0


class Scan:
    """The first pass over a source. Columns run over all good rows; `select` cuts out a split."""

    def __init__(self, source: Source, task: Task = "pairs", donors: bool = False) -> None:
        self.task = task
        self.problems: list[Problem] = []
        self.bad: set[int] = set()
        """Ordinals of rows with problems."""
        self.ids: dict[str, int] = {}
        """Id to position among the good rows."""
        self.splits: list[str | None] = []
        self._users = Users(keep=donors)
        self._index = Index()
        self._ordinals = array("l")
        self._places: dict[str, int] = {}
        """File names, numbered; a row keeps its number and its line."""
        self._place_of, self._line_of = array("l"), array("l")
        self._hashes = array("q"), array("q"), array("q")
        """Hashes of question (white space normalized), chosen and rejected, to see what users share."""
        self._mirrors: dict[str, tuple[str, tuple[int, int, int]]] = {}
        """Mirror rows by id: the twin's id and the `mirror_key`."""
        self._digest = Digest()
        self._rows = 0
        try:
            path = in_parts(source)
            if path is None:
                checker = Checker(task, donors)
                for row in source.rows():
                    self._digest.update(row.raw)
                    self._add(checker.facts(row))
            else:
                self._add_parts(path, donors)
        finally:
            self.fingerprint = self._digest.hexdigest()
        for row_id in self._mirrors:
            if reason := self._mirror_problem(row_id):
                position = self.ids[row_id]
                self.bad.add(self._ordinals[position])
                self.problems.append(Problem(*self._place(position), reason))
        self.problems.sort(key=lambda p: (self._places[p.place], p.line))

    def _add_parts(self, path: Path, donors: bool) -> None:
        before = 0
        with path.open("rb") as file:
            for part, checked in check_in_parts(path, self.task, donors):
                file.seek(part.start)
                if checked.whole:
                    self._digest.update(file.read(part.end - part.start))
                else:
                    for row in read_jsonl(path, part.start, part.end):
                        self._digest.update(row.raw)
                for facts in checked.facts:
                    self._add(facts._replace(line=facts.line + before))
                before += checked.lines

    def _add(self, facts: Facts) -> None:
        ordinal, self._rows = self._rows, self._rows + 1
        reasons = facts.reasons
        row_id = facts.id or place_id(facts.place, facts.line)
        if not reasons and row_id in self.ids:
            place, line = self._place(self.ids[row_id])
            reasons = [f"duplicate id {row_id!r}, first seen at {place}:{line}"]
        place_number = self._places.setdefault(facts.place, len(self._places))
        if reasons:
            self.bad.add(ordinal)
            self.problems += [Problem(facts.place, facts.line, reason) for reason in reasons]
            return
        index = self._index
        self.ids[row_id] = len(self._ordinals)
        self._ordinals.append(ordinal)
        self._place_of.append(place_number)
        self._line_of.append(facts.line)
        self.splits.append(facts.split)
        index.users.append(facts.user)
        index.categories.append(facts.category)
        index.tiers.append(facts.tier)
        index.groups.append(facts.groups or NO_GROUPS)
        self._users.add(facts.user, facts.split, facts.history, topic=facts.topic, category=facts.category)
        if self.task == "ratings":
            index.ratings.append(facts.rating)
            return
        for lengths, length in zip(index.lengths, facts.lengths, strict=True):
            lengths.append(length)
        for counts, count in zip((*index.answers, *self._hashes), (*facts.answers, *facts.hashes), strict=True):
            counts.append(count)
        if facts.mirror:
            self._mirrors[row_id] = facts.mirror

    def _place(self, position: int) -> tuple[str, int]:
        return list(self._places)[self._place_of[position]], self._line_of[position]

    def _mirror_problem(self, row_id: str) -> str | None:
        """Why a mirror row and its twin do not match, which only the whole dataset shows."""
        twin, (question, answers, right) = self._mirrors[row_id]
        if twin == row_id:
            return "`mirror` points at its own row"
        if twin not in self._mirrors:
            why = "has no mirror itself" if twin in self.ids else "is not in the dataset, or has errors"
            return f"`mirror` {twin!r} {why}"
        back, (other_question, other_answers, other_right) = self._mirrors[twin]
        if back != row_id:
            return f"`mirror` {twin!r} does not point back: it points at {back!r}"
        if (question, answers) != (other_question, other_answers) or right == other_right:
            return f"`mirror` {twin!r} does not hold the same question with the answers swapped"
        if self.splits[self.ids[row_id]] != self.splits[self.ids[twin]]:
            return f"`mirror` {twin!r} is in another split"
        return None

    def select(
        self, split: str | None, limit: int | None, shard: Shard | None
    ) -> tuple[Index, Users, frozenset[int] | None]:
        """The rows of a split or a part of them, all users of the split, and the ordinals of a part."""
        positions = [
            position
            for position, ordinal in enumerate(self._ordinals)
            if ordinal not in self.bad and (split is None or self.splits[position] == split)
        ]
        if not positions:
            raise BadInput("no rows without errors" + (f" in split {split!r}" if split else ""))
        twins = [(self.ids[row_id], self.ids[twin]) for row_id, (twin, _) in self._mirrors.items() if twin in self.ids]
        cluster_of, clustered_by = self._clusters(positions, twins)
        users = self._index.users
        full = replace(
            self._index,
            ids=list(self.ids),
            clusters=[cluster_of.get(user, user) for user in users] if cluster_of else users,
            twins=array("l", [-1]) * len(users),
            clustered_by=clustered_by,
        )
        for row, twin in twins:
            if full.answers[1][row] == 2:  # with more answers margins do not cancel
                full.twins[row] = twin
        index = full.take(positions)
        rows = index.sample(limit)
        if shard is not None:
            rows = [rows[n] for n in shard.rows([index.clusters[n] for n in rows])]
        sampled = frozenset(self._ordinals[positions[n]] for n in rows) if len(rows) < len(positions) else None
        return index.take(rows), self._users.of_split(split, cluster_of), sampled

    def _clusters(self, positions: list[int], twins: list[tuple[int, int]]) -> tuple[dict[str, str], str]:
        """Users linked by mirror rows, or by a question or an answer that they share, and what links them.

        Where everybody answers the same few questions that would be one cluster of nearly all: if it held more than
        half of the users, answers are not looked at, and if that is not enough, neither are questions.
        """
        users = self._index.users
        couples = [(users[a], users[b]) for a, b in twins if self._ordinals[a] not in self.bad]
        by_mirror = components(couples)
        if self.task == "ratings":
            return by_mirror, "users"
        names = [users[i] for i in positions]
        everyone = set(names)
        questions, chosen, rejected = (np.array(column, dtype=np.int64)[positions] for column in self._hashes)
        by_question = list(links_by_text(questions, names))
        by_answer = links_by_text(np.concatenate([chosen, rejected]), names + names)
        for shared in ([*by_question, *by_answer], by_question):
            cluster_of = components([*couples, *shared])
            largest = max(Counter(cluster_of.get(name, name) for name in everyone).values())
            if 2 * largest <= len(everyone) or cluster_of == by_mirror:
                return cluster_of, "users and questions"
        return by_mirror, "users"
