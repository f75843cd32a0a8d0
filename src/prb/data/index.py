"""What is known of every row of a dataset without reading it again, and which rows a `--limit` takes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from prb.hashing import draw


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

    def first(self, n: int) -> Index:
        """The first `n` rows, in the clusters that they have among all rows; a twin beyond them is missing."""
        return Index(
            ids=self.ids[:n],
            users=self.users[:n],
            clusters=self.clusters[:n],
            categories=self.categories[:n],
            tiers=self.tiers[:n],
            groups=self.groups[:n],
            ratings=self.ratings[:n],
            lengths=(self.lengths[0][:n], self.lengths[1][:n]),
            answers=(self.answers[0][:n], self.answers[1][:n]),
            twins=array("l", (twin if twin < n else -1 for twin in self.twins[:n])),
            clustered_by=self.clustered_by,
        )

    def together(self) -> list[str]:
        """Of each row a name that only its twin shares: such rows are taken together or not at all."""
        rows = zip(self.ids, self.twins, strict=True)
        return [id_ if twin < 0 else min(id_, self.ids[twin]) for id_, twin in rows]

    def sample(self, limit: int | None, among: Sequence[int] | None = None) -> list[int]:
        """Positions of the rows that a limit takes, of all rows or `among` these; see `sample_rows`."""
        rows = range(len(self)) if among is None else among
        if limit is None or limit >= len(rows):
            return list(rows)
        together = self.together()
        return [rows[n] for n in sample_rows([together[n] for n in rows], [self.clusters[n] for n in rows], limit)]


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
