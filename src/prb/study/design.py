"""Who judges what, in which order: balanced by construction and fixed by the seed. Pure functions."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from prb.errors import BadInput

Edge = tuple[int, int]
"""An annotator and an item, both by position."""


class Task(NamedTuple):
    annotator: int
    item: int
    position: int
    flipped: bool
    """The rejected answer stands as A."""


def plan(
    groups: Sequence[str], *, annotators: int, overlap: int, quota: int | None, checks: int, seed: int
) -> list[Task]:
    """Items 0..n−1 go to `overlap` annotators each; items n, n+1, … are the checks, all for everybody."""
    edges = assign(groups, annotators=annotators, overlap=overlap, quota=quota, seed=seed)
    edges += [(a, len(groups) + c) for a in range(annotators) for c in range(checks)]
    flipped = orders(edges, seed=seed)
    tasks = []
    for annotator in range(annotators):
        own = [item for a, item in edges if a == annotator]
        queue = sorted(own, key=lambda item: draw(seed, "queue", annotator, item))
        queue = spread([i for i in queue if i < len(groups)], [i for i in queue if i >= len(groups)])
        tasks += [Task(annotator, item, n, flipped[annotator, item]) for n, item in enumerate(queue)]
    return tasks


def assign(groups: Sequence[str], *, annotators: int, overlap: int, quota: int | None, seed: int) -> list[Edge]:
    """Loads differ by at most one; then twins are kept apart, then every couple of annotators meets equally often."""
    if overlap > annotators:
        raise BadInput(f"--overlap {overlap} needs at least {overlap} annotators; there are {annotators}")
    wanted = len(groups) * overlap
    if quota is not None and wanted > quota * annotators:
        fits = quota * annotators // overlap
        raise BadInput(
            f"{len(groups)} items × {overlap} are {wanted} judgements, {annotators} annotators × {quota} give "
            f"{quota * annotators}; use --limit {fits}, more annotators or a higher --quota"
        )
    load, met = [0] * annotators, [[0] * annotators for _ in range(annotators)]
    seen: set[tuple[int, str]] = set()
    edges: list[Edge] = []
    for item in sorted(range(len(groups)), key=lambda i: draw(seed, "item", i)):
        chance = [draw(seed, "who", item, a) for a in range(annotators)]
        together, chosen = [0] * annotators, list[int]()
        for _ in range(overlap):
            free = [a for a in range(annotators) if a not in chosen]
            best = min(free, key=lambda a: (load[a], (a, groups[item]) in seen, together[a], chance[a]))
            together = [have + more for have, more in zip(together, met[best], strict=True)]
            chosen.append(best)
        for a in chosen:
            load[a] += 1
            seen.add((a, groups[item]))
            edges.append((a, item))
            for b in chosen:
                met[a][b] += 1
    return edges


def orders(edges: Sequence[Edge], *, seed: int) -> dict[Edge, bool]:
    """Which answer comes first, random but balanced: for every annotator and every item the two orders differ by ≤ 1.

    Annotators and items are a bipartite graph. Odd nodes get an edge to a dummy node of the other side, so every
    node is even; walking closed trails and alternating along them then halves the edges at each node exactly.
    """
    shuffled = sorted(edges, key=lambda e: draw(seed, "edge", *e))
    ends: list[tuple[Hashable, Hashable]] = [(("a", a), ("i", i)) for a, i in shuffled]
    degree = defaultdict[Hashable, int](int)
    for left, right in ends:
        degree[left] += 1
        degree[right] += 1
    odd = [node for node, count in degree.items() if count % 2]
    ends += [(node, ("i", -1)) if node[0] == "a" else (("a", -1), node) for node in odd]  # type: ignore[index]
    if sum(node[0] == "a" for node in odd) % 2:  # type: ignore[index]
        ends.append((("a", -1), ("i", -1)))
    colours = _alternate(ends, seed)
    return {edge: colours[n] for n, edge in enumerate(shuffled)}


def _alternate(ends: Sequence[tuple[Hashable, Hashable]], seed: int) -> list[bool]:
    """Colours along closed trails; every node has even degree, so each trail ends where it began."""
    touching = defaultdict[Hashable, list[int]](list)
    for n, (left, right) in enumerate(ends):
        touching[left].append(n)
        touching[right].append(n)
    colour: list[bool | None] = [None] * len(ends)
    for start in list(touching):
        node, turn = start, draw(seed, "trail", start) % 2 == 0
        while True:
            free = touching[node]
            while free and colour[free[-1]] is not None:
                free.pop()
            if not free:
                break
            edge = free.pop()
            colour[edge], turn = turn, not turn
            left, right = ends[edge]
            node = right if node == left else left
    return [bool(c) for c in colour]


def spread(items: list[int], checks: list[int]) -> list[int]:
    """Checks at even distances among the items, never first."""
    queue = list(items)
    for n, check in enumerate(checks):
        queue.insert(max(1, round((n + 1) * len(items) / (len(checks) + 1))) + n, check)
    return queue


def draw(seed: int, *what: object) -> int:
    """A number fixed by the seed and what it is for, so that nothing depends on the order of drawing."""
    text = ":".join(map(str, (seed, *what)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
