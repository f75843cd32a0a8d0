"""The N candidate answers to a query: sampled from a policy or given in a file, scored by a reward model.

Made once, candidates are shared by all reward models. A scorer gives each one a reward; a comparer ranks them by
their win rates in a round robin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from prb.config import NonNegative, Share, Size
from prb.data.schema import read_items
from prb.errors import BadInput
from prb.failures import gravest, halve_if_out_of_memory
from prb.hashing import digest, draw
from prb.llm import LLM, Completion, Request, Sampling
from prb.llm.asking import without_thinking
from prb.models import refuse_recorded
from prb.prompts import PolicyPrompt, policy_chat
from prb.runs import read_lines
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
from prb.work import LARGEST_REWARD, checked_reward

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGrade:
    """What is read of a line of `grades.jsonl`."""

    pair: str
    n: Size
    score: Share | None
    failure: str | None = None
    failure_kind: FailureKind | None = None


@dataclass(frozen=True)
class LineShape:
    """What a line of a file that a run derives must look like."""

    of: type
    identity: tuple[str, ...]

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.of)


SAMPLES, SCORES, GRADES = "samples.jsonl", "scores.jsonl", "grades.jsonl"
STAGES = {
    SAMPLES: LineShape(Sample, ("pair", "n")),
    SCORES: LineShape(Score, ("model", "pair", "n")),
    GRADES: LineShape(SampleGrade, ("pair", "n")),
}


def read_stage(path: Path, shape: LineShape) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The lines of a file by identity; the last one of an identity counts."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path), 1):
        try:
            shape.adapter.validate_json(orjson.dumps(line), strict=True)
        except ValidationError as error:
            problem = error.errors()[0]
            where = f"{path}, line {number}: {'.'.join(map(str, problem['loc']))}"
            raise BadInput(f"{where}: {problem['msg']}; run its command again to rewrite it") from None
        lines[tuple([line[name] for name in shape.identity])] = line
    return lines


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


def sample_requests(
    places: Sequence[Place], queries: Mapping[str, Query | Failure], sampling: Sampling, style: PolicyPrompt = "prb"
) -> dict[Place, Request]:
    """What the policy is asked for each place that has a query."""
    return {
        place: Request(policy_chat(query, style), replace(sampling, seed=sample_seed(sampling.seed, *place)))
        for place in places
        if isinstance(query := queries[place[0]], Query)
    }


def sample_answers(
    policy: LLM,
    places: Sequence[Place],
    queries: Mapping[str, Query | Failure],
    sampling: Sampling,
    style: PolicyPrompt = "prb",
) -> list[Sample]:
    """One sample per place; a place without a query is a failure, and the policy is not asked."""
    requests = sample_requests(places, queries, sampling, style)
    completed = policy.complete(list(requests.values()))
    replies = {**{(p, n): queries[p] for p, n in places}, **dict(zip(requests, completed, strict=True))}
    return [sample_of(place, sampling.seed, replies[place]) for place in places]


def sample_of(place: Place, seed: int, reply: Completion | Failure | Query) -> Sample:
    assert not isinstance(reply, Query)  # a query that could be built got a reply
    used = {"seed": sample_seed(seed, *place), "tokens": reply.completion_tokens, "cost": reply.cost}
    about: dict[str, Any] = {"pair": place[0], "n": place[1], **used}
    if isinstance(reply, Failure):
        return Sample(text=None, failure=str(reply), failure_kind=reply.kind, **about)
    text = clean(reply.text)
    if not text:
        return Sample(text=None, truncated=reply.truncated, failure="empty answer", failure_kind="row", **about)
    return Sample(text=text, truncated=reply.truncated, **about)


def clean(text: str) -> str:
    """The text as reward models read it, without reasoning."""
    return writable(without_thinking(text).strip())


class Candidates(NamedTuple):
    """The samples of one pair, in order, and the query that a model is shown with them."""

    pair: str
    query: Query | Failure
    texts: Sequence[str]

    @property
    def distinct(self) -> list[str]:
        return list(dict.fromkeys(self.texts))


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
    asks = [asks_about(model, candidates) for candidates in batch]
    method = model.score if isinstance(model, Scorer) else model.prefer
    answers: list[Any] = halve_if_out_of_memory(method, [ask for of_one in asks for ask in of_one])  # type: ignore[arg-type]
    if len(answers) != sum(map(len, asks)):
        raise RuntimeError(f"the model gave {len(answers)} answers to {sum(map(len, asks))} questions")
    remaining = iter(answers)
    return [
        line
        for candidates, of_one in zip(batch, asks, strict=True)
        for line in scores_of(name, candidates, [next(remaining) for _ in of_one])
    ]


def asks_about(model: Scorer | Comparer, candidates: Candidates) -> Sequence[Ask | Duel]:
    """Every distinct text once, or every two of them in both orders."""
    query, texts = candidates.query, candidates.distinct
    if isinstance(query, Failure):
        return []
    if isinstance(model, Scorer):
        return [Ask(query, text) for text in texts]
    return [Duel(query, texts[i], texts[j]) for i, j in meetings(len(texts))]


def scores_of(name: str, candidates: Candidates, answers: Sequence[float | Verdict | Failure]) -> list[Score]:
    """A line per sample from what a model answered to `asks_about`."""
    texts = candidates.distinct
    rewards = [answer for answer in answers if not isinstance(answer, Verdict)]
    if isinstance(candidates.query, Failure):
        return list(_lines(name, candidates, None))
    if len(rewards) == len(texts):
        results = list(map(checked_reward, rewards))
    else:
        results = _round_robin(len(texts), [answer for answer in answers if isinstance(answer, Verdict | Failure)])
    return list(_lines(name, candidates, dict(zip(texts, results, strict=True))))


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
