"""Scores and verdicts that were given elsewhere, as outcomes: looked up by row, credited as those of a live model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prb.config import Condition
from prb.evaluation.scoring import checked_reward
from prb.stats.credit import credit_of_duels, credit_of_scores, duel_shares
from prb.types import NO_EVIDENCE, Failure, Item, Outcome, Pair, Record, Recorded


@dataclass(frozen=True)
class RecordedOutcomes:
    """Nothing is asked, so no query is built: a row without a rubric can have a score under `oracle`."""

    name: str
    model: Recorded

    def batch(
        self, items: Sequence[Item], clusters: Sequence[str], conditions: Sequence[Condition]
    ) -> Iterator[Outcome]:
        for condition in conditions:
            for item, cluster in zip(items, clusters, strict=True):
                record = self.model.recall(item.id, condition)
                failure = record if isinstance(record, Failure) else _misfit(record, item)
                spent = Record() if isinstance(record, Failure) else record
                credit, margin = _credit(spent, item) if failure is None else (None, None)
                yield Outcome(
                    pair=item.id,
                    user=item.user,
                    cluster=cluster,
                    model=self.name,
                    condition=condition,
                    scores=_finite(spent.scores) if spent.scores else None,
                    verdicts=spent.verdicts or None,
                    credit=credit,
                    margin=margin,
                    failure=str(failure) if failure else None,
                    failure_kind=failure.kind if failure else None,
                    tokens=spent.tokens,
                    cost=spent.cost,
                    text=spent.text,
                )

    def recall(self, *_: Any) -> None:
        """Nothing is remembered between rows."""


def _misfit(record: Record, item: Item) -> Failure | None:
    """Why a record is not about the answers of its row, or not usable."""
    if record.scores:
        if len(record.scores) != len(item.answers) or None in record.scores:
            found = sum(score is not None for score in record.scores)
            return Failure("the recorded scores do not fit the answers", f"{found} for {len(item.answers)}")
        unusable = (checked_reward(score) for score in record.scores if score is not None)
        return next((score for score in unusable if isinstance(score, Failure)), None)
    duels = item.n_best * (len(item.answers) - item.n_best) if isinstance(item, Pair) else 0
    if not duels or len(record.verdicts) != 2 * duels or None in duel_shares(record.verdicts):
        return Failure("the recorded verdicts do not fit the answers", f"{len(item.answers)} answers")
    return None


def _credit(record: Record, item: Item) -> tuple[float | None, float | None]:
    """Of pairs; ratings have none. `_misfit` has checked that every score and every duel is there."""
    if not isinstance(item, Pair):
        return None, None
    if record.scores:
        earned = credit_of_scores(record.scores, item.n_best)  # type: ignore[arg-type]
    else:
        earned = credit_of_duels(duel_shares(record.verdicts), item.n_best)  # type: ignore[arg-type]
    return (None, earned.margin) if item.tier == NO_EVIDENCE else earned


def _finite(scores: Sequence[float | None]) -> tuple[float | None, ...]:
    """As files hold them: what cannot be computed with is null."""
    return tuple([None if s is None or isinstance(checked_reward(s), Failure) else float(s) for s in scores])
