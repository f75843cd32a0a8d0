"""The N candidate answers to a query: sampled from a policy or given in a file, scored by a reward model.

Made once, candidates are shared by all reward models. A scorer gives each one a reward; a comparer ranks them by
their win rates in a round robin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from prb.config import NonNegative, Share, Size
from prb.data.schema import read_items
from prb.engine.executors import begin
from prb.errors import BadInput
from prb.evaluation.scoring import checked_reward
from prb.failures import gravest
from prb.hashing import digest, draw
from prb.llm import LLM, Completion, Request, Sampling
from prb.llm.asking import without_thinking
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
    Recorded,
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
Finite = Annotated[float, Field(allow_inf_nan=False)]


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

    @property
    def failed(self) -> Failure | None:
        return _failure(self)


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

    @property
    def failed(self) -> Failure | None:
        return _failure(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGrade:
    """What is read of a line of `grades.jsonl`."""

    pair: str
    n: Size
    score: Share | None
    failure: str | None
    failure_kind: FailureKind | None = None


def _failure(line: Sample | Score) -> Failure | None:
    if line.failure is None:
        return None
    reason, _, detail = line.failure.partition(": ")
    return Failure(reason, detail, kind=line.failure_kind or "row")


@dataclass(frozen=True)
class LineShape:
    """What a line of a stage must look like."""

    of: type
    """A dataclass with its fields; all of them but `failure_kind`, which earlier versions lack, must be there."""
    identity: tuple[str, ...]
    value: str | None = None
    """The field that is null exactly if the line is a failure."""

    def problem(self, line: Mapping[str, Any]) -> str | None:
        missing = [field.name for field in fields(self.of) if field.name not in (*line, "failure_kind")]
        if missing:
            return f"has no field {missing[0]!r}"
        try:
            self._adapter.validate_json(orjson.dumps(line), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            return f"has a wrong {first['loc'][0]!r}: {first['msg']}"
        if self.value and (line[self.value] is None) == (line["failure"] is None):
            return f"must have either {self.value!r} or 'failure'"
        return None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.of)


def read_stage(path: Path, shape: LineShape) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The lines of a stage by identity. A repeated line counts once; only a failure may be followed by another result
    for the same identity."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path), 1):
        problem = shape.problem(line)
        if problem:
            raise BadInput(f"{path} line {number} {problem}")
        key = tuple([line[name] for name in shape.identity])
        known = lines.get(key, line)
        if known != line and known["failure"] is None:
            named = ", ".join(f"{name} {value!r}" for name, value in zip(shape.identity, key, strict=True))
            raise BadInput(f"{path} line {number} contradicts an earlier line for {named}; remove one of them")
        lines[key] = line
    return lines


class Pool(NamedTuple):
    """Answers that were made elsewhere, by id of a row or by question."""

    fingerprint: str
    answers: Mapping[str, tuple[str, ...]]

    def of(self, pair: Pair) -> tuple[str, ...]:
        return self.answers.get(f"pair {pair.id}") or self.answers.get(f"question {pair.question}") or ()

    def samples(self, pair: Pair, n: int) -> list[Sample]:
        answers = self.of(pair)
        if len(answers) < n:
            raise BadInput(f"row {pair.id!r} has {len(answers)} candidates; give --n {len(answers)} or less")
        return [Sample(pair=pair.id, n=i, text=text, tokens=0, seed=0) for i, text in enumerate(answers[:n])]


def read_pool(name: str) -> Pool:
    """Of a file, or `mirror`: the answers that ship with the embedded benchmark.

    A line has `pair` (id of a row) or `question`, and `answers`, `answer` or `text`; lines of a row add up.
    """
    source = files("prb.data") / "mirror" / "pool.jsonl" if name == "mirror" else Path(name)
    answers: dict[str, list[str]] = {}
    with as_file(source) as path:  # type: ignore[arg-type]
        for key, texts in read_items(path, _candidates):
            answers.setdefault(key, []).extend(texts)
    return Pool(digest(answers).hex()[:16], {key: tuple(texts) for key, texts in answers.items()})


def _candidates(line: Mapping[str, Any]) -> tuple[str, list[str]]:
    given = line.get("answers", [line.get("answer", line.get("text"))])
    texts = [clean(text) for text in given if isinstance(text, str)] if isinstance(given, list) else []
    if not texts or len(texts) != len(given) or not all(texts):
        raise ValueError("`answers` must be a list of texts that are not empty, or `answer` such a text")
    for name in ("pair", "question"):
        if name in line:
            return f"{name} {line[name]}", texts
    raise ValueError("`pair` (the id of a row) or `question` is missing")


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
    return lambda: _samples(seeds, queries, dict(zip(requests, later.result(), strict=True)))


def _samples(
    seeds: Mapping[Place, int], queries: Mapping[str, Query | Failure], replies: Mapping[Place, Completion | Failure]
) -> list[Sample]:
    samples = []
    for (pair, n), seed in seeds.items():
        reply = replies.get((pair, n), queries[pair])
        assert not isinstance(reply, Query)
        if isinstance(reply, Failure):
            tokens, cost = reply.completion_tokens, reply.cost
            failure: dict[str, Any] = {"failure": str(reply), "failure_kind": reply.kind}
            samples.append(Sample(pair=pair, n=n, text=None, tokens=tokens, seed=seed, cost=cost, **failure))
            continue
        text = clean(reply.text)
        samples.append(
            Sample(
                pair=pair,
                n=n,
                text=text or None,
                tokens=reply.completion_tokens,
                seed=seed,
                truncated=reply.truncated,
                cost=reply.cost,
                failure=None if text else "empty answer",
                failure_kind=None if text else "row",
            )
        )
    return samples


def clean(text: str) -> str:
    """The text as reward models read it, without reasoning."""
    return writable(without_thinking(text).strip())


class Candidates(NamedTuple):
    """The samples of one pair, in order, and the query that a model is shown with them."""

    pair: str
    query: Query | Failure
    texts: Sequence[str]


class _Task(NamedTuple):
    """What a model is asked for one pair: each distinct text once."""

    query: Query
    texts: list[str]


def check_reward_model(name: str, model: RewardModel, n: int) -> Scorer | Comparer:
    """Refuse what cannot score new answers, and a comparer if n of them take too many verdicts."""
    if isinstance(model, Scorer):
        return model
    if isinstance(model, Recorded):
        raise BadInput(f"{name!r} holds recorded scores; best-of-N needs a model that can score new answers")
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
    tasks = {c.pair: _Task(c.query, list(dict.fromkeys(c.texts))) for c in batch if isinstance(c.query, Query)}
    asks: list[Any]
    if isinstance(model, Scorer):
        asks, rate = [Ask(task.query, text) for task in tasks.values() for text in task.texts], _rewards
    else:
        asks = [Duel(query, texts[i], texts[j]) for query, texts in tasks.values() for i, j in meetings(len(texts))]
        rate = _win_rates  # type: ignore[assignment]
    later = begin(model, "score" if isinstance(model, Scorer) else "prefer", asks)

    def finish() -> list[Score]:
        answers = later.result()
        if len(answers) != len(asks):
            raise RuntimeError(f"the model gave {len(answers)} answers to {len(asks)} questions")
        results = rate(answers, tasks)
        return [line for candidates in batch for line in _lines(name, candidates, results.get(candidates.pair))]

    return finish


def _rewards(rewards: Iterable[float | Failure], tasks: Mapping[str, _Task]) -> dict[str, dict[str, float | Failure]]:
    remaining = iter(rewards)
    return {pair: {text: checked_reward(next(remaining)) for text in task.texts} for pair, task in tasks.items()}


def _win_rates(
    verdicts: Iterable[Verdict | Failure], tasks: Mapping[str, _Task]
) -> dict[str, dict[str, float | Failure]]:
    remaining = iter(verdicts)
    rates: dict[str, dict[str, float | Failure]] = {}
    for pair, task in tasks.items():
        n = len(task.texts)
        rates[pair] = dict(zip(task.texts, _round_robin(n, [next(remaining) for _ in meetings(n)]), strict=True))
    return rates


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
