"""Who is held out: whole clusters, so that neither a person nor a person's mirror twin stands on both sides."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from prb.errors import BadInput

Ints = NDArray[np.int64]


def fold_of(clusters: Ints, folds: int, seed: int) -> Ints:
    """A fold for each row. Clusters are dealt out in an order drawn by hash, each to the shortest fold so far."""
    names, sizes = np.unique(clusters, return_counts=True)
    if len(names) < folds:
        raise BadInput(f"{len(names)} independent persons cannot be cut into {folds} folds")
    order = sorted(range(len(names)), key=lambda n: _draw(int(names[n]), seed))
    filled = np.zeros(folds, dtype=np.int64)
    fold = np.empty(len(names), dtype=np.int64)
    for n in order:
        fold[n] = int(np.argmin(filled))
        filled[fold[n]] += sizes[n]
    return np.asarray(fold[np.searchsorted(names, clusters)])


def split_off(clusters: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to fit on and rows of held-out clusters, about `share` of all clusters but at least one."""
    if share == 0:
        return np.arange(len(clusters)), np.empty(0, dtype=np.int64)
    names = np.unique(clusters)
    if len(names) < 2:
        raise BadInput("a single person cannot be split into training and validation; use --validation 0")
    order = sorted(names.tolist(), key=lambda name: _draw(name, seed))
    held = np.isin(clusters, order[: min(len(names) - 1, max(1, round(share * len(names))))])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _draw(name: int, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()
