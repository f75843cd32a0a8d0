"""What only mirror twins can tell: the same question and answers under two people, labels swapped.

With margins m_A, m_B (chosen − rejected) of a twin, (m_A + m_B)/2 is what the model says because of the person
and (m_A − m_B)/2 what it says whoever asks: its general taste enters both margins with opposite signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prb.stats.estimate import Floats, Ints, share, totals
from prb.stats.paired import sign_flip
from prb.types import Estimate

COIN_MIRROR_ACCURACY = 0.25
BLIND_MIRROR_ACCURACY = 0.0
"""A user-blind model that never ties is right on exactly one of two twins, so never on both."""


@dataclass(frozen=True)
class Twins:
    """The two halves of each twin that were both answered, and the cluster they belong to."""

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
    """Share of twins with both rows strictly right. A coin has 25 %, a user-blind model 0 %."""
    both = (credit[twins.first] == 1) & (credit[twins.second] == 1)
    return share(both.astype(np.float64), twins.clusters)


def person_effect(margin: Floats, twins: Twins, *, seed: int = 0) -> tuple[Estimate, float | None]:
    """Share of twins with m_A + m_B > 0, zero counting half, and its sign-flip p. User-blind: exactly 50 %."""
    won = (np.sign(_snap(margin, twins)) + 1) / 2
    if not len(won):
        return share(won, twins.clusters), None
    return share(won, twins.clusters), sign_flip(totals(won - 0.5, twins.clusters).sums, seed=seed)


def average_user_share(margin: Floats, twins: Twins) -> float | None:
    """Σg² / (Σg² + Σp²): how much of what the model says is about nobody in particular."""
    person = _snap(margin, twins) / 2
    general = (margin[twins.first] - margin[twins.second]) / 2
    whole = float(np.square(general).sum() + np.square(person).sum())
    return float(np.square(general).sum()) / whole if whole else None


def _snap(margin: Floats, twins: Twins) -> Floats:
    """m_A + m_B, with rounding noise of margins that cancel put to exactly zero."""
    a, b = margin[twins.first], margin[twins.second]
    total = a + b
    return np.where(np.abs(total) <= 1e-12 * (np.abs(a) + np.abs(b)), 0.0, total)
