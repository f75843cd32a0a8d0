"""The outcomes of a run as columns: one per model and condition, one entry per pair. The one reader of their lines."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prb.errors import BadInput
from prb.runs import OUTCOMES, read_lines
from prb.stats.credit import CREDIT, decided
from prb.stats.estimate import Bools, Floats
from prb.types import UNMEASURED, Outcome

NAN = float("nan")
Cell = tuple[str, str]
REQUIRED = frozenset(Outcome.__dataclass_fields__)
"""What every line has."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What a model was shown for one pair and what it returned."""

    scores: tuple[float | None, ...]
    verdicts: tuple[str | None, ...]
    failure: str | None
    post_ids: tuple[str, ...]
    plan: tuple[str, ...]
    text: tuple[str, ...]


@dataclass(slots=True)
class Column:
    """One model under one condition.

    In pairs a NaN margin marks a failure, a NaN credit a failure or a row without evidence; ratings have neither margin
    nor credit. NaN is used only in memory; files have null.
    """

    _credits: array[float] = field(default_factory=lambda: array("d"))
    _margins: array[float] = field(default_factory=lambda: array("d"))
    _single_scores: array[float] = field(default_factory=lambda: array("d"))
    verdicts: list[Sequence[str | None]] = field(default_factory=list)
    biases_cancel: bool = False
    """Whether verdicts have log-odds that were averaged over both orders."""
    several: dict[int, Sequence[Any]] = field(default_factory=dict)
    """Of answered rows with more than two answers: all scores, or all verdicts."""
    failures: dict[str, int] = field(default_factory=dict)
    unmeasured: dict[str, int] = field(default_factory=dict)
    """Rows without an outcome that did not fail either, by reason."""
    trained_rows: int = 0
    trained_users: set[str] = field(default_factory=set)
    """Users of whom it was trained on some row."""
    _unmeasured_rows: list[int] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    cut: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def __len__(self) -> int:
        return len(self._credits)

    @property
    def credit(self) -> Floats:
        return np.array(self._credits)

    @property
    def margin(self) -> Floats:
        return np.array(self._margins)

    @property
    def score(self) -> Floats:
        """Of single answers (task `ratings`)."""
        return np.array(self._single_scores)

    @property
    def measured(self) -> Bools:
        """False for rows that are neither answered nor failed."""
        measured = np.ones(len(self), dtype=bool)
        measured[self._unmeasured_rows] = False
        return measured

    def add(self, line: Outcome) -> None:
        scores, verdicts, log_odds = line.scores, line.verdicts, line.log_odds
        self._credits.append(NAN if line.credit is None else line.credit)
        self._margins.append(NAN if line.margin is None else line.margin)
        rating = scores[0] if scores and len(scores) == 1 else None
        self._single_scores.append(NAN if rating is None else rating)
        if verdicts is not None:
            self.verdicts += zip(verdicts[::2], verdicts[1::2], strict=True)
        if log_odds is not None and None not in log_odds:
            self.biases_cancel = True
        answered = scores if verdicts is None else decided(verdicts, log_odds)
        if answered is not None and len(answered) > 2 and line.credit is not None:
            self.several[len(self) - 1] = tuple(answered)
        if line.failure is not None:
            reason = line.failure.partition(": ")[0]  # the detail, often the tail of a text, stays in the outcome
            counts = self.failures
            if line.failure_kind == UNMEASURED:
                counts = self.unmeasured
                self._unmeasured_rows.append(len(self) - 1)
            counts[reason] = counts.get(reason, 0) + 1
        if line.seen:
            self.trained_rows += line.seen == "row"
            self.trained_users.add(line.user)
        self.cut += line.cut
        self.tokens += line.tokens
        self.seconds += line.seconds
        self.cost += line.cost


class Outcomes:
    """All columns of a run. Entry n of every column belongs to pair n."""

    def __init__(
        self, pairs: Sequence[str] | None = None, cells: Iterable[Cell] = (), *, details: bool = False
    ) -> None:
        """`pairs` and `cells`: what a run consists of, where that is known beforehand."""
        self.of: dict[Cell, Column] = {cell: Column() for cell in cells}
        self.pairs: Sequence[str] = [] if pairs is None else pairs
        self.users: list[str] = []
        self.clusters: list[str] = []
        self._known, self._details = pairs is not None, details
        self._shared: dict[Any, Any] = {}  # the models of a run are shown the same posts and plans

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.of))

    def read(self, line: Mapping[str, Any], where: str) -> None:
        """A line of a file, whoever wrote it: one that `prb evaluate` writes, about the next pair of its column."""
        try:
            self.add([_checked(line)])
        except (ValueError, msgspec.ValidationError) as error:
            raise BadInput(f"{where}: {error}") from None

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            cell = outcome.model, outcome.condition
            if self._known and cell not in self.of:
                raise ValueError(f"the run has no model {cell[0]!r} under condition {cell[1]!r}")
            column = self.of.setdefault(cell, Column())
            position = len(column)
            if not self._known and cell == next(iter(self.of)) and position == len(self.pairs):
                self.pairs.append(outcome.pair)  # type: ignore[attr-defined]
            if position == len(self.users):
                self.users.append(outcome.user)
                self.clusters.append(outcome.cluster)
            if position >= len(self.pairs) or outcome.pair != self.pairs[position]:
                expected = repr(self.pairs[position]) if position < len(self.pairs) else "no further one"
                raise ValueError(f"the outcome of pair {outcome.pair!r} is where the dataset has {expected}")
            column.add(outcome)
            if self._details:
                post_ids, plan = (self._shared.setdefault(texts, texts) for texts in (outcome.post_ids, outcome.plan))
                scores, verdicts = outcome.scores or (), outcome.verdicts or ()
                column.details.append(Detail(scores, verdicts, outcome.failure, post_ids, plan, outcome.text))


def read_outcomes(folder: Path, *, details: bool = False) -> Outcomes:
    """The outcomes of a run folder, whoever wrote it; `details` adds what was shown and returned for each pair."""
    path = folder / OUTCOMES
    if not folder.exists():
        raise BadInput(f"{folder} does not exist")
    if not path.exists():
        raise BadInput(f"{folder} is not an evaluation run: it has no {OUTCOMES}")
    outcomes = Outcomes(details=details)
    for number, line in enumerate(read_lines(path), 1):
        outcomes.read(line, f"{path}, line {number}")
    if not outcomes.of:
        raise BadInput(f"{folder} holds no outcomes yet")
    return outcomes


def _checked(line: Mapping[str, Any]) -> Outcome:
    """The outcome of a line; `ValueError` says why it cannot be one."""
    if missing := REQUIRED - line.keys():
        raise ValueError(f"an outcome without {', '.join(sorted(missing))}")
    outcome = msgspec.convert(line, Outcome)
    credit, margin, failure, verdicts = outcome.credit, outcome.margin, outcome.failure, outcome.verdicts or ()
    if credit is not None and not 0 <= credit <= 1:
        raise ValueError(f"credit {credit!r} is not between 0 and 1")
    # a row without a right answer has a margin and no credit
    if (credit is not None and margin is None) or (failure is not None and margin is not None):
        raise ValueError("credit, margin and failure contradict each other")
    if outcome.failure_kind is not None and failure is None:
        raise ValueError(f"failure_kind {outcome.failure_kind!r} without a failure")
    log_odds = outcome.log_odds or verdicts
    if len(verdicts) % 2 or len(log_odds) != len(verdicts) or not set(verdicts) <= {None, *CREDIT}:
        raise ValueError(f"verdicts {verdicts!r} or their log-odds are not as prb evaluate writes them")
    amounts = [outcome.cut, outcome.tokens, outcome.seconds, outcome.cost, outcome.leaks, *outcome.choices]
    numbers = [*amounts, margin, *(outcome.scores or ()), *(outcome.log_odds or ())]
    if min(amounts) < 0 or not math.isfinite(sum(filter(None, numbers))):
        raise ValueError("numbers must be finite, and cut, tokens, seconds, cost, leaks and choices not negative")
    return outcome
