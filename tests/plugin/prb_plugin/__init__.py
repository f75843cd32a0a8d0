"""Somebody else's model, dataset, hook, metric and condition, as the entry points of their package name them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prb.data.load import History
from prb.data.source import MemorySource, Source
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.metrics import POINTS, Rows, contrast
from prb.hooks import RunResult
from prb.summary import Condition, Metric
from prb.types import Ask, Estimate, Item, Scorer


class Briefest:
    fingerprint = "briefest"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [-float(len(ask.answer)) for ask in asks]


def briefest() -> Scorer:
    """Prefers the shorter answer."""
    return Briefest()


class Diary:
    """Says where a run is."""

    def on_result(self, result: RunResult) -> None:
        print(f"diary: {result.folder.name} is done")


def tiny(rows: int = 2) -> Source:
    """A few rows in which the shorter answer is always the chosen one."""
    about = {"profile": [{"id": "p1", "category": "x", "text": "Short answers, please."}], "chosen": "Assam."}
    texts = [(f"Which tea goes with rain on day {n}?", f"That depends on the rain of day {n}.") for n in range(rows)]
    return MemorySource("tiny", [{"question": question, "rejected": rejected, **about} for question, rejected in texts])


def _confident(rows: Rows) -> Estimate:
    """Rows without an answer, such as failures, stay NaN, so that they do not count as lost."""
    return rows.share(np.where(rows.counted, rows.margin > 10, np.nan))


confident = Metric(
    key="confident", label="confident", says="share of pairs won by more than 10", of=_confident, reference="coin: 0"
)


def _net_wins(rows: Rows) -> float | None:
    return 2 * float(rows.credit[rows.counted].mean()) - 1 if rows.counted.any() else None


net_wins = Metric(
    key="net_wins", label="net", says="share of pairs won minus share lost", of=_net_wins, unit="points", limits=(-1, 1)
)


def _newest(builder: QueryBuilder, item: Item, _plan: object) -> Built:
    """`with_history` keeps the conversation, honors `--history`, and leaves out posts that give the label away."""
    return builder.with_history(item, item.user, History(item.profile[-1:]))


newest = Condition(name="newest", shows="the newest post", build=_newest, color="#5b3fd0", dark="#8f7bff", mark="X")


recency_gain = Metric(
    key="recency_gain",
    label="recency gain",
    says="accuracy under newest minus accuracy under none",
    of=contrast,
    needs=("newest", "none"),
    **POINTS,
)
