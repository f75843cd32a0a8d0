"""Columns of credits, clusters and mirror twins for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from prb.stats.estimate import Floats, Ints

CREDITS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""All that a row asked once or in both orders can earn."""
NAN = float("nan")

usual = settings(max_examples=50, deadline=None)
few = settings(max_examples=15, deadline=None)

credit = st.sampled_from(CREDITS)
credit_or_failure = st.sampled_from((*CREDITS, NAN))


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


@st.composite
def columns(
    draw: st.DrawFn, *cells: st.SearchStrategy[float], min_rows: int = 1, max_rows: int = 24, groups: int = 8
) -> tuple[np.ndarray, ...]:
    """One array for each strategy, then cluster codes that need not be dense."""
    rows = draw(st.lists(st.tuples(*cells, st.integers(0, groups - 1)), min_size=min_rows, max_size=max_rows))
    table = [np.array([row[k] for row in rows], dtype=np.float64) for k in range(len(cells))]
    return *table, np.array([3 * row[-1] for row in rows], dtype=np.int64)


@st.composite
def orders(draw: st.DrawFn, n: int) -> Ints:
    return np.array(draw(st.permutations(range(n))), dtype=np.int64)


@st.composite
def relabeled(draw: st.DrawFn, clusters: Ints) -> Ints:
    """The same partition under other codes."""
    old = sorted(set(clusters.tolist()))
    new = draw(st.lists(st.integers(-50, 50), min_size=len(old), max_size=len(old), unique=True))
    return np.array([dict(zip(old, new, strict=True))[c] for c in clusters.tolist()], dtype=np.int64)
