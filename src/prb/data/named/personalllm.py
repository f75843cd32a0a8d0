"""PersonalLLM (arXiv 2409.20296): simulated users, each a mixture of ten reward models over eight answers per prompt.

The table of answers and scores gives votes: every prompt goes to `raters` of the `users`, whose taste is drawn from a
Dirichlet distribution; the answer with the highest weighted, standardized score is theirs. The published evaluation
files, with a history of up to 50 choices per row, are read as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Annotated

from pydantic import Field

from prb.data.rows import BadRow, ConvertedSource, field, identifier, number, pair, spec_name, text
from prb.data.source import DATASETS, RawRow, Row, Source, open_rows
from prb.data.votes import Vote, VoteSource, Voting, ranks_by
from prb.hashing import draw

SCALES = {
    "beaver_7b": (6.2335, 3.0126),
    "gemma_2b": (4.3304, 2.0386),
    "gemma_7b": (1.6260, 2.6097),
    "llama3_sfairx": (1.0638, 2.9530),
    "mistral_raft": (8.3092, 3.0728),
    "mistral_ray": (3.0136, 1.6903),
    "mistral_weqweasdas": (7.0711, 2.5786),
    "oasst_deberta_v3": (2.8977, 1.7208),
    "oasst_pythia_1b": (4.2939, 2.3018),
    "oasst_pythia_7b": (4.7064, 1.3659),
}
"""Mean and standard deviation of each reward model's scores, as published; the order is that of a user's weights."""
ANSWERS = (("best_response", "best_response"), ("gpt4o", "gpt4o_response"))
_PAST = re.compile(r"prompt_(\d+)")


@dataclass(frozen=True)
class Settings:
    users: Annotated[int, Field(ge=1)] = 1000
    raters: Annotated[int, Field(ge=1)] = 1
    """Users per prompt, at most; with more than one, mirror=true finds couples."""
    alpha: Annotated[float, Field(gt=0)] = 0.01
    """Of the Dirichlet distribution: small values make users follow one reward model each."""


@DATASETS.register("personalllm")
def personalllm(path: str, settings: Settings, voting: Voting) -> Source:
    """The best of eight answers for a user who weighs ten reward models: simulated users, real reward models."""
    source = open_rows(path)
    first = next(iter(source.rows()), None)
    if first is not None and isinstance(first.data, dict) and "best_response" in first.data:
        return ConvertedSource(spec_name("personalllm", source.name), source, _evaluation_row)
    name = spec_name("personalllm", source.name, settings, voting)
    return VoteSource(name, source, partial(_votes, settings, voting.seed), voting)


def _votes(settings: Settings, seed: int, row: Row, at: RawRow) -> Iterator[Vote]:
    prompt = text(row, "prompt")
    numbers = [n for n in range(1, 9) if isinstance(row.get(f"response_{n}"), str) and row[f"response_{n}"].strip()]
    if len(numbers) < 2:
        raise BadRow("`response_1` … `response_8` must hold at least two answers")
    scores = [[number(row, f"response_{n}_{model}") for model in SCALES] for n in numbers]
    raters = dict.fromkeys(draw(seed, "rater", prompt, n) % settings.users for n in range(settings.raters))
    for user in raters:
        weights = taste(seed, user, settings.alpha)
        rewards = [
            sum(w * (s - mean) / sd for w, s, (mean, sd) in zip(weights, answer, SCALES.values(), strict=True))
            for answer in scores
        ]
        yield Vote(
            at=at,
            id=f"{at.line}-u{user:04}",
            user=f"u{user:04}",
            question=prompt,
            answers=[row[f"response_{n}"] for n in numbers],
            ranks=ranks_by(rewards),
            category="personalllm",
        )


@lru_cache(maxsize=100_000)
def taste(seed: int, user: int, alpha: float) -> tuple[float, ...]:
    """Weights over the reward models, drawn from a symmetric Dirichlet distribution; in logs, since most are tiny."""
    dice = Random(draw(seed, "taste", user))  # noqa: S311 - a simulation, not a secret
    logs = [math.log(dice.gammavariate(alpha + 1, 1)) + math.log(1 - dice.random()) / alpha for _ in SCALES]
    weights = [math.exp(log - max(logs)) for log in logs]
    return tuple(weight / sum(weights) for weight in weights)


def _evaluation_row(row: Row, at: RawRow) -> Iterator[RawRow]:
    """Of a published evaluation file: the best of eight answers against GPT-4o's, whichever this user rewards more."""
    answers = [(number(row, f"{who}_reward"), text(row, column)) for who, column in ANSWERS]
    (worse_reward, worse), (reward, better) = sorted(answers)
    if worse_reward == reward:
        return
    yield pair(
        at,
        id=f"p{identifier(row, 'person_id')}-{at.line}",
        user=f"p{identifier(row, 'person_id')}",
        question=text(row, "prompt"),
        chosen=better,
        rejected=worse,
        category="personalllm",
        choices=list(_past(row)),
    )


def _past(row: Row) -> Iterator[dict[str, str]]:
    """The choices before; unused slots are empty, and files of single rewarded answers have none."""
    for n in sorted(int(match[1]) for key in row if (match := _PAST.fullmatch(key))):
        if row.get(f"chosen_{n}") is None:
            continue
        side = str(field(row, f"chosen_{n}")).strip()
        if side not in ("a", "b"):
            raise BadRow(f"`chosen_{n}` is {side!r}; must be a or b")
        chosen, rejected = (text(row, f"response_{n}_{x}") for x in (side, "b" if side == "a" else "a"))
        yield {"question": text(row, f"prompt_{n}"), "chosen": chosen, "rejected": rejected}
