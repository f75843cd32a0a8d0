"""PersonalLLM (arXiv 2409.20296): simulated users, each a mixture of ten reward models over eight answers per prompt.

The table of answers and scores gives votes: every prompt goes to `raters` of the `users`, whose taste is drawn from a
Dirichlet distribution (a small `alpha` makes users follow one reward model each); the answer with the highest
weighted, standardized score is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Annotated

from pydantic import Field

from prb.config import Count
from prb.data.schema import number, spec_name, text
from prb.data.source import DATASETS, BadRow, RawRow, Row, Source, open_rows
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


@DATASETS.register("personalllm")
def personalllm(
    path: str,
    *,
    users: Count = 1000,
    raters: Count = 1,
    alpha: Annotated[float, Field(gt=0)] = 0.01,
    voting: Voting,
) -> Source:
    """The best of eight answers for a user who weighs ten reward models: simulated users, real reward models.

    raters: users per prompt, at most; with more than one, mirror=true finds couples.
    """
    source = open_rows(path)

    def votes(row: Row, at: RawRow) -> Iterator[Vote]:
        prompt, answers = text(row, "prompt"), {n: row.get(f"response_{n}") for n in range(1, 9)}
        given = {n: answer for n, answer in answers.items() if isinstance(answer, str) and answer.strip()}
        if len(given) < 2:
            raise BadRow("`response_1` … `response_8` must hold at least two answers")
        scores = [[number(row, f"response_{n}_{model}") for model in SCALES] for n in given]
        for user in dict.fromkeys(draw(voting.seed, "rater", prompt, n) % users for n in range(raters)):
            weights = taste(voting.seed, user, alpha)
            rewards = [
                sum(w * (s - mean) / sd for w, s, (mean, sd) in zip(weights, answer, SCALES.values(), strict=True))
                for answer in scores
            ]
            id_, ranks = f"u{user:04}", ranks_by(rewards)
            yield Vote(at, f"{at.line}-{id_}", id_, prompt, list(given.values()), ranks, category="personalllm")

    name = spec_name(personalllm, source.name, voting, users=users, raters=raters, alpha=alpha)
    return VoteSource(name, source, votes, voting)


@lru_cache(maxsize=100_000)
def taste(seed: int, user: int, alpha: float) -> tuple[float, ...]:
    """Weights over the reward models, drawn from a symmetric Dirichlet distribution; in logs, since most are tiny."""
    dice = Random(draw(seed, "taste", user))  # noqa: S311 - a simulation, not a secret
    logs = [math.log(dice.gammavariate(alpha + 1, 1)) + math.log(1 - dice.random()) / alpha for _ in SCALES]
    weights = [math.exp(log - max(logs)) for log in logs]
    return tuple(weight / sum(weights) for weight in weights)
