"""A dataset in two passes: one that checks every row and keeps an index of it, one that streams the items.

The first pass means that a file with errors is refused before anything is written. What it keeps is small
(ids, people, twins, lengths), so a million rows fit easily; texts are only ever held a batch at a time.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from prb.data.people import People
from prb.data.schema import BUILD, Problem, Task, normalise, row_problems
from prb.data.source import RawRow, Source, open_source
from prb.errors import BadData, BadInput
from prb.stats.estimate import components
from prb.types import Item, Pair


@dataclass(slots=True)
class Index:
    """What the first pass leaves of the rows in use, one entry a row, in dataset order."""

    ids: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    tiers: list[str | None] = field(default_factory=list)
    groups: list[dict[str, str]] = field(default_factory=list)
    ratings: array[float] = field(default_factory=lambda: array("d"))
    lengths: tuple[array[int], array[int]] = field(default_factory=lambda: (array("l"), array("l")))
    """Characters of the chosen and of the rejected answer."""
    twins: array[int] = field(default_factory=lambda: array("l"))
    """Position of the mirror row, -1 where there is none."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Dataset:
    """Checked rows of one split, ready to be streamed any number of times."""

    source: Source
    task: Task
    split: str | None
    index: Index
    people: People
    """Everybody of the split before any limit: the donors of condition `shuffled`."""
    fingerprint: str
    problems: tuple[Problem, ...]
    """Rows left out by `skip_bad`."""
    _bad: frozenset[int]

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
        return islice(self._selected(), len(self))

    def _selected(self) -> Iterator[Item]:
        build = BUILD[self.task]
        for ordinal, row in enumerate(self.source.rows()):
            if ordinal in self._bad:
                continue
            data = prepared(row, self.task)
            if self.split is None or data.get("split") == self.split:
                yield build(data)


def load_pairs(spec: str, *, split: str | None = None, limit: int | None = None) -> list[Pair]:
    """A small dataset as a list, for notebooks; the rest of the code streams `load`."""
    return [item for item in load(spec, split=split, limit=limit) if isinstance(item, Pair)]


def load(
    spec: str | Source,
    *,
    task: Task = "pairs",
    split: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    donors: bool = False,
) -> Dataset:
    source = open_source(spec) if isinstance(spec, str) else spec
    scan = Scan(task, donors)
    for ordinal, row in enumerate(source.rows()):
        scan.add(ordinal, row)
    scan.close()
    if scan.problems and not skip_bad:
        raise BadData(source.name, scan.problems)
    if not scan.ids:
        raise BadInput(f"{source.name} holds no rows" + (" without errors" if scan.problems else ""))
    chosen = _choose_split(source.name, split, scan.splits)
    index, people = scan.select(chosen, limit)
    return Dataset(
        source=source,
        task=task,
        split=chosen,
        index=index,
        people=people,
        fingerprint=scan.digest.hexdigest(),
        problems=tuple(scan.problems),
        _bad=frozenset(scan.bad),
    )


def _choose_split(name: str, wanted: str | None, splits: list[str | None]) -> str | None:
    """Without a `split` field every row is used; with one, the default is `test`."""
    known = {s: splits.count(s) for s in dict.fromkeys(splits) if s is not None}
    if not known:
        if wanted is not None:
            raise BadInput(f"{name} has no `split` field, so there is no split {wanted!r}")
        return None
    split = wanted or "test"
    if split not in known:
        listed = ", ".join(f"{s} ({n} rows)" for s, n in known.items())
        raise BadInput(f"{name} has no rows in split {split!r}; its splits are {listed}")
    return split


def prepared(row: RawRow, task: Task) -> Any:
    data = normalise(row.data) if type(row.data) is dict else row.data
    if task == "ratings" and type(data) is dict and "id" not in data:
        return {**data, "id": f"{row.place}:{row.line}"}
    return data


class Digest:
    """SHA-256 of all rows, computed in a thread of its own: hashing needs no interpreter, and files are large."""

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
    """The first pass. Columns run over all good rows of the source; `select` cuts out a split."""

    def __init__(self, task: Task = "pairs", donors: bool = False) -> None:
        self.task = task
        self.problems: list[Problem] = []
        self.bad: set[int] = set()
        self.digest = Digest()
        self.ids: dict[str, int] = {}
        """Id to position among the good rows."""
        self.splits: list[str | None] = []
        self.people = People(keep_posts=donors)
        self._index = Index()
        self._ordinals = array("l")
        self._places: dict[str, int] = {}
        """File names, numbered; a row keeps its number and its line."""
        self._place_of, self._line_of = array("l"), array("l")
        self._mirrors: dict[str, tuple[str, tuple[int, int, int]]] = {}
        """Of mirror rows: the twin's id, and hashes of question, chosen, rejected."""

    def add(self, ordinal: int, row: RawRow) -> None:
        self.digest.update(row.raw)
        data = prepared(row, self.task)
        found = [row.problem] if row.problem else row_problems(data, self.task)
        if not found and str(data["id"]) in self.ids:
            place, line = self._place(self.ids[str(data["id"])])
            found = [f"duplicate id {data['id']!r}, first seen at {place}:{line}"]
        if found:
            self.bad.add(ordinal)
            self._places.setdefault(row.place, len(self._places))
            self.problems += [Problem(row.place, row.line, what) for what in found]
        else:
            self._keep(ordinal, row, data)

    def _keep(self, ordinal: int, row: RawRow, data: dict[str, Any]) -> None:
        index, own = self._index, str(data["id"])
        user = str(data["user"]) if "user" in data else own
        self.ids[own] = len(self._ordinals)
        self._ordinals.append(ordinal)
        self._place_of.append(self._places.setdefault(row.place, len(self._places)))
        self._line_of.append(row.line)
        self.splits.append(data.get("split"))
        index.users.append(user)
        index.categories.append(data.get("category", ""))
        index.tiers.append(data.get("tier"))
        index.groups.append(data.get("groups") or _NO_GROUPS)
        self.people.add(user, data.get("split"), data["profile"])
        if self.task == "ratings":
            index.ratings.append(data["rating"])
            return
        chosen, rejected = data["chosen"], data["rejected"]
        index.lengths[0].append(len(chosen))
        index.lengths[1].append(len(rejected))
        if "mirror" in data:
            self._mirrors[own] = str(data["mirror"]), (hash(data["question"]), hash(chosen), hash(rejected))

    def close(self) -> None:
        """What only the whole set shows: every mirror row has a twin that agrees."""
        for own in list(self._mirrors):
            wrong = self._mirror_problem(own)
            if wrong:
                at = self.ids[own]
                self.bad.add(self._ordinals[at])
                self.problems.append(Problem(*self._place(at), wrong))
        self.problems.sort(key=lambda p: (self._places[p.place], p.line))

    def _place(self, position: int) -> tuple[str, int]:
        return list(self._places)[self._place_of[position]], self._line_of[position]

    def _mirror_problem(self, own: str) -> str | None:
        twin, (question, chosen, rejected) = self._mirrors[own]
        if twin == own:
            return "`mirror` points at its own row"
        if twin not in self._mirrors:
            why = "has no mirror itself" if twin in self.ids else "is not in the set, or has errors"
            return f"`mirror` {twin!r} {why}"
        back, other = self._mirrors[twin]
        if back != own:
            return f"`mirror` {twin!r} does not point back: it points at {back!r}"
        if other != (question, rejected, chosen):
            return f"`mirror` {twin!r} does not hold the same question with the answers swapped"
        if self.splits[self.ids[own]] != self.splits[self.ids[twin]]:
            return f"`mirror` {twin!r} is in another split"
        return None

    def select(self, split: str | None, limit: int | None) -> tuple[Index, People]:
        here = [
            position
            for position, ordinal in enumerate(self._ordinals)
            if ordinal not in self.bad and (split is None or self.splits[position] == split)
        ]
        if not here:
            raise BadInput("no rows without errors" + (f" in split {split!r}" if split else ""))
        users = self._index.users
        sound = ((self.ids[a], b) for a, (b, _) in self._mirrors.items())
        links = [(users[a], users[self.ids[b]]) for a, b in sound if self._ordinals[a] not in self.bad]
        cluster_of = components(links)
        people = self.people.of_split(split, cluster_of)
        return self._cut(here[:limit], cluster_of), people

    def _cut(self, here: list[int], cluster_of: dict[str, str]) -> Index:
        full, ids = self._index, list(self.ids)
        new_position = {old: new for new, old in enumerate(here)} if self._mirrors else {}
        users = [full.users[i] for i in here]
        return Index(
            ids=[ids[i] for i in here],
            users=users,
            clusters=[cluster_of.get(user, user) for user in users] if cluster_of else users,
            categories=[full.categories[i] for i in here],
            tiers=[full.tiers[i] for i in here],
            groups=[full.groups[i] for i in here],
            ratings=array("d", (full.ratings[i] for i in here)) if full.ratings else full.ratings,
            lengths=tuple(array("l", (column[i] for i in here)) if column else column for column in full.lengths),  # type: ignore[arg-type]
            twins=array("l", (self._twin(ids[i], new_position) for i in here)),
        )

    def _twin(self, own: str, new_position: dict[int, int]) -> int:
        if own not in self._mirrors:
            return -1
        return new_position.get(self.ids[self._mirrors[own][0]], -1)


_NO_GROUPS: dict[str, str] = {}
