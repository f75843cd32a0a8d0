"""Statistics of mirror twins: the same question and answers under two users, with the labels swapped.

With margins m_A and m_B (chosen − rejected), (m_A + m_B)/2 is what depends on the user and (m_A − m_B)/2 what does not:
a model's general taste enters the two margins with opposite signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prb.stats.estimate import ROUNDING, Floats, Ints, share, totals
from prb.stats.paired import sign_flip
from prb.types import Estimate

COIN_MIRROR_ACCURACY = 0.25
BLIND_MIRROR_ACCURACY = 0.0
"""A user-blind model that never ties is right on exactly one of two twins, so never on both."""


@dataclass(frozen=True)
class Twins:
    """Row numbers of twins that were both answered, and their clusters."""

    first: Ints
    second: Ints
    clusters: Ints

    @classmethod
    def find(cls, twins: Ints, clusters: Ints, answered: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Twins:
        first = np.flatnonzero(twins > np.arange(len(twins)))
        first = first[answered[first] & answered[twins[first]]]
        return cls(first, twins[first], clusters[first])

    def __len__(self) -> int:
        return len(self.first)


def mirror_accuracy(credit: Floats, twins: Twins) -> Estimate:
    """Share of twins with both rows strictly right. A coin flip has 25 %, a user-blind model 0 %."""
    both = (credit[twins.first] == 1) & (credit[twins.second] == 1)
    return share(both.astype(np.float64), twins.clusters)


def person_effect(margin: Floats, twins: Twins, *, seed: int = 0) -> tuple[Estimate, float | None]:
    """Share of twins with m_A + m_B > 0, zero counting half, and its sign-flip p. User-blind: exactly 50 %."""
    won = (np.sign(_margin_sums(margin, twins)) + 1) / 2
    if not len(won):
        return share(won, twins.clusters), None
    blind = bool((won == 0.5).all())  # general taste cancels on every twin: exactly 50 %, with nothing to estimate
    return share(won, twins.clusters, exact=blind), sign_flip(totals(won - 0.5, twins.clusters).sums, seed=seed)


def average_user_share(margin: Floats, twins: Twins) -> float | None:
    """Σg² / (Σg² + Σp²): the share of the squared margins that does not depend on the user."""
    personal = np.square(_margin_sums(margin, twins) / 2).sum()
    general = np.square((margin[twins.first] - margin[twins.second]) / 2).sum()
    whole = float(general + personal)
    return float(general) / whole if whole else None


def _margin_sums(margin: Floats, twins: Twins) -> Floats:
    """m_A + m_B; margins that cancel but for rounding give exactly zero."""
    a, b = margin[twins.first], margin[twins.second]
    total = a + b
    return np.where(np.abs(total) <= ROUNDING * (np.abs(a) + np.abs(b)), 0.0, total)
