"""Small runs for tests: settings, fakes that keep what they were asked, and files without their clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from prb.evaluation.config import EvaluateConfig
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.types import Ask, Duel, Failure, Verdict


def settings(data: Path | str, out: Path, **changes: Any) -> EvaluateConfig:
    """A run of the model `mine` on a file, with a ranker that needs no vectors."""
    base = EvaluateConfig(
        model=("mine",),
        condition=("none", "profile", "shuffled"),
        dataset=str(data),
        history="both?ranker=recency",
        k=5,
        out=out,
    )
    return replace(base, **changes)


def by_length(ask: Ask) -> float:
    """User-blind on purpose."""
    return float(len(ask.answer))


def recording(
    function: Callable[[Ask], float | Failure] = by_length, fingerprint: str = "recording"
) -> tuple[ScriptedScorer, list[Ask]]:
    """A scorer and the list of everything it is asked."""
    asked: list[Ask] = []

    def score(ask: Ask) -> float | Failure:
        asked.append(ask)
        return function(ask)

    return ScriptedScorer(score, fingerprint), asked


def prefers(function: Callable[[Duel], bool | None]) -> ScriptedComparer:
    """A comparer that says first for true, second for false, tie for `None`."""
    choices: dict[bool | None, Verdict] = {
        True: Verdict(choice="first"),
        False: Verdict(choice="second"),
        None: Verdict(choice="tie"),
    }
    return ScriptedComparer(lambda duel: choices[function(duel)])


def outcomes(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run but for `seconds`, the one field that depends on the clock."""
    lines = [orjson.loads(line) for line in (folder / "outcomes.jsonl").read_bytes().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "crc")} for line in lines]


def same_files(a: Path, b: Path) -> bool:
    """Whether two runs ended alike: summaries byte by byte, outcomes but for the clock."""
    names = ("summary.json", "users.json")
    return outcomes(a) == outcomes(b) and all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


def result(summary: dict[str, Any], condition: str, model: str = "mine") -> dict[str, Any]:
    """One row of a summary's results."""
    (found,) = [row for row in summary["results"] if (row["model"], row["condition"]) == (model, condition)]
    return dict(found)


def contrast(summary: dict[str, Any], kind: str, model: str = "mine") -> dict[str, Any]:
    (found,) = [row for row in summary["contrasts"] if (row["model"], row["kind"]) == (model, kind)]
    return dict(found)


class Notes:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: list[tuple[str, int | None, int]] = []
        self.advanced = 0
        self.statuses: list[str] = []

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        self.begun.append((label, total, done))

    def advance(self, n: int = 1) -> None:
        self.advanced += n

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


def names(folder: Path) -> Sequence[str]:
    """What a folder holds, hidden files included."""
    return sorted(path.name for path in folder.iterdir())
