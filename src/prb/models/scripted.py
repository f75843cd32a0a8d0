"""Constructed models: fakes that return what a test or plumbing needs, and models made worse by known noise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import orjson

from prb.config import NonNegative
from prb.models import MODELS, check_scorer
from prb.types import Ask, Comparer, Duel, Failure, Scorer, Verdict, Winner, is_remote


@dataclass
class ScriptedScorer:
    """Any function of (query, answer) as a scorer."""

    function: Callable[[Ask], float | Failure]
    fingerprint: str = "scripted"

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        return [self.function(ask) for ask in asks]


@dataclass
class ScriptedComparer:
    """Any function of (query, first, second) as a comparer."""

    function: Callable[[Duel], Verdict | Failure]
    fingerprint: str = "scripted"

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        return [self.function(duel) for duel in duels]


@MODELS.register("scripted")
def scripted(reward: float | None = None, fail: str = "nothing scripted") -> Scorer:
    """Fake: the same reward for every answer, or, without one, the same failure."""
    return ScriptedScorer(lambda _: Failure(fail) if reward is None else reward, f"scripted-{reward}-{fail}")


@MODELS.register("scripted-judge")
def scripted_judge(says: str = "first") -> Comparer:
    """Fake: a comparer that always says first, second or tie; anything else is a failure."""
    choices: tuple[Winner, ...] = ("first", "second", "tie")
    known: dict[str, Verdict] = {choice: Verdict(choice=choice) for choice in choices}
    return ScriptedComparer(lambda _: known.get(says) or Failure("no verdict", says), f"scripted-judge-{says}")


@MODELS.register("noisy")
def noisy(model: str, sd: NonNegative = 0.3, seed: int = 0) -> Scorer:
    """Constructed, for studies: another scorer (model=SPEC, in parentheses if it has options) plus Gaussian noise."""
    return Noisy(check_scorer(model, MODELS.make(model), "noise needs"), sd, seed)


class Noisy:
    """Hashes query and answer, so that subsets, reruns and batches agree; twins get independent noise."""

    def __init__(self, inner: Scorer, sd: float, seed: int) -> None:
        self.fingerprint = f"noisy-{sd:g}-{seed}-{inner.fingerprint}"
        self.remote = is_remote(inner)
        self._inner, self._sd, self._seed = inner, sd, seed

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        rewards = self._inner.score(asks)
        return [r if isinstance(r, Failure) else r + self._noise(a) for a, r in zip(asks, rewards, strict=True)]

    def _noise(self, ask: Ask) -> float:
        query = ask.query
        records = (*query.posts, *query.choices, *query.context)
        texts = [query.user or "", query.question, *query.plan, *(text for record in records for text in record)]
        # no two queries run together
        shape = [self._seed, query.user is None, len(query.plan), len(query.posts)]
        shape += [len(query.choices), len(query.context)] if query.choices or query.context else []
        encoded = [text.encode("utf-8", "surrogatepass").hex() for text in (*texts, ask.answer)]
        content = orjson.dumps([*shape, *encoded])
        share = int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48
        return self._sd * NormalDist().inv_cdf(share + 2**-49)
