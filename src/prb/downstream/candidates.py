"""The N candidate answers to a query: sampled from a policy or given in a file, scored by a reward model.

Made once, candidates are shared by all reward models. A scorer gives each one a reward; a comparer ranks them by
their win rates in a round robin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from prb.config import NonNegative, Size
from prb.data.schema import read_items
from prb.engine.executors import begin
from prb.errors import BadInput
from prb.evaluation.scoring import LARGEST_REWARD, checked_reward
from prb.failures import gravest
from prb.hashing import digest, draw
from prb.llm import LLM, Completion, Request, Sampling
from prb.llm.asking import without_thinking
from prb.models import refuse_recorded
from prb.prompts import PolicyPrompt, policy_chat
from prb.stats.best_of import meetings, win_rates
from prb.stats.credit import CREDIT
from prb.types import (
    Ask,
    Comparer,
    Duel,
    Failure,
    FailureKind,
    Pair,
    Query,
    Reward,
    RewardModel,
    Scorer,
    Verdict,
    writable,
)

MAX_COMPARED = 16
"""A round robin of 16 takes 240 verdicts per query; a comparer is refused for more."""
Place = tuple[str, int]
"""Pair id and number of the sample."""
Finite = Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD, allow_inf_nan=False)]
"""A reward as `checked_reward` lets it through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of `samples.jsonl`."""

    pair: str
    n: Size
    """0 to N − 1."""
    text: str | None
    tokens: Size
    """Tokens written by the policy."""
    seed: int
    truncated: bool = False
    """Whether the policy was stopped by max_tokens; the text is used all the same."""
    cost: NonNegative = 0.0
    failure: str | None = None
    failure_kind: FailureKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One line of `scores.jsonl`."""

    model: str
    pair: str
    n: Size
    score: Finite | None
    """The reward, or the win rate where the model is a comparer."""
    failure: str | None = None
    failure_kind: FailureKind | None = None
    cut: Size = 0
    """Posts that did not fit the model."""
    tokens: Size = 0
    cost: NonNegative = 0.0


def failure_of(line: Sample | Score) -> Failure | None:
    return None if line.failure is None else Failure.parse(line.failure, line.failure_kind)


class Pool(NamedTuple):
    """Answers that were made elsewhere."""

    fingerprint: str
    """Of the content, wherever the file is."""
    answers: Mapping[tuple[str, str], tuple[str, ...]]
    """By `("pair", id of a row)` or `("question", text)`."""

    def of(self, pair: Pair) -> tuple[str, ...]:
        return self.answers.get(("pair", pair.id)) or self.answers.get(("question", pair.question)) or ()


def read_pool(name: str) -> Pool:
    """Of a file, or `mirror`: the answers that ship with the embedded benchmark.

    A line has `pair` (id of a row) or `question`, and `answers`, `answer` or `text`; lines of a row add up. So
    `samples.jsonl` of an earlier run can be read; its failed samples are not candidates.
    """
    source = files("prb.data") / "mirror" / "pool.jsonl" if name == "mirror" else Path(name)
    answers: dict[tuple[str, str], list[str]] = {}
    with as_file(source) as path:
        for key, texts in read_items(path, _candidates):
            answers.setdefault(key, []).extend(texts)
    fingerprint = digest(sorted(answers.items())).hex()[:16]
    return Pool(fingerprint, {key: tuple(texts) for key, texts in answers.items()})


def _candidates(line: Mapping[str, Any]) -> tuple[tuple[str, str], list[str]]:
    key = next(((name, str(line[name])) for name in ("pair", "question") if line.get(name) is not None), None)
    if key is None:
        raise ValueError("`pair` (the id of a row) or `question` is missing")
    if line.get("failure") is not None:
        return key, []
    values = next((line[name] for name in ("answers", "answer", "text") if line.get(name) is not None), None)
    values = values if isinstance(values, list) else [values]
    texts = [clean(value) for value in values if isinstance(value, str)]
    if not texts or len(texts) != len(values) or not all(texts):
        raise ValueError("`answers` must be a list of texts that are not empty, or `answer` such a text")
    return key, texts


def sample_seed(seed: int, pair: str, n: int) -> int:
    """Fixed by the place alone, so subsets, orders and resumed runs draw the same answers."""
    return draw(seed, n, pair, bits=31)


def sample_answers(
    policy: LLM,
    places: Sequence[Place],
    queries: Mapping[str, Query | Failure],
    sampling: Sampling,
    style: PolicyPrompt = "prb",
) -> list[Sample]:
    """One sample per place; a place without a query is a failure, and the policy is not asked."""
    return start_samples(policy, places, queries, sampling, style)()


def start_samples(
    policy: LLM,
    places: Sequence[Place],
    queries: Mapping[str, Query | Failure],
    sampling: Sampling,
    style: PolicyPrompt = "prb",
) -> Callable[[], list[Sample]]:
    """The first half of `sample_answers`; calling the result is the second."""
    seeds = {place: sample_seed(sampling.seed, *place) for place in places}
    requests = {
        place: Request(policy_chat(query, style), replace(sampling, seed=seed))
        for place, seed in seeds.items()
        if isinstance(query := queries[place[0]], Query)
    }
    later = begin(policy, "complete", list(requests.values()))

    def finish() -> list[Sample]:
        replies = dict(zip(requests, later.result(), strict=True))
        return [_sample(*place, seed, replies.get(place, queries[place[0]])) for place, seed in seeds.items()]

    return finish


def _sample(pair: str, n: int, seed: int, reply: Completion | Failure | Query) -> Sample:
    assert not isinstance(reply, Query)  # a query that could be built got a reply
    place: dict[str, Any] = {"pair": pair, "n": n, "seed": seed, "tokens": reply.completion_tokens, "cost": reply.cost}
    if isinstance(reply, Failure):
        return Sample(text=None, failure=str(reply), failure_kind=reply.kind, **place)
    text = clean(reply.text)
    if not text:
        return Sample(text=None, truncated=reply.truncated, failure="empty answer", failure_kind="row", **place)
    return Sample(text=text, truncated=reply.truncated, **place)


def clean(text: str) -> str:
    """The text as reward models read it, without reasoning."""
    return writable(without_thinking(text).strip())


class Candidates(NamedTuple):
    """The samples of one pair, in order, and the query that a model is shown with them."""

    pair: str
    query: Query | Failure
    texts: Sequence[str]


def check_reward_model(name: str, model: RewardModel, n: int) -> Scorer | Comparer:
    """Refuse what cannot score new answers, and a comparer if n of them take too many verdicts."""
    if isinstance(model, Scorer):
        return model
    refuse_recorded(name, model, "best-of-N needs")
    if not isinstance(model, Comparer):
        raise BadInput(f"{name!r} is not a reward model: it has neither score() nor prefer()")
    if n > MAX_COMPARED:
        raise BadInput(
            f"{name!r} only compares answers: --n {n} would take {n * (n - 1)} verdicts per query; "
            f"use --n {MAX_COMPARED} or less"
        )
    return model


def score_candidates(name: str, model: Scorer | Comparer, batch: Sequence[Candidates]) -> list[Score]:
    """One line per sample, all pairs in one call. Equal texts are asked once and tie exactly."""
    return start_scores(name, model, batch)()


def start_scores(name: str, model: Scorer | Comparer, batch: Sequence[Candidates]) -> Callable[[], list[Score]]:
    """The first half of `score_candidates`; calling the result is the second."""
    tasks = {c.pair: (c.query, list(dict.fromkeys(c.texts))) for c in batch if isinstance(c.query, Query)}
    asks: list[Any]
    if isinstance(model, Scorer):
        asks = [Ask(query, text) for query, texts in tasks.values() for text in texts]
    else:
        asks = [Duel(query, texts[i], texts[j]) for query, texts in tasks.values() for i, j in meetings(len(texts))]
    later = begin(model, "score" if isinstance(model, Scorer) else "prefer", asks)

    def finish() -> list[Score]:
        answers = later.result()
        if len(answers) != len(asks):
            raise RuntimeError(f"the model gave {len(answers)} answers to {len(asks)} questions")
        remaining = iter(answers)
        results: dict[str, dict[str, float | Failure]] = {}
        for pair, (_, texts) in tasks.items():
            if isinstance(model, Scorer):
                rates = [checked_reward(next(remaining)) for _ in texts]
            else:
                rates = _round_robin(len(texts), [next(remaining) for _ in meetings(len(texts))])
            results[pair] = dict(zip(texts, rates, strict=True))
        return [line for candidates in batch for line in _lines(name, candidates, results.get(candidates.pair))]

    return finish


def _round_robin(n: int, verdicts: Sequence[Verdict | Failure]) -> list[float | Failure]:
    """One failed verdict fails the round robin. The cost of all verdicts is booked on the first answer."""
    valid = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    failed = [verdict for verdict in verdicts if isinstance(verdict, Failure)]
    tokens, cost = sum(v.tokens for v in valid), sum(v.cost for v in verdicts)
    if failed:
        tokens += sum(f.prompt_tokens + f.completion_tokens for f in failed)
        free = replace(gravest(failed), prompt_tokens=0, completion_tokens=0, cost=0.0)
        return [replace(free, prompt_tokens=tokens, cost=cost), *[free] * (n - 1)]
    rates = win_rates(n, [CREDIT[verdict.choice] for verdict in valid])
    return [Reward(rates[0], tokens=tokens, cost=cost, cut=max([v.cut for v in valid], default=0)), *rates[1:]]


def _lines(name: str, candidates: Candidates, results: Mapping[str, float | Failure] | None) -> Iterator[Score]:
    """The cost of a text that occurs several times is booked once."""
    booked: set[str] = set()
    for n, text in enumerate(candidates.texts):
        result = candidates.query if results is None else results[text]
        assert not isinstance(result, Query)
        first = results is not None and text not in booked  # a query that failed cost this model nothing
        booked.add(text)
        if isinstance(result, Failure):
            tokens, cost = (result.prompt_tokens + result.completion_tokens, result.cost) if first else (0, 0.0)
            failure: dict[str, Any] = {"failure": str(result), "failure_kind": result.kind}
            yield Score(model=name, pair=candidates.pair, n=n, score=None, **failure, tokens=tokens, cost=cost)
        elif first and isinstance(result, Reward):
            costs = {"cut": result.cut, "tokens": result.tokens, "cost": result.cost}
            yield Score(model=name, pair=candidates.pair, n=n, score=float(result), **costs)  # type: ignore[arg-type]
        else:
            yield Score(model=name, pair=candidates.pair, n=n, score=float(result))
