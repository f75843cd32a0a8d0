"""What is known of every row of a dataset without reading it again, and which rows a `--limit` takes."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, TypeVar

import orjson

from prb.data.schema import to_choices
from prb.errors import BadInput
from prb.hashing import draw
from prb.types import Choice, Item, Post, Profile

T = TypeVar("T")


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
    clustered_by: str = "users"
    """`users and questions` where users who share a question or an answer are one cluster."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def chance(self) -> float:
        """How often a random pick is right."""
        right, total = self.answers
        return sum(n / k for n, k in zip(right, total, strict=True)) / len(total) if total else 0.5

    @property
    def most_answers(self) -> int:
        return max(self.answers[1], default=2)

    def take(self, rows: Sequence[int]) -> Index:
        """The rows at these ascending positions, in the clusters of the whole; a twin that is not taken is missing."""
        if len(rows) == len(self):
            return self

        def taken(column: list[T]) -> list[T]:
            return [column[n] for n in rows]

        def packed(column: array[Any]) -> array[Any]:
            return array(column.typecode, (column[n] for n in rows)) if column else column

        new_position = {old: new for new, old in enumerate(rows)} if max(self.twins, default=-1) >= 0 else {}
        return Index(
            ids=taken(self.ids),
            users=taken(self.users),
            clusters=taken(self.clusters),
            categories=taken(self.categories),
            tiers=taken(self.tiers),
            groups=taken(self.groups),
            ratings=packed(self.ratings),
            lengths=(packed(self.lengths[0]), packed(self.lengths[1])),
            answers=(packed(self.answers[0]), packed(self.answers[1])),
            twins=array("l", (new_position.get(self.twins[n], -1) for n in rows)),
            clustered_by=self.clustered_by,
        )

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
    """What is known of a user."""

    posts: Sequence[Post]
    choices: tuple[Choice, ...] = ()


class Users:
    """The history of any user, spooled to a temporary file and read back one user at a time."""

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self.names: list[str] = []
        """Users with a history, sorted, so that a draw does not depend on the order of the file."""
        self.cluster_of: Mapping[str, str] = {}
        self._file = SpooledTemporaryFile(max_size=64 << 20)  # noqa: SIM115 - lives as long as the dataset
        self._at: dict[tuple[str, str | None], tuple[int, int]] = {}
        """Offset and size of the history of a user in a split."""
        self._asking: dict[tuple[str | None, str, str], set[str]] = {}
        """By split, `topic` or `category`, and its name: the users who ask about it."""
        self._alike: dict[tuple[str, str], list[str]] = {}
        self._split: str | None = None

    def add(self, user: str, split: str | None, history: bytes, **about: str | None) -> None:
        """Keep the user of a row and a history, empty if it is known; `about` names the row's topic and category."""
        if not self.keep:
            return
        for kind, name in about.items():
            if name:
                self._asking.setdefault((split, kind, name), set()).add(user)
        if history and (user, split) not in self._at:
            start = self._file.seek(0, 2)
            self._file.write(history)
            self._at[user, split] = start, len(history)

    def of_split(self, split: str | None, cluster_of: Mapping[str, str]) -> Users:
        self.names = sorted(user for user, user_split in self._at if user_split == split)
        self._split = split
        self.cluster_of = cluster_of
        names = set(self.names)
        groups = {(kind, name): users & names for (s, kind, name), users in self._asking.items() if s == split}
        self._alike = {group: sorted(users) for group, users in groups.items()}
        return self

    def asking_about(self, item: Item) -> list[list[str]]:
        """Users with a history who ask about the item's topic, and those who ask within its category; sorted."""
        groups = ("topic", getattr(item, "topic", None)), ("category", item.category)
        return [self._alike[kind, name] for kind, name in groups if name and (kind, name) in self._alike]

    def cluster(self, user: str) -> str:
        return self.cluster_of.get(user, user)

    def history(self, user: str) -> History:
        start, length = self._at[user, self._split]
        self._file.seek(start)
        row = orjson.loads(self._file.read(length))
        return History(Profile(row["profile"]), to_choices(row))
