"""Constructed models: fakes that return what a test or plumbing needs, models made worse by known noise, and weighted
sums of models, as trainers combine them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import orjson

from prb.config import NonNegative
from prb.errors import BadSpec, PrbError
from prb.hashing import text_digest
from prb.models import MODELS, check_scorer
from prb.registry import split_outside, without_parentheses
from prb.types import Ask, Comparer, Duel, Failure, Pair, Query, Scorer, Verdict, Winner, is_remote


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
        rewards = list(self._inner.score(asks))
        for n, ((query, answer), reward) in enumerate(zip(asks, rewards, strict=True)):
            if isinstance(reward, Failure):
                continue
            records = (*query.posts, *query.choices, *query.context)
            texts = [query.user or "", query.question, *query.plan, *(text for record in records for text in record)]
            # no two queries run together
            shape = [self._seed, query.user is None, len(query.plan), len(query.posts)]
            shape += [len(query.choices), len(query.context)] if query.choices or query.context else []
            encoded = [text.encode("utf-8", "surrogatepass").hex() for text in (*texts, answer)]
            content = orjson.dumps([*shape, *encoded])
            share = int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48
            rewards[n] = reward + self._sd * NormalDist().inv_cdf(share + 2**-49)
        return rewards


class Part(NamedTuple):
    """One of the models of a mix. Rewards of different models have different units, so each model's are normalized to
    mean 0 and standard deviation 1 on the answers of a calibration set: a weight says how much a model counts."""

    spec: str
    model: Scorer
    weight: float
    mean: float
    deviation: float


@MODELS.register("mix")
def mix(models: str, calibrate: str = "mirror", split: str = "dev", rows: int = 100) -> Scorer:
    """A weighted sum of models (models=a:0.7|b:0.3), each normalized on the answers of a calibration set.

    A model with options stands in parentheses: `models=(embedding?encoder=minilm):0.7|lexical:0.3`.
    """
    from prb.data.load import load

    dataset = load(calibrate, split=split, limit=rows)
    pairs = [item for item in dataset if isinstance(item, Pair)]
    queries = [Query(question=p.question, user=p.user, context=p.context, posts=tuple(p.profile)) for p in pairs]
    asks = [Ask(query, text) for query, pair in zip(queries, pairs, strict=True) for text in pair.contrast]
    parts = []
    for text in split_outside(models, "|"):
        spec, mark, number = text.rpartition(":")
        weight = math.nan
        with suppress(ValueError):
            weight = float(number)
        if not mark or not math.isfinite(weight):
            raise BadSpec(f"model 'mix': {text!r} is not MODEL:WEIGHT, such as embedding:0.7")
        spec = without_parentheses(spec)
        model = check_scorer(spec, MODELS.make(spec), "a mix needs")
        scores = [score for score in model.score(asks) if not isinstance(score, Failure)]
        deviation = float(np.std(scores)) if scores else 0.0
        if len(scores) < len(asks) / 2 or not deviation:
            known = f"{len(scores)} of {len(asks)} scores, deviation {deviation:g}"
            raise PrbError(f"{spec!r} cannot be normalized: {known}")
        parts.append(Part(spec, model, weight, float(np.mean(scores)), deviation))
    described = ", ".join(f"{p.weight:g} × {p.spec} (mean {p.mean:.3g}, sd {p.deviation:.3g})" for p in parts)
    return Mix(
        parts,
        fingerprint="mix-" + text_digest(dataset.fingerprint, *(f"{p.model.fingerprint} {p.weight!r}" for p in parts)),
        execution=f"{described}; normalized on {dataset.name}, split {split}, {len(asks)} answers",
        remote=any(is_remote(part.model) for part in parts),
    )


@dataclass
class Mix:
    parts: Sequence[Part]
    fingerprint: str
    execution: str
    remote: bool

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """An answer that one of the models cannot score has no score."""
        totals: list[float | Failure] = [0.0] * len(asks)
        for part in self.parts:
            for n, score in enumerate(part.model.score(asks)):
                total = totals[n]
                if isinstance(score, Failure):
                    totals[n] = total if isinstance(total, Failure) else score
                elif not isinstance(total, Failure):
                    totals[n] = total + part.weight * (float(score) - part.mean) / part.deviation
        return totals
