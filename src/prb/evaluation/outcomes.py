"""The outcomes of a run as columns: one per model and condition, one entry per pair. The one reader of their lines."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import numpy as np

from prb.errors import BadInput
from prb.runs import OUTCOMES, read_lines
from prb.stats.credit import decided
from prb.stats.estimate import Bools, Floats
from prb.types import UNMEASURED, FailureKind, Outcome

NAN = float("nan")
FIELDS = frozenset(Outcome.__dataclass_fields__)
REQUIRED = FIELDS - {"failure_kind", "choices", "leaks", "seen", "log_odds"}
"""Lines of earlier versions have no kind of failure, no past choices and no log-odds."""
KINDS = (None, *get_args(FailureKind))
VERDICTS = (None, "first", "second", "tie")
TEXT, TEXT_OR_NONE = frozenset({str}), frozenset({str, NoneType})
NUMBER: frozenset[type] = frozenset({int, float})
SCORE: frozenset[type] = NUMBER | {NoneType}
NAMES = itemgetter("pair", "user", "cluster", "model", "condition")
READ = (
    *("model", "condition", "pair", "user", "cluster", "credit", "margin", "scores", "verdicts", "leaks", "failure"),
    *("log_odds", "failure_kind", "seen", "cut", "tokens", "seconds", "cost", "post_ids", "plan", "text"),
)
"""The fields of an outcome that columns use."""
_TAKEN = attrgetter(*READ)


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
    nor credit. Only here: files have null.
    """

    _credits: array[float] = field(default_factory=lambda: array("d"))
    _margins: array[float] = field(default_factory=lambda: array("d"))
    _single_scores: array[float] = field(default_factory=lambda: array("d"))
    verdicts: list[Sequence[str | None]] = field(default_factory=list)
    """Of each duel, in both orders."""
    biases_cancel: bool = False
    """Whether verdicts have log-odds that were averaged over both orders."""
    several: dict[int, Sequence[Any]] = field(default_factory=dict)
    """Of answered rows with more than two answers: all scores, or all verdicts."""
    leaks: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    unmeasured: dict[str, int] = field(default_factory=dict)
    """Rows without an outcome that did not fail either, by reason."""
    trained_rows: int = 0
    """Rows that the model was trained on."""
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

    def add(self, line: Mapping[str, Any]) -> None:
        credit, margin, scores, verdicts = line["credit"], line["margin"], line["scores"], line["verdicts"]
        self._credits.append(NAN if credit is None else credit)
        self._margins.append(NAN if margin is None else margin)
        rating = scores[0] if scores and len(scores) == 1 else None
        self._single_scores.append(NAN if rating is None else rating)
        if verdicts is not None:
            self.verdicts += zip(verdicts[::2], verdicts[1::2], strict=True)
        log_odds = line.get("log_odds")
        if log_odds is not None and None not in log_odds:
            self.biases_cancel = True
        answered = scores if verdicts is None else decided(verdicts, log_odds)
        if answered is not None and len(answered) > 2 and credit is not None:
            self.several[len(self) - 1] = tuple(answered)
        self.leaks += line.get("leaks", 0)
        if line["failure"] is not None:
            reason = line["failure"].partition(": ")[0]  # the detail, often the tail of a text, stays in the outcome
            unmeasured = line.get("failure_kind") == UNMEASURED
            counts = self.unmeasured if unmeasured else self.failures
            counts[reason] = counts.get(reason, 0) + 1
            if unmeasured:
                self._unmeasured_rows.append(len(self) - 1)
        if seen := line.get("seen"):
            self.trained_rows += seen == "row"
            self.trained_users.add(line["user"])
        self.cut += line["cut"]
        self.tokens += line["tokens"]
        self.seconds += line["seconds"]
        self.cost += line["cost"]


class Outcomes:
    """All columns of a run. Entry n of every column belongs to pair n."""

    def __init__(
        self,
        pairs: Sequence[str] | None = None,
        cells: Iterable[tuple[str, str]] | None = None,
        *,
        details: bool = False,
    ) -> None:
        """`pairs` and `cells` (model and condition): what a run consists of, where that is known beforehand."""
        self.of: dict[tuple[str, str], Column] = {cell: Column() for cell in cells or ()}
        self.pairs: Sequence[str] = [] if pairs is None else pairs
        self.users: list[str] = []
        self.clusters: list[str] = []
        self._pairs_known, self._cells_known = pairs is not None, cells is not None
        self._details = details
        self._shared: dict[Any, Any] = {}  # the models of a run are shown the same posts and plans

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.of))

    @property
    def conditions(self) -> list[str]:
        return list(dict.fromkeys(condition for _, condition in self.of))

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes of this process."""
        for outcome in outcomes:
            problem = self._add(dict(zip(READ, _TAKEN(outcome), strict=True)))
            if problem:
                raise RuntimeError(problem)

    def read(self, line: Mapping[str, Any], where: str) -> None:
        """A line of a file: it must be one that `prb evaluate` writes, and about the next pair of its column."""
        problem = _problem(line) or self._add(line)
        if problem:
            raise BadInput(f"{where}: {problem}")

    def _add(self, line: Mapping[str, Any]) -> str | None:
        cell = line["model"], line["condition"]
        if self._cells_known and cell not in self.of:
            return f"the run has no model {cell[0]!r} under condition {cell[1]!r}"
        column = self.of.setdefault(cell, Column())
        position = len(column)
        if not self._pairs_known and cell == next(iter(self.of)) and position == len(self.pairs):
            self.pairs.append(line["pair"])  # type: ignore[attr-defined]
        if position == len(self.users):
            self.users.append(line["user"])
            self.clusters.append(line["cluster"])
        if position >= len(self.pairs) or line["pair"] != self.pairs[position]:
            expected = repr(self.pairs[position]) if position < len(self.pairs) else "no further one"
            return f"the outcome of pair {line['pair']!r} is where the dataset has {expected}"
        column.add(line)
        if self._details:
            posts, plan = tuple(line["post_ids"]), tuple(line["plan"])
            column.details.append(
                Detail(
                    scores=tuple(line["scores"] or ()),
                    verdicts=tuple(line["verdicts"] or ()),
                    failure=line["failure"],
                    post_ids=self._shared.setdefault(posts, posts),
                    plan=self._shared.setdefault(plan, plan),
                    text=tuple(line["text"]),
                )
            )
        return None


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


def _problem(line: Mapping[str, Any]) -> str | None:  # noqa: PLR0911 - one rule after the other
    """Why a line cannot be an outcome. Optimized by hand, because a run has millions of lines."""
    if not line.keys() >= REQUIRED:
        return f"an outcome without {', '.join(sorted(REQUIRED - line.keys()))}"
    credit, margin, failure = line["credit"], line["margin"], line["failure"]
    if not (credit is None or (_are(NUMBER, [credit]) and 0 <= credit <= 1)):
        return f"credit {credit!r} is not between 0 and 1"
    if not (margin is None or _are(NUMBER, [margin])):
        return f"margin {margin!r} is not a number"
    answered = margin is not None  # without credit where no answer is right
    if (credit is not None and not answered) or (failure is not None and (answered or type(failure) is not str)):
        return "credit, margin and failure contradict each other"
    if line.get("failure_kind") not in (KINDS if failure else (None,)):
        return f"failure_kind {line['failure_kind']!r} does not fit failure {failure!r}"
    if not TEXT.issuperset(map(type, NAMES(line))) or line.get("seen") not in (None, "row", "user"):
        return "pair, user, cluster, model and condition must be texts, and seen null, row or user"
    scores, verdicts = line["scores"], line["verdicts"]
    if not (scores is None or (type(scores) is list and _are(SCORE, scores))):
        return f"scores {scores!r} are not as prb evaluate writes them"
    if not (verdicts is None or _in_two_orders(verdicts, line.get("log_odds"))):
        return f"verdicts {verdicts!r} or their log-odds are not as prb evaluate writes them"
    for name in ("post_ids", "plan", "text"):
        if not (type(line[name]) is list and TEXT.issuperset(map(type, line[name]))):
            return f"{name} must be a list of texts"
    choices = line.get("choices", ())
    amounts = [line["cut"], line["tokens"], line["seconds"], line["cost"], line.get("leaks", 0)]
    amounts += choices if isinstance(choices, list | tuple) else [None]
    if not (_are(NUMBER, amounts) and min(amounts) >= 0):
        return "cut, tokens, seconds, cost, leaks and choices must be numbers that are not negative"
    return None


def _in_two_orders(verdicts: Any, log_odds: Any) -> bool:
    if not (type(verdicts) is list and len(verdicts) % 2 == 0 and TEXT_OR_NONE.issuperset(map(type, verdicts))):
        return False
    fits = log_odds is None or (type(log_odds) is list and len(log_odds) == len(verdicts) and _are(SCORE, log_odds))
    return fits and all(map(VERDICTS.__contains__, verdicts))


def _are(kinds: frozenset[type], values: Sequence[Any]) -> bool:
    """Whether all values are of these types, and the numbers among them finite; a truth value is no number here."""
    return kinds.issuperset(map(type, values)) and math.isfinite(sum(filter(None, values)))
