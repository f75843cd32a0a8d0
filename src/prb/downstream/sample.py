"""N answers of a policy to each query, each with a seed of its own: drawn once, shared by all that score them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prb.llm import LLM, Completion, Message, Request, Sampling
from prb.llm.asking import without_reasoning
from prb.prompts import render
from prb.types import Failure, Query

Place = tuple[str, int]
"""Pair and number of the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of `samples.jsonl`."""

    pair: str
    n: int
    """0 to N − 1."""
    text: str | None
    tokens: int
    """Written by the policy."""
    seed: int
    truncated: bool = False
    """Whether the policy was stopped by max_tokens; the text counts all the same."""
    cost: float = 0.0
    failure: str | None = None


def sample_seed(seed: int, pair: str, n: int) -> int:
    """Fixed by the place alone, so subsets, orders and resumed runs draw the same answers."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{n}:{pair}".encode()).digest()[:4], "big") >> 1


def draw(
    policy: LLM, places: Sequence[Place], queries: Mapping[str, Query | Failure], sampling: Sampling
) -> list[Sample]:
    """One sample a place; without a query there is nothing to ask, and that is a failure."""
    seeds = [sample_seed(sampling.seed, *place) for place in places]
    requests = {
        place: Request((Message("user", render(query)),), replace(sampling, seed=seed))
        for place, seed in zip(places, seeds, strict=True)
        if isinstance(query := queries[place[0]], Query)
    }
    said: dict[Place, Completion | Failure] = dict(zip(requests, policy.complete(list(requests.values())), strict=True))
    return [_sample(place, seed, said.get(place, queries[place[0]])) for place, seed in zip(places, seeds, strict=True)]


def _sample(place: Place, seed: int, said: Completion | Query | Failure) -> Sample:
    assert not isinstance(said, Query)
    pair, n = place
    if isinstance(said, Failure):
        written, cost = said.completion_tokens, said.cost
        return Sample(pair=pair, n=n, text=None, tokens=written, seed=seed, cost=cost, failure=str(said))
    text = clean(said.text)
    return Sample(
        pair=pair,
        n=n,
        text=text or None,
        tokens=said.completion_tokens,
        seed=seed,
        truncated=said.truncated,
        cost=said.cost,
        failure=None if text else "empty answer",
    )


def clean(text: str) -> str:
    """As a reward model gets it: without thoughts, without the half character a token limit may leave."""
    return without_reasoning(text).strip().encode("utf-8", "replace").decode()
