"""What somebody else's package needs to add a reward model, a dataset and a hook: their entry points name these."""

from __future__ import annotations

from collections.abc import Sequence

from prb.data.source import MemorySource, Source
from prb.hooks import RunResult
from prb.types import Ask, Scorer


class Shortest:
    fingerprint = "shortest"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [-float(len(ask.answer)) for ask in asks]


def shortest() -> Scorer:
    """Prefers the shorter answer."""
    return Shortest()


class Diary:
    """Says where a run is."""

    def on_result(self, result: RunResult) -> None:
        print(f"diary: {result.folder.name} is done")


def tiny(rows: int = 2) -> Source:
    """A few rows in which the shorter answer is always the chosen one."""
    return MemorySource("tiny", [_row(n) for n in range(rows)])


def _row(n: int) -> dict[str, object]:
    return {
        "id": f"tiny-{n}",
        "question": f"Which tea goes with rain on day {n}?",
        "profile": [{"id": "p1", "category": "x", "text": "Short answers, please."}],
        "rubric_aspects": [],
        "narrative": "",
        "category": "Lifestyle_and_Personal_Development",
        "chosen": "Assam.",
        "rejected": f"That depends on the rain of day {n}.",
    }
