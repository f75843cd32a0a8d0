"""Fakes for tests and plumbing: a model that says what it was told to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prb.models import MODELS
from prb.types import Ask, Comparer, Duel, Failure, Scorer, Verdict


class ScriptedScorer:
    """Any function of (query, answer) as a scorer."""

    def __init__(self, function: Callable[[Ask], float | Failure], fingerprint: str = "scripted") -> None:
        self.fingerprint = fingerprint
        self._function = function

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        return [self._function(ask) for ask in asks]


class ScriptedComparer:
    """Any function of (query, first, second) as a comparer."""

    def __init__(self, function: Callable[[Duel], Verdict | Failure], fingerprint: str = "scripted") -> None:
        self.fingerprint = fingerprint
        self._function = function

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        return [self._function(duel) for duel in duels]


@MODELS.register("scripted")
def scripted(reward: float | None = None, fail: str = "nothing scripted") -> Scorer:
    """Fake: the same reward for every answer, or, without one, the same failure."""
    return ScriptedScorer(lambda _: Failure(fail) if reward is None else reward, f"scripted-{reward}-{fail}")


@MODELS.register("scripted-judge")
def scripted_judge(says: str = "first") -> Comparer:
    """Fake: a comparer that always says first, second or tie; anything else is a verdict it cannot give."""
    known: dict[str, Verdict] = {
        "first": Verdict(choice="first"),
        "second": Verdict(choice="second"),
        "tie": Verdict(choice="tie"),
    }
    return ScriptedComparer(lambda _: known.get(says) or Failure("no verdict", says), f"scripted-judge-{says}")
