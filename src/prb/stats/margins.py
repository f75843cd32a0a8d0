"""How large a model's margins are, and whether larger ones are more often right."""

from __future__ import annotations

from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints, share

DECILES = 10
BINS, REACH = 24, 3.0
"""Bars of the histogram, and up to how many typical margins it reaches on either side; the last bars hold the rest."""


def margin_scale(margin: Floats) -> float | None:
    """The median size of the margins that are not zero: every model has a scale of its own."""
    sizes = np.abs(margin[~np.isnan(margin)])
    return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else None


def histogram(margin: Floats) -> dict[str, Any] | None:
    """Margins in units of `margin_scale`: positive ones prefer the chosen answer. Zeros are counted apart."""
    scale = margin_scale(margin)
    if scale is None:
        return None
    known = margin[~np.isnan(margin)]
    relative = np.clip(known[known != 0] / scale, -REACH, np.nextafter(REACH, 0))
    counts, _ = np.histogram(relative, bins=BINS, range=(-REACH, REACH))
    return {"scale": scale, "reach": REACH, "counts": counts.tolist(), "zeros": int((known == 0).sum())}


def by_margin(margin: Floats, credit: Floats, clusters: Ints) -> list[dict[str, Any]]:
    """Accuracy by decile of |margin|, smallest first; equal margins are never split, so there may be fewer bins.

    If margins mean anything, accuracy rises with them: a pair the model is sure of is more often right.
    """
    answered = ~(np.isnan(margin) | np.isnan(credit))
    sizes, credit, clusters = np.abs(margin[answered]), credit[answered], clusters[answered]
    if not len(sizes):
        return []
    cuts = np.unique(np.quantile(sizes, np.arange(1, DECILES) / DECILES, method="lower"))
    place = np.searchsorted(cuts, sizes, side="left")
    rows_of = [place == n for n in range(len(cuts) + 1)]
    return [
        {
            "from": float(sizes[rows].min()),
            "to": float(sizes[rows].max()),
            **share(credit[rows], clusters[rows]).as_dict(),
        }
        for rows in rows_of
        if rows.any()
    ]
