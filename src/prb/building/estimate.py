"""What a build would take, before it begins: calls, tokens and dollars, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from prb.building.config import ROLES, STAGES, BuildConfig, Stage
from prb.building.couple import propose
from prb.building.ledger import prices_of
from prb.building.records import Record
from prb.llm.pacing import tokens_of
from prb.prompts import load
from prb.text.encoders import ENCODERS

PROMPTS: dict[Stage, str] = {
    "rubric": "build_rubric",
    "negative": "build_oppose",
    "couple": "build_couple",
    "answer": "build_answer",
    "grade": "grade_all",
    "quality": "build_quality",
    "blind": "judge_pairwise",
}
ASPECT, SAID = 30, 80
"""Tokens of one aspect, and of what a judge says before its verdict."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float


@dataclass(frozen=True, kw_only=True)
class Estimated:
    records: int
    stages: dict[Stage, Cost]

    @property
    def usd(self) -> float:
        return sum(cost.usd for cost in self.stages.values())


def estimate(config: BuildConfig, records: Sequence[Record]) -> Estimated:
    """If every reply can be read and every pair passes in its first round; rounds more cost as much again."""
    aspects = _aspects(config, records)
    question = _tokens([record.question for record in records])
    answer = round(config.words * 1.4)
    calls = _calls(config, records)
    material = {
        "rubric": question + _tokens([record.narrative for record in records]),
        "negative": question + aspects * ASPECT,
        "couple": 2 * (question + aspects * ASPECT),
        "answer": question + aspects * ASPECT,
        "grade": question + 2 * aspects * ASPECT + answer,
        "quality": question + 2 * answer,
        "blind": question + 2 * answer,
    }
    said = {
        "rubric": 3 * aspects * ASPECT,
        "negative": aspects * ASPECT,
        "couple": SAID,
        "answer": answer,
        "grade": aspects * 40,
        "quality": SAID,
        "blind": SAID,
    }
    fixed = tokens_of(load("material"))
    return Estimated(
        records=len(records),
        stages={
            stage: _cost(
                config, stage, calls[stage], fixed + tokens_of(load(PROMPTS[stage])) + material[stage], said[stage]
            )
            for stage in STAGES
        },
    )


def _calls(config: BuildConfig, records: Sequence[Record]) -> dict[Stage, int]:
    couples = propose(records, ENCODERS.make("static"), config.similar) if config.mirror else []
    n = len(records)
    return {
        "rubric": sum(not record.rubric for record in records),
        "couple": len(couples),
        "negative": n if config.mode == "oppose" else 0,
        "answer": 2 * config.candidates * n,
        "grade": 2 * config.candidates * n if "aspects" not in config.skip_gate else 0,
        "quality": 2 * n if "quality" not in config.skip_gate else 0,
        "blind": 2 * n if "blind-judge" not in config.skip_gate else 0,
    }


def _cost(config: BuildConfig, stage: Stage, calls: int, tokens_in: int, tokens_out: int) -> Cost:
    prices = prices_of(config.spec_of(ROLES[stage]))
    total_in, total_out = calls * tokens_in, calls * tokens_out
    return Cost(calls=calls, tokens_in=total_in, tokens_out=total_out, usd=prices.cost(total_in, total_out))


def _aspects(config: BuildConfig, records: Sequence[Record]) -> int:
    given = [len(record.rubric) for record in records if record.rubric]
    return round(mean(given)) if given else sum(config.aspects) // 2


def _tokens(texts: Sequence[str]) -> int:
    return round(mean(tokens_of(text) for text in texts)) if texts else 0
