"""`mix?models=a:0.7|b:0.3`: a weighted sum of several models' rewards, as trainers combine them.

Rewards of different models have different units. Each model's are first normalized to mean 0 and standard deviation 1
on the answers of a calibration set, so that a weight says how much a model counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prb.data.load import load
from prb.errors import BadSpec, PrbError
from prb.hashing import text_digest
from prb.models import MODELS
from prb.registry import split_outside, without_parentheses
from prb.types import Ask, Failure, Pair, Query, Scorer, is_remote


class Part(NamedTuple):
    """One of the models."""

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
    dataset = load(calibrate, split=split, limit=rows)
    pairs = [item for item in dataset if isinstance(item, Pair)]
    queries = [Query(question=p.question, user=p.user, context=p.context, posts=tuple(p.profile)) for p in pairs]
    asks = [Ask(query, text) for query, pair in zip(queries, pairs, strict=True) for text in pair.contrast]
    parts = [_part(text, asks) for text in split_outside(models, "|")]
    return Mix(parts, f"{dataset.name}, split {split}, {len(asks)} answers", dataset.fingerprint)


def _part(text: str, asks: Sequence[Ask]) -> Part:
    spec, mark, number = text.rpartition(":")
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not mark or not math.isfinite(weight):
        raise BadSpec(f"model 'mix': {text!r} is not MODEL:WEIGHT, such as embedding:0.7")
    spec = without_parentheses(spec)
    model = MODELS.make(spec)
    if not isinstance(model, Scorer):
        raise BadSpec(f"model 'mix': {spec!r} only compares answers; it must score them")
    scores = [score for score in model.score(asks) if not isinstance(score, Failure)]
    deviation = float(np.std(scores)) if scores else 0.0
    if len(scores) < len(asks) / 2 or not deviation:
        raise PrbError(f"{spec!r} cannot be normalized: {len(scores)} of {len(asks)} scores, deviation {deviation:g}")
    return Part(spec, model, weight, float(np.mean(scores)), deviation)


class Mix:
    def __init__(self, parts: Sequence[Part], calibrated_on: str, calibration: str) -> None:
        self._parts = tuple(parts)
        self.remote = any(is_remote(part.model) for part in parts)
        self.fingerprint = "mix-" + text_digest(
            calibration, *(f"{part.model.fingerprint} {part.weight!r}" for part in parts)
        )
        described = ", ".join(f"{p.weight:g} × {p.spec} (mean {p.mean:.3g}, sd {p.deviation:.3g})" for p in parts)
        self.execution = f"{described}; normalized on {calibrated_on}"

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """An answer that one of the models cannot score has no score."""
        columns = [part.model.score(asks) for part in self._parts]
        return [self._sum(scores) for scores in zip(*columns, strict=True)]

    def _sum(self, scores: Sequence[float | Failure]) -> float | Failure:
        total = 0.0
        for part, score in zip(self._parts, scores, strict=True):
            if isinstance(score, Failure):
                return score
            total += part.weight * (float(score) - part.mean) / part.deviation
        return total
