"""A policy, a grader and reward models for best-of-N that can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prb.downstream.answers import Asking
from prb.downstream.bon import BonConfig
from prb.grading import Answered, Grades
from prb.llm import Completion, Request, ScriptedLLM
from prb.models.scripted import ScriptedScorer
from prb.progress import SILENT
from prb.runs import read_lines
from prb.types import Ask, Failure
from prb.work import Breaker, Replies

WORDS = ("once", "daily", "rarely", "never", "weekly", "often", "soon")


def says(request: Request) -> str:
    """One of seven words, by prompt and seed: some samples of a query are alike."""
    return f"{WORDS[(request.sampling.seed + len(request.chat[0].text)) % len(WORDS)]} it is"


def policy(reply: Callable[[Request], str | Completion | Failure] = says) -> ScriptedLLM:
    return ScriptedLLM(reply)


class Marks:
    """Grades every aspect 2 × the share of WORDS that stand after the answer's own; keeps what it was asked."""

    remote = False
    fingerprint = "marks"
    validity = "Right on 3 of 4 known pairs."

    def __init__(self, fails_on: str = "nothing") -> None:
        self.asked: list[Answered] = []
        self._fails_on = fails_on

    @classmethod
    def plain(cls) -> Marks:
        """What a spec without options makes."""
        return cls()

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        self.asked += answers
        return [self._one(answered) for answered in answers]

    def _one(self, answered: Answered) -> Grades | Failure:
        if self._fails_on in answered.answer:
            return Failure("no grades", answered.answer)
        return Grades(aspects=tuple(2 * mark(answered.answer) for _ in answered.rubric))


def mark(text: str) -> float:
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    return 1 - WORDS.index(word) / (len(WORDS) - 1) if word in WORDS else 0.0


def knows(ask: Ask) -> float:
    """The grader's own order, coarser, so that it ties."""
    return float(round(3 * mark(ask.answer)))


def errs(ask: Ask) -> float:
    return -mark(ask.answer)


def models() -> dict[str, Any]:
    return {"knows": ScriptedScorer(knows, "knows"), "errs": ScriptedScorer(errs, "errs")}


def settings(data: Path | str, out: Path, **changes: Any) -> BonConfig:
    base = {"policy": "mine", "model": ("knows", "errs"), "grader": "marks", "n": 4, "history": "both?ranker=recency"}
    return BonConfig(**{**base, "dataset": str(data), "out": out, **changes})


def asking(folder: Path) -> Asking:
    """Asks models of a test, without a cache."""
    return Asking(Replies(folder / "replies.jsonl"), Breaker(), SILENT)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return list(read_lines(folder / f"{name}.jsonl"))
