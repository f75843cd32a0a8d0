"""A dataset in two passes: one that checks every row and keeps an index of it, one that streams the items.

The first pass means that a file with errors is refused before anything is written. What it keeps is small (`Index`:
columns of ids, users, clusters, twins, lengths), so a million rows fit easily; texts are only ever held one batch at a
time. A limit selects rows of the index, so all rows are checked, may lend their posts, and belong to the same clusters
with a limit as without.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from heapq import heapreplace
from itertools import chain, islice
from pathlib import PurePosixPath
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from prb.config import HistoryKind
from prb.data.schema import BUILD, Task, listed, prepared, row_problems, to_choices, to_posts
from prb.data.source import SPLITS, BadRow, RawRow, Source, Spool, open_source
from prb.errors import BadData, BadInput, Problem
from prb.hashing import draw
from prb.stats.estimate import components, links_by_text
from prb.types import NO_EVIDENCE, Choice, Item, Pair, Post

LINKED = "linked users"
SMALL = 4096
"""A sample of at most this many rows is read once and kept, so that it costs one pass over a large file."""


@dataclass(slots=True)
class Index:
    """What the first pass keeps of the selected rows: one entry per row, in dataset order."""

    ids: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    tiers: list[str | None] = field(default_factory=list)
    groups: list[dict[str, str]] = field(default_factory=list)
    ratings: array[float] = field(default_factory=lambda: array("d"))
    lengths: tuple[array[float], array[float]] = field(default_factory=lambda: (array("d"), array("d")))
    """Characters of the chosen and of the rejected answer; means where there are several."""
    answers: tuple[array[int], array[int]] = field(default_factory=lambda: (array("l"), array("l")))
    """How many answers are right, and how many there are."""
    twins: array[int] = field(default_factory=lambda: array("l"))
    """Position of the mirror row, -1 where there is none or where there are more than two answers."""
    questions: array[int] = field(default_factory=lambda: array("q"))
    """A hash of the question, white space normalized; empty for ratings."""
    texts: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("q")))
    """Hashes of the chosen and of the rejected answers; empty for ratings."""
    clustered_by: str = "users"
    """`LINKED` where users who share a question or an answer are one cluster."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def chance(self) -> float:
        """How often a random pick is right, over the rows that count in an accuracy."""
        rows = zip(*self.answers, self.tiers, strict=True)
        shares = [right / total for right, total, tier in rows if tier != NO_EVIDENCE]
        return sum(shares) / len(shares) if shares else 0.5

    @property
    def most_answers(self) -> int:
        return max(self.answers[1], default=2)

    def take(self, rows: Sequence[int]) -> Index:
        """The rows at these ascending positions, in the clusters of the whole; a twin that is not taken is missing."""
        if len(rows) == len(self):
            return self

        def taken(column: Any) -> Any:
            if isinstance(column, tuple):
                return tuple(map(taken, column))
            if isinstance(column, array):
                return array(column.typecode, (column[n] for n in rows)) if column else column
            return [column[n] for n in rows]

        columns = {f.name: taken(getattr(self, f.name)) for f in fields(self) if f.name != "clustered_by"}
        new_position = {old: new for new, old in enumerate(rows)} if max(self.twins, default=-1) >= 0 else {}
        columns["twins"] = array("l", (new_position.get(twin, -1) for twin in columns["twins"]))
        return Index(**columns, clustered_by=self.clustered_by)

    def together(self) -> list[str]:
        """For each row, a name that only its twin shares: such rows are taken together or not at all."""
        rows = zip(self.ids, self.twins, strict=True)
        return [id_ if twin < 0 else min(id_, self.ids[twin]) for id_, twin in rows]

    def sample(self, limit: int | None, among: Sequence[int] | None = None) -> list[int]:
        """Positions of the rows that a limit takes, of all rows or `among` these; see `sample_rows`."""
        rows = range(len(self)) if among is None else among
        if limit is None or limit >= len(rows):
            return list(rows)
        together = self.together()
        return [rows[n] for n in sample_rows([together[n] for n in rows], [self.clusters[n] for n in rows], limit)]


class Shard(NamedTuple):
    """Part `number` of `total`, counted from 1, as `--shard 3/8` names it."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise BadInput(f"shard must be i/n such as 3/8, counted from 1/8 to 8/8, not {text!r}")
        return cls(int(match[1]), int(match[2]))

    def rows(self, clusters: Sequence[str]) -> list[int]:
        """Positions of its rows; clusters stay whole."""
        independent = len(set(clusters))
        if independent < self.total:
            raise BadInput(f"{independent} independent users cannot be split into {self.total} shards")
        return [n for n, part in enumerate(deal(clusters, self.total, "shard")) if part == self.number - 1]


def deal(clusters: Sequence[str | int], parts: int, seed: object = 0) -> list[int]:
    """A part for each row. Clusters are dealt out in an order drawn by hash, each to the smallest part so far.

    Whole clusters, so that neither a user nor a user's mirror twin is in two parts.
    """
    sizes = Counter(clusters)
    filled = [(0, part) for part in range(parts)]
    part_of: dict[str | int, int] = {}
    for name in sorted(sizes, key=lambda name: draw(seed, name, bits=256)):
        size, part_of[name] = filled[0]
        heapreplace(filled, (size + sizes[name], part_of[name]))
    return [part_of[name] for name in clusters]


def sample_rows(together: Sequence[str], clusters: Sequence[str], limit: int, seed: int = 0) -> list[int]:
    """Positions of at most `limit` rows, ascending: as many clusters as possible, twins never apart.

    Rows that share a name in `together` are one group. Groups are drawn by hash: one of each cluster, then a second one
    of each, and so on, as many as fit, but at least one. So the order of the file does not matter, and a smaller sample
    is nearly always part of a larger one.
    """
    members: dict[str, list[int]] = {}
    for n, name in enumerate(together):
        members.setdefault(name, []).append(n)
    taken: Counter[str] = Counter()
    rounds: dict[str, int] = {}
    for name in sorted(members, key=lambda name: draw(seed, "sample", name)):
        cluster = clusters[members[name][0]]
        rounds[name] = taken[cluster]
        taken[cluster] += 1
    sample: list[int] = []
    for name in sorted(rounds, key=rounds.__getitem__):  # sorting is stable: within a round the drawn order stays
        if not sample or len(sample) + len(members[name]) <= limit:
            sample += members[name]
    return sorted(sample)


class History(NamedTuple):
    posts: Sequence[Post]
    choices: tuple[Choice, ...] = ()


def history_digests(posts: Iterable[Post], choices: Iterable[Choice]) -> tuple[int, int]:
    """Of the posts and of the past choices; 0 where there are none."""
    written, chosen = "\0".join(post.text for post in posts), "\0".join(chain(*choices))
    return hash_text(written) if written else 0, hash_text(chosen) if chosen else 0


class Users:
    """The history of any user, spooled to a temporary file and read back one user at a time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Users with a history, sorted, so that a draw does not depend on the order of the file."""
        self.cluster_of: Mapping[str, str] = {}
        self._histories = Spool()
        self._kept: dict[tuple[str | None, str], tuple[int, tuple[int, int]]] = {}
        """By split and user: number and digests of the history."""
        self._of: dict[str, tuple[int, tuple[int, int]]] = {}
        """By user, in the split that was asked for."""
        self._asking: dict[tuple[str | None, str, str], set[str]] = {}
        """By split, `topic` or `category`, and its name: the users who ask about it."""
        self._alike: dict[tuple[str, str], list[str]] = {}

    def add(self, user: str, row: Mapping[str, Any]) -> None:
        """Keep what a row says of its user: what they ask about, and the first history that is not empty."""
        split = row.get("split")
        for kind in ("topic", "category"):
            if row.get(kind):
                self._asking.setdefault((split, kind, row[kind]), set()).add(user)
        history = {"profile": row.get("profile", []), "choices": row.get("choices", [])}
        if any(history.values()) and (split, user) not in self._kept:
            digests = history_digests(to_posts(history), to_choices(history))
            self._kept[split, user] = self._histories.add(history), digests

    def of_split(self, split: str | None, cluster_of: Mapping[str, str]) -> Users:
        """The users of a split, or of all of them."""
        for (kept_split, user), kept in self._kept.items():
            if split in (None, kept_split):
                self._of.setdefault(user, kept)
        self.names = sorted(self._of)
        self.cluster_of = cluster_of
        groups: dict[tuple[str, str], set[str]] = {}
        for (kept_split, kind, name), users in self._asking.items():
            if split in (None, kept_split):
                groups.setdefault((kind, name), set()).update(users & self._of.keys())
        self._alike = {group: sorted(users) for group, users in groups.items()}
        return self

    def notes(self) -> list[str]:
        """Users with exactly the same history: one person under several names, or a description that fits several."""
        groups: dict[tuple[int, int], list[str]] = {}
        for name in self.names:
            groups.setdefault(self._of[name][1], []).append(name)
        same = [names for names in groups.values() if len(names) > 1]
        if not same:
            return []
        first, second, *_ = same[0]
        several = f"{sum(map(len, same))} users have the same history as another one, such as {first!r} and {second!r}"
        return [f"{several}: they never lend it to each other; give one person one `user`"]

    def asking_about(self, item: Item) -> list[list[str]]:
        """Users with a history who ask about the item's topic, and those who ask within its category; sorted."""
        groups = ("topic", getattr(item, "topic", None)), ("category", item.category)
        return [self._alike[kind, name] for kind, name in groups if name and (kind, name) in self._alike]

    def cluster(self, user: str) -> str:
        return self.cluster_of.get(user, user)

    def may_lend(self, donor: str, item: Item, kind: HistoryKind = "both") -> bool:
        """Whether the donor's history, as far as it is shown, is another one than the item's own."""
        if donor == item.user:
            return False
        own, lent = history_digests(item.profile, item.choices), self._of[donor][1]
        shown = {"posts": (0,), "choices": (1,), "both": (0, 1)}[kind]
        return any(own[part] != lent[part] for part in shown) or not any(own[part] for part in shown)

    def history(self, user: str) -> History:
        row = self._histories[self._of[user][0]]
        return History(to_posts(row), to_choices(row))


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
        return len({(problem.place, problem.line) for problem in self.problems})

    @property
    def notes(self) -> list[str]:
        """What a user should know about how the rows were read, one line each."""
        notes = [f"left out {self.left_out} rows with errors"] if self.problems else []
        return [*notes, *self.users.notes()]

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Item]:
        if self._sampled is not None and len(self) <= SMALL:
            return iter(self._sample)
        return (BUILD[self.task](data) for _, _, data in self._rows(self._sampled))

    @cached_property
    def _sample(self) -> list[Item]:
        return [BUILD[self.task](data) for _, _, data in self._rows(self._sampled)]

    def _rows(self, only: frozenset[int] | None = None) -> Iterator[tuple[int, RawRow, dict[str, Any]]]:
        for ordinal, row in enumerate(self.source.rows()):
            if ordinal in self._bad or (only is not None and ordinal not in only):
                continue
            try:
                data = prepared(row, self.task)
            except BadRow as error:
                changed = f"{self.name} has changed since it was checked: {row.place}:{row.line}: {error}"
                raise BadInput(changed) from None
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
            path = PurePosixPath(row.place)  # `Art/test-00000-of-00002.parquet` and `Art/test` are of `Art`
            subset = str(path.parent) if path.name.startswith(SPLITS) else row.place
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

    Without a `split` field every row is used; with one, the default is `test`, or the only split there is. `donors`
    keeps the posts of all users of the split.
    """
    source = open_source(spec) if isinstance(spec, str) else spec
    scan = Scan(source, task, donors)
    if scan.problems and not skip_bad:
        raise BadData(source.name, scan.problems)
    if not scan.ids:
        raise BadInput(f"{source.name} holds no rows" + (" without errors" if scan.problems else ""))
    sizes = Counter(name for name in scan.splits if name is not None)
    if split == "all" or (not sizes and split is None):
        split = None
    elif not sizes:
        raise BadInput(f"{source.name} has no `split` field, so there is no split {split!r}")
    else:
        split = split or (next(iter(sizes)) if len(sizes) == 1 else "test")
        if split not in sizes:
            splits = ", ".join(f"{name} ({n} rows)" for name, n in sizes.items())
            raise BadInput(f"{source.name} has no rows in split {split!r}; its splits are {splits}")
    index, users, sampled = scan.select(split, limit, shard)
    problems, bad = tuple(scan.problems), frozenset(scan.bad)
    return Dataset(source, task, split, index, users, scan.fingerprint, problems, bad, sampled)


def training_split(source: Source) -> str | None:
    """What to train on by default: `train`, else `dev`; `None` where rows have no split. Never the test rows."""
    splits: set[str] = set()
    for row in source.rows():
        if isinstance(row.data, dict) and "split" in row.data:
            splits.add(str(row.data["split"]))
        if "train" in splits:
            return "train"
        if not splits:
            return None
    if "dev" in splits:
        return "dev"
    if splits:
        raise BadInput(f"{source.name} has no rows to train on; its splits are {', '.join(sorted(splits))}")
    return None


NO_GROUPS: dict[str, str] = {}
"""Shared by all rows without groups."""


class Scan:
    """The first pass over a source. Columns run over all good rows; `select` cuts out a split."""

    def __init__(self, source: Source, task: Task = "pairs", donors: bool = False) -> None:
        self.task, self._donors = task, donors
        self.bad: dict[int, list[Problem]] = {}
        """By the ordinals of the rows."""
        self.ids: dict[str, int] = {}
        """Id to position among the good rows."""
        self.splits: list[str | None] = []
        self.users = Users()
        self._index = Index()
        self._ordinals = array("l")
        self._places: list[str] = []
        self._lines = array("l")
        self._mirrors: dict[str, tuple[str, tuple[int, int], int]] = {}
        """Mirror rows by id: the twin's id, hashes of the conversation and of all answers, which twins have in common,
        and one of the right answers, which they have not."""
        digest = hashlib.sha256()
        for ordinal, row in enumerate(source.rows()):
            digest.update(row.raw)
            if reasons := self._add(ordinal, row):
                self.bad[ordinal] = [Problem(row.place, row.line, reason) for reason in reasons]
        self.fingerprint = digest.hexdigest()
        for row_id, (twin, same, right) in self._mirrors.items():
            n, reason = self.ids[row_id], ""
            back, other, other_right = self._mirrors.get(twin, ("", (0, 0), 0))
            if back != row_id or twin == row_id:
                reason = "is no other row without errors that points back"
            elif same != other or right == other_right or self.splits[n] != self.splits[self.ids[twin]]:
                reason = "does not hold the same question with the answers swapped, in the same split"
            if reason:
                problem = Problem(self._places[n], self._lines[n], f"`mirror` {twin!r} {reason}")
                self.bad[self._ordinals[n]] = [problem]
        self.problems = [problem for _, problems in sorted(self.bad.items()) for problem in problems]

    def _add(self, ordinal: int, row: RawRow) -> list[str]:
        """Keep a row, or say what is wrong with it."""
        try:
            data = prepared(row, self.task)
            reasons = row_problems(data, self.task)
        except BadRow as error:
            return [str(error)]
        if reasons:
            return reasons
        row_id = str(data["id"])
        if (first := self.ids.get(row_id)) is not None:
            return [f"duplicate id {row_id!r}, first seen at {self._places[first]}:{self._lines[first]}"]
        index, user = self._index, str(data.get("user", row_id))
        self.ids[row_id] = len(self._ordinals)
        self._ordinals.append(ordinal)
        self._places.append(intern(row.place))
        self._lines.append(row.line)
        self.splits.append(data.get("split"))
        index.users.append(user)
        index.categories.append(data.get("category", ""))
        index.tiers.append(data.get("tier"))
        index.groups.append(data.get("groups") or NO_GROUPS)
        if self._donors:
            self.users.add(user, data)
        if self.task == "ratings":
            index.ratings.append(data["rating"])
            return []
        sides = listed(data["chosen"]), listed(data["rejected"])
        keys = " ".join(data["question"].split()), *("\0".join(sorted(texts)) for texts in sides)
        lengths = [sum(map(len, texts)) / len(texts) for texts in sides]
        counts = len(sides[0]), len(sides[0]) + len(sides[1])
        columns: tuple[Any, ...] = (*index.lengths, *index.answers, index.questions, *index.texts)
        for column, value in zip(columns, (*lengths, *counts, *map(hash_text, keys)), strict=True):
            column.append(value)
        if "mirror" in data:
            turns = "\0".join((*(turn["text"] for turn in data.get("context", ())), data["question"]))
            answers = "\0".join(sorted({*sides[0], *sides[1]}))
            right = "\0".join(sorted(set(sides[0])))
            self._mirrors[row_id] = str(data["mirror"]), (hash_text(turns), hash_text(answers)), hash_text(right)
        return []

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
        twins = [(self.ids[row_id], self.ids[twin]) for row_id, (twin, *_) in self._mirrors.items() if twin in self.ids]
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
        return index.take(rows), self.users.of_split(split, cluster_of), sampled

    def _clusters(self, positions: list[int], twins: list[tuple[int, int]]) -> tuple[dict[str, str], str]:
        """Users linked by mirror rows, or by a question or an answer that they share, and what links them.

        Where everybody answers the same few questions that would be one cluster of nearly all: if it held more than
        half of the users, answers are not looked at, and if that is not enough, neither are questions.
        """
        index = self._index
        users = index.users
        couples = [(users[a], users[b]) for a, b in twins if self._ordinals[a] not in self.bad]
        by_mirror = components(couples)
        if self.task == "ratings":
            return by_mirror, "users"
        names = [users[i] for i in positions]
        everyone = set(names)
        questions, chosen, rejected = (
            np.array(column, dtype=np.int64)[positions] for column in (index.questions, *index.texts)
        )
        by_question = list(links_by_text(questions, names))
        by_answer = links_by_text(np.concatenate([chosen, rejected]), names + names)
        for shared in ([*by_question, *by_answer], by_question):
            cluster_of = components([*couples, *shared])
            largest = max(Counter(cluster_of.get(name, name) for name in everyone).values())
            if 2 * largest <= len(everyone) or cluster_of == by_mirror:
                return cluster_of, LINKED
        return by_mirror, "users"


def hash_text(text: str) -> int:
    """The same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)
