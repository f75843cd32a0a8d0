"""The outcomes of a run as columns: one entry a row of the dataset, for each model and condition."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prb.errors import BadInput
from prb.stats.estimate import Floats
from prb.types import Outcome

_NAN = float("nan")


@dataclass(slots=True)
class Column:
    """NaN marks a failure here and only here: files say null, estimates count it apart."""

    _credit: array[float] = field(default_factory=lambda: array("d"))
    _margin: array[float] = field(default_factory=lambda: array("d"))
    _score: array[float] = field(default_factory=lambda: array("d"))
    verdicts: list[Sequence[str | None]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    cut: int = 0

    @property
    def credit(self) -> Floats:
        return np.array(self._credit)

    @property
    def margin(self) -> Floats:
        return np.array(self._margin)

    @property
    def score(self) -> Floats:
        """Of single answers (ratings)."""
        return np.array(self._score)

    def add(
        self,
        credit: float | None,
        margin: float | None,
        scores: Sequence[float | None] | None,
        verdicts: Sequence[str | None] | None,
        failure: str | None,
        cut: int,
    ) -> None:
        self._credit.append(_NAN if credit is None else credit)
        self._margin.append(_NAN if margin is None else margin)
        single = scores[0] if scores and len(scores) == 1 else None
        self._score.append(_NAN if single is None else single)
        self.cut += cut
        if verdicts is not None:
            self.verdicts.append(verdicts)
        if failure is not None:
            reason = failure.partition(": ")[0]  # the detail, often the tail of a text, stays in the outcome
            self.failures[reason] = self.failures.get(reason, 0) + 1


class Columns:
    def __init__(self, models: Sequence[str], conditions: Sequence[str]) -> None:
        self.of: dict[tuple[str, str], Column] = {(m, c): Column() for m in models for c in conditions}

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for o in outcomes:
            self.of[o.model, o.condition].add(o.credit, o.margin, o.scores, o.verdicts, o.failure, o.cut)

    def read(self, line: Mapping[str, Any], expected: str) -> None:
        """A line of an earlier process; it must be the one this run would have written."""
        column = self.of.get((line.get("model", ""), line.get("condition", "")))
        if column is None or line.get("pair") != expected:
            raise BadInput(f"the run's outcomes are not those of this dataset at pair {line.get('pair')!r}")
        column.add(line["credit"], line["margin"], line["scores"], line["verdicts"], line["failure"], line["cut"])
